//! Statistics over a fleet: each instance adds up what all have counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Clock, Deadline, ManualClock, Micros, Timestamp};
use rlaas::rules::{Request, Rule, RuleSet, Unmatched};
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_admin::{FleetStats, StatsScope};
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::stats::{DecisionCounts, StatsFilter, StatsPoint};
use rlaas_testkit::eventually;
use rlaas_testkit::redis::RedisServer;

use crate::fleet::instance::{Instance, standalone};

/// 2023-11-14, 22:15 UTC.
const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);
const SOON: Duration = Duration::from_secs(20);
const TEN: Micros = Micros::from_secs(10);
const HOUR: Micros = Micros::from_secs(3_600);

/// An instance that decides in memory and reports to a fleet.
struct CountingInstance {
    limiter: Limiter,
    stats: FleetStats,
}

impl CountingInstance {
    fn new(fleet: &Fleet, name: &str, clock: &ManualClock) -> Self {
        let metrics = Arc::new(Metrics::new());
        let limit = Limit::new(2, HOUR).expect("a limit");
        let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
        let store = MemoryStore::new(MemorySettings::default(), Clock::default(), metrics.clone());
        let limiter = Limiter::new(rules.clone(), Store::Memory(store), metrics.clone());
        limiter.replace_project_rules("shop", rules.with_unmatched(Unmatched::DefaultRule));
        let clock = Clock::Manual(clock.clone());
        Self { limiter, stats: FleetStats::new(fleet.clone(), metrics, name, clock) }
    }

    /// Makes requests of one user, of which two are allowed.
    fn request(&self, project: &str, user: &str, times: u32) {
        for _ in 0..times {
            let request = Request::user(user).in_project(project).build().expect("a request");
            let decided = self.limiter.check_now(&request).expect("decided in memory");
            decided.expect("a verdict");
        }
    }

    fn newest(&self, scope: StatsScope) -> Arc<StatsPoint> {
        self.stats.recent(scope, 0).pop().expect("a point")
    }
}

/// Returns the allowed and denied decisions of a project in a point.
fn of_project(point: &StatsPoint, project: &str) -> (u64, u64) {
    let projects = Some(BTreeSet::from([project.to_owned()]));
    let (rules, _) = point.select(&StatsFilter { projects, rule: None }, 10);
    let counts = rules.first().map(|(_, counts)| *counts).unwrap_or_default();
    assert_eq!(counts.units, counts.allowed);
    (counts.allowed, counts.denied)
}

/// Returns the ids of the instances that a point covers, and of those that are missing.
fn coverage(point: &StatsPoint) -> (Vec<&str>, Vec<&str>) {
    let (instances, missing) = (&point.coverage.instances, &point.coverage.missing);
    (instances.iter().map(|id| &**id).collect(), missing.iter().map(|id| &**id).collect())
}

/// Ends a point of every instance.
async fn end_points(instances: &[&CountingInstance], clock: &ManualClock) {
    clock.set(clock.now() + TEN);
    for instance in instances {
        instance.stats.write().await;
    }
    for instance in instances {
        instance.stats.collect().await;
    }
}

#[tokio::test]
async fn instances_add_up_and_each_decision_counts_once() {
    let redis = RedisServer::start();
    let store = Instance::start(standalone(&redis.url())).await;
    let clock = ManualClock::new(T0);
    let [one, other] =
        ["one", "other"].map(|name| CountingInstance::new(&store.fleet, name, &clock));
    one.request("shop", "alice", 5);
    one.request("", "alice", 1);
    other.request("shop", "bob", 3);
    end_points(&[&one, &other], &clock).await;
    for instance in [&one, &other] {
        let point = instance.newest(StatsScope::Fleet);
        assert_eq!((point.since, point.until, point.number), (T0, T0 + TEN, 1));
        assert_eq!((of_project(&point, "shop"), of_project(&point, "")), ((4, 4), (1, 0)));
        assert_eq!(coverage(&point), (vec!["one", "other"], vec![]));
    }
    let own = one.newest(StatsScope::Instance);
    assert_eq!((of_project(&own, "shop"), coverage(&own)), ((2, 3), (vec!["one"], vec![])));

    // The report of the other comes late: it is in its point, which lacks it until then.
    one.request("shop", "carol", 1);
    other.request("shop", "dave", 2);
    clock.set(clock.now() + TEN);
    one.stats.write().await;
    one.stats.collect().await;
    let point = one.newest(StatsScope::Fleet);
    assert_eq!(of_project(&point, "shop"), (1, 0));
    assert_eq!(coverage(&point), (vec!["one"], vec!["other"]));
    other.stats.write().await;
    other.stats.collect().await;
    end_points(&[&one, &other], &clock).await;
    assert_eq!(of_project(&one.newest(StatsScope::Fleet), "shop"), (0, 0));
    end_points(&[&one, &other], &clock).await;
    assert_eq!(of_project(&one.newest(StatsScope::Fleet), "shop"), (0, 0));
    let past = one.stats.recent(StatsScope::Fleet, 0);
    let of_shop: Vec<_> = past.iter().map(|point| of_project(point, "shop")).collect();
    assert_eq!(of_shop, [(4, 4), (3, 0), (0, 0), (0, 0)]);

    assert_eq!(coverage(&past[1]), (vec!["one", "other"], vec![]));

    // One that comes later begins with its own points.
    let late = CountingInstance::new(&store.fleet, "late", &clock);
    end_points(&[&one, &other, &late], &clock).await;
    assert_eq!(of_project(&late.newest(StatsScope::Fleet), "shop"), (0, 0));
    assert_eq!(coverage(&one.newest(StatsScope::Fleet)).0, ["late", "one", "other"]);
    // What an instance counts until it stops is not lost, nor after a start under the same id.
    late.request("shop", "erin", 2);
    clock.set(clock.now() + TEN);
    late.stats.stop().await;
    one.stats.write().await;
    one.stats.collect().await;
    assert_eq!(of_project(&one.newest(StatsScope::Fleet), "shop"), (2, 0));
    let late = CountingInstance::new(&store.fleet, "late", &clock);
    late.request("shop", "frank", 2);
    end_points(&[&one, &late], &clock).await;
    assert_eq!(of_project(&one.newest(StatsScope::Fleet), "shop"), (2, 0));
}

#[tokio::test]
async fn instance_is_missing_in_points_that_it_has_not_reported_and_gone_after_10_minutes() {
    let mut redis = RedisServer::start();
    redis.set_clock(T0);
    let store = Instance::start(standalone(&redis.url())).await;
    let clock = ManualClock::new(T0);
    let [one, other] =
        ["one", "other"].map(|name| CountingInstance::new(&store.fleet, name, &clock));
    end_points(&[&one, &other], &clock).await;
    let later = async |seconds: u64| {
        let at = T0 + Micros::from_secs(seconds);
        redis.set_clock(at);
        clock.set(at);
        one.stats.write().await;
        one.stats.collect().await;
        one.newest(StatsScope::Fleet)
    };
    assert_eq!(coverage(&*later(20).await), (vec!["one"], vec!["other"]));
    other.request("shop", "alice", 1);
    let point = later(31).await;
    assert_eq!(coverage(&point), (vec!["one"], vec!["other"]));
    assert_eq!(coverage(&*later(590).await), (vec!["one"], vec!["other"]));
    assert_eq!(coverage(&*later(620).await), (vec!["one"], vec![]));

    // What no instance writes is not counted.
    end_points(&[&other], &clock).await;
    for hostile in ["garbage", "\u{8}\u{5}", &"a".repeat(70_000)] {
        let value = format!("{} {hostile}", (T0 + HOUR).as_micros() / 1_000);
        let _added: i64 = redis.query(&["HSET", "rlaas:fleet", "other", &value]);
        let point = later(630).await;
        assert_eq!(coverage(&point), (vec!["one"], vec!["other"]), "{hostile:.9}");
    }

    // The store is away: this instance goes on, and says that it is alone.
    end_points(&[&one, &other], &clock).await;
    redis.kill();
    one.request("shop", "bob", 3);
    end_points(&[&one], &clock).await;
    let point = one.newest(StatsScope::Fleet);
    assert_eq!(of_project(&point, "shop"), (2, 1));
    assert_eq!(coverage(&point), (vec!["one"], vec!["other"]));
}

#[tokio::test]
async fn reports_after_an_outage_are_in_the_points_of_their_time() {
    let mut redis = RedisServer::start();
    let store = Instance::start(standalone(&redis.url())).await;
    let clock = ManualClock::new(T0);
    let [one, other] =
        ["one", "other"].map(|name| CountingInstance::new(&store.fleet, name, &clock));
    end_points(&[&one, &other], &clock).await;
    redis.kill();
    for user in ["alice", "bob", "carol"] {
        one.request("shop", user, 1);
        other.request("shop", user, 2);
        end_points(&[&one, &other], &clock).await;
        let point = one.newest(StatsScope::Fleet);
        assert_eq!(of_project(&point, "shop"), (1, 0));
        assert_eq!(coverage(&point), (vec!["one"], vec!["other"]));
    }
    redis.restart();
    let is_back = async || store.fleet.values("fleet", Deadline::within(SOON)).await.is_ok();
    eventually("Redis is back", SOON, is_back).await;
    end_points(&[&one, &other], &clock).await;
    for instance in [&one, &other] {
        let points = instance.stats.recent(StatsScope::Fleet, 0);
        let rates: Vec<_> = points.iter().map(|point| of_project(point, "shop")).collect();
        assert_eq!(rates, [(0, 0), (3, 0), (3, 0), (3, 0), (0, 0)]);
        for point in points {
            assert_eq!(coverage(&point), (vec!["one", "other"], vec![]), "{point:?}");
        }
    }
}

#[tokio::test]
async fn without_a_shared_store_the_fleet_is_this_instance() {
    let clock = ManualClock::new(T0);
    let store = MemoryStore::new(
        MemorySettings::default(),
        Clock::default(),
        Arc::new(rlaas::observer::NoObserver),
    );
    let one = CountingInstance::new(&Fleet::new(&Store::Memory(store)), "one", &clock);
    one.request("", "alice", 3);
    end_points(&[&one], &clock).await;
    let [fleet, own] = [StatsScope::Fleet, StatsScope::Instance].map(|scope| one.newest(scope));
    assert!(Arc::ptr_eq(&fleet, &own));
    // A rule that is no longer in force counts for the last time; a clock that was set does no harm.
    one.request("shop", "bob", 3);
    one.limiter.remove_project("shop");
    for at in [T0 - HOUR, T0 + HOUR] {
        clock.set(at);
        one.stats.write().await;
        one.stats.collect().await;
        let point = one.newest(StatsScope::Fleet);
        assert_eq!((point.since, point.until), (at - TEN, at));
        let expected = if at < T0 { (2, 1) } else { (0, 0) };
        assert_eq!(of_project(&point, "shop"), expected);
    }
    let counts = DecisionCounts { allowed: 2, denied: 1, units: 2, ..DecisionCounts::default() };
    assert_eq!(fleet.rules.iter().map(|(_, counts)| *counts).collect::<Vec<_>>(), [counts]);
}
