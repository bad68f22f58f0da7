//! Refunds: the state becomes as if the units had never been taken, and never better.

use std::sync::Arc;

use super::{cases, on_redis, per};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use rlaas::algorithm::{Algorithm, Decision, Limit};
use rlaas::clock::{Micros, Timestamp};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use rlaas_testkit::{rules, rules_with_burst};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

const MINUTE: Micros = Micros::from_secs(60);

super::on_both! { refunds }

#[tokio::test]
async fn refund_of_a_past_window_goes_to_its_own_key() {
    let on = on_redis(rules(Algorithm::FixedWindow, 5, MINUTE));
    let redis = on.redis().expect("a service on Redis");
    on.at(50.0);
    on.check("alice").await;
    let taken = on.check_cost("alice", 2).await;
    on.at(61.0);
    on.check_cost("alice", 4).await;
    on.refund_decisions("alice", 2, &[taken]).await;
    let [before, after] =
        ["28333335", "28333336"].map(|index| format!("rlaas:rate_limit:alice:{index}"));
    assert_eq!(redis.query::<u64>(&["GET", &before]), 1);
    assert_eq!(redis.query::<u64>(&["PTTL", &before]), 49_000, "the time to live stays");
    assert_eq!(redis.query::<u64>(&["GET", &after]), 4);
}

#[tokio::test]
async fn refund_removes_the_most_entries_of_one_request() {
    let on = on_redis(rules(Algorithm::SlidingWindowLog, 100_000, MINUTE));
    let redis = on.redis().expect("a service on Redis");
    let key = "rlaas:rate_limit:alice";
    on.check_cost("alice", 7).await;
    on.at(1.0);
    on.check_cost("alice", 5).await;
    let taken = on.check_cost("alice", 10_000).await;
    on.at(2.0);
    on.check_cost("alice", 3).await;
    let ttl: u64 = redis.query(&["PTTL", key]);
    assert_eq!(on.refund_decisions("alice", 10_000, &[taken]).await[0].current_count, 15);
    let at = |seconds: u64| (T0.as_millis() + seconds * 1_000).to_string();
    for (second, entries) in [(0, 7), (1, 5), (2, 3)] {
        let count: u64 = redis.query(&["ZCOUNT", key, &at(second), &at(second)]);
        assert_eq!(count, entries, "at {second}");
    }
    assert_eq!(redis.query::<u64>(&["PTTL", key]), ttl, "the time to live stays");
}

cases! {
    all, redis;
    refund_restores_the_state: per(5, MINUTE);
    refund_keeps_a_foreign_value: per(5, MINUTE);
}

async fn refund_restores_the_state(on: Service) {
    let redis = on.redis().expect("a service on Redis");
    let taken = on.check_cost("alice", 2).await;
    // Without the script in its cache Redis receives the text again.
    redis.query::<()>(&["SCRIPT", "FLUSH"]);
    on.refund_decisions("alice", 2, &[taken]).await;
    assert!(redis.keys().is_empty());

    on.check_cost("alice", 2).await;
    let key = redis.keys().pop().expect("a key");
    let is_log = on.algorithm() == Algorithm::SlidingWindowLog;
    let state = || -> (Vec<u8>, u64, u64) {
        // It does not matter which entries of one millisecond are removed.
        let value = if is_log { Vec::new() } else { redis.query(&["GET", &key]) };
        let entries = if is_log { redis.query(&["ZCARD", &key]) } else { 0 };
        (value, entries, redis.query(&["PTTL", &key]))
    };
    let before = state();
    let taken = on.check_cost("alice", 3).await;
    assert_ne!(state(), before);
    on.refund_decisions("alice", 3, &[taken]).await;
    assert_eq!(state(), before);
}

async fn refund_keeps_a_foreign_value(on: Service) {
    let redis = on.redis().expect("a service on Redis");
    let taken = on.check_cost("alice", 2).await;
    let key = redis.keys().pop().expect("a key");
    redis.query::<()>(&["SET", &key, "abc"]);
    let decision = on.refund_decisions("alice", 2, &[taken]).await[0];
    assert_eq!((decision.is_allowed(), decision.remaining), (true, 5));
    assert_eq!(redis.query::<String>(&["GET", &key]), "abc");
    redis.query::<()>(&["DEL", &key]);
    redis.query::<()>(&["LPUSH", &key, "a", "b"]);
    on.refund_decisions("alice", 2, &[taken]).await;
    assert_eq!(redis.query::<u64>(&["LLEN", &key]), 2);
}

/// A rule and the requests under it: each advances the clock by thousandths of the window, and
/// costs a percentage of the burst.
#[derive(Clone, Debug)]
struct RefundCase {
    units: u64,
    window_ms: u64,
    burst_percent: u64,
    before: Vec<(u64, u64)>,
    /// The request that is refunded.
    taken: (u64, u64),
    /// Requests between it and its refund.
    meanwhile: Vec<(u64, u64)>,
    until_refund: u64,
    after: Vec<(u64, u64)>,
}

impl RefundCase {
    fn limit(&self, algorithm: Algorithm) -> Limit {
        let most = if algorithm == Algorithm::SlidingWindowLog { 300 } else { Limit::MAX_UNITS };
        let limit = Limit::new(self.units.min(most), Micros::from_millis(self.window_ms));
        let limit = limit.expect("a valid limit");
        let burst = (limit.units() * self.burst_percent / 100).max(1);
        if algorithm.has_burst() { limit.with_burst(burst).unwrap_or(limit) } else { limit }
    }
}

fn case() -> impl Strategy<Value = RefundCase> {
    let units = prop_oneof![
        4 => 1..=10_u64,
        2 => prop::sample::select(vec![100, 999_983, 3_000_000, 1_000_000_000]),
    ];
    let window_ms = prop::sample::select(vec![1, 7, 1_000, 60_000, 366 * 86_400_000]);
    let burst_percent = prop::sample::select(vec![100, 100, 1, 50, 150, 250]);
    let advance = || prop_oneof![2 => Just(0), 4 => 0..=400_u64, 1 => 400..=2_500_u64];
    let steps = |most| prop::collection::vec((advance(), 1..=60_u64), 0..=most);
    let taken = (advance(), 1..=100_u64);
    (units, window_ms, burst_percent, steps(3), taken, steps(3), advance(), steps(5)).prop_map(
        |(units, window_ms, burst_percent, before, taken, meanwhile, until_refund, after)| {
            RefundCase {
                units,
                window_ms,
                burst_percent,
                before,
                taken,
                meanwhile,
                until_refund,
                after,
            }
        },
    )
}

/// A service, its time, and two ids. `alice` takes units and gets them refunded; `twin` sends the
/// same requests except that one.
struct Twins {
    on: Service,
    limit: Limit,
    now: Timestamp,
}

impl Twins {
    fn new(case: &RefundCase, algorithm: Algorithm, server: Option<&Arc<RedisServer>>) -> Self {
        let limit = case.limit(algorithm);
        let rules = rules_with_burst(algorithm, limit.units(), limit.window(), limit.burst());
        let on = match server {
            None => Service::on_memory(rules),
            Some(server) => {
                server.query::<()>(&["FLUSHALL"]);
                Service::on_redis(rules, Arc::clone(server))
            }
        };
        Self { on, limit, now: T0 }
    }

    fn advance(&mut self, thousandths: u64) {
        self.now = self.now + Micros::from_micros(self.limit.window().as_millis() * thousandths);
        self.on.set_clock(self.now);
    }

    fn cost(&self, percent: u64) -> u64 {
        (self.limit.burst() * percent / 100).max(1)
    }

    /// Checks the same cost for both ids.
    async fn check_both(&mut self, (thousandths, percent): (u64, u64)) -> [Decision; 2] {
        self.advance(thousandths);
        let cost = self.cost(percent);
        [self.on.check_cost("alice", cost).await, self.on.check_cost("twin", cost).await]
    }

    async fn peek_at(&self, id: &str) -> Decision {
        self.on.check_cost(id, 0).await
    }

    /// Takes the cost if that is allowed: a denied attempt would change the state of a fixed
    /// window.
    async fn take(&mut self, (thousandths, percent): (u64, u64)) -> Option<(u64, Decision)> {
        self.advance(thousandths);
        let cost = self.cost(percent);
        let is_allowed = self.on.dry_run("alice", cost).await.is_allowed();
        if is_allowed { Some((cost, self.on.check_cost("alice", cost).await)) } else { None }
    }

    fn every_key_has_a_time_to_live(&self) -> bool {
        let Some(redis) = self.on.redis() else { return true };
        redis.keys().iter().all(|key| redis.query::<i64>(&["PTTL", key]) != -1)
    }
}

/// Without requests between a request and its refund, the state is that of the twin, which never
/// sent the refunded request.
async fn refund_equals_twin(case: &RefundCase, mut twins: Twins) -> TestCaseResult {
    for step in &case.before {
        twins.check_both(*step).await;
    }
    let Some((cost, taken)) = twins.take(case.taken).await else { return Ok(()) };
    twins.advance(case.until_refund);
    let refunded = twins.on.refund_decisions("alice", cost, &[taken]).await;
    prop_assert!(twins.every_key_has_a_time_to_live());
    let twin = twins.peek_at("twin").await;
    prop_assert_eq!(twins.peek_at("alice").await, twin);
    prop_assert_eq!(refunded, [twin]);
    for step in &case.after {
        let [alice, twin] = twins.check_both(*step).await;
        prop_assert_eq!(alice, twin, "{:?}", step);
    }
    Ok(())
}

/// With requests between a request and its refund, no more units are left than the twin has a
/// microsecond later. The twin never sent the refunded request.
async fn refund_never_exceeds_twin(
    case: &RefundCase,
    algorithm: Algorithm,
    mut twins: Twins,
) -> TestCaseResult {
    // The windows of a counter start with its first request, and start anew after two windows
    // without one. So both ids first send a request at the same time, and time is slowed down, so
    // that two windows never pass: the windows of both ids stay aligned.
    let slower = if algorithm == Algorithm::SlidingWindowCounter { 16 } else { 1 };
    let both = twins.check_both((0, 1)).await;
    prop_assert!(both[0].is_allowed() && both[1].is_allowed());
    let Some((cost, taken)) = twins.take((case.taken.0 / slower, case.taken.1)).await else {
        return Ok(());
    };
    for (thousandths, percent) in &case.meanwhile {
        if let Some((cost, _)) = twins.take((thousandths / slower, *percent)).await {
            prop_assert!(twins.on.check_cost("twin", cost).await.is_allowed());
        }
    }
    twins.advance(case.until_refund / slower);
    twins.on.refund_decisions("alice", cost, &[taken]).await;
    prop_assert!(twins.every_key_has_a_time_to_live());
    let alice = twins.peek_at("alice").await;
    twins.on.set_clock(twins.now + Micros::from_micros(1));
    let twin = twins.peek_at("twin").await;
    prop_assert!(alice.remaining <= twin.remaining, "{:?} and its twin {:?}", alice, twin);
    Ok(())
}

cases! {
    all;
    refunded_state_equals_one_never_taken_from: per(5, MINUTE);
}

async fn refunded_state_equals_one_never_taken_from(on: Service) {
    let (algorithm, server) = (on.algorithm(), on.redis().cloned());
    // The cases block their thread: they run one by one on a runtime of their own.
    let tried = spawn_blocking(move || try_cases(algorithm, server.as_ref())).await;
    tried.expect("no panic").unwrap_or_else(|failure| panic!("{failure}"));
}

fn try_cases(algorithm: Algorithm, server: Option<&Arc<RedisServer>>) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let more = if std::env::var_os("SOAK").is_some() { 10 } else { 1 };
    let cases = more * if server.is_some() { 100 } else { 1_000 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let try_case = |case: RefundCase| -> TestCaseResult {
        runtime.block_on(async {
            refund_equals_twin(&case, Twins::new(&case, algorithm, server)).await?;
            refund_never_exceeds_twin(&case, algorithm, Twins::new(&case, algorithm, server)).await
        })
    };
    TestRunner::new(config).run(&case(), try_case).map_err(|failure| failure.to_string())
}
