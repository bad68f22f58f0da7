//! Health: liveness, readiness, and whether the store answers.
//!
//! | service | SERVING |
//! | --- | --- |
//! | `""` | from the moment the server accepts until it drains |
//! | `ratelimit.v1.RateLimitService` | once the store has answered, and before while no rule has `on-store-failure: error` (shadows aside); not while draining; with `health.require-store`, not while the store is away |
//! | `ratelimit` | the same, under the name that envoyproxy/ratelimit has for it |
//! | `store` | while the store answers |

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::settings::StoreHealth;
use crate::api::SERVICE;
use crate::limiter::Limiter;
use crate::store::Health;

const LIVENESS: &str = "";
const STORE: &str = "store";
/// Readiness under the name that envoyproxy/ratelimit has for it.
const ENVOY_READINESS: &str = "ratelimit";
const ALL: [&str; 4] = [SERVICE, ENVOY_READINESS, STORE, LIVENESS];

/// What the health service reports.
#[derive(Clone, Debug)]
pub(super) struct HealthReports {
    reporter: HealthReporter,
    ready: Arc<watch::Sender<bool>>,
}

impl HealthReports {
    /// Returns reports that are all `NOT_SERVING`, and the service that answers with them.
    pub(super) async fn new() -> (Self, HealthServer<HealthService>) {
        let reporter = HealthReporter::new();
        let service = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        let reports = Self { reporter, ready: Arc::new(watch::Sender::new(false)) };
        reports.drain().await;
        (reports, service)
    }

    /// Returns whether the server is ready, now and later.
    pub(super) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Reports that the server lives, and follows the store for as long as the task lives.
    pub(super) async fn watch_store(&self, limiter: &Limiter, policy: StoreHealth) -> JoinSet<()> {
        self.report(LIVENESS, ServingStatus::Serving).await;
        let (reports, limiter) = (self.clone(), limiter.clone());
        let mut watcher = JoinSet::new();
        watcher.spawn(async move { reports.update_from_store(&limiter, policy).await });
        watcher
    }

    /// Reports that the server drains. Nothing else may report from here on.
    pub(super) async fn drain(&self) {
        self.ready.send_replace(false);
        for service in ALL {
            self.report(service, ServingStatus::NotServing).await;
        }
    }

    /// Ends open Watch calls: a server that drains would wait for them.
    pub(super) async fn end_watches(&self) {
        let mut reporter = self.reporter.clone();
        for service in ALL {
            reporter.clear_service_status(service).await;
        }
    }

    async fn update_from_store(&self, limiter: &Limiter, policy: StoreHealth) {
        let mut health = limiter.store().health();
        let mut rules = limiter.changes();
        let mut has_answered = false;
        loop {
            let up = *health.borrow_and_update() == Health::Up;
            has_answered |= up;
            let decides = has_answered || limiter.decides_without_store();
            let ready = decides && (up || policy == StoreHealth::Reported);
            self.ready.send_replace(ready);
            self.report(STORE, serving(up)).await;
            self.report(SERVICE, serving(ready)).await;
            self.report(ENVOY_READINESS, serving(ready)).await;
            tokio::select! {
                // Memory is up, and its health never changes.
                Ok(()) = health.changed() => {}
                Ok(()) = rules.changed() => {}
                else => return,
            }
        }
    }

    async fn report(&self, service: &str, status: ServingStatus) {
        self.reporter.set_service_status(service, status).await;
    }
}

fn serving(serves: bool) -> ServingStatus {
    if serves { ServingStatus::Serving } else { ServingStatus::NotServing }
}
