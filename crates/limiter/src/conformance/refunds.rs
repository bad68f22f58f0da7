//! Refunds restore the state as if the units had not been taken, and never give more.

use super::{Subject, counted, rules_with_burst};
use crate::algorithm::{Algorithm, Decision, Limit};
use crate::clock::Micros;
use crate::rules::{Mode, Part, Rule, RuleSet};

const MINUTE: Micros = Micros::from_secs(60);

pub(super) async fn a_denial_and_a_peek_refund_nothing(on: Subject) {
    on.check_cost("alice", 3).await;
    let before = on.check_cost("alice", 0).await;
    let denied = on.check_cost("alice", 4).await;
    assert!(!denied.is_allowed());
    assert_eq!(on.refund_decisions("alice", 4, &[denied]).await, [before]);
    assert_eq!(on.refund_decisions("alice", 0, &[before]).await, [before]);
    assert_eq!(on.check_cost("alice", 0).await, before);
}

pub(super) async fn nothing_is_refunded_once_windows_have_passed(on: Subject) {
    let taken = on.check_cost("alice", 3).await;
    on.at(120.0);
    on.check_cost("alice", 2).await;
    on.refund_decisions("alice", 3, &[taken]).await;
    assert_eq!(on.check_cost("alice", 0).await.remaining, 3);
}

pub(super) async fn a_second_refund_changes_nothing(on: Subject) {
    let taken = on.check_cost("alice", 3).await;
    on.refund_decisions("alice", 3, &[taken]).await;
    let again = on.refund_decisions("alice", 3, &[taken]).await;
    assert_eq!((again[0].is_allowed(), again[0].remaining), (true, 5));
    assert!(on.is_empty());
}

/// One rule of each algorithm, and a shadow rule that denies.
pub(super) fn one_of_each() -> RuleSet {
    let rule = |name: &str, algorithm: Algorithm, units, mode| {
        let limit = Limit::new(units, MINUTE).expect("a valid limit");
        let key_by = vec![Part::UserId];
        Rule { name: name.into(), key_by, mode, ..Rule::new_default(algorithm, limit) }
    };
    let enforced = Algorithm::RATES.iter().map(|algorithm| {
        let name = algorithm.name();
        rule(name, *algorithm, 5, Mode::Enforced)
    });
    let shadow = rule("shadow", Algorithm::TokenBucket, 1, Mode::Shadow);
    let limit = Limit::new(5, MINUTE).expect("a valid limit");
    let default = Rule::new_default(Algorithm::Gcra, limit);
    RuleSet::new(default, enforced.chain([shadow]).collect())
}

pub(super) async fn every_hit_of_a_request_is_refunded(on: Subject) {
    let check = async |cost| -> Vec<Decision> {
        let verdict = on.verdict("alice", Some(cost), false).await.expect("a verdict");
        verdict.decisions.iter().map(|decided| decided.decision).collect()
    };
    check(1).await;
    let before = check(0).await;
    let taken = check(2).await;
    let denied = taken.iter().filter(|decision| !decision.is_allowed());
    assert_eq!(denied.count(), 1, "only the shadow rule denies");
    assert_eq!(on.refund_decisions("alice", 2, &taken).await, before);
    assert_eq!(check(0).await, before);
}

/// A capacity of 5, refilled by a unit a second.
pub(super) fn five_and_one_a_second(bucket: Algorithm) -> RuleSet {
    rules_with_burst(bucket, 1, Micros::from_secs(1), 5)
}

pub(super) async fn units_refilled_since_are_not_refunded(on: Subject) {
    let taken = on.check_cost("alice", 2).await;
    on.at(1.5);
    assert_eq!(on.check_cost("alice", 4).await.remaining, 0);
    // 1.5 of the 2 units were refilled since, and other requests took them.
    assert_eq!(on.refund_decisions("alice", 2, &[taken]).await[0].remaining, 1);
    assert_eq!(on.check_cost("alice", 1).await.reset_after, Micros::from_secs(5));
}

pub(super) async fn attempts_at_a_full_window_are_not_refunded(on: Subject) {
    let taken = on.check_cost("alice", 2).await;
    on.check_cost("alice", 3).await;
    for count in [6, 7, 8] {
        assert_eq!(counted(&on.check("alice").await), (false, count));
    }
    assert_eq!(counted(&on.refund_decisions("alice", 2, &[taken]).await[0]), (true, 3));
    assert_eq!(counted(&on.check_cost("alice", 2).await), (true, 5));
}

pub(super) async fn a_refunded_counter_starts_afresh_after_two_windows(on: Subject) {
    on.check_cost("alice", 2).await;
    on.at(70.0);
    let taken = on.check_cost("alice", 3).await;
    on.refund_decisions("alice", 3, &[taken]).await;
    // Two windows after the first request. The refunded request in the second window does not
    // count.
    on.at(120.5);
    assert_eq!(on.check("alice").await.reset_after, Micros::from_secs(120));
}
