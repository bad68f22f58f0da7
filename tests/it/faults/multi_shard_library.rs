//! Requests over several masters of a cluster, through the library: takes, denials and refunds.
//! Also refunds by receipt, on a single server.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Clock, Deadline, Micros};
use rlaas::observer::{NoObserver, Observer, Operation, RequestEvent, RuleObserver, StoreEvent};
use rlaas::rules::{Matcher, Mode, Part, Pattern, Request, Rule, RuleInfo, RuleSet};
use rlaas::store::{RedisSettings, RedisStore, Servers, Store};
use rlaas_limiter::{CheckError, DenyCache, DenyCacheSettings, Limiter, Source, Verdict};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::eventually;
use rlaas_testkit::redis::RedisServer;
use tokio::task::{AbortHandle, JoinHandle};

use super::load::SOON;

/// A limiter on a cluster of three masters, and an id on each of them.
pub(super) struct Fixture {
    cluster: RedisCluster,
    pub(super) limiter: Limiter,
    pub(super) user: String,
    pub(super) tenant: String,
    pub(super) team: String,
    running: AbortHandle,
}

impl Fixture {
    pub(super) async fn start(
        rules: RuleSet,
        max_in_flight: u32,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let cluster = RedisCluster::start(3, 0).await;
        let seeds = cluster.urls().iter().map(|url| url.parse().expect("a valid url")).collect();
        let limiter = limiter(Servers::Cluster { seeds }, rules, max_in_flight, observer);
        let on = |master: usize| {
            let mut ids = (0..).map(|number| format!("id-{number}"));
            ids.find(|id| cluster.master_of_id(id) == master).expect("an id on each master")
        };
        let (user, tenant, team) = (on(0), on(1), on(2));
        let background = limiter.clone();
        let running = tokio::spawn(async move { background.run().await }).abort_handle();
        let fixture = Self { cluster, limiter, user, tenant, team, running };
        let up = async || fixture.peek("/").await.is_ok();
        eventually("the cluster decides", SOON * 2, up).await;
        fixture
    }

    /// Checks a request of this cost for a resource.
    pub(super) async fn check(&self, resource: &str, cost: u32) -> Result<Verdict, CheckError> {
        check(&self.limiter, [&self.user, &self.tenant, &self.team], resource, cost).await
    }

    pub(super) async fn peek(&self, resource: &str) -> Result<Vec<i64>, CheckError> {
        Ok(remaining(&self.check(resource, 0).await?))
    }

    /// Like [`Self::check`] with a cost of 1, in a task.
    pub(super) fn spawn(&self, resource: &'static str) -> JoinHandle<Result<Verdict, CheckError>> {
        let Self { limiter, user, tenant, team, .. } = self;
        let (limiter, ids) = (limiter.clone(), [user, tenant, team].map(Clone::clone));
        tokio::spawn(
            async move { check(&limiter, ids.each_ref().map(|id| &**id), resource, 1).await },
        )
    }

    /// Makes the tenant's master delay every script, or ends that.
    pub(super) fn pause(&self, waits: bool) {
        let master = self.cluster.node(1);
        if waits {
            master.query::<()>(&["CLIENT", "PAUSE", "100000", "WRITE"]);
        } else {
            master.query::<()>(&["CLIENT", "UNPAUSE"]);
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.running.abort();
    }
}

pub(super) fn limiter(
    servers: Servers,
    rules: RuleSet,
    max_in_flight: u32,
    observer: Arc<dyn Observer>,
) -> Limiter {
    let timeout = Duration::from_secs(10);
    let settings = RedisSettings { timeout, max_in_flight, ..RedisSettings::new(servers) };
    let store = RedisStore::new(&settings, Arc::clone(&observer)).expect("valid settings");
    let settings = DenyCacheSettings { max_age: Duration::from_hours(1), max_keys: 1_000 };
    let cache = DenyCache::new(settings, Clock::default());
    Limiter::with_deny_cache(rules, Store::Redis(Arc::new(store)), cache, observer)
}

pub(super) async fn check(
    limiter: &Limiter,
    [user, tenant, team]: [&str; 3],
    resource: &str,
    cost: u32,
) -> Result<Verdict, CheckError> {
    let attributes = [("tenant", tenant), ("team", team)];
    let request = Request::user(user).resource(resource).attributes(&attributes).cost(cost);
    limiter.check(&request.build().expect("a valid request"), Deadline::NEVER).await
}

fn remaining(verdict: &Verdict) -> Vec<i64> {
    verdict.decisions.iter().map(|decided| decided.decision.remaining).collect()
}

pub(super) fn user() -> Part {
    Part::UserId
}

pub(super) fn attribute(name: &str) -> Part {
    Part::Attribute(name.to_owned())
}

/// Returns a rule for every request, with a window that outlasts the test.
pub(super) fn rule(name: &str, by: Part, algorithm: Algorithm, units: u64) -> Rule {
    let limit = Limit::new(units, Micros::from_secs(366 * 86_400)).expect("a valid limit");
    // The name keeps the states of algorithms apart.
    let name = format!("{name}-{}", algorithm.name()).into();
    Rule { name, key_by: vec![by], ..Rule::new_default(algorithm, limit) }
}

/// Restricts a rule to requests for `/tenant`.
pub(super) fn for_tenants(rule: Rule) -> Rule {
    let patterns = vec![(Part::Resource, Pattern::one("/tenant"))];
    Rule { matcher: Matcher { patterns }, ..rule }
}

pub(super) fn rule_set(rules: Vec<Rule>) -> RuleSet {
    let wide = Limit::new(1_000_000, Micros::from_secs(60)).expect("a valid limit");
    RuleSet::new(Rule::new_default(Algorithm::FixedWindow, wide), rules)
}

pub(super) fn no_observer() -> Arc<dyn Observer> {
    Arc::new(NoObserver)
}

#[tokio::test]
async fn one_quota_with_units_left_allows_a_request_across_shards() {
    let quota = |rule: Rule| Rule { mode: Mode::Quota, ..rule };
    let rules = |algorithm| {
        rule_set(vec![
            rule("a-user", user(), algorithm, 100),
            quota(rule("b-user-quota", user(), algorithm, 1)),
            quota(rule("c-tenant-quota", attribute("tenant"), algorithm, 3)),
            rule("d-team", attribute("team"), algorithm, 100),
        ])
    };
    let fixture = Fixture::start(rule_set(Vec::new()), 4096, no_observer()).await;
    for algorithm in Algorithm::RATES {
        fixture.limiter.replace_rules(rules(*algorithm));
        let name = algorithm.name();
        for left in [[99, 0, 2, 99], [98, 0, 1, 98], [97, 0, 0, 97]] {
            let verdict = fixture.check("/", 1).await.expect("a verdict");
            assert!(verdict.is_allowed(), "{name}: {verdict:?}");
            assert_eq!(fixture.peek("/").await.expect("a verdict"), left, "{name}");
        }
        for _ in 0..3 {
            let verdict = fixture.check("/", 1).await.expect("a verdict");
            assert!(!verdict.is_allowed(), "{name}: {verdict:?}");
            let left = fixture.peek("/").await.expect("a verdict");
            assert_eq!(left, [97, 0, 0, 97], "{name}: the denial took units");
        }
    }
}

#[tokio::test]
async fn denying_shard_is_not_refunded() {
    let rules = |algorithm| {
        rule_set(vec![
            rule("a-user", user(), algorithm, 100),
            rule("b-tenant", attribute("tenant"), algorithm, 3),
            rule("c-tenant-wide", attribute("tenant"), algorithm, 100),
            rule("d-team", attribute("team"), algorithm, 100),
        ])
    };
    let fixture = Fixture::start(rule_set(Vec::new()), 4096, no_observer()).await;
    for algorithm in Algorithm::RATES {
        fixture.limiter.replace_rules(rules(*algorithm));
        let name = algorithm.name();
        for _ in 0..3 {
            assert!(fixture.check("/", 1).await.expect("a verdict").is_allowed(), "{name}");
        }
        for cost in [1, 2, 3] {
            // Another cost each time, because the deny cache remembers denials by cost.
            let refused = fixture.check("/", cost).await.expect("a verdict");
            assert!(!refused.is_allowed(), "{name}");
            assert_eq!(remaining(&refused), [97, 0, 97, 97], "{name}");
            let left = fixture.peek("/").await.expect("a verdict");
            assert_eq!(left, [97, 0, 97, 97], "{name}");
        }
    }
}

/// Starts another check once a number of calls has ended. That check then holds the only in-flight
/// permit.
#[derive(Default)]
struct PermitTaker {
    /// The limiter and the ids of the other check.
    other: OnceLock<(Limiter, [String; 3])>,
    /// Number of calls until the permit is taken.
    calls_left: AtomicUsize,
    waiting: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    failed_refunds: AtomicUsize,
}

impl std::fmt::Debug for PermitTaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PermitTaker").finish_non_exhaustive()
    }
}

impl PermitTaker {
    fn take_the_permit(&self) {
        let (limiter, ids) = self.other.get().cloned().expect("a limiter");
        let mut waiting_check: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let decided = check(&limiter, ids.each_ref().map(|id| &**id), "/", 1).await;
            drop(decided);
        });
        let polled = waiting_check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the check waits for Redis");
        *self.waiting.lock().expect("no panic") = Some(waiting_check);
    }
}

impl Observer for PermitTaker {
    fn rule(&self, _rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        Arc::new(NoObserver)
    }

    fn request(&self, event: RequestEvent<'_>) {
        if matches!(event, RequestEvent::RefundFailed) {
            self.failed_refunds.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn store(&self, event: StoreEvent) {
        if matches!(event, StoreEvent::Called { operation: Operation::Check, .. }) {
            let before =
                self.calls_left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if before == Ok(1) {
                self.take_the_permit();
            }
        }
    }
}

#[tokio::test]
async fn refund_needs_no_in_flight_permit() {
    let gcra = Algorithm::Gcra;
    let rules = rule_set(vec![
        rule("a-user", user(), gcra, 100),
        for_tenants(rule("b-tenant", attribute("tenant"), gcra, 1)),
    ]);
    let taker = Arc::new(PermitTaker::default());
    let fixture = Fixture::start(rules, 1, taker.clone()).await;
    // The states of the other check are all on the team's master.
    let team = &fixture.team;
    let other = (fixture.limiter.clone(), [team, team, team].map(Clone::clone));
    taker.other.set(other).expect("a new one");
    assert!(fixture.check("/tenant", 1).await.expect("a verdict").is_allowed());
    // The user's master takes, the tenant's denies, and then the other check has the permit.
    taker.calls_left.store(2, Ordering::Relaxed);
    let refused = fixture.check("/tenant", 1).await.expect("a verdict");
    assert!(!refused.is_allowed());
    let overloaded = fixture.peek("/").await.expect_err("no permit is left");
    assert!(matches!(overloaded, CheckError::Overloaded), "{overloaded:?}");
    assert_eq!(remaining(&refused), [99, 0]);
    assert_eq!(taker.failed_refunds.load(Ordering::Relaxed), 0);
    *taker.waiting.lock().expect("no panic") = None;
    assert_eq!(fixture.peek("/").await.expect("a verdict"), [99]);
}

/// Returns a fixture with one unit for the user, and none left for the tenant.
async fn exhausted_tenant(algorithm: Algorithm) -> Fixture {
    let rules = rule_set(vec![
        rule("a-user", user(), algorithm, 1),
        for_tenants(rule("b-tenant", attribute("tenant"), algorithm, 1)),
    ]);
    let fixture = Fixture::start(rules, 4096, no_observer()).await;
    let ids = [&*fixture.team, &fixture.tenant, &fixture.team];
    assert!(check(&fixture.limiter, ids, "/tenant", 1).await.expect("a verdict").is_allowed());
    fixture
}

#[tokio::test]
async fn rollback_clears_the_deny_cache() {
    let fixture = exhausted_tenant(Algorithm::Gcra).await;
    fixture.pause(true);
    let refused = fixture.spawn("/tenant");
    let taken = async || fixture.peek("/").await.expect("a verdict") == [0];
    eventually("the user's master takes", SOON, taken).await;
    for source in [Source::Store, Source::DenyCache] {
        let verdict = fixture.check("/", 1).await.expect("a verdict");
        assert_eq!((verdict.is_allowed(), verdict.deciding().source), (false, source));
    }
    fixture.pause(false);
    assert!(!refused.await.expect("no panic").expect("a verdict").is_allowed());
    let verdict = fixture.check("/", 1).await.expect("a verdict");
    assert_eq!((verdict.is_allowed(), verdict.deciding().source), (true, Source::Store));
}

#[tokio::test]
async fn receipt_refund_clears_the_deny_cache() {
    let redis = RedisServer::start();
    let servers = Servers::Standalone(Box::new(redis.url().parse().expect("a valid url")));
    for algorithm in Algorithm::RATES {
        let rules = rule_set(vec![rule("a-user", user(), *algorithm, 5)]);
        let limiter = limiter(servers.clone(), rules, 4096, no_observer());
        let background = limiter.clone();
        let running = tokio::spawn(async move { background.run().await });
        let request = Request::user("alice").cost(5).build().expect("a valid request");
        let taken = limiter.check_with_receipts(&request, Deadline::NEVER).await;
        let (verdict, receipts) = taken.expect("a verdict");
        assert!(verdict.is_allowed(), "{}", algorithm.name());
        let check = async || {
            let verdict = limiter.check(&request, Deadline::NEVER).await.expect("a verdict");
            (verdict.is_allowed(), verdict.deciding().source)
        };
        assert_eq!(check().await, (false, Source::Store), "{}", algorithm.name());
        assert_eq!(check().await, (false, Source::DenyCache), "{}", algorithm.name());
        limiter.refund(receipts, Deadline::NEVER).await.expect("a refund");
        assert_eq!(check().await, (true, Source::Store), "{}", algorithm.name());
        running.abort();
    }
}

#[tokio::test]
async fn check_dropped_between_two_shards_is_refunded() {
    let fixture = exhausted_tenant(Algorithm::FixedWindow).await;
    fixture.pause(true);
    let leaves = fixture.spawn("/tenant");
    let taken = async || fixture.peek("/").await.expect("a verdict") == [0];
    eventually("the user's master takes", SOON, taken).await;
    // Drops the future of the check.
    leaves.abort();
    assert!(leaves.await.is_err_and(|ended| ended.is_cancelled()));
    assert_eq!(fixture.peek("/").await.expect("a verdict"), [0]);
    fixture.pause(false);
    let refunded = async || fixture.peek("/").await.expect("a verdict") == [1];
    eventually("the unit is refunded", SOON, refunded).await;
}
