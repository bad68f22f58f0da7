//! Promises of every registered algorithm.

use super::{Stored, Subject, T0};
use super::{left, retry_after};
use crate::algorithm::{Decision, Outcome};
use crate::clock::{Micros, Timestamp};

pub(super) async fn ids_do_not_share(on: Subject) {
    for (id, allowed) in [("user-a", true), ("user-b", true), ("user-a", false)] {
        assert_eq!(on.check(id).await.is_allowed(), allowed, "{id}");
    }
}

pub(super) async fn remaining_retry_after_and_reset_agree(on: Subject) {
    for remaining in [1, 0] {
        let decision = on.check("alice").await;
        assert_eq!((decision.is_allowed(), decision.remaining), (true, remaining));
    }
    let denied = on.check("alice").await;
    let wait = retry_after(&denied).expect("a wait");
    assert_eq!(denied.remaining, 0);
    assert!(wait > Micros::ZERO && denied.reset_after >= wait, "{denied:?}");
}

pub(super) async fn the_whole_limit_fits_and_one_more_is_impossible(on: Subject) {
    for cost in [8, 1_000_000_001, u64::from(u32::MAX)] {
        assert_eq!(on.check_cost("alice", cost).await.outcome, Outcome::Impossible);
    }
    assert!(on.is_empty(), "a denial leaves no state");
    let whole = on.check_cost("alice", 7).await;
    assert_eq!((whole.is_allowed(), whole.remaining), (true, 0));
    assert!(retry_after(&on.check_cost("alice", 7).await).is_some());
}

pub(super) async fn retry_after_is_exact(on: Subject) {
    let mut now = T0;
    // A small random generator with a fixed seed.
    let mut random = 1_u64;
    for _ in 0..200 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let cost = 1 + (random >> 33) % 5;
        now = now + Micros::from_micros((random >> 40) % 900_000);
        on.set_clock(now);
        let Some(wait) = retry_after(&on.check_cost("alice", cost).await) else { continue };
        assert!(wait > Micros::ZERO);
        now = now + wait;
        on.set_clock(Timestamp::from_micros(now.as_micros() - 1));
        assert!(!on.dry_run("alice", cost).await.is_allowed(), "longer than needed: {wait}");
        on.set_clock(now);
        assert!(on.check_cost("alice", cost).await.is_allowed(), "too short: {wait}");
    }
}

pub(super) async fn peeking_changes_nothing(on: Subject) {
    let peeks = async || {
        let first = on.check_cost("alice", 0).await;
        for cost in [0, 1, 2, 3, 4] {
            let dry = on.dry_run("alice", cost).await;
            assert_eq!(dry.is_allowed(), cost <= left(&first), "cost {cost}");
            assert_eq!((dry.remaining, dry.current_count), (first.remaining, first.current_count));
            assert_eq!(on.check_cost("alice", 0).await, first, "after a dry run of {cost}");
        }
        first.remaining
    };
    assert_eq!(peeks().await, 3);
    assert!(on.is_empty());
    on.check_cost("alice", 2).await;
    assert_eq!(peeks().await, 1);
    on.check("alice").await;
    assert_eq!(peeks().await, 0);
}

pub(super) async fn the_shortest_window_works(on: Subject) {
    for step in 0..20_u64 {
        // More than two windows later, nothing of the previous step counts.
        on.set_clock(T0 + Micros::from_micros(step * 2_345));
        for _ in 0..3 {
            assert!(on.check("alice").await.is_allowed(), "step {step}");
        }
        let wait = retry_after(&on.check("alice").await).expect("a wait");
        assert!(wait <= Micros::from_micros(1_001), "{wait}");
    }
}

pub(super) async fn the_longest_window_works(on: Subject) {
    for _ in 0..3 {
        assert!(on.check("alice").await.is_allowed());
    }
    let wait = retry_after(&on.check("alice").await).expect("a wait");
    let allowed_at = T0 + wait;
    on.set_clock(Timestamp::from_micros(allowed_at.as_micros() - 1));
    assert!(!on.check("alice").await.is_allowed());
    on.set_clock(allowed_at);
    assert!(on.check("alice").await.is_allowed());
}

pub(super) async fn the_year_2100_works(on: Subject) {
    let year_2100 = Timestamp::from_millis(4_102_444_800_000);
    on.set_clock(year_2100);
    for _ in 0..3 {
        assert!(on.check("alice").await.is_allowed());
    }
    let wait = retry_after(&on.check("alice").await).expect("a wait");
    on.set_clock(year_2100 + wait);
    assert!(on.check("alice").await.is_allowed());
}

pub(super) async fn every_key_expires(on: Subject) {
    let fresh = on.check("alice").await;
    on.check_cost("alice", 2).await;
    for Stored { key, time_to_live, .. } in on.stored().unwrap_or_default() {
        let millis = time_to_live.map(Micros::as_millis);
        assert!(millis.is_some_and(|left| (60_000..=121_000).contains(&left)), "{key}: {millis:?}");
    }
    // All keys have expired. The window starts as at T0, four windows later.
    on.at(240.0);
    assert!(on.is_empty());
    let later = on.check("alice").await;
    assert_eq!(Decision { at: fresh.at, ..later }, fresh);
}

pub(super) async fn a_denial_takes_nothing(on: Subject) {
    on.check_cost("alice", 3).await;
    let before = on.check_cost("alice", 0).await;
    for cost in [3, 4, 5, 6] {
        assert!(!on.check_cost("alice", cost).await.is_allowed());
        assert_eq!(on.check_cost("alice", 0).await, before, "after a denied cost of {cost}");
    }
    assert!(on.check_cost("alice", 2).await.is_allowed());
}

pub(super) async fn a_clock_that_goes_back_a_day_blocks_nobody_for_longer_than_a_window(
    on: Subject,
) {
    on.at(86_400.0);
    on.check_cost("alice", 3).await;
    on.at(0.0);
    // At most one extra refill.
    let mut passed = 0;
    for _ in 0..10 {
        passed += u32::from(on.check("alice").await.is_allowed());
    }
    assert!(passed <= 3, "{passed}");
    on.at(60.000_001);
    assert!(on.check("alice").await.is_allowed());
}

#[cfg(test)]
mod tests {
    use super::super::span;
    use super::*;

    #[test]
    fn t0_and_span_are_exact() {
        assert_eq!(span(1.000_001), Micros::from_micros(1_000_001));
        assert_eq!(T0.as_millis() / 60_000, 28_333_335);
    }
}
