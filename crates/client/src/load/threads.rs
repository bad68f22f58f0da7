//! The threads of a load, with their connections and workers.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::requests::{Requests, ServiceClient};
use super::schedule::Schedule;
use super::stats::{LoadStats, Times};
use super::{LoadError, LoadSettings};
use crate::client::{ClientBuilder, ConnectError};

/// The threads of a load.
#[derive(Debug)]
pub(super) struct Threads {
    handles: Vec<JoinHandle<()>>,
    all_stats: Vec<Arc<Mutex<LoadStats>>>,
    ready: mpsc::Receiver<Result<Start, ConnectError>>,
    running: mpsc::Receiver<()>,
}

/// Starts a thread that has established its connections.
pub(super) type Start = oneshot::Sender<Arc<Schedule>>;

impl Threads {
    pub(super) fn spawn(
        client: &ClientBuilder,
        settings: &LoadSettings,
    ) -> Result<Self, LoadError> {
        let requests = Arc::new(Requests::new(settings));
        let (to_start, ready) = mpsc::channel(usize::from(settings.threads));
        let (alive, running) = mpsc::channel(1);
        let mut threads = Self { handles: Vec::new(), all_stats: Vec::new(), ready, running };
        for number in 0..settings.threads {
            let stats = Arc::new(Mutex::new(LoadStats::default()));
            threads.all_stats.push(Arc::clone(&stats));
            let thread = Thread {
                client: client.clone(),
                connections: (settings.connections - number).div_ceil(settings.threads),
                streams: settings.streams,
                requests: Arc::clone(&requests),
                stats,
                _alive: alive.clone(),
            };
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let to_start = to_start.clone();
            let handle = thread::Builder::new()
                .name(format!("load-{number}"))
                .spawn(move || runtime.block_on(thread.run(to_start)))?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }

    /// Waits until all connections are established.
    pub(super) async fn connected(&mut self) -> Result<Vec<Start>, LoadError> {
        let mut starts = Vec::new();
        while starts.len() < self.handles.len() {
            let start = self.ready.recv().await.ok_or(LoadError::Panicked)?;
            starts.push(start.map_err(LoadError::Connect)?);
        }
        Ok(starts)
    }

    pub(super) async fn finished(&mut self) -> Result<(), LoadError> {
        let _all_gone = self.running.recv().await;
        for handle in self.handles.drain(..) {
            handle.join().map_err(|_| LoadError::Panicked)?;
        }
        Ok(())
    }

    /// Returns the statistics since the previous call, and resets them.
    pub(super) fn take_stats(&self) -> LoadStats {
        let mut sum = LoadStats::default();
        for stats in &self.all_stats {
            let fresh = LoadStats::default();
            let mut stats = stats.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = std::mem::replace(&mut *stats, fresh);
            drop(stats);
            sum.add(&taken);
        }
        sum
    }
}

struct Thread {
    client: ClientBuilder,
    connections: u16,
    streams: u16,
    requests: Arc<Requests>,
    stats: Arc<Mutex<LoadStats>>,
    /// Dropped at the end of the thread, which closes the channel after the last one.
    _alive: mpsc::Sender<()>,
}

impl Thread {
    async fn run(self, ready: mpsc::Sender<Result<Start, ConnectError>>) {
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            match self.client.clone().connect().await {
                Ok(client) => clients.push(RateLimitServiceClient::new(client.channel())),
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
        // In this order the first calls are spread over all connections.
        for _ in 0..self.streams {
            for client in &clients {
                let worker = Worker {
                    client: client.clone(),
                    schedule: Arc::clone(&schedule),
                    requests: Arc::clone(&self.requests),
                    stats: Arc::clone(&self.stats),
                };
                workers.spawn(worker.run());
            }
        }
        workers.join_all().await;
    }
}

struct Worker {
    client: ServiceClient,
    schedule: Arc<Schedule>,
    requests: Arc<Requests>,
    stats: Arc<Mutex<LoadStats>>,
}

impl Worker {
    async fn run(mut self) {
        while let Some(call) = self.schedule.next().await {
            let started = self.schedule.elapsed();
            let counts = self.requests.send(&mut self.client, call.number).await;
            let answered = self.schedule.elapsed();
            let times = Times { intended: call.intended, started, answered };
            let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
            stats.record(&call, times, &counts);
        }
    }
}
