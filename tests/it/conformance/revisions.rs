//! `on-change` of rules that have revisions: a state is converted forward only.

use std::num::NonZeroU64;
use std::sync::Arc;

use rlaas::algorithm::{Algorithm, Limit, OnChange};
use rlaas::clock::Micros;
use rlaas::rules::{Rule, RuleSet};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;

use super::cases;

cases! {
    all, memory redis;
    newer_revisions_convert_each_time_in_one_window: first;
    older_revision_converts_nothing_however_late: first;
    change_is_one_from_the_newest_revision: first;
    newer_revision_with_the_same_limit_converts_nothing: first;
}

/// A limit per minute that a revision has set.
fn revision(algorithm: Algorithm, number: u64, units: u64, policy: OnChange) -> RuleSet {
    let limit = Limit::new(units, Micros::from_secs(60)).expect("a limit");
    let (revision, on_change) = (NonZeroU64::new(number), Some(policy));
    let rule = Rule { revision, on_change, ..Rule::new_default(algorithm, limit) };
    RuleSet::new(rule, Vec::new())
}

fn first(algorithm: Algorithm) -> RuleSet {
    revision(algorithm, 1, 10, OnChange::Reset)
}

/// Counts units by a revision, and returns those that are left.
async fn left_after(on: &Service, rules: RuleSet, units: u64) -> i64 {
    on.limiter.replace_rules(rules);
    on.check_cost("alice", units).await.remaining
}

async fn newer_revisions_convert_each_time_in_one_window(on: Service) {
    let algorithm = on.algorithm();
    for number in 1..20 {
        // 10 and 20 in turn.
        let units = 10 + number % 2 * 10;
        let rules = revision(algorithm, number, units, OnChange::Reset);
        let expected = i64::try_from(units).expect("few") - 4;
        assert_eq!(left_after(&on, rules, 4).await, expected, "{number}");
    }
}

async fn older_revision_converts_nothing_however_late(on: Service) {
    let algorithm = on.algorithm();
    let old = || revision(algorithm, 1, 7, OnChange::Reset);
    let new = || revision(algorithm, 2, 13, OnChange::Reset);
    left_after(&on, old(), 7).await;
    assert_eq!(left_after(&on, new(), 1).await, 12);
    // The newer one uses up all, and goes on for two windows before the older one is heard of.
    let mut passed_by_old = 0;
    for second in 0..240 {
        on.at(f64::from(second));
        on.limiter.replace_rules(new());
        while on.check("alice").await.is_allowed() {}
        if second >= 120 {
            on.limiter.replace_rules(old());
            passed_by_old += u32::from(on.check("alice").await.is_allowed());
        }
    }
    assert_eq!(passed_by_old, 0);
    on.limiter.replace_rules(new());
    assert!(!on.check("alice").await.is_allowed());
}

async fn change_is_one_from_the_newest_revision(on: Service) {
    let algorithm = on.algorithm();
    left_after(&on, revision(algorithm, 1, 10, OnChange::Scale), 1).await;
    assert_eq!(left_after(&on, revision(algorithm, 2, 20, OnChange::Scale), 6).await, 12);
    // An instance that lags counts by the first one. Counts stay, of a bucket the units left.
    let by_old = left_after(&on, revision(algorithm, 1, 10, OnChange::Scale), 1).await;
    assert_eq!(by_old, if algorithm.has_burst() { 9 } else { 1 });
    // Of 20 there are 9 in use, or 9 left: of 10 these are 5, or 6 in use.
    let by_newest = left_after(&on, revision(algorithm, 3, 10, OnChange::Scale), 1).await;
    assert_eq!(by_newest, if algorithm.has_burst() { 3 } else { 4 });
}

async fn newer_revision_with_the_same_limit_converts_nothing(on: Service) {
    let algorithm = on.algorithm();
    left_after(&on, revision(algorithm, 1, 10, OnChange::Reset), 4).await;
    assert_eq!(left_after(&on, revision(algorithm, 5, 10, OnChange::Reset), 1).await, 5);
    // From then on that is the newest one.
    let older = left_after(&on, revision(algorithm, 4, 20, OnChange::Reset), 1).await;
    assert_eq!(older, if algorithm.has_burst() { 4 } else { 14 });
    assert_eq!(left_after(&on, revision(algorithm, 6, 20, OnChange::Reset), 1).await, 19);
}

#[tokio::test]
async fn instances_one_revision_apart_share_one_conversion() {
    let server = Arc::new(RedisServer::start());
    for algorithm in Algorithm::RATES {
        server.query::<()>(&["FLUSHALL"]);
        let instance = |number, units| {
            let rules = revision(*algorithm, number, units, OnChange::Reset);
            Service::on_redis(rules, Arc::clone(&server))
        };
        let (old, new) = (instance(1, 7), instance(2, 13));
        let mut passed = 0;
        for _ in 0..50 {
            for on in [&old, &new] {
                passed += u32::from(on.check("alice").await.is_allowed());
            }
        }
        assert!((7..=14).contains(&passed), "{algorithm:?}: {passed}");
    }
}
