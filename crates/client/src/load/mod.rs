//! A load generator, by feature `load`: the one behind `rlaas bench`.
//!
//! Each thread of a [`Load`] has a runtime, its share of the connections and a stats of its own; a
//! worker is a task with one call in flight. In a closed loop a new call starts as soon as an earlier
//! one is answered. In an open loop ([`LoadPlan::rate`]) each call has a time at which it is meant to
//! start, and its latency counts from then: a server that stalls makes callers wait, and their wait
//! is measured.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/server.rs"));
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = serve().await;
//! use std::time::Duration;
//!
//! use rlaas_client::Client;
//! use rlaas_client::load::{Length, Load, LoadPlan, LoadSettings, LoadStats};
//!
//! let plan = LoadPlan { rate: None, warm_up: Duration::ZERO, length: Length::Calls(100) };
//! let settings = LoadSettings { plan, ids: 10, ..LoadSettings::default() };
//! let mut load = Load::start(&Client::builder(address), &settings).await?;
//! load.finished().await?;
//! let measured = load.measured(LoadStats::default())?;
//! // Two for each of the ten.
//! assert_eq!((measured.stats.measured.allowed, measured.stats.measured.denied), (20, 80));
//! assert!(measured.stats.answered.value_at_quantile(0.5) > 0);
//! # Ok(())
//! # }
//! ```

mod ids;
mod open_loop;
mod requests;
mod schedule;
mod stats;
mod threads;

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use thiserror::Error;

pub use self::ids::Distribution;
use self::open_loop::minimize_timer_slack;
use self::schedule::Schedule;
pub use self::schedule::{Length, LoadPlan};
pub use self::stats::{Counts, LoadStats};
use self::threads::Threads;
use crate::client::{ClientBuilder, ConnectError};

/// What a load asks for, and how.
#[derive(Clone, Debug)]
pub struct LoadSettings {
    /// When calls are made.
    pub plan: LoadPlan,
    /// Connections to the server: at least 1.
    pub connections: u16,
    /// Calls in flight on each connection: at least 1.
    pub streams: u16,
    /// Threads that share the connections: 1 to `connections`.
    pub threads: u16,
    /// Different user ids: at least 1.
    pub ids: u32,
    /// How often each id is asked for.
    pub distribution: Distribution,
    /// Makes the sequence of ids: the same in each load with it.
    pub seed: u64,
    /// What is asked for, such as a path.
    pub resource: String,
    /// Units that each request takes; unset is 1.
    pub cost: Option<u64>,
    /// Requests in each call, by `CheckBatch`; unset is one, by `Check`.
    pub batch: Option<u16>,
}

impl Default for LoadSettings {
    /// A closed loop of `Check` for ten seconds after two of warm-up: 4 connections with 32 calls in
    /// flight each, 1,000 ids.
    fn default() -> Self {
        let length = Length::Duration(Duration::from_secs(10));
        Self {
            plan: LoadPlan { rate: None, warm_up: Duration::from_secs(2), length },
            connections: 4,
            streams: 32,
            threads: 1,
            ids: 1_000,
            distribution: Distribution::Uniform,
            seed: 1,
            resource: String::new(),
            cost: None,
            batch: None,
        }
    }
}

impl LoadSettings {
    fn validate(&self) -> Result<(), LoadError> {
        let counts = [u32::from(self.connections), self.streams.into(), self.threads.into()];
        if counts.contains(&0) || self.ids == 0 {
            return Err(LoadError::Settings(
                "connections, streams, threads and ids must be above 0",
            ));
        }
        if self.threads > self.connections {
            return Err(LoadError::Settings("threads must be 1 to connections"));
        }
        Ok(())
    }
}

/// Why there is no load, or no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A setting is out of bounds.
    #[error("{0}")]
    Settings(&'static str),
    /// A connection was not made.
    #[error(transparent)]
    Connect(ConnectError),
    /// The system has no thread or runtime to give.
    #[error(transparent)]
    Thread(#[from] io::Error),
    /// A bug.
    #[error("a thread of the load has panicked")]
    Panicked,
    /// Calls were made, and the load was ended before one was answered.
    #[error("no call was answered")]
    NoAnswer,
    /// The load was ended during its warm-up.
    #[error("ended before measuring began")]
    NotMeasured,
}

/// A load that has begun. If it is dropped it goes on to its end; see [`Load::stop`].
#[derive(Debug)]
pub struct Load {
    threads: Threads,
    schedule: Arc<Schedule>,
}

/// What a load has measured.
#[derive(Debug)]
pub struct Measured {
    /// Counts and times.
    pub stats: LoadStats,
    /// From the first measured call to the end of the measured time, or the start of the last call
    /// if that is later; where a number of calls was asked for, to the last answer.
    pub elapsed: Duration,
    /// Returns `true` if the load was ended early.
    pub is_interrupted: bool,
    /// Calls that were in flight when the wait for them was given up.
    pub unanswered: u64,
    /// Of an open loop.
    pub rate: Option<RateReport>,
}

/// How an open loop has met its rate.
#[derive(Clone, Copy, Debug)]
pub struct RateReport {
    /// Calls per second that were asked for.
    pub rate: u32,
    /// Calls that were due and never made.
    pub unsent: u64,
    /// How late the last call was.
    pub behind: Duration,
    /// True if all calls were made, the last one not much too late.
    pub is_reached: bool,
}

impl Load {
    /// Makes all connections, then begins.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a setting is out of bounds, or a connection is not made.
    pub async fn start(client: &ClientBuilder, settings: &LoadSettings) -> Result<Self, LoadError> {
        settings.validate()?;
        let mut threads = Threads::spawn(client, settings)?;
        let starts = threads.connected().await?;
        let schedule = Arc::new(Schedule::start(settings.plan));
        for start in starts {
            // A thread that has ended is seen when it is joined.
            let _ended = start.send(Arc::clone(&schedule));
        }
        minimize_timer_slack();
        let pacing = Arc::clone(&schedule);
        thread::Builder::new().name("pace".to_owned()).spawn(move || pacing.pace())?;
        Ok(Self { threads, schedule })
    }

    /// Waits until the last call is answered. May be cancelled and called again.
    ///
    /// # Errors
    ///
    /// [`LoadError::Panicked`], a bug.
    pub async fn finished(&mut self) -> Result<(), LoadError> {
        self.threads.finished().await
    }

    /// Ends early: calls that have not started do not start any more.
    pub fn stop(&self) {
        self.schedule.stop();
    }

    /// Returns `true` if the load was ended early.
    pub fn is_stopped(&self) -> bool {
        self.schedule.is_stopped()
    }

    /// Returns the time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.schedule.elapsed()
    }

    /// Returns when measuring ends, since the beginning, unless it ends with a number of calls.
    pub fn measured_until(&self) -> Option<Duration> {
        self.schedule.measured_until()
    }

    /// Takes what was counted since the last time.
    pub fn take_stats(&self) -> LoadStats {
        self.threads.take_stats()
    }

    /// Returns the result, of which `stats` was taken before.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoAnswer`] or [`LoadError::NotMeasured`] if there is none.
    pub fn measured(&self, mut stats: LoadStats) -> Result<Measured, LoadError> {
        let schedule = &self.schedule;
        stats.add(&self.take_stats());
        if stats.measured.calls == 0 {
            let is_sent = schedule.taken() > 0;
            return Err(if is_sent { LoadError::NoAnswer } else { LoadError::NotMeasured });
        }
        let until = match schedule.measured_until() {
            Some(until) => until.max(stats.last.started),
            None => stats.last.answered,
        };
        Ok(Measured {
            elapsed: until.saturating_sub(schedule.plan().warm_up),
            is_interrupted: schedule.is_stopped(),
            unanswered: schedule.taken().saturating_sub(stats.measured.calls),
            rate: RateReport::new(&stats, schedule),
            stats,
        })
    }
}

impl RateReport {
    fn new(stats: &LoadStats, schedule: &Schedule) -> Option<Self> {
        /// What a thread that was not woken for a while makes up for.
        const SLACK: Duration = Duration::from_millis(10);
        let rate = schedule.plan().rate?.get();
        let unsent = schedule.due()?.saturating_sub(schedule.taken());
        let behind = stats.last.started.saturating_sub(stats.last.intended);
        let planned = stats.last.intended.saturating_sub(schedule.plan().warm_up);
        let is_reached = unsent == 0 && behind <= planned / 100 + SLACK;
        Some(Self { rate, unsent, behind, is_reached })
    }
}
