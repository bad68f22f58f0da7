//! Worker threads: each serves its share of the connections on a runtime of its own.
//!
//! A request stays on one thread from its first byte to its last. That costs nothing in locks and
//! wake-ups between threads, which is most of what a decision in memory costs otherwise.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, yield_now};
use tracing::debug;

use super::Flag;
use super::connection::Host;
use super::connection_limit::Seat;
use super::socket::Parked;
use crate::limiter::Limiter;

/// Connections that wait for a worker to take them.
const QUEUE: usize = 128;

/// The running workers.
#[derive(Debug)]
pub(super) struct Workers {
    intake: Intake,
    running: mpsc::Receiver<()>,
    rest: Rest,
}

/// Keeps threads that have served what was in flight until it is dropped: others may use their
/// connections to the store.
#[derive(Debug)]
pub(super) struct Rest(#[expect(dead_code, reason = "is dropped")] watch::Sender<bool>);

/// A connection that takes a seat.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) connection: Parked,
    pub(super) seat: Seat,
}

/// Where connections go in. Clones share the turn.
#[derive(Clone, Debug)]
pub(super) struct Intake {
    queues: Arc<[mpsc::Sender<Arrival>]>,
    next: Arc<AtomicUsize>,
}

impl Intake {
    /// Gives a connection to the next worker.
    pub(super) async fn take(&self, arrival: Arrival) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        // A worker that has ended takes nothing: the connection is closed.
        let _ended = self.queues[turn].send(arrival).await;
    }
}

impl Workers {
    /// Starts `count` threads that serve until `drain`.
    pub(super) fn spawn(
        count: NonZeroUsize,
        limiter: &Limiter,
        host: &impl Fn(&Limiter) -> Host,
        drain: &Flag,
    ) -> io::Result<Self> {
        let (alive, running) = mpsc::channel(1);
        let mut queues = Vec::new();
        let (rest, over) = watch::channel(false);
        for number in 0..count.get() {
            let (queue, arrivals) = mpsc::channel(QUEUE);
            queues.push(queue);
            let (limiter, keep_connections) = limiter.for_worker();
            let (host, drain, alive) = (host(&limiter), drain.clone(), alive.clone());
            let name = format!("{}-{number}", host.name());
            let worker = Worker { arrivals, host, drain, alive, over: Flag(over.clone()) };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            // Ends with the runtime.
            runtime.spawn(keep_connections);
            thread::Builder::new().name(name).spawn(move || runtime.block_on(worker.run()))?;
        }
        let intake = Intake { queues: queues.into(), next: Arc::default() };
        Ok(Self { intake, running, rest: Rest(rest) })
    }

    pub(super) fn intake(&self) -> Intake {
        self.intake.clone()
    }

    /// Completes when every worker has served what is in flight. They end once they drain, their
    /// queues are empty and nobody holds the intake any more.
    pub(super) async fn finish(self) -> Rest {
        let Self { intake, mut running, rest, .. } = self;
        drop(intake);
        let _all_gone = running.recv().await;
        rest
    }
}

struct Worker {
    arrivals: mpsc::Receiver<Arrival>,
    host: Host,
    drain: Flag,
    /// Dropped when the worker has finished: tells so.
    alive: mpsc::Sender<()>,
    /// Until then its thread stays.
    over: Flag,
}

impl Worker {
    async fn run(mut self) {
        let mut serving = JoinSet::new();
        loop {
            tokio::select! {
                arrival = self.arrivals.recv() => match arrival {
                    Some(arrival) => {
                        serving.spawn(serve(arrival, self.host.clone(), self.drain.clone()));
                        // One at a time, and between two of them whoever is ready.
                        yield_now().await;
                    }
                    None => break,
                },
                Some(_) = serving.join_next() => {}
            }
        }
        while serving.join_next().await.is_some() {}
        drop(self.alive);
        self.over.raised().await;
    }
}

async fn serve(arrival: Arrival, host: Host, drain: Flag) {
    let Arrival { connection, seat: _seat } = arrival;
    match connection.resume() {
        Ok(connection) => host.serve(connection, drain).await,
        Err(error) => debug!(%error, "connection lost before its first request"),
    }
}
