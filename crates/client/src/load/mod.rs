//! The load: threads, connections, workers, and the command that watches them.
//!
//! Each thread has a runtime, its share of the connections and a tally of its own; a worker is a
//! task with one call in flight.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{anyhow, bail};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::open_loop::wake_exactly;
use super::options::BenchArgs;
use super::progress::Progress;
use super::requests::{Client, Requests};
use super::schedule::Schedule;
use super::tally::{Tally, Times};
use crate::cli::client::{Server, runtime};
use crate::cli::signals::Signals;

const SECOND: Duration = Duration::from_secs(1);

/// What a load has measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) tally: Tally,
    /// From the first measured call to the end of the measured time, or the start of the last call
    /// if that is later; where a number of calls was asked for, to the last answer.
    pub(super) elapsed: Duration,
    pub(super) is_interrupted: bool,
    /// Calls that were in flight when a second signal ended the wait for them.
    pub(super) unanswered: u64,
    /// Of an open loop.
    pub(super) target: Option<Target>,
}

/// How an open loop has met its rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Calls per second that were asked for.
    pub(super) rate: u32,
    /// Calls that were due and never made.
    pub(super) unsent: u64,
    /// How late the last call was.
    pub(super) behind: Duration,
    pub(super) is_reached: bool,
}

/// Loads the server until the plan is fulfilled, or the first signal; a second one does not wait
/// for what is in flight.
pub(super) async fn run(args: &BenchArgs) -> anyhow::Result<Measured> {
    let signals = Signals::listen()?;
    let mut threads = Threads::spawn(args)?;
    let schedule = tokio::select! {
        begun = threads.begin(args) => begun?,
        () = signals.count_to(1) => bail!("ended before the load began"),
    };
    let mut progress = Progress::new(args.progress, &schedule);
    let mut tally = Tally::new();
    let mut second = interval(SECOND);
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    second.tick().await;
    loop {
        tokio::select! {
            () = threads.finished() => {
                threads.join()?;
                break;
            }
            _ = second.tick() => {
                let last_second = threads.take_tally();
                progress.show(&last_second);
                tally.add(&last_second);
            }
            () = signals.count_to(1), if !schedule.is_stopped() => schedule.stop(),
            () = signals.count_to(2) => break,
        }
    }
    progress.clear();
    tally.add(&threads.take_tally());
    if tally.measured.calls == 0 {
        let is_sent = schedule.taken() > 0;
        bail!(if is_sent { "no call was answered" } else { "ended before measuring began" });
    }
    Ok(Measured::new(tally, &schedule))
}

impl Measured {
    fn new(tally: Tally, schedule: &Schedule) -> Self {
        let until = match schedule.measured_until() {
            Some(until) => until.max(tally.last.started),
            None => tally.last.answered,
        };
        Self {
            elapsed: until.saturating_sub(schedule.plan().warm_up),
            is_interrupted: schedule.is_stopped(),
            unanswered: schedule.taken().saturating_sub(tally.measured.calls),
            target: Target::new(&tally, schedule),
            tally,
        }
    }
}

impl Target {
    fn new(tally: &Tally, schedule: &Schedule) -> Option<Self> {
        /// What a thread that was not woken for a while makes up for.
        const SLACK: Duration = Duration::from_millis(10);
        let rate = schedule.plan().rate?.get();
        let unsent = schedule.due()?.saturating_sub(schedule.taken());
        let behind = tally.last.started.saturating_sub(tally.last.intended);
        let planned = tally.last.intended.saturating_sub(schedule.plan().warm_up);
        let is_reached = unsent == 0 && behind <= planned / 100 + SLACK;
        Some(Self { rate, unsent, behind, is_reached })
    }
}

/// The threads of a load.
struct Threads {
    handles: Vec<JoinHandle<()>>,
    tallies: Vec<Arc<Mutex<Tally>>>,
    ready: mpsc::Receiver<anyhow::Result<Start>>,
    running: mpsc::Receiver<()>,
}

/// Gives a thread that is connected what it is to do.
type Start = oneshot::Sender<Arc<Schedule>>;

impl Threads {
    fn spawn(args: &BenchArgs) -> anyhow::Result<Self> {
        let (server, requests) = (args.server.server()?, Arc::new(Requests::new(args)));
        let (to_start, ready) = mpsc::channel(usize::from(args.threads));
        let (alive, running) = mpsc::channel(1);
        let mut threads = Self { handles: Vec::new(), tallies: Vec::new(), ready, running };
        for number in 0..args.threads {
            let tally = Arc::new(Mutex::new(Tally::new()));
            threads.tallies.push(Arc::clone(&tally));
            let thread = Thread {
                server: server.clone(),
                connections: (args.connections - number).div_ceil(args.threads),
                streams: args.streams,
                requests: Arc::clone(&requests),
                tally,
                _alive: alive.clone(),
            };
            let (runtime, to_start) = (runtime()?, to_start.clone());
            let handle = thread::Builder::new()
                .name(format!("load-{number}"))
                .spawn(move || runtime.block_on(thread.run(to_start)))?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }

    /// Waits until every connection is made, then begins.
    async fn begin(&mut self, args: &BenchArgs) -> anyhow::Result<Arc<Schedule>> {
        let mut starts = Vec::new();
        while starts.len() < self.handles.len() {
            let start = self.ready.recv().await.ok_or_else(|| anyhow!("a thread has ended"))?;
            starts.push(start?);
        }
        let schedule = Arc::new(Schedule::begin(args.plan()));
        for start in starts {
            // A thread that has ended is seen when it is joined.
            let _ended = start.send(Arc::clone(&schedule));
        }
        wake_exactly();
        let pacing = Arc::clone(&schedule);
        thread::Builder::new().name("pace".to_owned()).spawn(move || pacing.pace())?;
        Ok(schedule)
    }

    async fn finished(&mut self) {
        let _all_gone = self.running.recv().await;
    }

    fn join(&mut self) -> anyhow::Result<()> {
        for handle in self.handles.drain(..) {
            handle.join().map_err(|_| anyhow!("a thread of the load has panicked"))?;
        }
        Ok(())
    }

    /// What was counted since the last time.
    fn take_tally(&self) -> Tally {
        let mut sum = Tally::new();
        for tally in &self.tallies {
            let fresh = Tally::new();
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = std::mem::replace(&mut *tally, fresh);
            drop(tally);
            sum.add(&taken);
        }
        sum
    }
}

struct Thread {
    server: Server,
    connections: u16,
    streams: u16,
    requests: Arc<Requests>,
    tally: Arc<Mutex<Tally>>,
    /// Dropped with the thread: tells that it has finished.
    _alive: mpsc::Sender<()>,
}

impl Thread {
    async fn run(self, ready: mpsc::Sender<anyhow::Result<Start>>) {
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            match self.server.connect().await {
                Ok(client) => clients.push(Client::new(client.channel())),
                Err(error) => {
                    let _nobody_waits = ready.send(Err(error)).await;
                    return;
                }
            }
        }
        let (start, schedule) = oneshot::channel();
        let _nobody_waits = ready.send(Ok(start)).await;
        let Ok(schedule) = schedule.await else { return };
        let mut workers = JoinSet::new();
        // The first calls go out on all connections in turn.
        for _ in 0..self.streams {
            for client in &clients {
                let worker = Worker {
                    client: client.clone(),
                    schedule: Arc::clone(&schedule),
                    requests: Arc::clone(&self.requests),
                    tally: Arc::clone(&self.tally),
                };
                workers.spawn(worker.run());
            }
        }
        workers.join_all().await;
    }
}

struct Worker {
    client: Client,
    schedule: Arc<Schedule>,
    requests: Arc<Requests>,
    tally: Arc<Mutex<Tally>>,
}

impl Worker {
    async fn run(mut self) {
        while let Some(call) = self.schedule.next().await {
            let started = self.schedule.elapsed();
            let counts = self.requests.ask(&mut self.client, call.number).await;
            let answered = self.schedule.elapsed();
            let times = Times { intended: call.intended, started, answered };
            let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.record(&call, times, &counts);
        }
    }
}
