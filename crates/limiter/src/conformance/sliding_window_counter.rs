//! Cases of the sliding window counter.

use super::{Subject, span};
use super::{counted, retry_after};

pub(super) async fn numbers_match_gorl(on: Subject) {
    // (at, allowed, remaining, reset_after, retry_after)
    let cases = [
        (0.0, true, 4, 120.0, 0.0),
        (59.0, true, 3, 61.0, 0.0),
        (59.0, true, 2, 61.0, 0.0),
        (59.0, true, 1, 61.0, 0.0),
        (59.0, true, 0, 61.0, 0.0),
        (59.0, false, 0, 61.0, 1.000_001),
        (61.0, true, 0, 119.0, 0.0),
        (61.0, false, 0, 119.0, 11.000_001),
    ];
    for (at, allowed, remaining, reset, wait) in cases {
        on.at(at);
        let decision = on.check("alice").await;
        assert_eq!((decision.is_allowed(), decision.remaining), (allowed, remaining), "at {at}");
        assert_eq!(decision.reset_after, span(reset), "at {at}");
        assert_eq!(retry_after(&decision), (!allowed).then(|| span(wait)), "at {at}");
    }
}

pub(super) async fn windows_of_a_tenth_of_a_second(on: Subject) {
    for (at, wait) in [(0.0, None), (0.0, None), (0.11, None), (0.11, Some(span(0.040_001)))] {
        on.at(at);
        let decision = on.check("alice").await;
        assert_eq!(retry_after(&decision), wait, "at {at}");
        assert_eq!(decision.is_allowed(), wait.is_none(), "at {at}");
    }
}

pub(super) async fn the_count_starts_afresh_after_two_idle_windows(on: Subject) {
    on.check_cost("alice", 5).await;
    on.at(119.999_999);
    // The weight of five units is 5 × 1 µs / 60 s, rounded down to 0.
    assert_eq!(counted(&on.check_cost("alice", 0).await), (true, 0));
    on.at(150.0);
    let first = on.check("alice").await;
    assert_eq!((counted(&first), first.reset_after), ((true, 1), span(120.0)));
}

pub(super) async fn retry_after_over_two_windows_is_exact(on: Subject) {
    on.check_cost("alice", 10).await;
    on.at(10.0);
    let denied = on.check_cost("alice", 7).await;
    // In the next window, the weight 10 × (60 - e) / 60 falls below 4 after e = 36 s.
    assert_eq!(retry_after(&denied), Some(span(50.0 + 36.000_001)));
    on.at(96.0);
    assert!(!on.check_cost("alice", 7).await.is_allowed());
    on.at(96.000_001);
    assert_eq!(counted(&on.check_cost("alice", 7).await), (true, 10));
}

pub(super) async fn a_full_previous_window_weighs_less_with_time(on: Subject) {
    on.check_cost("alice", 5).await;
    on.at(60.0);
    assert_eq!(counted(&on.check_cost("alice", 0).await), (true, 5));
    assert!(!on.check("alice").await.is_allowed());
    on.at(60.000_001);
    assert_eq!(counted(&on.check("alice").await), (true, 5));
}
