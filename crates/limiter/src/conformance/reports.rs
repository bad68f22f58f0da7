//! Reports count costs after the fact, whatever remains; units above the limit become debt.

use super::{Subject, owing};
use crate::algorithm::{Algorithm, Cost, Decision, Limit, Outcome};
use crate::clock::Micros;
use crate::operation::Action;
use crate::rules::Coupling;
use crate::rules::{Rule, RuleSet};

const ALL: Coupling = Coupling::AllOrNothing;

/// 10 units a minute, with a debt of up to 10.
pub(super) fn ten(algorithm: Algorithm) -> RuleSet {
    owing(algorithm, 10)
}

/// 10 units a minute, with a debt of up to 3.
pub(super) fn owing_three(algorithm: Algorithm) -> RuleSet {
    owing(algorithm, 3)
}

/// Returns `true` if the algorithm keeps debt. A log stores nothing above its limit.
fn has_debt(on: &Subject) -> bool {
    on.algorithm() != Algorithm::SlidingWindowLog
}

async fn report(on: &Subject, user: &str, units: u32) -> Decision {
    on.act(user, Action::Report(Cost::new(units)), ALL).await
}

async fn peek(on: &Subject, user: &str, units: u32) -> Decision {
    on.act(user, Action::Peek(Cost::new(units)), ALL).await
}

pub(super) async fn a_report_counts_in_full_above_the_limit(on: Subject) {
    let left = if has_debt(&on) { [6, 2, -2, -6] } else { [6, 2, 0, 0] };
    for (index, left) in left.into_iter().enumerate() {
        let reported = report(&on, "alice", 4).await;
        assert_eq!((reported.is_allowed(), reported.remaining), (index < 2, left));
        assert_eq!(peek(&on, "alice", 0).await.remaining, left);
    }
}

pub(super) async fn debt_is_bounded(on: Subject) {
    let least = if has_debt(&on) { -3 } else { 0 };
    assert_eq!(report(&on, "alice", 4_000_000_000).await.remaining, least);
    assert_eq!(report(&on, "alice", 1).await.remaining, least);
    report(&on, "bob", 9).await;
    assert_eq!(report(&on, "bob", 9).await.remaining, least);
}

pub(super) async fn a_refund_does_not_erase_debt(on: Subject) {
    let taken = on.check_cost("alice", 5).await;
    report(&on, "alice", 8).await;
    let refunded = on.refund_decisions("alice", 5, &[taken]).await[0];
    assert_eq!(refunded.remaining, if has_debt(&on) { 2 } else { 5 });
    let taken = on.check_cost("bob", 2).await;
    report(&on, "bob", 14).await;
    let refunded = on.refund_decisions("bob", 2, &[taken]).await[0];
    let (left, is_allowed) = if has_debt(&on) { (-4, false) } else { (2, true) };
    assert_eq!((refunded.remaining, refunded.is_allowed()), (left, is_allowed));
}

pub(super) async fn a_report_counts_beside_a_denied_take(on: Subject) {
    let (take, more) = (Action::Take(Cost::new(11)), Action::Report(Cost::new(4)));
    let decided = on.act_on("alice", &[take, more], ALL).await;
    // Reports are executed first.
    assert_eq!((decided[0].is_allowed(), decided[0].remaining), (false, 6));
    assert_eq!((decided[1].is_allowed(), decided[1].remaining), (true, 6));
    assert_eq!(peek(&on, "alice", 0).await.remaining, 6);
}

pub(super) async fn reports_of_one_step_add_up(on: Subject) {
    for coupling in [Coupling::AllOrNothing, Coupling::EachAlone] {
        let user = format!("{coupling:?}");
        let decided = on.act_on(&user, &[Action::Report(Cost::new(4)); 3], coupling).await;
        let left: Vec<i64> = decided.iter().map(|decision| decision.remaining).collect();
        assert_eq!(left, if has_debt(&on) { [6, 2, -2] } else { [6, 2, 0] });
        assert_eq!(peek(&on, &user, 0).await.remaining, left[2]);
    }
}

pub(super) async fn takes_of_one_key_are_decided_in_order(on: Subject) {
    let take = |units| Action::Take(Cost::new(units));
    let decided = on.act_on("alice", &[take(4), take(4)], ALL).await;
    let left: Vec<_> =
        decided.iter().map(|decision| (decision.is_allowed(), decision.remaining)).collect();
    assert_eq!(left, [(true, 6), (true, 2)]);
    // Both takes together exceed the remaining units: nothing is taken.
    let decided = on.act_on("alice", &[take(2), take(1)], ALL).await;
    let left: Vec<_> =
        decided.iter().map(|decision| (decision.is_allowed(), decision.remaining)).collect();
    assert_eq!(left, [(true, 2), (false, 2)]);
    assert_eq!(peek(&on, "alice", 0).await.remaining, 2);
    // Peeks are decided in their order, and add nothing to the cost of later hits.
    let peek = Action::Peek(Cost::new(2));
    let decided = on.act_on("alice", &[peek, take(2), peek], ALL).await;
    let decisions: Vec<_> =
        decided.iter().map(|decision| (decision.is_allowed(), decision.remaining)).collect();
    assert_eq!(decisions, [(true, 2), (true, 2), (false, 2)]);
    let decided = on.act_on("bob", &[take(5), peek, Action::Peek(Cost::NONE)], ALL).await;
    let left: Vec<_> = decided.iter().map(|decision| decision.remaining).collect();
    assert_eq!(left, [5, 5, 5]);
    // If nothing is taken, no peek shows the units of takes.
    let decided = on.act_on("carol", &[take(5), Action::Peek(Cost::NONE), take(6)], ALL).await;
    let decisions: Vec<_> =
        decided.iter().map(|decision| (decision.is_allowed(), decision.remaining)).collect();
    assert_eq!(decisions, [(true, 10), (true, 10), (false, 10)]);
}

pub(super) fn more_than_a_request_writes(algorithm: Algorithm) -> RuleSet {
    let limit = Limit::new(30_000, Micros::from_secs(60)).and_then(|limit| limit.with_max_debt(0));
    RuleSet::new(Rule::new_default(algorithm, limit.expect("a valid limit")), Vec::new())
}

pub(super) async fn a_log_denies_a_report_that_it_counts_in_part(on: Subject) {
    let reported = report(&on, "alice", 12_000).await;
    assert_eq!((reported.outcome, reported.remaining), (Outcome::Impossible, 20_000));
    let reported = report(&on, "alice", 10_000).await;
    assert_eq!((reported.outcome, reported.remaining), (Outcome::Allowed, 10_000));
    let taken = on.act("bob", Action::Take(Cost::new(40_000)), Coupling::EachAlone).await;
    assert_eq!((taken.is_allowed(), taken.remaining), (false, 20_000));
}

pub(super) async fn each_alone_is_decided_in_order(on: Subject) {
    let take = |units| Action::Take(Cost::new(units));
    let actions = [take(4), take(4), take(4), take(1)];
    let decided = on.act_on("alice", &actions, Coupling::EachAlone).await;
    let left: Vec<_> =
        decided.iter().map(|decision| (decision.is_allowed(), decision.remaining)).collect();
    assert_eq!(left, [(true, 6), (true, 2), (false, 0), (false, 0)]);
}

pub(super) async fn a_lowered_debt_limit_forgives_the_excess(on: Subject) {
    report(&on, "alice", 18).await;
    on.limiter.replace_rules(owing_three(on.algorithm()));
    let least = if has_debt(&on) { -3 } else { 0 };
    assert_eq!(peek(&on, "alice", 0).await.remaining, least);
    assert_eq!(report(&on, "alice", 2).await.remaining, least);
    on.limiter.replace_rules(ten(on.algorithm()));
    // Counters keep all counted units. Buckets keep the debt of their last charge.
    let left = match (has_debt(&on), on.algorithm().has_burst()) {
        (false, _) => 0,
        (true, false) => -8,
        (true, true) => -3,
    };
    assert_eq!(peek(&on, "alice", 0).await.remaining, left);
    on.at(180.0);
    assert_eq!(peek(&on, "alice", 0).await.remaining, 10);
}
