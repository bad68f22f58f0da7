//! Cases of the sliding window log.

use super::rules;
use super::{Subject, span};
use super::{counted, retry_after};
use crate::algorithm::{Algorithm, Outcome};
use crate::clock::Micros;
use crate::rules::RuleSet;

/// 5 units a minute.
pub(super) fn five_a_minute(algorithm: Algorithm) -> RuleSet {
    rules(algorithm, 5, Micros::from_secs(60))
}

pub(super) async fn the_sixth_is_denied(on: Subject) {
    for count in 0..=5_u32 {
        on.at(f64::from(count) / 1000.0);
        let decision = on.check("alice").await;
        assert_eq!(counted(&decision), (count < 5, u64::from(count)));
        assert_eq!(decision.ttl, Micros::from_secs(60));
    }
    let denied = on.check("alice").await;
    assert_eq!(counted(&denied), (false, 5));
}

pub(super) async fn the_wait_ends_when_the_oldest_entry_leaves(on: Subject) {
    for (count, at) in [0.0, 10.0, 20.0, 40.0, 50.0].into_iter().enumerate() {
        on.at(at);
        assert_eq!(counted(&on.check("alice").await), (true, count as u64));
    }
    on.at(55.0);
    let denied = on.check("alice").await;
    assert_eq!(counted(&denied), (false, 5));
    assert_eq!(retry_after(&denied), Some(span(5.0)));
    assert_eq!(denied.reset_after, span(55.0));
}

pub(super) async fn there_is_no_boundary_burst(on: Subject) {
    for (at, allowed) in [(59.0, true), (61.0, false)] {
        on.at(at);
        for _ in 0..5 {
            assert_eq!(on.check("alice").await.is_allowed(), allowed, "at {at}");
        }
    }
}

pub(super) async fn a_thousand_in_one_millisecond(on: Subject) {
    let mut allowed = 0;
    for _ in 0..1000 {
        allowed += u32::from(on.check("alice").await.is_allowed());
    }
    assert_eq!(allowed, 5);
}

pub(super) async fn the_log_lives_two_windows_from_the_last_request(on: Subject) {
    for _ in 0..5 {
        on.check("alice").await;
    }
    on.at(55.0);
    assert!(!on.check("alice").await.is_allowed());
}

pub(super) async fn the_log_expires_after_two_windows(on: Subject) {
    on.check("alice").await;
    on.at(120.001);
    assert!(on.is_empty());
    assert_eq!(counted(&on.check("alice").await), (true, 0));
}

pub(super) async fn never_more_entries_than_the_limit(on: Subject) {
    for call in 0..10_000_u32 {
        on.at(f64::from(call) * 0.006);
        assert!(on.check("alice").await.current_count <= 100);
    }
}

pub(super) async fn retry_after_is_exact_to_the_millisecond_of_the_entry(on: Subject) {
    on.at(0.000_900);
    for _ in 0..5 {
        on.check("alice").await;
    }
    on.at(30.000_250);
    let denied = on.check("alice").await;
    assert_eq!(retry_after(&denied), Some(span(29.999_750)));
    on.at(59.999_999);
    assert!(!on.check("alice").await.is_allowed());
    on.at(60.0);
    assert!(on.check("alice").await.is_allowed());
}

pub(super) async fn a_cost_waits_for_as_many_entries(on: Subject) {
    for at in [0.0, 1.0, 2.0, 3.0] {
        on.at(at);
        on.check("alice").await;
    }
    let denied = on.check_cost("alice", 3).await;
    assert_eq!((counted(&denied), denied.remaining), ((false, 4), 1));
    assert_eq!(retry_after(&denied), Some(span(58.0)));
    on.at(60.999_999);
    assert!(!on.check_cost("alice", 3).await.is_allowed());
    on.at(61.0);
    assert_eq!(counted(&on.check_cost("alice", 3).await), (true, 2));
}

pub(super) async fn a_large_cost_writes_as_many_entries(on: Subject) {
    assert_eq!(counted(&on.check_cost("alice", 4_999).await), (true, 0));
    let last = on.check("alice").await;
    assert_eq!((counted(&last), last.remaining), ((true, 4_999), 0));
    assert_eq!(counted(&on.check("alice").await), (false, 5_000));
}

pub(super) async fn a_cost_above_the_limit_is_impossible(on: Subject) {
    on.check("alice").await;
    let decision = on.check_cost("alice", 6).await;
    assert_eq!(decision.outcome, Outcome::Impossible);
    assert_eq!((decision.current_count, decision.remaining), (1, 4));
    assert_eq!(counted(&on.check_cost("alice", 4).await), (true, 1));
}

pub(super) async fn a_peek_at_the_limit_takes_nothing(on: Subject) {
    let peeked = on.check_cost("alice", 0).await;
    assert_eq!((counted(&peeked), peeked.reset_after), ((true, 0), Micros::ZERO));
    assert_eq!(counted(&on.dry_run("alice", 5).await), (true, 0));
    assert!(on.is_empty());
    on.check_cost("alice", 5).await;
    on.at(1.0);
    let peeked = on.check_cost("alice", 0).await;
    assert_eq!((counted(&peeked), peeked.remaining), ((true, 5), 0));
    let denied = on.dry_run("alice", 2).await;
    assert_eq!((counted(&denied), retry_after(&denied)), ((false, 5), Some(span(59.0))));
}

pub(super) async fn a_clock_that_steps_back_mints_nothing(on: Subject) {
    on.at(30.0);
    for _ in 0..5 {
        on.check("alice").await;
    }
    on.at(10.0);
    let denied = on.check("alice").await;
    assert_eq!(counted(&denied), (false, 5));
    // The clock is frozen at 30 s until it reaches 30 s again.
    assert_eq!(retry_after(&denied), Some(span(80.0)));
    on.at(89.999_999);
    assert!(!on.check("alice").await.is_allowed());
    on.at(90.0);
    assert_eq!(counted(&on.check("alice").await), (true, 0));
}

pub(super) async fn hostile_ids_are_ids(on: Subject) {
    let ids = ["a:b", "a%3Ab", "{a}", "a\0b", "a\nb", "%", "{}", " ", "é💡", "*", "a%253Ab"];
    for id in ids {
        assert_eq!(counted(&on.check(id).await), (true, 0), "{id:?}");
    }
    for id in ids {
        assert_eq!(counted(&on.check(id).await), (true, 1), "{id:?}");
    }
    assert!(on.stored().is_none_or(|stored| stored.len() == ids.len()));
}
