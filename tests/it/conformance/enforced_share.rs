//! `enforce`: a rule is enforced for a part of its keys, and counts the others as in shadow mode.

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::Micros;
use rlaas::rules::{EnforcedShare, Key, Rule, RuleSet, Unmatched};
use rlaas::verdict::Source;
use rlaas_testkit::service::Service;

use super::cases;

cases! {
    all, memory redis;
    rule_is_enforced_for_its_share_of_the_keys: half;
}
cases! {
    gcra, memory redis;
    default_rule_stays_out_while_nothing_is_enforced: beside_the_default_rule;
    request_without_an_enforced_rule_is_matched: denying_unmatched;
}

fn share(millionths: u32) -> EnforcedShare {
    EnforcedShare::new(millionths).expect("a share")
}

fn rule(algorithm: Algorithm, enforce: EnforcedShare) -> Rule {
    let limit = Limit::new(1, Micros::from_secs(60)).expect("a limit");
    Rule { name: "login".into(), enforce, ..Rule::new_default(algorithm, limit) }
}

/// Rules of which only one with a part of the keys is enforced.
fn only(rule: Rule) -> RuleSet {
    let limit = Limit::new(1, Micros::from_secs(60)).expect("a limit");
    let default = Rule::new_default(Algorithm::Gcra, limit);
    RuleSet::new(default, vec![rule])
}

fn half(algorithm: Algorithm) -> RuleSet {
    only(rule(algorithm, share(500_000)))
}

fn beside_the_default_rule(algorithm: Algorithm) -> RuleSet {
    only(rule(algorithm, share(0)))
}

fn denying_unmatched(algorithm: Algorithm) -> RuleSet {
    beside_the_default_rule(algorithm).with_unmatched(Unmatched::Deny)
}

async fn rule_is_enforced_for_its_share_of_the_keys(on: Service) {
    let (mut enforced, mut denied) = (0, 0);
    for number in 0..40 {
        let user = format!("user-{number}");
        let is_enforced = share(500_000).contains(&Key::from_encoded("login", &user));
        enforced += usize::from(is_enforced);
        let first = on.verdict(&user, None, false).await.expect("a verdict");
        assert!(first.is_allowed(), "{user}");
        let second = on.verdict(&user, None, false).await.expect("a verdict");
        denied += usize::from(!second.is_allowed());
        assert_eq!(second.is_allowed(), !is_enforced, "{user}");
        // The rule has counted and denied it all the same.
        assert!(!second.decisions[0].decision.is_allowed(), "{user}");
        assert_eq!(second.decisions[0].mode.is_shadow(), !is_enforced, "{user}");
    }
    assert!(enforced > 10 && enforced < 30, "{enforced}");
    assert_eq!(denied, enforced);
}

async fn default_rule_stays_out_while_nothing_is_enforced(on: Service) {
    for _ in 0..3 {
        let verdict = on.verdict("alice", None, false).await.expect("a verdict");
        assert!(verdict.is_allowed());
        assert_eq!(verdict.decisions.len(), 1, "{verdict:?}");
        assert_eq!(verdict.deciding().source, Source::NoRule);
    }
}

async fn request_without_an_enforced_rule_is_matched(on: Service) {
    for _ in 0..2 {
        let verdict = on.verdict("alice", None, false).await.expect("the rule matches");
        assert!(verdict.is_allowed());
    }
}
