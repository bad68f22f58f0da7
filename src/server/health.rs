//! Health: liveness, readiness, and whether the store answers.
//!
//! | service | SERVING |
//! | --- | --- |
//! | `""` | from the start until the server drains |
//! | `ratelimit.v1.RateLimitService` | after the first reply of the store; before it, only if no enforced rule has `on-store-failure: error`. While `auth.api-keys` is not `off`, after the first reading of the keys, and not while other instances know newer ones that the store has lost. With `envoy.xds`, once a management server has sent rules. Not while the memory store's journal is damaged. With `health.require-store`, only while the store is available. Never while the server drains |
//! | `ratelimit` | the same, under the name that envoyproxy/ratelimit uses |
//! | `store` | while the store is available |

use std::sync::Arc;

use futures_util::future::OptionFuture;
use rlaas_auth::ApiKeys;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::settings::StoreHealth;
use crate::api::http::NotReady;
use crate::api::{ApiSettings, SERVICE};
use crate::store::Health;
use rlaas_limiter::Limiter;

const LIVENESS: &str = "";
const STORE: &str = "store";
/// The name of envoyproxy/ratelimit for readiness.
const ENVOY_READINESS: &str = "ratelimit";
const ALL: [&str; 4] = [SERVICE, ENVOY_READINESS, STORE, LIVENESS];

/// What readiness depends on.
pub(super) struct ReadinessPolicy {
    pub(super) store: StoreHealth,
    pub(super) api_keys: ApiKeys,
    /// Whether there are rules for Envoy; `None`: always.
    pub(super) rules_known: Option<watch::Receiver<bool>>,
}

impl ReadinessPolicy {
    pub(super) fn new(store: StoreHealth, settings: &ApiSettings) -> Self {
        let rules_known = settings.rules_known.clone().filter(|rules| rules.wait);
        let rules_known = rules_known.map(|rules| rules.known);
        Self { store, api_keys: settings.api_keys.clone(), rules_known }
    }
}

/// The statuses that the health service reports.
#[derive(Clone, Debug)]
pub(super) struct HealthReports {
    reporter: HealthReporter,
    ready: Arc<watch::Sender<NotReady>>,
}

impl HealthReports {
    /// Returns the reports, all `NOT_SERVING`, and the gRPC service that serves them.
    pub(super) async fn new() -> (Self, HealthServer<HealthService>) {
        let reporter = HealthReporter::new();
        let service = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        let reports = Self { reporter, ready: Arc::new(watch::Sender::new(None)) };
        reports.refuse("the server is starting").await;
        (reports, service)
    }

    /// Returns a receiver of the readiness and its changes.
    pub(super) fn ready(&self) -> watch::Receiver<NotReady> {
        self.ready.subscribe()
    }

    /// Reports liveness, and updates the other statuses from the store until the returned task is
    /// dropped.
    pub(super) async fn watch_store(
        &self,
        limiter: &Limiter,
        policy: ReadinessPolicy,
    ) -> JoinSet<()> {
        self.report(LIVENESS, ServingStatus::Serving).await;
        let (reports, limiter) = (self.clone(), limiter.clone());
        let mut watcher = JoinSet::new();
        watcher.spawn(async move { reports.update_from_store(&limiter, policy).await });
        watcher
    }

    /// Reports `NOT_SERVING` for every service. No status may be reported after this.
    pub(super) async fn drain(&self) {
        self.refuse("shutting down").await;
    }

    async fn refuse(&self, reason: &'static str) {
        self.ready.send_replace(Some(reason));
        for service in ALL {
            self.report(service, ServingStatus::NotServing).await;
        }
    }

    /// Ends open Watch calls, which would hold up the drain.
    pub(super) async fn end_watches(&self) {
        let mut reporter = self.reporter.clone();
        for service in ALL {
            reporter.clear_service_status(service).await;
        }
    }

    async fn update_from_store(&self, limiter: &Limiter, policy: ReadinessPolicy) {
        let ReadinessPolicy { store, api_keys: keys, mut rules_known } = policy;
        let mut health = limiter.store().health();
        let (mut rules, mut keys_changed) = (limiter.changes(), keys.changes());
        let mut has_answered = false;
        loop {
            let up = *health.borrow_and_update() == Health::Up;
            has_answered |= up;
            let decides = has_answered || limiter.decides_without_store();
            keys_changed.mark_unchanged();
            let has_rules = rules_known.as_mut().is_none_or(|known| *known.borrow_and_update());
            let is_up = up || store == StoreHealth::Reported;
            let conditions = [
                (decides, "the store has not answered yet"),
                (has_rules, "the management server has sent no valid rules yet"),
                (keys.are_ready(), "the projects and API keys in force are not known: see the log"),
                (is_up, "the store is unavailable, and health.require-store is true"),
            ];
            let missing = conditions.into_iter().find(|(is_met, _)| !is_met);
            let not_ready = missing.map(|(_, reason)| reason);
            let ready = not_ready.is_none();
            self.ready.send_replace(not_ready);
            self.report(STORE, serving(up)).await;
            self.report(SERVICE, serving(ready)).await;
            self.report(ENVOY_READINESS, serving(ready)).await;
            tokio::select! {
                // The health of the memory store never changes.
                Ok(()) = health.changed() => {}
                Ok(()) = rules.changed() => {}
                Ok(()) = keys_changed.changed() => {}
                Some(Ok(())) = OptionFuture::from(rules_known.as_mut().map(watch::Receiver::changed)) => {}
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
