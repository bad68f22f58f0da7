//! Cases of token bucket, leaky bucket and GCRA. They decide alike: each case is for all
//! three, but for the pace, which the leaky bucket alone tells.

use super::{cases, left, per, retry_after};
use rlaas::algorithm::{Algorithm, Outcome};
use rlaas::clock::Span;
use rlaas::rules::RuleSet;
use rlaas_testkit::rules_with_burst;
use rlaas_testkit::service::{Service, span};

/// Capacity `burst`, refilled by `units` per second.
fn refilled(units: u64, burst: u64) -> impl Fn(Algorithm) -> RuleSet {
    move |bucket| rules_with_burst(bucket, units, Span::from_secs(1), burst)
}

cases! {
    buckets;
    tb_01_and_02_a_burst_then_one_a_second: refilled(1, 5);
    tb_03_refilled_to_the_burst_and_no_further: refilled(1, 5);
    tb_05_no_part_of_a_unit_is_lost: refilled(10, 100);
    tb_06_a_large_burst_at_one_instant: refilled(25_000, 25_000);
    tb_08_cost: refilled(1, 5);
    tb_09_a_cost_above_the_burst_is_impossible: refilled(1, 5);
    tb_10_no_refill_by_expiry: refilled(1, 1_000);
    gt_01_and_gl_01_the_pattern_of_gorl: per(5, Span::from_secs(5));
    gt_03_partly_refilled: per(3, Span::from_secs(3));
    a_burst_apart_from_the_limit: refilled(2, 6);
    three_million_a_second_is_exact: refilled(3_000_000, 3_000_000);
    an_odd_number_a_day_is_exact: per(999_983, Span::from_secs(86_400));
    the_largest_and_slowest_are_exact: per(1_000_000_000, Span::from_secs(366 * 86_400));
    a_clock_that_steps_back_mints_and_burns_nothing: refilled(1, 5);
    a_clock_that_jumps_back_a_day_blocks_nobody_for_longer_than_a_window: refilled(1, 5);
}

async fn tb_01_and_02_a_burst_then_one_a_second(on: Service) {
    for remaining in (0..5).rev() {
        let decision = on.check("alice").await;
        assert_eq!((decision.is_allowed(), left(&decision)), (true, remaining));
        assert_eq!(decision.current_count, 5 - remaining);
        assert_eq!(decision.reset_after, Span::from_secs(5 - remaining));
    }
    assert_eq!(retry_after(&on.check("alice").await), Some(span(1.0)));
    // Each wait is for the unit after those that were taken.
    let cases =
        [(0.5, Some(0.5)), (0.999, Some(0.001)), (1.0, None), (1.0, Some(1.0)), (2.0, None)];
    for (at, wait) in cases {
        on.at(at);
        let decision = on.check("alice").await;
        assert_eq!(decision.is_allowed(), wait.is_none(), "at {at}");
        assert_eq!(retry_after(&decision), wait.map(span), "at {at}");
    }
}

async fn tb_03_refilled_to_the_burst_and_no_further(on: Service) {
    on.check_cost("alice", 5).await;
    on.at(20.0);
    for _ in 0..5 {
        assert!(on.check("alice").await.is_allowed());
    }
    assert!(!on.check("alice").await.is_allowed());
}

async fn tb_05_no_part_of_a_unit_is_lost(on: Service) {
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

async fn tb_06_a_large_burst_at_one_instant(on: Service) {
    // By tens, and the last ones singly: 25,010 in all.
    let mut allowed = 0;
    for _ in 0..2_500 {
        allowed += if on.check_cost("alice", 10).await.is_allowed() { 10 } else { 0 };
    }
    for _ in 0..10 {
        allowed += u32::from(on.check("alice").await.is_allowed());
    }
    assert_eq!(allowed, 25_000);
}

async fn tb_08_cost(on: Service) {
    let first = on.check_cost("alice", 3).await;
    assert_eq!((first.is_allowed(), first.remaining), (true, 2));
    let denied = on.check_cost("alice", 3).await;
    assert_eq!((retry_after(&denied), denied.remaining), (Some(span(1.0)), 2));
    let last = on.check_cost("alice", 2).await;
    assert_eq!((last.is_allowed(), last.remaining), (true, 0));
}

async fn tb_09_a_cost_above_the_burst_is_impossible(on: Service) {
    for cost in [6, u64::from(u32::MAX)] {
        let decision = on.check_cost("alice", cost).await;
        assert_eq!(decision.outcome, Outcome::Impossible);
        assert_eq!((decision.current_count, decision.remaining), (0, 5));
    }
    assert!(on.check_cost("alice", 5).await.is_allowed(), "the burst itself fits");
}

async fn tb_10_no_refill_by_expiry(on: Service) {
    assert!(on.check_cost("alice", 1_000).await.is_allowed());
    on.at(61.0);
    assert_eq!(on.check_cost("alice", 0).await.remaining, 61);
    assert!(!on.check_cost("alice", 62).await.is_allowed());
    assert!(on.check_cost("alice", 61).await.is_allowed());
}

async fn gt_01_and_gl_01_the_pattern_of_gorl(on: Service) {
    let mut first = true;
    let mut ask = async |at: f64, pattern: &[u8]| {
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
                assert_eq!(retry_after(&decision), Some(Span::from_micros(1)));
            }
        }
        first = false;
    };
    ask(0.0, &[1, 1, 1, 1, 1, 0]).await;
    ask(0.5, &[0]).await;
    ask(0.999_999, &[0]).await;
    ask(1.0, &[1, 0]).await;
    ask(1.5, &[0]).await;
    ask(2.0, &[1, 0]).await;
    ask(10.0, &[1, 1, 1, 1, 1, 0]).await;
}

async fn gt_03_partly_refilled(on: Service) {
    assert!(on.check("alice").await.is_allowed());
    on.at(2.0);
    for allowed in [true, true, true, false] {
        assert_eq!(on.check("alice").await.is_allowed(), allowed);
    }
}

async fn a_burst_apart_from_the_limit(on: Service) {
    let first = on.check_cost("alice", 6).await;
    assert_eq!((first.is_allowed(), first.reset_after), (true, span(3.0)));
    on.at(0.5);
    assert!(on.check("alice").await.is_allowed());
    assert_eq!(retry_after(&on.check("alice").await), Some(span(0.5)));
}

async fn three_million_a_second_is_exact(on: Service) {
    assert!(on.check_cost("alice", 3_000_000).await.is_allowed());
    for step in 1..=1_000_u32 {
        // Three units in each microsecond, and not one more.
        on.at(f64::from(step) / 1e6);
        assert_eq!(on.check_cost("alice", 0).await.remaining, 3);
        assert!(on.check_cost("alice", 2).await.is_allowed());
        assert!(on.check("alice").await.is_allowed());
        assert_eq!(retry_after(&on.check("alice").await), Some(Span::from_micros(1)));
    }
}

async fn an_odd_number_a_day_is_exact(on: Service) {
    let day = 86_400_000_000_u128;
    assert!(on.check_cost("alice", 999_983).await.is_allowed());
    for taken in 1..=100_u128 {
        // The nth unit is there after ⌈n × day / 999983⌉ µs.
        let wait = (taken * day).div_ceil(999_983);
        let there = rlaas_testkit::service::T0
            + Span::from_micros(u64::try_from(wait).expect("less than a day"));
        on.set_clock(rlaas::clock::Timestamp::from_micros(there.as_micros() - 1));
        assert_eq!(retry_after(&on.check("alice").await), Some(Span::from_micros(1)));
        on.set_clock(there);
        assert!(on.check("alice").await.is_allowed(), "unit {taken}");
    }
}

async fn the_largest_and_slowest_are_exact(on: Service) {
    let full = on.check_cost("alice", 1_000_000_000).await;
    assert_eq!(full.reset_after, Span::from_secs(366 * 86_400));
    // 31622.4 µs for each.
    assert_eq!(retry_after(&on.check("alice").await), Some(Span::from_micros(31_623)));
    let denied = on.check_cost("alice", 999_999_999).await;
    assert_eq!(retry_after(&denied), Some(Span::from_micros(31_622_399_968_378)));
    on.at(31_622_399.968_377);
    assert!(!on.check_cost("alice", 999_999_999).await.is_allowed());
    on.at(31_622_399.968_378);
    assert!(on.check_cost("alice", 999_999_999).await.is_allowed());
}

async fn a_clock_that_steps_back_mints_and_burns_nothing(on: Service) {
    on.at(10.0);
    on.check_cost("alice", 4).await;
    for at in [9.5, 10.0, 9.25, 10.0] {
        on.at(at);
        assert_eq!(on.check_cost("alice", 0).await.remaining, 1, "at {at}");
    }
    on.at(11.0);
    assert_eq!(on.check_cost("alice", 0).await.remaining, 2);
}

async fn a_clock_that_jumps_back_a_day_blocks_nobody_for_longer_than_a_window(on: Service) {
    on.at(86_400.0);
    on.check_cost("alice", 5).await;
    on.at(0.0);
    on.check("alice").await;
    on.at(1.0);
    assert!(on.check("alice").await.is_allowed());
}

cases! {
    leaky_bucket;
    requests_are_spaced_evenly: per(5, Span::from_secs(5));
}

async fn requests_are_spaced_evenly(on: Service) {
    for delay in 0..5 {
        assert_eq!(on.check("alice").await.delay, Span::from_secs(delay));
    }
    on.at(1.25);
    let next = on.check("alice").await;
    assert_eq!((next.is_allowed(), next.delay), (true, span(3.75)));
    on.at(100.0);
    assert_eq!(on.check("alice").await.delay, Span::ZERO);
}
