//! `on-change`: the units in use after a change of limit, burst or window.

use rlaas::algorithm::{Algorithm, Limit, OnChange, Outcome};
use rlaas::clock::{Deadline, Micros};
use rlaas::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas::operation::StoreHit;
use rlaas::rules::{
    Coupling, Grant, Matcher, Override, Part, Pattern, Request, Rule, RuleSet, TextPattern,
};
use rlaas::store::Action;
use rlaas_testkit::service::{Service, T0, span};

use super::cases;

cases! {
    all, memory redis;
    denial_after_a_change_holds: ten;
    refund_gives_back_what_is_still_in_use: ten;
    override_of_a_key_neither_converts_nor_records: overridable;
    override_of_the_rule_neither_converts_nor_records: overridden;
    key_without_limits_keeps_its_state: unset;
}
cases! {
    all, redis;
    only_rules_with_a_policy_have_the_key: unset;
    replayed_request_converts_nothing: ten;
}

const MINUTE: Micros = Micros::from_secs(60);

fn rule(algorithm: Algorithm, units: u64, window: Micros) -> Rule {
    let limit = Limit::new(units, window).expect("a limit");
    Rule::new_default(algorithm, limit)
}

fn with(rule: Rule, policy: OnChange) -> RuleSet {
    RuleSet::new(Rule { on_change: Some(policy), ..rule }, Vec::new())
}

fn per_minute(algorithm: Algorithm, units: u64, policy: OnChange) -> RuleSet {
    with(rule(algorithm, units, MINUTE), policy)
}

fn ten(algorithm: Algorithm) -> RuleSet {
    per_minute(algorithm, 10, OnChange::KeepUsed)
}

fn unset(algorithm: Algorithm) -> RuleSet {
    RuleSet::new(rule(algorithm, 10, MINUTE), Vec::new())
}

fn overridable(algorithm: Algorithm) -> RuleSet {
    let rule = Rule { overridable: true, ..rule(algorithm, 10, MINUTE) };
    with(rule, OnChange::Reset)
}

/// Grants vip something else.
fn overridden(algorithm: Algorithm) -> RuleSet {
    let vip = Pattern::OneOf(vec![TextPattern::Exact("vip".to_owned())]);
    let limit = Limit::new(30, MINUTE).expect("a limit");
    let matcher = Matcher { patterns: vec![(Part::UserId, vip)] };
    let other = Override::new(matcher, Grant::Limited(limit));
    let rule = Rule { overrides: vec![other], ..rule(algorithm, 10, MINUTE) };
    with(rule, OnChange::Reset)
}

async fn left(on: &Service, user: &str) -> i64 {
    on.dry_run(user, 0).await.remaining
}

async fn denial_after_a_change_holds(on: Service) {
    let algorithm = on.algorithm();
    on.check_cost("alice", 10).await;
    on.at(1.0);
    on.limiter.replace_rules(per_minute(algorithm, 2, OnChange::Scale));
    let denied = on.check("alice").await;
    let Outcome::Denied { retry_after: wait } = denied.outcome else { panic!("{denied:?}") };
    on.set_clock(T0 + span(1.0) + wait - Micros::from_micros(1));
    assert!(!on.check("alice").await.is_allowed(), "{denied:?}");
    on.set_clock(T0 + span(1.0) + wait);
    assert!(on.check("alice").await.is_allowed(), "{denied:?}");
}

async fn refund_gives_back_what_is_still_in_use(on: Service) {
    let algorithm = on.algorithm();
    for policy in OnChange::ALL {
        let user = policy.name();
        on.limiter.replace_rules(per_minute(algorithm, 10, policy));
        let (_, receipts) = on.take(user, 4).await;
        on.limiter.replace_rules(per_minute(algorithm, 20, policy));
        let before = on.check(user).await.remaining;
        on.refund(receipts).await;
        // Other policies have settled how many units are in use: the four are no longer known.
        let returned = if policy == OnChange::KeepUsed { 4 } else { 0 };
        assert_eq!(left(&on, user).await, before + returned, "{user}");
        // Units that were taken since come back.
        let (decision, receipts) = on.take(user, 2).await;
        assert!(decision.is_allowed());
        let is_settled_now = policy != OnChange::KeepUsed;
        on.refund(receipts).await;
        let kept = if is_settled_now { 2 } else { 0 };
        assert_eq!(left(&on, user).await, before + returned - kept, "{user}, at the same instant");
    }
    on.at(1.0);
    let before = left(&on, "scale").await;
    let (_, receipts) = on.take("scale", 2).await;
    on.refund(receipts).await;
    assert_eq!(left(&on, "scale").await, before);
}

async fn override_of_a_key_neither_converts_nor_records(on: Service) {
    let algorithm = on.algorithm();
    on.check_cost("alice", 4).await;
    let histories = histories(&on);
    let grant = KeyGrant::Limited { units: 30, burst: 30 };
    let change = OverrideChange::new(grant, Micros::from_secs(600), b"").expect("an override");
    let plan = on.plan("alice", 1);
    let hit = plan.hits[0].for_store().expect("a limit");
    let set = StoreHit { action: Action::SetOverride, change: Some(&change), ..hit };
    on.try_execute(&[set], Coupling::AllOrNothing).await.expect("a reply");
    let rule = Rule { overridable: true, ..rule(algorithm, 20, MINUTE) };
    on.limiter.replace_rules(with(rule, OnChange::Reset));
    // By the override: 4 units are in use; a token bucket keeps what is left.
    let by_override = if algorithm == Algorithm::TokenBucket { 6 } else { 26 };
    assert_eq!(on.check("alice").await.remaining, by_override - 1);
    assert_eq!(self::histories(&on), histories);
    on.act("alice", Action::ClearOverride(OverrideKind::Both), Coupling::EachAlone).await;
    // The rule decides again, by the limit that has replaced that of before.
    assert_eq!(on.check("alice").await.remaining, 19);
}

async fn override_of_the_rule_neither_converts_nor_records(on: Service) {
    on.check_cost("vip", 4).await;
    assert!(histories(&on).is_empty());
    on.check_cost("alice", 4).await;
    assert_eq!(histories(&on).len(), usize::from(on.redis().is_some()));
    assert_eq!(left(&on, "vip").await, 26);
}

async fn key_without_limits_keeps_its_state(on: Service) {
    let algorithm = on.algorithm();
    on.check_cost("alice", 4).await;
    on.limiter.replace_rules(per_minute(algorithm, 10, OnChange::Reset));
    // Nothing is known about the limit before: the state stays as it is.
    assert_eq!(left(&on, "alice").await, 6);
    assert_eq!(on.check("alice").await.remaining, 5);
    on.limiter.replace_rules(per_minute(algorithm, 20, OnChange::Reset));
    assert_eq!(on.check("alice").await.remaining, 19);
}

async fn only_rules_with_a_policy_have_the_key(on: Service) {
    on.check_cost("alice", 4).await;
    let algorithm = on.algorithm();
    let before = on.stored().expect("a list").len();
    assert_eq!((before, histories(&on).len()), (1, 0));
    on.limiter.replace_rules(per_minute(algorithm, 10, OnChange::Reset));
    on.check("bob").await;
    assert_eq!(histories(&on).len(), 1);
    let stored = on.stored().expect("a list");
    let history = stored.iter().find(|one| one.key == "rlaas:rate_limit:bob:%limits");
    let history = history.expect("the limits of bob").time_to_live.expect("an end");
    assert!(history > MINUTE && history <= Micros::from_secs(122), "{history}");
}

async fn replayed_request_converts_nothing(on: Service) {
    let algorithm = on.algorithm();
    let request = Request::user("alice").cost(4).request_id("1").build().expect("valid");
    let check = || on.limiter.check(&request, Deadline::NEVER);
    let first = check().await.expect("a verdict");
    on.limiter.replace_rules(per_minute(algorithm, 20, OnChange::Reset));
    let stored = histories(&on);
    let again = check().await.expect("a verdict");
    assert!(again.replayed);
    assert_eq!(again.deciding().decision.remaining, first.deciding().decision.remaining);
    assert_eq!(histories(&on), stored);
    assert_eq!(on.check("alice").await.remaining, 19);
}

/// Returns the limits that the store keeps, as far as it can list them.
fn histories(on: &Service) -> Vec<(String, Vec<u8>)> {
    let stored = on.stored().unwrap_or_default().into_iter();
    let histories = stored.filter(|one| one.key.ends_with(":%limits"));
    histories.map(|one| (one.key, one.value)).collect()
}
