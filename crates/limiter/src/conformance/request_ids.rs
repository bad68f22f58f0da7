//! Request ids: the same request under the same id takes its units once.
//!
//! A store that remembers no requests must fail them.

use super::{Subject, overrides, refunds, span};
use crate::CheckError;
use crate::algorithm::{Decision, Limit, Outcome};
use crate::clock::{Deadline, Micros};
use crate::control::{KeyGrant, OverrideKind};
use crate::idempotency::{MAX_REPLAYS, RequestIdError};
use crate::rules::{Request, RequestBuilder, Rule, RuleSet};
use crate::verdict::Verdict;

/// Returns `true` if the store remembers requests. Any other must say so.
async fn applies(on: &Subject) -> bool {
    if on.limiter.store().remembers_requests() {
        return true;
    }
    assert_eq!(error(on, alice("x")).await, RequestIdError::Unsupported);
    false
}

fn alice(id: &str) -> RequestBuilder<'_> {
    Request::user("alice").request_id(id)
}

async fn check(on: &Subject, request: RequestBuilder<'_>) -> Result<Verdict, CheckError> {
    let request = request.build().expect("a valid request");
    on.limiter.check(&request, Deadline::NEVER).await
}

/// Returns the deciding decision, and whether it is a replay.
async fn decided(on: &Subject, request: RequestBuilder<'_>) -> (Decision, bool) {
    let verdict = check(on, request).await.expect("a verdict");
    (verdict.deciding().decision, verdict.replayed)
}

async fn error(on: &Subject, request: RequestBuilder<'_>) -> RequestIdError {
    match check(on, request).await {
        Err(CheckError::RequestId(error)) => error,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn the_same_request_takes_its_units_once(on: Subject) {
    if !applies(&on).await {
        return;
    }
    let (first, replayed) = decided(&on, alice("x").cost(2)).await;
    assert!(first.is_allowed() && !replayed);
    let left = on.check_cost("alice", 0).await;
    assert_eq!(decided(&on, alice("x").cost(2)).await, (first, true));
    assert_eq!(on.check_cost("alice", 0).await, left);
    let (other, replayed) = decided(&on, alice("y").cost(2)).await;
    assert!(other.is_allowed() && !replayed);
    assert_eq!(other.remaining, first.remaining - 2);
    on.at(20.0);
    let (later, replayed) = decided(&on, alice("x").cost(2)).await;
    assert!(replayed);
    let reset_after = first.reset_after - span(20.0);
    assert_eq!(later, Decision { reset_after, ..first });
}

pub(super) async fn a_reply_is_repeated_8_times(on: Subject) {
    if !applies(&on).await {
        return;
    }
    let (first, _) = decided(&on, alice("x").cost(2)).await;
    let left = on.check_cost("alice", 0).await;
    for replay in 0..MAX_REPLAYS {
        assert_eq!(decided(&on, alice("x").cost(2)).await, (first, true), "{replay}");
    }
    for _ in 0..2 {
        assert_eq!(error(&on, alice("x").cost(2)).await, RequestIdError::TooManyReplays);
    }
    assert_eq!(on.check_cost("alice", 0).await, left);
}

pub(super) async fn another_request_under_the_id_is_an_error(on: Subject) {
    if !applies(&on).await {
        return;
    }
    decided(&on, alice("x")).await;
    let left = on.check_cost("alice", 0).await;
    let plan = [("plan", "pro")];
    for other in [alice("x").cost(2), alice("x").resource("/r"), alice("x").attributes(&plan)] {
        assert_eq!(error(&on, other).await, RequestIdError::OtherRequest);
    }
    assert_eq!(on.check_cost("alice", 0).await, left);
    assert!(decided(&on, alice("x")).await.1);
}

pub(super) async fn users_do_not_share_ids(on: Subject) {
    if !applies(&on).await {
        return;
    }
    for user in ["alice", "bob", "ali"] {
        let (decision, replayed) = decided(&on, Request::user(user).request_id("x")).await;
        assert!(decision.is_allowed() && !replayed, "{user}");
        assert!(decided(&on, Request::user(user).request_id("x")).await.1, "{user}");
    }
}

pub(super) async fn a_denial_is_decided_afresh(on: Subject) {
    if !applies(&on).await {
        return;
    }
    on.check_cost("alice", 5).await;
    for _ in 0..=MAX_REPLAYS {
        let (denied, replayed) = decided(&on, alice("x")).await;
        assert!(!denied.is_allowed() && !replayed);
    }
    on.at(59.999);
    let waiting = on.check_cost("alice", 0).await;
    on.at(121.0);
    let (allowed, replayed) = decided(&on, alice("x")).await;
    assert!(allowed.is_allowed() && !replayed, "{waiting:?}");
    assert_eq!(decided(&on, alice("x")).await, (allowed, true));
}

pub(super) async fn a_look_remembers_nothing(on: Subject) {
    if !applies(&on).await {
        return;
    }
    for look in [alice("x").cost(0), alice("x").cost(2).dry_run()] {
        for _ in 0..2 {
            let (decision, replayed) = decided(&on, look).await;
            assert!(decision.is_allowed() && !replayed);
        }
    }
    assert!(on.is_empty());
    assert!(!decided(&on, alice("x").cost(2)).await.1);
    // Nor does it look for what was remembered.
    assert!(!decided(&on, alice("x").cost(2).dry_run()).await.1);
}

pub(super) async fn a_reply_is_forgotten_after_its_time(on: Subject) {
    if !applies(&on).await {
        return;
    }
    on.limiter.set_idempotency_ttl(Micros::from_secs(7));
    assert!(!decided(&on, alice("x")).await.1);
    on.at(6.9);
    assert!(decided(&on, alice("x")).await.1);
    on.at(7.1);
    let before = on.check_cost("alice", 0).await;
    let (again, replayed) = decided(&on, alice("x")).await;
    assert!(!replayed);
    assert_eq!(again.remaining, before.remaining - 1);
}

pub(super) async fn an_id_of_64_bytes_of_any_text_works(on: Subject) {
    if !applies(&on).await {
        return;
    }
    let ids = ["%:{}\0\n", &"é".repeat(32), &"x".repeat(64), "x", " "];
    for id in ids {
        assert!(!decided(&on, alice(id)).await.1, "{id:?}");
        assert!(decided(&on, alice(id)).await.1, "{id:?}");
    }
}

/// One rule of each algorithm, and a shadow rule that denies.
pub(super) fn one_of_each() -> RuleSet {
    refunds::one_of_each()
}

pub(super) async fn every_decision_is_repeated(on: Subject) {
    if !applies(&on).await {
        return;
    }
    let decisions = |verdict: Verdict| -> Vec<Decision> {
        verdict.decisions.iter().map(|decided| decided.decision).collect()
    };
    check(&on, alice("x").cost(2)).await.expect("a verdict");
    let first = decisions(check(&on, alice("y").cost(2)).await.expect("a verdict"));
    assert!(first.iter().any(|decision| !decision.is_allowed()), "{first:?}");
    on.at(1.0);
    let second = check(&on, alice("y").cost(2)).await.expect("a verdict");
    assert!(second.replayed);
    let counted_down = first.into_iter().map(|mut decision| {
        decision.reset_after = decision.reset_after - span(1.0);
        if let Outcome::Denied { retry_after } = &mut decision.outcome {
            *retry_after = *retry_after - span(1.0);
        }
        decision
    });
    assert_eq!(decisions(second), counted_down.collect::<Vec<_>>());
}

pub(super) async fn a_change_of_the_rules_does_not_take_twice(on: Subject) {
    if !applies(&on).await {
        return;
    }
    decided(&on, alice("x")).await;
    let before = on.check_cost("alice", 0).await;
    let rules = on.limiter.snapshot().rules.clone();
    let fewer: Vec<_> = rules.iter().skip(2).cloned().collect();
    on.limiter.replace_rules(RuleSet::new(rules.default_rule().clone(), fewer));
    // The first rule is another one, but its key has the same id.
    assert_eq!(error(&on, alice("x")).await, RequestIdError::OtherRules);
    on.limiter.replace_rules(rules);
    assert!(decided(&on, alice("x")).await.1);
    assert_eq!(on.check_cost("alice", 0).await, before);
}

pub(super) async fn a_replay_has_no_receipts(on: Subject) {
    if !applies(&on).await {
        return;
    }
    let request = alice("x").cost(2).build().expect("a valid request");
    let before = on.check_cost("alice", 0).await;
    let check = || on.limiter.check_with_receipts(&request, Deadline::NEVER);
    let (_, receipts) = check().await.expect("a verdict");
    let (verdict, none) = check().await.expect("a verdict");
    assert!(verdict.replayed && none.is_empty());
    assert_eq!(receipts.len(), 1);
    on.refund(receipts).await;
    assert_eq!(on.check_cost("alice", 0).await.remaining, before.remaining);
}

pub(super) async fn a_replay_asks_no_override(on: Subject) {
    if !applies(&on).await {
        return;
    }
    let by = |user, id| Request::user(user).request_id(id).cost(2);
    overrides::set(&on, "alice", overrides::limited(7), 1_000).await;
    let first = check(&on, by("alice", "x")).await.expect("a verdict");
    let grant = first.deciding().grant;
    assert_eq!(grant.limit().map(Limit::units), Some(7));
    overrides::clear(&on, "alice", OverrideKind::Grant).await;
    overrides::set(&on, "alice", KeyGrant::Banned, 1_000).await;
    let second = check(&on, by("alice", "x")).await.expect("a verdict");
    assert!(second.replayed);
    assert_eq!(second.deciding().decision, first.deciding().decision);
    assert_eq!(second.deciding().grant, grant);
    for (user, override_grant) in [("bob", KeyGrant::Banned), ("carol", KeyGrant::Unlimited)] {
        overrides::set(&on, user, override_grant, 1_000).await;
        for _ in 0..2 {
            // Nothing is taken, so nothing is remembered.
            let (decision, replayed) = decided(&on, by(user, "x")).await;
            assert_eq!((decision.is_allowed(), replayed), (user == "carol", false), "{user}");
        }
    }
    // A rule that is no longer overridable is another one.
    assert!(!decided(&on, by("dave", "x")).await.1);
    let rule = on.limiter.snapshot().rules.default_rule().clone();
    let fixed = Rule { overridable: false, ..rule };
    on.limiter.replace_rules(RuleSet::new(fixed, Vec::new()));
    assert_eq!(error(&on, by("dave", "x")).await, RequestIdError::OtherRules);
}
