//! Hits with the coupling `EachAlone` take units whatever others decide. A denied hit takes the
//! remaining units.

use super::Subject;
use crate::algorithm::{Algorithm, Cost, Decision};
use crate::operation::Action;
use crate::rules::Coupling;

async fn take_alone(on: &Subject, user: &str, cost: u32) -> Decision {
    on.act(user, Action::Take(Cost::new(cost)), Coupling::EachAlone).await
}

pub(super) async fn a_denied_hit_takes_the_remaining_units(on: Subject) {
    on.check_cost("alice", 3).await;
    let denied = take_alone(&on, "alice", 4).await;
    assert_eq!((denied.is_allowed(), denied.remaining), (false, 0));
    let after = on.check_cost("alice", 0).await;
    assert_eq!(after.remaining, 0);
    assert!(!on.check("alice").await.is_allowed());
    // The taken units are restored after two windows.
    on.at(120.0);
    assert!(on.check_cost("alice", 4).await.is_allowed());
}

pub(super) async fn an_allowed_hit_takes_its_cost(on: Subject) {
    let each = take_alone(&on, "alice", 2).await;
    let all = on.check_cost("bob", 2).await;
    assert_eq!((each.is_allowed(), each.remaining), (true, 3));
    assert_eq!((each.current_count, each.reset_after), (all.current_count, all.reset_after));
    for left in [2, 1, 0, 0] {
        assert_eq!(take_alone(&on, "alice", 1).await.remaining, left);
    }
    let attempts = if on.algorithm() == Algorithm::FixedWindow { 6 } else { 5 };
    assert_eq!(on.check_cost("alice", 0).await.current_count, attempts);
}
