//! The load generator behind `rlaas bench`. Requires the feature `load`.
//!
//! A worker is a task with one call in flight. In a closed loop a worker starts the next call when
//! the previous one is answered. In an open loop ([`LoadPlan::rate`]) each call has an intended
//! start, and its latency counts from then. So the latency includes the time that calls wait while
//! the server stalls.
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
//! // The server allows two requests for each of the ten ids.
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
mod workers;

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
use self::workers::Workers;
use crate::client::{ClientBuilder, ConnectError};

/// The settings of a load.
#[derive(Clone, Debug)]
pub struct LoadSettings {
    /// Timing of the calls.
    pub plan: LoadPlan,
    /// Connections to the server: at least 1.
    pub connections: u16,
    /// Calls in flight on each connection: at least 1.
    pub streams: u16,
    /// Different user ids: at least 1.
    pub ids: u32,
    /// Distribution of ids over requests.
    pub distribution: Distribution,
    /// Seed of the sequence of ids. Loads with the same seed have the same sequence.
    pub seed: u64,
    /// Resource of the requests, such as a path.
    pub resource: String,
    /// Units that each request takes; `None` means 1.
    pub cost: Option<u64>,
}

impl Default for LoadSettings {
    /// Returns the settings of a closed loop of `Check`: 2 s of warm-up and 10 s of measuring, 4
    /// connections with 32 calls in flight each, 1,000 ids.
    fn default() -> Self {
        let length = Length::Duration(Duration::from_secs(10));
        Self {
            plan: LoadPlan { rate: None, warm_up: Duration::from_secs(2), length },
            connections: 4,
            streams: 32,
            ids: 1_000,
            distribution: Distribution::Uniform,
            seed: 1,
            resource: String::new(),
            cost: None,
        }
    }
}

impl LoadSettings {
    fn validate(&self) -> Result<(), LoadError> {
        if [u32::from(self.connections), self.streams.into(), self.ids].contains(&0) {
            return Err(LoadError::Settings("connections, streams and ids must be above 0"));
        }
        Ok(())
    }
}

/// The reason why there is no load or no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A setting is out of bounds.
    #[error("{0}")]
    Settings(&'static str),
    /// A connection was not established.
    #[error(transparent)]
    Connect(ConnectError),
    /// A thread could not be created.
    #[error(transparent)]
    Thread(#[from] io::Error),
    /// A worker of the load panicked, which is a bug.
    #[error("a worker of the load has panicked")]
    Panicked,
    /// The load ended before a call was answered.
    #[error("no call was answered")]
    NoAnswer,
    /// The load ended during the warm-up.
    #[error("stopped before measuring began")]
    NotMeasured,
}

/// A running load. Dropping it ends the load.
#[derive(Debug)]
pub struct Load {
    workers: Workers,
    schedule: Arc<Schedule>,
}

/// The result of a load.
#[derive(Debug)]
pub struct Measured {
    /// Counts and latencies.
    pub stats: LoadStats,
    /// Duration of the measured part. Ends with the planned time, or with the start of the last
    /// call if that is later. For [`Length::Calls`] it ends with the last answer.
    pub elapsed: Duration,
    /// Whether the load was stopped early.
    pub is_interrupted: bool,
    /// Calls without an answer when the load ended.
    pub unanswered: u64,
    /// Whether an open loop reached its rate; `None` for a closed loop.
    pub rate: Option<RateReport>,
}

/// The rate of an open loop, planned and reached.
#[derive(Clone, Copy, Debug)]
pub struct RateReport {
    /// Planned calls per second.
    pub rate: u32,
    /// Calls that were due and were not started.
    pub unsent: u64,
    /// Delay of the start of the last call.
    pub behind: Duration,
    /// Whether all calls were started, and the last one with a small delay only.
    pub is_reached: bool,
}

impl Load {
    /// Establishes all connections, then starts the calls.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a setting is out of bounds, or if a connection is not established.
    pub async fn start(client: &ClientBuilder, settings: &LoadSettings) -> Result<Self, LoadError> {
        settings.validate()?;
        let clients = workers::connect(client, settings.connections).await?;
        let schedule = Arc::new(Schedule::start(settings.plan));
        let workers = Workers::start(&clients, settings, &schedule);
        minimize_timer_slack();
        let pacing = Arc::clone(&schedule);
        thread::Builder::new().name("pace".to_owned()).spawn(move || pacing.pace())?;
        Ok(Self { workers, schedule })
    }

    /// Waits until the last call is answered. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`LoadError::Panicked`] if a worker panicked.
    pub async fn finished(&mut self) -> Result<(), LoadError> {
        self.workers.finished().await
    }

    /// Stops early: no further call starts.
    pub fn stop(&self) {
        self.schedule.stop();
    }

    /// Returns `true` if the load was stopped early.
    pub fn is_stopped(&self) -> bool {
        self.schedule.is_stopped()
    }

    /// Returns the time since the start of the load.
    pub fn elapsed(&self) -> Duration {
        self.schedule.elapsed()
    }

    /// Returns the end of measuring as a time since the start of the load; `None` for
    /// [`Length::Calls`].
    pub fn measured_until(&self) -> Option<Duration> {
        self.schedule.measured_until()
    }

    /// Returns the statistics since the previous call, and resets them.
    pub fn take_stats(&self) -> LoadStats {
        self.workers.take_stats()
    }

    /// Returns the result. `stats` is the sum of all earlier [`Load::take_stats`].
    ///
    /// # Errors
    ///
    /// [`LoadError::NoAnswer`] or [`LoadError::NotMeasured`] if there is no result.
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
        /// Delay that late wake-ups of a thread may cause.
        const SLACK: Duration = Duration::from_millis(10);
        let rate = schedule.plan().rate?.get();
        let unsent = schedule.due()?.saturating_sub(schedule.taken());
        let behind = stats.last.started.saturating_sub(stats.last.intended);
        let planned = stats.last.intended.saturating_sub(schedule.plan().warm_up);
        let is_reached = unsent == 0 && behind <= planned / 100 + SLACK;
        Some(Self { rate, unsent, behind, is_reached })
    }
}
