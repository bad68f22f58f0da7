//! `near_limit`: use at or above a share of the limit in force for the key.

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::Micros;
use rlaas::rules::{Grant, Matcher, Mode, Override, Part, Pattern, Rule, RuleSet, Share};
use rlaas_telemetry::exposition::Exposition;
use rlaas_testkit::service::Service;

use super::{cases, per};

const WINDOW: Micros = Micros::from_secs(60);

cases! {
    all, memory redis;
    decisions_near_the_limit_say_so: near(800_000);
    rule_without_a_share_is_never_near: per(10, WINDOW);
}
cases! {
    mixed, memory redis;
    shadows_bans_and_overrides: overridden();
}

fn limit(units: u64) -> Limit {
    Limit::new(units, WINDOW).expect("a valid limit")
}

fn rule(algorithm: Algorithm, millionths: u32) -> Rule {
    let near_limit = Share::new(millionths);
    Rule { near_limit, ..Rule::new_default(algorithm, limit(10)) }
}

/// Returns rules of any algorithm: 10 per minute, near from this share.
fn near(millionths: u32) -> impl Fn(Algorithm) -> RuleSet {
    move |algorithm| RuleSet::new(rule(algorithm, millionths), Vec::new())
}

/// Whether the request is allowed, whether the verdict is near the limit, and each rule.
async fn check(on: &Service, user: &str, cost: u64, dry_run: bool) -> (bool, bool, Vec<bool>) {
    let verdict = on.verdict(user, Some(cost), dry_run).await.expect("a verdict");
    let rules = verdict.decisions.iter().map(|decided| decided.is_near_limit).collect();
    (verdict.is_allowed(), verdict.is_near_limit(), rules)
}

fn count(on: &Service, outcome: &str) -> u64 {
    let text = on.metrics.render(Exposition::Text);
    let label = format!("outcome=\"{outcome}\"");
    let lines = text.lines().filter(|line| line.starts_with("rlaas_decisions_total{"));
    let values = lines.filter(|line| line.contains(&label)).map(|line| {
        line.rsplit_once(' ').and_then(|(_, value)| value.parse::<u64>().ok()).expect("a number")
    });
    values.sum()
}

async fn decisions_near_the_limit_say_so(on: Service) {
    // A cost of 8 of 10 is exactly the share.
    for (cost, allowed, is_near) in
        [(7, true, false), (0, true, false), (1, true, true), (0, true, true), (2, true, true)]
    {
        let expected = (allowed, is_near, vec![is_near]);
        assert_eq!(check(&on, "alice", cost, false).await, expected, "cost {cost}");
    }
    assert_eq!(check(&on, "alice", 1, false).await, (false, true, vec![true]));
    // A denial of a cost that is too high for what is left uses nothing.
    assert_eq!(check(&on, "bob", 11, false).await, (false, false, vec![false]));
    assert_eq!(check(&on, "bob", 9, true).await, (true, false, vec![false]));
    assert_eq!(check(&on, "bob", 9, false).await, (true, true, vec![true]));
    // Looks and dry runs are no decisions.
    assert_eq!([count(&on, "allowed"), count(&on, "near_limit"), count(&on, "denied")], [1, 3, 2]);
}

async fn rule_without_a_share_is_never_near(on: Service) {
    for allowed in [true, false] {
        assert_eq!(check(&on, "alice", 10, false).await, (allowed, false, vec![false]));
    }
    assert_eq!([count(&on, "allowed"), count(&on, "near_limit")], [1, 0]);
    assert!(!on.metrics.render(Exposition::Text).contains("near_limit"));
}

/// Users with a limit of 100, with none and with a ban; a shadow rule with the whole as its share.
fn overridden() -> RuleSet {
    let user = |name: &str, grant| {
        let matcher =
            Matcher { patterns: vec![(Part::UserId, Pattern::any_of(&[name.to_owned()]))] };
        Override::new(matcher, grant)
    };
    let overrides = vec![
        user("large", Grant::Limited(limit(100))),
        user("free", Grant::Unlimited),
        user("banned", Grant::Banned),
    ];
    let enforced = Rule { name: "a".into(), overrides, ..rule(Algorithm::Gcra, 500_000) };
    let whole = Share::new(Share::WHOLE).expect("a share");
    let shadow = Rule::gcra("b").limit(10).per(WINDOW).shadow().near_limit(whole);
    let shadow = shadow.build().expect("a valid rule");
    assert_eq!(shadow.mode, Mode::Shadow);
    RuleSet::new(rule(Algorithm::Gcra, 1), vec![enforced, shadow])
}

async fn shadows_bans_and_overrides(on: Service) {
    // The share is that of the limit in force for the key.
    assert_eq!(check(&on, "alice", 5, false).await, (true, true, vec![true, false]));
    assert_eq!(check(&on, "large", 10, false).await, (true, false, vec![false, true]));
    assert_eq!(check(&on, "large", 40, false).await, (true, true, vec![true, true]));
    assert_eq!(check(&on, "free", 5, false).await, (true, false, vec![false, false]));
    assert_eq!(check(&on, "banned", 1, false).await, (false, false, vec![false, false]));
}
