//! The instances of the fleet: each reports itself now and then, and any of them lists all.
//!
//! A report is a named value of the fleet, off the path of decisions. It is the message of the API
//! without what its reader knows better: times, and whether the instance is missing.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use prost::Message;
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::{Fleet, NamedValue};
use rlaas_projects::registry::Registry;
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{Instance, StoreNode};
use rlaas_proto::values::{duration, timestamp};
use rlaas_telemetry::InstanceId;
use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::sharded::{DurationCounts, RequestCounts};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, warn};

use rlaas_core::clock::{Clock, Deadline, Timestamp, jittered};
use rlaas_limiter::observer::BreakerState;
use rlaas_limiter::store::{Health, NodeStatus, StoreError};

/// Name of the map.
const MAP: &str = "instances";
/// Time between two reports of an instance.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time without a report after which an instance is missing.
pub(super) const MISSING_AFTER: Duration = Duration::from_secs(30);
/// Time without a report after which an instance is gone.
pub(super) const GONE_AFTER: Duration = Duration::from_mins(10);
/// Longest time that a report may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two reports while the store denies them, which only an operator can change.
const DENIED_INTERVAL: Duration = Duration::from_mins(5);

/// This process, among the instances of its fleet. Clones share it.
#[derive(Clone, Debug)]
pub struct Instances(Arc<ThisInstance>);

#[derive(Debug)]
struct ThisInstance {
    fleet: Fleet,
    limiter: Limiter,
    metrics: Arc<Metrics>,
    clock: Clock,
    id: InstanceId,
    started_at: Timestamp,
    /// Counts of the last report, and what they meant.
    last: Mutex<Rates>,
    /// The projects, once they are known.
    projects: OnceLock<Registry>,
}

/// Decisions and requests in the interval before a report.
#[derive(Clone, Debug)]
struct Rates {
    at: Timestamp,
    counts: DurationCounts,
    per_second: u64,
    requests: RequestCounts,
    requests_per_second: u64,
    median: Option<Duration>,
    p99: Option<Duration>,
}

impl Instances {
    /// Creates this instance. It reports itself when it is run.
    pub fn new(fleet: Fleet, limiter: Limiter, metrics: Arc<Metrics>, id: InstanceId) -> Self {
        let clock = Clock::default();
        let started_at = clock.now();
        let counts = metrics.check_counts();
        let last = Mutex::new(Rates {
            at: started_at,
            counts,
            per_second: 0,
            requests: metrics.request_counts(),
            requests_per_second: 0,
            median: None,
            p99: None,
        });
        let projects = OnceLock::new();
        let this = ThisInstance { fleet, limiter, metrics, clock, id, started_at, last, projects };
        Self(Arc::new(this))
    }

    /// Reports the revision of these projects, too.
    pub(super) fn report_projects(&self, projects: Registry) {
        // Those of a process are the same each time.
        self.0.projects.get_or_init(|| projects);
    }

    /// Returns the id of this instance: host name and a random suffix.
    pub fn id(&self) -> &str {
        self.0.id.as_str()
    }

    /// Reports this instance every 10 s, for ever; first within 10 s of the first answer of the store.
    /// At that answer, permissions that the store's user lacks are logged, in one line.
    pub async fn run(&self) {
        let mut health = self.0.limiter.store().health();
        let _closed = health.wait_for(|health| *health == Health::Up).await.map(drop);
        let mut is_denied = self.log_missing_permissions().await;
        // Instances that start together do not report together.
        wait_about(INTERVAL).await;
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if is_denied {
                wait_about(DENIED_INTERVAL).await;
            }
            ticks.tick().await;
            self.0.measure();
            is_denied = match self.report().await {
                Ok(()) => false,
                Err(error) => {
                    // The store's own log says when it is away.
                    debug!(%error, "this instance is not reported");
                    error.kind() == "noperm"
                }
            };
        }
    }

    /// Returns all instances, ordered by their ids: of a shared store those that have reported in
    /// the last 10 minutes, and this one as it is now. While the store is away: this one, and the
    /// others are not known.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store denies access.
    pub async fn list(&self, deadline: Deadline) -> Result<Vec<Instance>, StoreError> {
        let mut instances = match self.others(deadline).await {
            Err(error) if error.kind() == "noperm" => return Err(error),
            others => others.unwrap_or_default(),
        };
        instances.push(Instance {
            reported_at: Some(timestamp(self.0.clock.now())),
            answering: true,
            ..self.0.description()
        });
        instances.sort_unstable_by(|left, right| left.id.cmp(&right.id));
        Ok(instances)
    }

    /// Returns the other instances that have reported in the last 10 minutes.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub(super) async fn others(&self, deadline: Deadline) -> Result<Vec<Instance>, StoreError> {
        let reported = self.0.fleet.values(MAP, deadline).await?;
        let now = self.0.clock.now();
        let others = reported.into_iter().filter(|value| value.name != self.id());
        Ok(others.filter_map(|value| instance(value, now)).collect())
    }

    async fn report(&self) -> Result<(), StoreError> {
        let ThisInstance { fleet, id, .. } = &*self.0;
        let description = self.0.description().encode_to_vec();
        fleet
            .put(MAP, id.as_str(), &description, GONE_AFTER, Deadline::within(REPORT_TIMEOUT))
            .await
    }

    /// Logs the permissions that the user of the store lacks. Returns `true` if there are any.
    async fn log_missing_permissions(&self) -> bool {
        let deadline = Deadline::within(REPORT_TIMEOUT);
        let mut topics = vec![super::FORGET];
        topics.extend(self.0.metrics.top_keys().map(|_| super::fleet_top_keys::TOPIC));
        let missing = match self.0.fleet.missing_permissions(&topics, deadline).await {
            Ok(missing) => missing,
            Err(error) => {
                debug!(%error, "permissions are not checked");
                return false;
            }
        };
        if !missing.is_empty() {
            warn!(
                missing = missing.join(" "),
                "the redis user lacks permissions of administration: changes and the list of \
                 instances fail, and without +hget decisions of overridable rules; others do not"
            );
        }
        !missing.is_empty()
    }
}

impl ThisInstance {
    /// Returns this instance without the time of its report.
    fn description(&self) -> Instance {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let revision = self.projects.get().map_or(0, Registry::revision);
        let age = self.projects.get().filter(|_| revision > 0).map(Registry::age);
        Instance {
            id: self.id.as_str().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Some(timestamp(self.started_at)),
            revision: self.limiter.snapshot().revision,
            catalogue_revision: revision,
            catalogue_age: age.map(duration),
            store_nodes: self.limiter.store().nodes().into_iter().map(store_node).collect(),
            connections: u32::try_from(self.metrics.count_connections()).unwrap_or(u32::MAX),
            decisions_per_second: last.per_second,
            requests_per_second: Some(last.requests_per_second),
            check_p50: last.median.map(|span| duration(span.into())),
            check_p99: last.p99.map(|span| duration(span.into())),
            ..Instance::default()
        }
    }

    /// Counts the decisions and requests since the last report.
    fn measure(&self) {
        let (at, counts) = (self.clock.now(), self.metrics.check_counts());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let since = counts.since(&last.counts);
        let micros = at.since(last.at).as_micros().max(1);
        let per_second = |count: u64| {
            let rate = u128::from(count) * 1_000_000 / u128::from(micros);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let requests = self.metrics.request_counts();
        *last = Rates {
            at,
            per_second: per_second(since.total()),
            requests_per_second: per_second(requests.since(&last.requests).requests()),
            requests,
            median: since.quantile(50),
            p99: since.quantile(99),
            counts,
        };
    }
}

/// Returns the instance of a report; `None` if it can't be read.
fn instance(
    NamedValue { name, value, expires_in }: NamedValue,
    now: Timestamp,
) -> Option<Instance> {
    let age = GONE_AFTER.saturating_sub(expires_in);
    let instance = Instance::decode(value.as_slice()).ok()?;
    Some(Instance {
        id: name,
        reported_at: Some(timestamp(now - age.into())),
        missing: age > MISSING_AFTER,
        answering: false,
        ..instance
    })
}

fn store_node(node: NodeStatus) -> StoreNode {
    let NodeStatus { address, is_available, errors, memory, outage, .. } = node;
    let breaker = match node.breaker {
        BreakerState::Closed => Breaker::Closed,
        BreakerState::HalfOpen => Breaker::HalfOpen,
        BreakerState::Open => Breaker::Open,
    };
    StoreNode {
        address,
        available: is_available,
        breaker: breaker.into(),
        role: node.role.unwrap_or_default().to_owned(),
        p50: node.p50.map(|span| duration(span.into())),
        p99: node.p99.map(|span| duration(span.into())),
        errors,
        used_memory: memory.as_ref().map(|memory| memory.used),
        max_memory: memory.as_ref().map(|memory| memory.max.map_or(0, NonZeroU64::get)),
        eviction_policy: memory.map(|memory| memory.eviction_policy).unwrap_or_default(),
        outage_started_at: outage.map(|outage| timestamp(outage.started_at)),
        outage: outage.map(|outage| duration(outage.length)),
        outage_failed: outage.map_or(0, |outage| outage.failed),
        outage_allowed: outage.map_or(0, |outage| outage.allowed),
    }
}

/// Waits for half of `time` to all of it.
#[expect(clippy::disallowed_methods, reason = "reports depend on nothing but time")]
async fn wait_about(time: Duration) {
    sleep(jittered(time)).await;
}
