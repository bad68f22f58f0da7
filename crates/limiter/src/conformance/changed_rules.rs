//! A changed rule applies to existing states at once, and no unit is added or lost beyond what the
//! new rule implies.

use super::retry_after;
use super::{Subject, span};
use super::{rules, rules_with_burst};
use crate::algorithm::Algorithm;
use crate::clock::Micros;
use crate::rules::RuleSet;

const MINUTE: Micros = Micros::from_secs(60);

fn per_minute(algorithm: Algorithm, units: u64) -> RuleSet {
    rules(algorithm, units, MINUTE)
}

pub(super) async fn a_lowered_limit_holds_at_once(on: Subject) {
    let algorithm = on.algorithm();
    on.check_cost("alice", 6).await;
    on.limiter.replace_rules(per_minute(algorithm, 4));
    let peeked = on.check_cost("alice", 0).await;
    // A token bucket keeps the remaining units, the other algorithms keep the used ones. An
    // algorithm that is not listed may do either.
    let possible: &[i64] = match algorithm.name() {
        "token-bucket" => &[4],
        "fixed-window"
        | "sliding-window-log"
        | "sliding-window-counter"
        | "leaky-bucket"
        | "gcra" => &[0],
        _ => &[0, 4],
    };
    assert!(possible.contains(&peeked.remaining), "{peeked:?}");
    let mut wait = None;
    for _ in 0..=4 {
        wait = retry_after(&on.check("alice").await);
        if wait.is_some() {
            break;
        }
    }
    let wait = wait.expect("the new limit denies");
    assert!(wait <= span(120.0), "{wait}");
    // The announced wait is sufficient.
    let now = super::T0 + wait;
    on.set_clock(now);
    assert!(on.check("alice").await.is_allowed());
}

pub(super) async fn a_raised_limit_grants_what_it_adds(on: Subject) {
    let algorithm = on.algorithm();
    on.check_cost("alice", 10).await;
    assert!(!on.check("alice").await.is_allowed());
    on.limiter.replace_rules(per_minute(algorithm, 25));
    let possible: &[i64] = match algorithm.name() {
        // The denied attempt was counted.
        "fixed-window" => &[14],
        // An empty bucket stays empty and fills faster.
        "token-bucket" => &[0],
        "sliding-window-log" | "sliding-window-counter" | "leaky-bucket" | "gcra" => &[15],
        _ => &[0, 15],
    };
    let left = on.check_cost("alice", 0).await.remaining;
    assert!(possible.contains(&left), "{left}");
    if left > 0 {
        assert!(on.check_cost("alice", left.cast_unsigned()).await.is_allowed());
    }
    assert!(!on.check("alice").await.is_allowed());
}

pub(super) async fn a_shorter_window_forgets_sooner_and_a_longer_one_later(on: Subject) {
    let algorithm = on.algorithm();
    on.check_cost("alice", 10).await;
    on.limiter.replace_rules(rules(algorithm, 10, Micros::from_secs(6)));
    on.at(12.0);
    assert_eq!(on.check_cost("alice", 0).await.remaining, 10);
    on.check_cost("alice", 10).await;
    on.limiter.replace_rules(rules(algorithm, 10, Micros::from_secs(600)));
    on.at(13.0);
    let left = on.check_cost("alice", 0).await.remaining;
    // A fixed window of another length has another key.
    assert_eq!(left, if algorithm == Algorithm::FixedWindow { 10 } else { 0 });
}

pub(super) async fn a_changed_algorithm_starts_afresh(on: Subject) {
    let algorithm = on.algorithm();
    for other in Algorithm::RATES {
        on.limiter.replace_rules(per_minute(algorithm, 10));
        on.check_cost("alice", 10).await;
        on.limiter.replace_rules(per_minute(*other, 10));
        if *other != algorithm && *other != Algorithm::FixedWindow {
            assert_eq!(on.check("alice").await.remaining, 9, "{}", other.name());
        }
    }
}

pub(super) async fn many_changes_do_not_add_up(on: Subject) {
    let algorithm = on.algorithm();
    // Alternating limits at one instant: no more than the larger limit is allowed in all.
    let mut passed = 0;
    for round in 0..100 {
        on.limiter.replace_rules(per_minute(algorithm, if round % 2 == 0 { 7 } else { 13 }));
        passed += u32::from(on.check("alice").await.is_allowed());
    }
    assert!((7..=13).contains(&passed), "{passed}");
}

pub(super) fn one_a_second(burst: u64) -> impl Fn(Algorithm) -> RuleSet {
    move |algorithm| rules_with_burst(algorithm, 1, Micros::from_secs(1), burst)
}

pub(super) async fn a_lowered_burst_announces_waits_that_hold(on: Subject) {
    on.check_cost("alice", 10).await;
    on.limiter.replace_rules(one_a_second(2)(on.algorithm()));
    assert_eq!(retry_after(&on.check("alice").await), Some(span(1.0)));
    on.at(0.999_999);
    assert!(!on.check("alice").await.is_allowed());
    on.at(1.0);
    assert!(on.check("alice").await.is_allowed());
}
