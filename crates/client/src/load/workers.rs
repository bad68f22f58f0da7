//! The workers of a load, with their connections.

use std::sync::{Arc, Mutex, PoisonError};

use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use tokio::task::JoinSet;

use super::requests::{Requests, ServiceClient};
use super::schedule::Schedule;
use super::stats::{LoadStats, Times};
use super::{LoadError, LoadSettings};
use crate::client::ClientBuilder;

/// Connections of a load, on which nothing is sent yet.
pub(super) async fn connect(
    client: &ClientBuilder,
    connections: u16,
) -> Result<Vec<ServiceClient>, LoadError> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let client = client.clone().connect().await.map_err(LoadError::Connect)?;
        clients.push(RateLimitServiceClient::new(client.channel()));
    }
    Ok(clients)
}

/// The running workers of a load. They end when they are dropped.
#[derive(Debug)]
pub(super) struct Workers {
    tasks: JoinSet<()>,
    stats: Arc<Mutex<LoadStats>>,
}

impl Workers {
    pub(super) fn start(
        clients: &[ServiceClient],
        settings: &LoadSettings,
        schedule: &Arc<Schedule>,
    ) -> Self {
        let (requests, stats) = (Arc::new(Requests::new(settings)), Arc::default());
        let mut workers = Self { tasks: JoinSet::new(), stats };
        // In this order the first calls are spread over all connections.
        for _ in 0..settings.streams {
            for client in clients {
                let worker = Worker {
                    client: client.clone(),
                    schedule: Arc::clone(schedule),
                    requests: Arc::clone(&requests),
                    stats: Arc::clone(&workers.stats),
                };
                workers.tasks.spawn(worker.run());
            }
        }
        workers
    }

    pub(super) async fn finished(&mut self) -> Result<(), LoadError> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(|_| LoadError::Panicked)?;
        }
        Ok(())
    }

    /// Returns the statistics since the previous call, and resets them.
    pub(super) fn take_stats(&self) -> LoadStats {
        let fresh = LoadStats::default();
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *stats, fresh)
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
