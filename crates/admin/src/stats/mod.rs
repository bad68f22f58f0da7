//! Statistics of decisions and requests over the fleet.
//!
//! Each instance reads the counters of its rules every 10 s of wall time, and writes what they have
//! counted since as a named value of the fleet. A second later it adds the reports of the others to
//! its own: so any instance has the history of all. A report has the points since the last report but
//! one that the store took; each is added once, also if it comes late, to the point of its time.
//! Until then the coverage of that point says that the instance is missing.

mod message;
mod reading;
pub(super) mod responses;
mod watch;

use message::{counters, request_counters, request_stats, rule_stats};
pub use reading::StatsReading;
use rlaas_telemetry::holder::Holder;
use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::stats::{StatsCoverage, StatsHistory, StatsKey, StatsPoint, StatsSum};
pub use watch::{MAX_STATS_WATCHERS, StatsWatch};

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rlaas_limiter::fleet::{Fleet, NamedValue};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::instances::GONE_AFTER;
use rlaas_core::clock::{Clock, Deadline, Micros, Timestamp};

/// Name of the map of reports.
const MAP: &str = "fleet";
/// Length of a point.
pub const STATS_INTERVAL: Micros = Micros::from_secs(10);
/// Longest interval of one point: a clock that was set forward makes none that is longer.
const MAX_INTERVAL: Micros = Micros::from_secs(60);
/// Longest time between two looks at the clock, which may be set.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which the others write their reports, after the end of a point.
const GRACE: Duration = Duration::from_secs(1);
/// Longest time that a call to the store may take: a point is there 2 s after its end at the latest.
const CALL_TIMEOUT: Duration = Duration::from_millis(900);
/// Points without calls to the store after it denied one, which only an operator can change: 5 min.
const DENIED_POINTS: u32 = 30;

/// Statistics of this instance and of the fleet. Clones share them.
#[derive(Clone, Debug)]
pub struct FleetStats(Arc<SharedStats>);

#[derive(Debug)]
struct SharedStats {
    fleet: Fleet,
    metrics: Arc<Metrics>,
    clock: Clock,
    id: Arc<str>,
    state: Mutex<State>,
    /// Number of the newest point of both histories.
    newest: tokio::sync::watch::Sender<u64>,
    /// The last reading by [`FleetStats::read`].
    reading: tokio::sync::Mutex<Option<Arc<StatsReading>>>,
    /// On whose accounts it is watched.
    watchers: Mutex<Vec<Holder>>,
    draining: CancellationToken,
}

/// Whose decisions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsScope {
    /// Those of all instances.
    Fleet,
    /// Those of this instance.
    Instance,
}

/// What other instances have counted, by the ends of their points.
type LatePoints = BTreeMap<Timestamp, (BTreeSet<Arc<str>>, StatsSum)>;

#[derive(Debug)]
struct State {
    instance: StatsHistory,
    fleet: StatsHistory,
    /// The counters at the beginning of the next point.
    last: Arc<StatsReading>,
    /// End of the last point of each other instance that was added.
    added: HashMap<Arc<str>, Timestamp>,
    /// Numbers of the newest points of the last two reports that the store took, the older one first.
    reported: (u64, u64),
    /// Other instances that are known, with the time when their report was last read.
    others: BTreeMap<Arc<str>, Timestamp>,
    /// Keys of the rules of other instances, so that points share them.
    keys: HashSet<Arc<StatsKey>>,
    /// Points until the store is called again.
    denied_for: u32,
}

impl FleetStats {
    /// Creates the statistics of what `metrics` counts, as an instance of this id.
    pub fn new(fleet: Fleet, metrics: Arc<Metrics>, id: &str, clock: Clock) -> Self {
        let (rules, projects) = (metrics.rule_totals(), metrics.project_counters());
        let last = StatsReading::new(aligned(clock.now()), rules, projects);
        let state = State {
            instance: StatsHistory::default(),
            fleet: StatsHistory::default(),
            last: Arc::new(last),
            added: HashMap::new(),
            reported: (0, 0),
            others: BTreeMap::new(),
            keys: HashSet::new(),
            denied_for: 0,
        };
        Self(Arc::new(SharedStats {
            fleet,
            metrics,
            clock,
            id: id.into(),
            state: Mutex::new(state),
            newest: tokio::sync::watch::Sender::new(0),
            reading: tokio::sync::Mutex::default(),
            watchers: Mutex::default(),
            draining: CancellationToken::new(),
        }))
    }

    /// Makes a point every 10 s, for ever.
    pub async fn run(&self) {
        loop {
            self.0.clock.follow_wall_time();
            let (now, begun) = (self.0.clock.now(), self.state().last.at);
            let end = begun + STATS_INTERVAL;
            // A small step back of the clock makes the point longer.
            let is_over = now >= end || now + STATS_INTERVAL < begun;
            if is_over {
                if self.0.fleet.is_shared() {
                    tokio::join!(self.write(), wait(GRACE));
                } else {
                    self.write().await;
                }
                self.collect().await;
            } else {
                wait(LOOK_INTERVAL.min(end.since(now).into())).await;
            }
        }
    }

    /// Ends the point of this instance, and writes its report.
    pub async fn write(&self) {
        let reported = self.end_point().await;
        if !self.0.fleet.is_shared() || self.state().denied_for > 0 {
            return;
        }
        let report = message::encode(&reported);
        let deadline = Deadline::within(CALL_TIMEOUT);
        let put = self.0.fleet.put(MAP, &self.0.id, &report, GONE_AFTER, deadline).await;
        if put.is_ok() {
            let mut state = self.state();
            state.reported = (state.reported.1, state.instance.last());
        }
        if let Err(error) = put {
            // The store's own log says when it is away.
            debug!(%error, "statistics are not reported");
            if error.kind() == "noperm" {
                self.state().denied_for = DENIED_POINTS;
            }
        }
    }

    /// Adds the reports of other instances to the last point of this one: the point of the fleet.
    pub async fn collect(&self) {
        let is_shared = self.0.fleet.is_shared();
        let is_called = is_shared && {
            let mut state = self.state();
            state.denied_for = state.denied_for.saturating_sub(1);
            state.denied_for == 0
        };
        let reports = if is_called {
            let reports = self.0.fleet.values(MAP, Deadline::within(CALL_TIMEOUT)).await;
            let reports = reports.inspect_err(|error| debug!(%error, "no statistics of others"));
            reports.unwrap_or_default()
        } else {
            Vec::new()
        };
        let mut state = self.state();
        let after = state.instance.last().saturating_sub(1);
        let Some(own) = state.instance.recent(after).pop() else { return };
        if is_shared && own.number > state.fleet.last() {
            state.add_point_of_fleet(&own, &self.0.id, self.0.clock.now(), reports);
        }
        self.0.newest.send_replace(own.number);
    }

    /// Ends the last point of this instance, which is not over: the process ends.
    pub async fn stop(&self) {
        self.write().await;
    }

    /// Returns the points with a number above `after`, oldest first: of the last 15 min.
    pub fn recent(&self, scope: StatsScope, after: u64) -> Vec<Arc<StatsPoint>> {
        self.history(&self.state(), scope).recent(after)
    }

    /// Returns a receiver of the number of the newest point.
    pub fn subscribe(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.newest.subscribe()
    }

    /// Returns the id of this instance.
    pub fn id(&self) -> &Arc<str> {
        &self.0.id
    }

    fn history<'s>(&self, state: &'s State, scope: StatsScope) -> &'s StatsHistory {
        match scope {
            StatsScope::Fleet if self.0.fleet.is_shared() => &state.fleet,
            StatsScope::Fleet | StatsScope::Instance => &state.instance,
        }
    }

    /// Ends the point of this instance, and returns the points to report.
    async fn end_point(&self) -> Vec<Arc<StatsPoint>> {
        let metrics = Arc::clone(&self.0.metrics);
        // It takes 20 ms for 100,000 rules.
        let read = move || (metrics.last_rule_totals(), metrics.project_counters());
        let (totals, projects) = spawn_blocking(read).await.unwrap_or_default();
        let now = aligned(self.0.clock.now());
        let mut state = self.state();
        let reading = Arc::new(StatsReading::new(now, totals, projects));
        let (rules, others, requests) = reading.since(&state.last).into_parts();
        let is_usual = now > state.last.at && now.since(state.last.at) <= MAX_INTERVAL;
        let since = if is_usual { state.last.at } else { now - STATS_INTERVAL };
        state.last = reading;
        let instances = [Arc::clone(&self.0.id)].into();
        let coverage = StatsCoverage { instances, ..StatsCoverage::default() };
        let number = state.instance.last() + 1;
        let point = StatsPoint { number, since, until: now, rules, others, requests, coverage };
        state.instance.push_point(&Arc::new(point));
        state.instance.recent(state.reported.0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds the point of the fleet that belongs to one of this instance.
    fn add_point_of_fleet(
        &mut self,
        own: &StatsPoint,
        id: &Arc<str>,
        now: Timestamp,
        reports: Vec<NamedValue>,
    ) {
        let mut late = BTreeMap::new();
        for NamedValue { name, value, expires_in } in reports {
            if *name == **id {
                continue;
            }
            let name = Arc::<str>::from(name);
            let age = GONE_AFTER.saturating_sub(expires_in);
            self.others.insert(Arc::clone(&name), now - age.into());
            self.read_report(&name, &value, &mut late);
        }
        self.others.retain(|_, reported| now.since(*reported) < GONE_AFTER.into());
        self.added.retain(|name, _| self.others.contains_key(name));
        if own.number.is_multiple_of(30) {
            self.keys.retain(|key| Arc::strong_count(key) > 1);
        }
        let mut point = own.clone();
        point.coverage.missing = self.others.keys().cloned().collect();
        self.fleet.push_point(&Arc::new(point));
        for (until, (instances, sum)) in late {
            self.fleet.add(until, instances, &sum);
        }
    }

    /// Reads the points of a report that were not read before. One that can't be read has none.
    fn read_report(&mut self, name: &Arc<str>, report: &[u8], late: &mut LatePoints) {
        let Self { keys, added, .. } = self;
        let points = message::decode(report, |key| {
            if let Some(known) = keys.get(&key) {
                return Arc::clone(known);
            }
            let key = Arc::new(key);
            keys.insert(Arc::clone(&key));
            key
        });
        let after = added.get(name).copied().unwrap_or(Timestamp::EPOCH);
        for point in points.into_iter().flatten().filter(|point| point.until > after) {
            added.insert(Arc::clone(name), point.until);
            let (instances, sum) = late.entry(point.until).or_default();
            // Else it stays missing, as its requests are.
            if point.tells_requests {
                instances.insert(Arc::clone(name));
            }
            sum.add_sum(&point.sum);
        }
    }
}

/// Returns the beginning of the 10 seconds of a time.
fn aligned(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.as_micros() / STATS_INTERVAL.as_micros() * STATS_INTERVAL.as_micros())
}

#[expect(clippy::disallowed_methods, reason = "points depend on nothing but time")]
async fn wait(time: Duration) {
    sleep(time).await;
}
