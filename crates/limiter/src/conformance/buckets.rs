//! Cases of token bucket, leaky bucket and GCRA. All three make the same decisions; only the leaky
//! bucket also reports a delay.

use super::rules_with_burst;
use super::{Subject, span};
use super::{left, retry_after};
use crate::algorithm::{Algorithm, Outcome};
use crate::clock::Micros;
use crate::rules::RuleSet;

/// A capacity of `burst`, refilled by `units` per second.
pub(super) fn refilled(units: u64, burst: u64) -> impl Fn(Algorithm) -> RuleSet {
    move |bucket| rules_with_burst(bucket, units, Micros::from_secs(1), burst)
}

pub(super) async fn a_burst_then_one_a_second(on: Subject) {
    for remaining in (0..5).rev() {
        let decision = on.check("alice").await;
        assert_eq!((decision.is_allowed(), left(&decision)), (true, remaining));
        assert_eq!(decision.current_count, 5 - remaining);
        assert_eq!(decision.reset_after, Micros::from_secs(5 - remaining));
    }
    assert_eq!(retry_after(&on.check("alice").await), Some(span(1.0)));
    // Each wait is for the next unit that was not taken yet.
    let cases =
        [(0.5, Some(0.5)), (0.999, Some(0.001)), (1.0, None), (1.0, Some(1.0)), (2.0, None)];
    for (at, wait) in cases {
        on.at(at);
        let decision = on.check("alice").await;
        assert_eq!(decision.is_allowed(), wait.is_none(), "at {at}");
        assert_eq!(retry_after(&decision), wait.map(span), "at {at}");
    }
}

pub(super) async fn refilled_to_the_burst_and_no_further(on: Subject) {
    on.check_cost("alice", 5).await;
    on.at(20.0);
    for _ in 0..5 {
        assert!(on.check("alice").await.is_allowed());
    }
    assert!(!on.check("alice").await.is_allowed());
}

pub(super) async fn no_part_of_a_unit_is_lost(on: Subject) {
    assert!(on.check_cost("alice", 100).await.is_allowed());
    let mut taken = 0;
    for step in 1..=40_u32 {
        on.at(f64::from(step) * 1.5);
        let left = left(&on.check_cost("alice", 0).await);
        assert!(on.check_cost("alice", left).await.is_allowed());
        assert!(!on.check("alice").await.is_allowed());
        taken += left;
    }
    assert_eq!(taken, 600);
}

pub(super) async fn a_large_burst_at_one_instant(on: Subject) {
    // In requests of 10 units, then of 1: 25,010 units in all.
    let mut allowed = 0;
    for _ in 0..2_500 {
        allowed += if on.check_cost("alice", 10).await.is_allowed() { 10 } else { 0 };
    }
    for _ in 0..10 {
        allowed += u32::from(on.check("alice").await.is_allowed());
    }
    assert_eq!(allowed, 25_000);
}

pub(super) async fn costs_above_one(on: Subject) {
    let first = on.check_cost("alice", 3).await;
    assert_eq!((first.is_allowed(), first.remaining), (true, 2));
    let denied = on.check_cost("alice", 3).await;
    assert_eq!((retry_after(&denied), denied.remaining), (Some(span(1.0)), 2));
    let last = on.check_cost("alice", 2).await;
    assert_eq!((last.is_allowed(), last.remaining), (true, 0));
}

pub(super) async fn a_cost_above_the_burst_is_impossible(on: Subject) {
    for cost in [6, u64::from(u32::MAX)] {
        let decision = on.check_cost("alice", cost).await;
        assert_eq!(decision.outcome, Outcome::Impossible);
        assert_eq!((decision.current_count, decision.remaining), (0, 5));
    }
    assert!(on.check_cost("alice", 5).await.is_allowed(), "the burst itself fits");
}

pub(super) async fn no_refill_by_expiry(on: Subject) {
    assert!(on.check_cost("alice", 1_000).await.is_allowed());
    on.at(61.0);
    assert_eq!(on.check_cost("alice", 0).await.remaining, 61);
    assert!(!on.check_cost("alice", 62).await.is_allowed());
    assert!(on.check_cost("alice", 61).await.is_allowed());
}

pub(super) async fn the_pattern_matches_gorl(on: Subject) {
    let mut first = true;
    let mut check_all = async |at: f64, pattern: &[u8]| {
        on.at(at);
        for (call, allowed) in pattern.iter().enumerate() {
            let decision = on.check("alice").await;
            assert_eq!(u8::from(decision.is_allowed()), *allowed, "call {call} at {at}");
            match (first, call) {
                (true, 0) => assert_eq!(decision.reset_after, span(1.0)),
                (true, 4) => assert_eq!(decision.reset_after, span(5.0)),
                _ => {}
            }
            if at > 0.9 && at < 1.0 {
                assert_eq!(retry_after(&decision), Some(Micros::from_micros(1)));
            }
        }
        first = false;
    };
    check_all(0.0, &[1, 1, 1, 1, 1, 0]).await;
    check_all(0.5, &[0]).await;
    check_all(0.999_999, &[0]).await;
    check_all(1.0, &[1, 0]).await;
    check_all(1.5, &[0]).await;
    check_all(2.0, &[1, 0]).await;
    check_all(10.0, &[1, 1, 1, 1, 1, 0]).await;
}

pub(super) async fn partly_refilled(on: Subject) {
    assert!(on.check("alice").await.is_allowed());
    on.at(2.0);
    for allowed in [true, true, true, false] {
        assert_eq!(on.check("alice").await.is_allowed(), allowed);
    }
}

pub(super) async fn a_burst_apart_from_the_limit(on: Subject) {
    let first = on.check_cost("alice", 6).await;
    assert_eq!((first.is_allowed(), first.reset_after), (true, span(3.0)));
    on.at(0.5);
    assert!(on.check("alice").await.is_allowed());
    assert_eq!(retry_after(&on.check("alice").await), Some(span(0.5)));
}

pub(super) async fn three_million_a_second_is_exact(on: Subject) {
    assert!(on.check_cost("alice", 3_000_000).await.is_allowed());
    for step in 1..=1_000_u32 {
        // Exactly three units in each microsecond.
        on.at(f64::from(step) / 1e6);
        assert_eq!(on.check_cost("alice", 0).await.remaining, 3);
        assert!(on.check_cost("alice", 2).await.is_allowed());
        assert!(on.check("alice").await.is_allowed());
        assert_eq!(retry_after(&on.check("alice").await), Some(Micros::from_micros(1)));
    }
}

pub(super) async fn an_odd_number_a_day_is_exact(on: Subject) {
    let day = 86_400_000_000_u128;
    assert!(on.check_cost("alice", 999_983).await.is_allowed());
    for taken in 1..=100_u128 {
        // The nth unit is refilled after ⌈n × day / 999983⌉ µs.
        let wait = (taken * day).div_ceil(999_983);
        let refilled =
            super::T0 + Micros::from_micros(u64::try_from(wait).expect("less than a day"));
        on.set_clock(crate::clock::Timestamp::from_micros(refilled.as_micros() - 1));
        assert_eq!(retry_after(&on.check("alice").await), Some(Micros::from_micros(1)));
        on.set_clock(refilled);
        assert!(on.check("alice").await.is_allowed(), "unit {taken}");
    }
}

pub(super) async fn the_largest_and_slowest_are_exact(on: Subject) {
    let full = on.check_cost("alice", 1_000_000_000).await;
    assert_eq!(full.reset_after, Micros::from_secs(366 * 86_400));
    // Each unit takes 31622.4 µs.
    assert_eq!(retry_after(&on.check("alice").await), Some(Micros::from_micros(31_623)));
    let denied = on.check_cost("alice", 999_999_999).await;
    assert_eq!(retry_after(&denied), Some(Micros::from_micros(31_622_399_968_378)));
    on.at(31_622_399.968_377);
    assert!(!on.check_cost("alice", 999_999_999).await.is_allowed());
    on.at(31_622_399.968_378);
    assert!(on.check_cost("alice", 999_999_999).await.is_allowed());
}

pub(super) async fn a_clock_that_steps_back_mints_and_burns_nothing(on: Subject) {
    on.at(10.0);
    on.check_cost("alice", 4).await;
    for at in [9.5, 10.0, 9.25, 10.0] {
        on.at(at);
        assert_eq!(on.check_cost("alice", 0).await.remaining, 1, "at {at}");
    }
    on.at(11.0);
    assert_eq!(on.check_cost("alice", 0).await.remaining, 2);
}

pub(super) async fn a_clock_that_jumps_back_a_day_blocks_nobody_for_longer_than_a_window(
    on: Subject,
) {
    on.at(86_400.0);
    on.check_cost("alice", 5).await;
    on.at(0.0);
    on.check("alice").await;
    on.at(1.0);
    assert!(on.check("alice").await.is_allowed());
}

pub(super) async fn requests_are_spaced_evenly(on: Subject) {
    for delay in 0..5 {
        assert_eq!(on.check("alice").await.delay, Micros::from_secs(delay));
    }
    on.at(1.25);
    let next = on.check("alice").await;
    assert_eq!((next.is_allowed(), next.delay), (true, span(3.75)));
    on.at(100.0);
    assert_eq!(on.check("alice").await.delay, Micros::ZERO);
}
