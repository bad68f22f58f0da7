//! Cases of the fixed window.

use super::rules;
use super::{Subject, T0, span};
use super::{counted, retry_after};
use crate::algorithm::{Algorithm, Outcome};
use crate::clock::{Micros, Timestamp};
use crate::rules::RuleSet;

/// 5 units a minute.
pub(super) fn five_a_minute(algorithm: Algorithm) -> RuleSet {
    rules(algorithm, 5, Micros::from_secs(60))
}

pub(super) async fn a_full_window_denies_and_goes_on_counting(on: Subject) {
    for count in 1..=8 {
        let decision = on.check("alice").await;
        assert_eq!(counted(&decision), (count <= 5, count));
        assert_eq!(decision.ttl.as_secs_ceil(), 60);
    }
}

pub(super) async fn windows_are_aligned_to_unix_time(on: Subject) {
    for (unix, count) in [(120, 1), (179, 2), (180, 1)] {
        on.set_clock(Timestamp::from_millis(unix * 1000));
        assert_eq!(counted(&on.check("alice").await), (true, count), "at {unix}");
    }
}

pub(super) async fn two_limits_fit_around_a_boundary(on: Subject) {
    for at in [59.0, 61.0] {
        on.at(at);
        for count in 1..=5 {
            assert_eq!(counted(&on.check("alice").await), (true, count));
        }
    }
}

pub(super) async fn the_count_starts_again_in_the_next_window(on: Subject) {
    for (at, count) in [(10.0, 1), (20.0, 2), (30.0, 3), (40.0, 4), (59.0, 5), (61.0, 1)] {
        on.at(at);
        assert_eq!(counted(&on.check("alice").await), (true, count), "at {at}");
    }
}

pub(super) async fn ttl_and_reset_shrink(on: Subject) {
    for (at, ttl) in [(0.0, 60), (10.0, 50), (30.0, 30)] {
        on.at(at);
        let decision = on.check("alice").await;
        assert_eq!(decision.ttl.as_secs_ceil(), ttl, "at {at}");
        assert_eq!(decision.reset_after, Micros::from_secs(ttl), "at {at}");
    }
}

pub(super) async fn retry_after_is_exact(on: Subject) {
    on.at(59.0);
    for _ in 0..5 {
        assert!(on.check("alice").await.is_allowed());
    }
    let denied = on.check("alice").await;
    assert_eq!(retry_after(&denied), Some(span(1.0)));
    assert_eq!(denied.ttl.as_secs_ceil(), 60);
    on.at(59.999_999);
    assert!(!on.check("alice").await.is_allowed());
    on.at(60.0);
    assert_eq!(counted(&on.check("alice").await), (true, 1));
}

pub(super) async fn ids_do_not_share(on: Subject) {
    for _ in 0..6 {
        on.check("alice").await;
    }
    assert_eq!(counted(&on.check("bob").await), (true, 1));
}

pub(super) async fn windows_of_a_second(on: Subject) {
    for (at, allowed) in [(0.0, true), (0.9, false), (1.0, true)] {
        on.at(at);
        assert_eq!(on.check("alice").await.is_allowed(), allowed, "at {at}");
    }
}

pub(super) async fn numbers_match_gorl(on: Subject) {
    on.at(10.0);
    for (remaining, wait) in [(2, None), (1, None), (0, None), (0, Some(span(50.0)))] {
        let decision = on.check("alice").await;
        assert_eq!(decision.remaining, remaining);
        assert_eq!(decision.reset_after, span(50.0));
        assert_eq!(retry_after(&decision), wait);
    }
}

pub(super) async fn windows_of_a_millisecond(on: Subject) {
    for step in 0..50_u64 {
        on.set_clock(T0 + Micros::from_micros(step * 1_000 + step * 7));
        assert_eq!(counted(&on.check("alice").await), (true, 1));
        assert_eq!(counted(&on.check("alice").await), (true, 2));
        let denied = on.check("alice").await;
        assert_eq!(counted(&denied), (false, 3));
        assert_eq!(denied.ttl.as_secs_ceil(), 1);
        let into = (step * 7) % 1_000;
        assert_eq!(denied.reset_after, Micros::from_micros(1_000 - into));
    }
}

pub(super) async fn a_denied_cost_takes_nothing(on: Subject) {
    assert_eq!(counted(&on.check_cost("alice", 3).await), (true, 3));
    let denied = on.check_cost("alice", 3).await;
    assert_eq!((counted(&denied), denied.remaining), ((false, 3), 2));
    assert_eq!(counted(&on.check_cost("alice", 2).await), (true, 5));
    assert_eq!(counted(&on.check_cost("alice", 2).await), (false, 5));
}

pub(super) async fn a_cost_above_the_limit_is_impossible(on: Subject) {
    let decision = on.check_cost("alice", 6).await;
    assert_eq!(decision.outcome, Outcome::Impossible);
    assert_eq!((decision.current_count, decision.remaining), (0, 5));
    let largest = on.check_cost("alice", u64::from(u32::MAX)).await;
    assert_eq!(largest.outcome, Outcome::Impossible);
    assert!(on.is_empty());
}

pub(super) async fn a_peek_at_the_limit_takes_nothing(on: Subject) {
    assert_eq!(counted(&on.check_cost("alice", 0).await), (true, 0));
    assert_eq!(counted(&on.dry_run("alice", 5).await), (true, 0));
    assert_eq!(on.dry_run("alice", 6).await.outcome, Outcome::Impossible);
    assert_eq!(counted(&on.check_cost("alice", 5).await), (true, 5));
    let peeked = on.check_cost("alice", 0).await;
    assert_eq!((counted(&peeked), peeked.remaining), ((true, 5), 0));
    on.at(1.5);
    let denied = on.dry_run("alice", 1).await;
    assert_eq!((counted(&denied), retry_after(&denied)), ((false, 5), Some(span(58.5))));
    assert_eq!(counted(&on.check("alice").await), (false, 6));
}

pub(super) async fn a_clock_that_steps_back_mints_nothing(on: Subject) {
    on.at(20.0);
    for _ in 0..5 {
        on.check("alice").await;
    }
    on.at(61.0);
    for _ in 0..5 {
        assert!(on.check("alice").await.is_allowed());
    }
    // The previous window has long expired. Going back must not open it again.
    on.at(85.0);
    assert!(!on.check("alice").await.is_allowed());
    on.at(59.0);
    for _ in 0..5 {
        // The clock is frozen at 85 s.
        let denied = on.check("alice").await;
        assert!(!denied.is_allowed());
        assert_eq!(retry_after(&denied), Some(span(61.0)));
    }
}

pub(super) async fn a_clock_that_jumps_back_blocks_nobody_for_longer_than_a_window(on: Subject) {
    let day = 86_400.0;
    on.at(day);
    for _ in 0..6 {
        on.check("alice").await;
    }
    on.at(30.0);
    let first = on.check("alice").await;
    assert_eq!(counted(&first), (true, 1));
    assert_eq!(first.reset_after, span(30.0));
    // Times before the jump are forgotten.
    on.at(86_345.0);
    assert_eq!(on.check("alice").await.reset_after, span(55.0));
}

/// Window 71 of 277 days began in November 2023, that of 280 days begins in June 2024.
pub(super) async fn a_count_of_another_window_with_the_same_index_is_not_taken(on: Subject) {
    let day = 86_400;
    on.check_cost("alice", 5).await;
    on.limiter.replace_rules(rules(on.algorithm(), 5, Micros::from_secs(280 * day)));
    on.set_clock(T0 + Micros::from_secs(215 * day));
    assert_eq!(counted(&on.check_cost("alice", 0).await), (true, 0));
    for count in 1..=5 {
        let decision = on.check("alice").await;
        assert_eq!(counted(&decision), (true, count));
        assert_eq!(decision.ttl, Micros::from_secs(280 * day));
    }
    assert!(!on.check("alice").await.is_allowed());
}
