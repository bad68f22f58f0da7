//! Candidates: limits that are counted beside that of their rule, and never enforced.

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Deadline, Micros};
use rlaas::control::{KeyGrant, OverrideChange};
use rlaas::plan::{Selector, SelectorTarget};
use rlaas::rules::{Candidate, Grant, Matcher, Override, Part, Pattern, Request, Rule, RuleSet};
use rlaas_limiter::KeyChange;
use rlaas_telemetry::exposition::Exposition;
use rlaas_testkit::service::Service;

use super::cases;

cases! {
    all, memory redis;
    candidate_counts_what_its_rule_refuses: two_with_one_and_four;
    refusal_by_another_rule_takes_nothing_from_a_candidate: beside_one_a_minute;
    reset_by_an_operator_resets_candidates: two_with_one_and_four;
    override_leaves_candidates_out: overridden;
    override_of_a_key_leaves_candidates_out: overridable;
    request_that_only_a_candidate_allows_is_not_remembered: two_with_one_and_four;
    look_takes_nothing_from_a_candidate: two_with_one_and_four;
}

const MINUTE: Micros = Micros::from_secs(60);

fn limit(units: u64) -> Limit {
    Limit::new(units, MINUTE).expect("a limit")
}

/// 2 units a minute, with candidates of 1 and 4.
fn rule(algorithm: Algorithm) -> Rule {
    let candidate = |units| Candidate { algorithm, limit: limit(units) };
    Rule {
        name: "pay".into(),
        candidates: vec![candidate(1), candidate(4)],
        ..Rule::new_default(algorithm, limit(2))
    }
}

fn only(rule: Rule) -> RuleSet {
    RuleSet::new(Rule::new_default(Algorithm::Gcra, limit(1_000)), vec![rule])
}

fn two_with_one_and_four(algorithm: Algorithm) -> RuleSet {
    only(rule(algorithm))
}

fn beside_one_a_minute(algorithm: Algorithm) -> RuleSet {
    let other = Rule { name: "all".into(), ..Rule::new_default(algorithm, limit(1)) };
    let default = Rule::new_default(Algorithm::Gcra, limit(1_000));
    RuleSet::new(default, vec![rule(algorithm), other])
}

fn overridable(algorithm: Algorithm) -> RuleSet {
    only(Rule { overridable: true, ..rule(algorithm) })
}

/// Grants vip 3 units a minute.
fn overridden(algorithm: Algorithm) -> RuleSet {
    let matcher = Matcher { patterns: vec![(Part::UserId, Pattern::one("vip"))] };
    let overrides = vec![Override { matcher, grant: Grant::Limited(limit(3)) }];
    only(Rule { overrides, ..rule(algorithm) })
}

/// Returns how many requests a candidate has allowed, denied, and allowed while another rule denied.
fn outcomes(on: &Service, candidate: usize) -> [u64; 3] {
    let text = on.metrics.render(Exposition::Text);
    ["allowed", "denied", "other_rule"].map(|outcome| {
        let labels = format!("rule=\"pay\",candidate=\"{candidate}\",outcome=\"{outcome}\"");
        let series = format!("rlaas_candidate_decisions_total{{{labels}}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.map_or(0, |count| count.parse().expect("a count"))
    })
}

async fn allowed(on: &Service, user: &str, requests: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..requests {
        let verdict = on.verdict(user, None, false).await.expect("a verdict");
        assert_eq!(verdict.decisions.iter().filter(|one| &*one.rule == "pay").count(), 1);
        allowed += usize::from(verdict.is_allowed());
    }
    allowed
}

async fn candidate_counts_what_its_rule_refuses(on: Service) {
    assert_eq!(allowed(&on, "alice", 6).await, 2);
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([1, 5, 0], [4, 2, 0]));
    on.at(121.0);
    assert_eq!(allowed(&on, "alice", 1).await, 1);
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([2, 5, 0], [5, 2, 0]));
    let Some(redis) = on.redis() else { return };
    let of_candidates = redis.keys().into_iter().filter(|key| key.starts_with("rlaas:rule:pay%"));
    assert!(of_candidates.count() >= 2, "{:?}", redis.keys());
}

async fn refusal_by_another_rule_takes_nothing_from_a_candidate(on: Service) {
    assert_eq!(allowed(&on, "alice", 6).await, 1);
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([1, 5, 0], [1, 0, 5]));
}

async fn reset_by_an_operator_resets_candidates(on: Service) {
    assert_eq!(allowed(&on, "alice", 6).await, 2);
    reset(&on, KeyChange::Reset).await;
    assert_eq!(allowed(&on, "alice", 6).await, 2);
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([2, 10, 0], [8, 4, 0]));
}

async fn reset(on: &Service, change: KeyChange) {
    let alice = Request::user("alice").build().expect("a valid request");
    let selector = Selector { target: SelectorTarget::Request(&alice), rule: None };
    let keys = on.limiter.snapshot().rules.select(&selector).expect("a key");
    let changed = on.limiter.change(&keys, &change, Deadline::NEVER).await.expect("a change");
    assert_eq!((changed.before.len(), changed.after.len()), (1, 1));
}

async fn override_leaves_candidates_out(on: Service) {
    assert_eq!(allowed(&on, "vip", 6).await, 3);
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([0; 3], [0; 3]));
}

async fn override_of_a_key_leaves_candidates_out(on: Service) {
    assert_eq!(allowed(&on, "alice", 1).await, 1);
    for grant in [KeyGrant::Limited { units: 5, burst: 5 }, KeyGrant::Banned] {
        let change = OverrideChange::new(grant, MINUTE, b"").expect("an override");
        reset(&on, KeyChange::SetOverride(change)).await;
        allowed(&on, "alice", 3).await;
        assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([1, 0, 0], [1, 0, 0]));
    }
    on.at(61.0);
    assert_eq!(allowed(&on, "bob", 6).await, 2);
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([2, 5, 0], [5, 2, 0]));
}

async fn request_that_only_a_candidate_allows_is_not_remembered(on: Service) {
    assert_eq!(allowed(&on, "alice", 2).await, 2);
    for _ in 0..3 {
        let request = Request::user("alice").request_id("one").build().expect("a valid request");
        let verdict = on.limiter.check(&request, Deadline::NEVER).await.expect("a verdict");
        assert!(!verdict.is_allowed() && !verdict.replayed);
    }
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([1, 4, 0], [4, 1, 0]));
    // A request that took units is answered by its record, and not counted again.
    for replayed in [false, true] {
        let request = Request::user("bob").request_id("two").build().expect("a valid request");
        let verdict = on.limiter.check(&request, Deadline::NEVER).await.expect("a verdict");
        assert_eq!((verdict.is_allowed(), verdict.replayed), (true, replayed));
    }
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([2, 4, 0], [5, 1, 0]));
}

async fn look_takes_nothing_from_a_candidate(on: Service) {
    for _ in 0..3 {
        on.dry_run("alice", 1).await;
    }
    assert_eq!((outcomes(&on, 1), outcomes(&on, 2)), ([3, 0, 0], [3, 0, 0]));
    assert!(on.is_empty());
}
