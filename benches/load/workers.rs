//! The workers of a load, with their connections.

use std::sync::{Arc, Mutex, PoisonError};

use rlaas_client::{ApiChannel, ClientBuilder, ConnectError};
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use tokio::task::{JoinError, JoinSet};
use tonic::Status;

use super::Options;
use super::ids::Ids;
use super::schedule::Schedule;
use super::stats::LoadStats;

type ServiceClient = RateLimitServiceClient<ApiChannel>;

/// Returns connections on which nothing is sent yet.
pub(super) async fn connect(
    client: &ClientBuilder,
    connections: u16,
) -> Result<Vec<ServiceClient>, ConnectError> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let client = client.clone().connect().await?;
        clients.push(RateLimitServiceClient::new(client.channel()));
    }
    Ok(clients)
}

/// The running workers of a load.
#[derive(Debug)]
pub(super) struct Workers {
    tasks: JoinSet<()>,
    stats: Arc<Mutex<LoadStats>>,
}

impl Workers {
    pub(super) fn start(
        clients: &[ServiceClient],
        options: &Options,
        schedule: &Arc<Schedule>,
    ) -> Self {
        let ids = Arc::new(Ids::new(options.ids, options.distribution));
        let mut workers = Self { tasks: JoinSet::new(), stats: Arc::default() };
        // In this order the first calls are spread over all connections.
        for _ in 0..options.streams {
            for client in clients {
                let worker = Worker {
                    client: client.clone(),
                    schedule: Arc::clone(schedule),
                    ids: Arc::clone(&ids),
                    resource: options.resource.clone(),
                    stats: Arc::clone(&workers.stats),
                };
                workers.tasks.spawn(worker.run());
            }
        }
        workers
    }

    /// Waits until the last call is answered.
    pub(super) async fn finished(&mut self) -> Result<(), JoinError> {
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    pub(super) fn stats(&self) -> LoadStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Worker {
    client: ServiceClient,
    schedule: Arc<Schedule>,
    ids: Arc<Ids>,
    resource: String,
    stats: Arc<Mutex<LoadStats>>,
}

impl Worker {
    async fn run(mut self) {
        while let Some(call) = self.schedule.next().await {
            let started = self.schedule.elapsed();
            let result = self.check(call.number).await;
            let answered = self.schedule.elapsed();
            let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
            stats.record(call, started, answered, &result);
        }
    }

    /// Returns whether a request is allowed.
    async fn check(&mut self, number: u64) -> Result<bool, Status> {
        let (user_id, resource) = (self.ids.for_request(number), self.resource.clone());
        let request = CheckRequest { user_id, resource, ..CheckRequest::default() };
        Ok(self.client.check(request).await?.get_ref().allowed)
    }
}
