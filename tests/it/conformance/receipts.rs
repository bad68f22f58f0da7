//! Receipts and resets: a receipt is refunded once, by the limiter, and a reset clears the state.

use std::sync::Arc;
use std::time::Duration;

use super::{cases, per};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use rlaas::algorithm::{Algorithm, Decision, Limit};
use rlaas::clock::Micros;
use rlaas::operation::StoreId;
use rlaas::rules::{OnStoreFailure, Rule, RuleSet, Share};
use rlaas::store::{Action, Coupling, RedisSettings, RedisStore, Servers, Store};
use rlaas_limiter::Limiter;
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::proxy::{Behaviour, Proxy};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use rlaas_testkit::{eventually, rules};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

const MINUTE: Micros = Micros::from_secs(60);

async fn peek(on: &Service) -> Decision {
    on.check_cost("alice", 0).await
}

async fn reset(on: &Service, user: &str) -> Decision {
    on.act(user, Action::Reset, Coupling::AllOrNothing).await
}

cases! {
    all;
    refund_returns_nothing_taken_before_a_reset: per(5, MINUTE);
    receipt_of_another_algorithm_returns_nothing: per(5, MINUTE);
    denial_has_no_receipt: per(5, MINUTE);
    receipt_stays_valid_after_a_change_of_its_limit: per(5, MINUTE);
}

async fn refund_returns_nothing_taken_before_a_reset(on: Service) {
    let (_, earlier) = on.take("alice", 2).await;
    let (_, same_moment) = on.take("alice", 1).await;
    on.at(1.0);
    reset(&on, "alice").await;
    on.check_cost("alice", 4).await;
    let before = peek(&on).await;
    on.refund(earlier).await;
    assert_eq!(peek(&on).await, before);
    on.at(2.0);
    let before = peek(&on).await;
    on.refund(same_moment).await;
    assert_eq!(peek(&on).await, before);
    // Units taken after the reset are refunded.
    let (_, later) = on.take("alice", 1).await;
    on.refund(later).await;
    assert_eq!(peek(&on).await, before);
}

async fn receipt_of_another_algorithm_returns_nothing(on: Service) {
    let algorithm = on.algorithm();
    for (number, other) in Algorithm::RATES.iter().filter(|other| **other != algorithm).enumerate()
    {
        // Each algorithm gets windows of its own, because fixed windows have one key each.
        on.at(f64::from(u32::try_from(number).expect("few algorithms")) * 180.0);
        on.limiter.replace_rules(rules(algorithm, 5, MINUTE));
        let (decision, receipts) = on.take("alice", 2).await;
        assert!(decision.is_allowed(), "{}", other.name());
        on.limiter.replace_rules(rules(*other, 5, MINUTE));
        on.check_cost("alice", 4).await;
        let before = peek(&on).await;
        assert_eq!(before.remaining, 1, "{}", other.name());
        on.refund(receipts).await;
        assert_eq!(peek(&on).await, before, "{}", other.name());
    }
}

async fn denial_has_no_receipt(on: Service) {
    on.check_cost("alice", 3).await;
    let (denied, receipts) = on.take("alice", 3).await;
    assert!(!denied.is_allowed());
    assert!(receipts.is_empty(), "{receipts:?}");
    let (looked, receipts) = on.take("alice", 0).await;
    assert!(looked.is_allowed());
    assert!(receipts.is_empty(), "{receipts:?}");
}

cases! {
    fixed_window sliding_window_log;
    refund_is_exact_despite_later_takes: per(5, MINUTE);
}

async fn refund_is_exact_despite_later_takes(on: Service) {
    let (_, receipts) = on.take("alice", 2).await;
    on.at(20.0);
    on.check_cost("alice", 3).await;
    on.at(40.0);
    assert_eq!(peek(&on).await.remaining, 0);
    on.refund(receipts).await;
    assert_eq!(peek(&on).await.remaining, 2);
    assert!(on.check_cost("alice", 2).await.is_allowed());
    assert!(!on.check("alice").await.is_allowed());
}

/// A limit, what is taken under it for a receipt, and the limit that replaces it.
#[derive(Clone, Debug)]
struct Change {
    then: (u64, u64, u64),
    now: (u64, u64, u64),
    before: Vec<(u64, u64)>,
    taken: (u64, u64),
    meanwhile: Vec<(u64, u64)>,
    until_refunded: u64,
}

fn change() -> impl Strategy<Value = Change> {
    let units = || prop_oneof![3 => 1..=12_u64, 1 => Just(100), 1 => Just(300)];
    let window_ms = || prop::sample::select(vec![1_000_u64, 60_000, 60_000, 600_000, 86_400_000]);
    let burst = || prop::sample::select(vec![100_u64, 100, 50, 400]);
    let limit = || (units(), window_ms(), burst());
    let advance = || prop_oneof![2 => Just(0), 3 => 0..=1_200_u64];
    let steps = || prop::collection::vec((advance(), 1..=100_u64), 0..=3);
    let taken = (advance(), 1..=100_u64);
    (limit(), limit(), steps(), taken, steps(), advance()).prop_map(
        |(then, now, before, taken, meanwhile, until_refunded)| Change {
            then,
            now,
            before,
            taken,
            meanwhile,
            until_refunded,
        },
    )
}

fn limit_of(algorithm: Algorithm, (units, window_ms, burst): (u64, u64, u64)) -> Limit {
    let limit = Limit::new(units, Micros::from_millis(window_ms)).expect("a valid limit");
    let burst = (units * burst / 100).max(1);
    if algorithm.has_burst() { limit.with_burst(burst).expect("a valid burst") } else { limit }
}

fn rules_with(algorithm: Algorithm, limit: Limit) -> RuleSet {
    RuleSet::new(Rule::new_default(algorithm, limit), Vec::new())
}

async fn no_more_than_was_taken(
    change: &Change,
    algorithm: Algorithm,
    server: Option<&Arc<RedisServer>>,
) -> TestCaseResult {
    let (then, now) = (limit_of(algorithm, change.then), limit_of(algorithm, change.now));
    let on = match server {
        None => Service::on_memory(rules_with(algorithm, then)),
        Some(server) => {
            server.query::<()>(&["FLUSHALL"]);
            Service::on_redis(rules_with(algorithm, then), Arc::clone(server))
        }
    };
    let mut time = T0;
    let mut advance = |limit: Limit, thousandths: u64| {
        time = time + Micros::from_micros(limit.window().as_millis() * thousandths);
        on.set_clock(time);
    };
    let cost = |limit: Limit, percent: u64| (limit.burst() * percent / 100).max(1);
    for (thousandths, percent) in &change.before {
        advance(then, *thousandths);
        on.check_cost("alice", cost(then, *percent)).await;
    }
    advance(then, change.taken.0);
    let (_, receipts) = on.take("alice", cost(then, change.taken.1)).await;
    let taken: u64 = receipts.iter().map(|receipt| receipt.taken.cost.units()).sum();
    on.limiter.replace_rules(rules_with(algorithm, now));
    for (thousandths, percent) in &change.meanwhile {
        advance(now, *thousandths);
        on.check_cost("alice", cost(now, *percent)).await;
    }
    advance(now, change.until_refunded);
    let before = peek(&on).await;
    on.refund(receipts).await;
    let after = peek(&on).await;
    prop_assert!(
        after.remaining <= before.remaining + taken.cast_signed(),
        "{} were taken: {:?}, then {:?}",
        taken,
        before,
        after
    );
    prop_assert!(after.remaining >= before.remaining, "{:?}, then {:?}", before, after);
    Ok(())
}

async fn receipt_stays_valid_after_a_change_of_its_limit(on: Service) {
    let (algorithm, server) = (on.algorithm(), on.redis().cloned());
    let tried = spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let cases = if std::env::var_os("SOAK").is_some() { 2_000 } else { 100 };
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let tried = TestRunner::new(config).run(&change(), |change| {
            runtime.block_on(no_more_than_was_taken(&change, algorithm, server.as_ref()))
        });
        tried.map_err(|failure| failure.to_string())
    });
    tried.await.expect("no panic").unwrap_or_else(|failure| panic!("{failure}"));
}

#[tokio::test]
async fn receipt_of_the_local_fallback_is_refunded_there() {
    // A proxy that refuses connections keeps its port from other servers.
    let nowhere = Proxy::to(1);
    nowhere.set(Behaviour::Refuse);
    let url = nowhere.url().parse().map(Box::new).expect("a valid url");
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::new(Servers::Standalone(url))
    };
    let metrics = Arc::new(Metrics::new());
    let store = RedisStore::new(&settings, metrics.clone()).expect("valid settings");
    let local = OnStoreFailure::Local(Share::new(500_000).expect("a share"));
    for algorithm in Algorithm::RATES {
        let limit = Limit::new(10, Micros::from_secs(86_400)).expect("a valid limit");
        let rule = Rule { on_store_failure: local, ..Rule::new_default(*algorithm, limit) };
        let rules = RuleSet::new(rule, Vec::new());
        let limiter = Limiter::new(rules, Store::Redis(Arc::new(store.clone())), metrics.clone());
        let on = Service::with(limiter, metrics.clone());
        let (decision, receipts) = on.take("alice", 3).await;
        assert!(decision.is_allowed(), "{}", algorithm.name());
        assert_eq!(receipts.iter().map(|one| one.store).collect::<Vec<_>>(), [StoreId::Fallback]);
        assert!(!on.check_cost("alice", 3).await.is_allowed(), "{}", algorithm.name());
        on.refund(receipts).await;
        assert_eq!(on.check_cost("alice", 3).await.remaining, 2, "{}", algorithm.name());
    }
}

cases! {
    all, redis;
    record_of_a_reset_expires: per(10, MINUTE);
}

async fn record_of_a_reset_expires(on: Service) {
    on.check_cost("alice", 6).await;
    on.at(30.5);
    reset(&on, "alice").await;
    let redis = on.redis().expect("a service on Redis");
    for key in redis.keys() {
        let lives = redis.query::<i64>(&["PTTL", &key]);
        assert!((1..=122_000).contains(&lives), "{key}: {lives} ms");
    }
    on.at(30.5 + 122.0);
    let gone = async || redis.keys().is_empty();
    eventually("all keys have expired", Duration::from_secs(5), gone).await;
}
