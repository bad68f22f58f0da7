//! The numbers of reports, on traffic that can be counted by hand.

use rlaas_core::clock::Micros;
use serde_json::json;

use super::{at_millis, fields, rules, run};
use crate::simulation::{GateResult, HitKey, SimulationReport, SimulationSettings};

/// One rule by user: `limit` a minute in a fixed window.
fn by_user(limit: u32) -> SimulationSettings {
    let rule = json!({
        "name": "login", "limit": limit, "window": "1m", "algorithm": "fixed-window",
    });
    SimulationSettings::new(rules(&json!({ "rules": [rule], "unmatched": "allow" })))
}

/// The times in milliseconds from the begin of a window.
const IN_WINDOW: u64 = 40_000;

#[test]
fn decisions_and_keys_are_counted() {
    let requests = [("a", 0), ("a", 10_000), ("a", 20_000), ("b", 30_000), ("a", 30_000)];
    let requests = requests.map(|(user, millis)| (IN_WINDOW + millis, fields(user, "", 1)));
    let report = run(by_user(2), requests);
    let rule = report.rule("login").expect("the rule");
    assert_eq!((report.all.requests, report.all.refused, report.matched), (5, 2, 5));
    assert_eq!((rule.counts.requests, rule.counts.refused), (5, 2));
    assert_eq!((rule.keys, rule.keys_refused), (2, 1));
    let hit = HitKey {
        rule: "login".to_owned(),
        id: "a".to_owned(),
        requests: 4,
        refused: 2,
        allowed_to_refused: 0,
    };
    assert_eq!(report.hardest_hit, [hit]);
    let span = report.span.expect("a span");
    assert_eq!((span.from, span.length), (at_millis(IN_WINDOW), Micros::from_secs(30)));
    let buckets = &report.over_time.buckets;
    assert_eq!(buckets.iter().map(|counts| counts.requests).sum::<u64>(), 5);
    assert_eq!(buckets.iter().map(|counts| counts.refused).sum::<u64>(), 2);
}

#[test]
fn changes_are_counted_against_the_rules_in_force() {
    let against = by_user(3).candidate;
    let stricter = SimulationSettings { against: Some(against), ..by_user(1) };
    let requests = (0..5).map(|second| (IN_WINDOW + second, fields("a", "", 1)));
    let report = run(stricter, requests.clone());
    let counts = |report: &SimulationReport| {
        let rule = report.rule("login").expect("the rule").counts;
        let all = &report.all;
        for (one, other) in [
            (rule.refused_before, all.refused_before),
            (rule.allowed_to_refused, all.allowed_to_refused),
            (rule.refused_to_allowed, all.refused_to_allowed),
        ] {
            assert_eq!(one, other);
        }
        (all.refused, all.refused_before, all.allowed_to_refused, all.refused_to_allowed)
    };
    assert_eq!(counts(&report), (4, 2, 2, 0));
    assert_eq!(report.hardest_hit[0].allowed_to_refused, 2);
    let against = by_user(1).candidate;
    let looser = SimulationSettings { against: Some(against), ..by_user(3) };
    assert_eq!(counts(&run(looser, requests)), (2, 4, 0, 2));
}

#[test]
fn a_removed_rule_is_listed_with_its_refusals() {
    let none = rules(&json!({ "unmatched": "allow" }));
    let against = Some(by_user(1).candidate);
    let settings = SimulationSettings { against, ..SimulationSettings::new(none) };
    let report = run(settings, (0..3).map(|at| (IN_WINDOW + at, fields("a", "", 1))));
    assert_eq!((report.matched, report.unmatched.allowed), (0, 3));
    let [rule] = &report.rules[..] else { panic!("{:?}", report.rules) };
    assert_eq!((rule.candidate.is_none(), rule.in_force.is_some()), (true, true));
    assert_eq!((rule.counts.refused_before, rule.counts.refused_to_allowed), (2, 2));
}

#[test]
fn shadow_denials_are_apart() {
    let shadow = json!({ "name": "s", "limit": 1, "window": "1m", "shadow": true });
    let tight = json!({ "name": "t", "limit": 2, "window": "1m" });
    let set = rules(&json!({ "rules": [shadow, tight], "unmatched": "allow" }));
    let costs = [1, 1, 3].into_iter().zip(0..);
    let report = run(
        SimulationSettings::new(set),
        costs.map(|(cost, at)| (IN_WINDOW + at, fields("a", "", cost))),
    );
    assert_eq!((report.all.refused, report.all.shadow_denied), (1, 2));
    let rule = |name| &report.rule(name).expect("the rule").counts;
    assert_eq!((rule("s").refused, rule("s").shadow_denied), (0, 2));
    assert_eq!((rule("t").refused, rule("t").shadow_denied), (1, 0));
    let buckets = report.over_time.buckets.iter();
    assert_eq!(buckets.map(|counts| counts.shadow_denied).sum::<u64>(), 2);
}

#[test]
fn a_warm_up_is_decided_and_not_counted() {
    let settings = SimulationSettings { warm_up: Micros::from_secs(10), ..by_user(2) };
    let requests = [0, 1_000, 9_999, 10_000, 11_000];
    let report = run(settings, requests.map(|millis| (IN_WINDOW + millis, fields("a", "", 1))));
    assert_eq!((report.warm_up_requests, report.all.requests, report.all.refused), (3, 2, 2));
    assert_eq!(report.hardest_hit[0].requests, 2);
    assert_eq!(report.span.map(|span| span.from), Some(at_millis(IN_WINDOW + 10_000)));
}

#[test]
fn requests_that_the_service_would_not_accept_are_counted() {
    let requests = [fields("", "", 1), fields("a", &"x".repeat(1025), 1), fields("a", "", 1)];
    let requests = requests.map(|request| (IN_WINDOW, request));
    let report = run(by_user(1), requests);
    assert_eq!((report.all.requests, report.invalid, report.matched), (3, 2, 1));
    assert_eq!(report.invalid_reason.as_deref(), Some("user_id must be 1 to 1024 bytes"));
}

#[test]
fn unmatched_requests_are_counted_by_their_policy() {
    let only = |unmatched: &str| {
        let rule = json!({
            "name": "pay", "match": { "resource": "/pay" }, "limit": 1, "window": "1m",
        });
        SimulationSettings::new(rules(&json!({ "rules": [rule], "unmatched": unmatched })))
    };
    let requests = || [fields("a", "/", 1), fields("a", "/pay", 1)].map(|request| (0, request));
    let denied = run(only("deny"), requests());
    assert_eq!((denied.matched, denied.unmatched.refused, denied.all.refused), (1, 1, 1));
    assert!(!GateResult::new(&denied, "0%".parse().expect("a share")).is_within);
    let allowed = run(only("allow"), requests());
    assert_eq!((allowed.matched, allowed.unmatched.allowed, allowed.all.refused), (1, 1, 0));
}

#[test]
fn a_gate_sees_a_small_rule_in_much_traffic() {
    let rule = |name: &str, limit: u32| {
        json!({
            "name": name, "match": { "resource": format!("/{name}") },
            "limit": limit, "window": "1m",
        })
    };
    let set = rules(&json!({ "rules": [rule("big", 100_000), rule("small", 1)] }));
    let requests = (0..1_000).map(|at| (at, fields("a", "/big", 1)));
    let requests =
        requests.chain([(1_000, fields("a", "/small", 1)), (1_001, fields("a", "/small", 1))]);
    let report = run(SimulationSettings::new(set), requests);
    let judge = |share: &str| GateResult::new(&report, share.parse().expect("a share"));
    let result = judge("0.1%");
    assert!(!result.is_within);
    let beyond: Vec<_> = result.checks.iter().filter(|check| !check.is_within).collect();
    assert_eq!(beyond.len(), 1);
    assert_eq!(beyond[0].rule.as_deref(), Some("small"));
    assert_eq!((beyond[0].new_denials, beyond[0].matched), (1, 2));
    assert!(judge("50%").is_within && !judge("49.9999%").is_within);
}

#[test]
fn the_json_form_has_these_names() {
    let settings = SimulationSettings { against: Some(by_user(3).candidate), ..by_user(1) };
    let report = run(settings, (0..2).map(|at| (IN_WINDOW + at * 1_500, fields("a", "", 1))));
    let json = serde_json::to_value(&report).expect("JSON");
    let limit = |units: u64| {
        json!({
            "algorithm": "fixed-window", "limit": units, "windowUs": 60_000_000, "burst": null,
            "mode": "enforced", "enforcedShare": "100%", "overrides": 0,
        })
    };
    let counts = json!({
        "requests": 2, "refused": 1, "refusedBefore": 0, "allowedToRefused": 1,
        "refusedToAllowed": 0, "shadowDenied": 0,
    });
    let mut rule = json!({
        "rule": "login", "candidate": limit(1), "inForce": limit(3), "keys": 1, "keysRefused": 1,
    });
    let counts_of_rule = counts.as_object().expect("an object").clone();
    rule.as_object_mut().expect("an object").extend(counts_of_rule);
    let expected = json!({
        "isCompared": true,
        "span": { "fromUs": 1_700_000_040_000_000_u64, "lengthUs": 1_500_000 },
        "warmUpRequests": 0,
        "all": counts,
        "matched": 2,
        "unmatched": { "allowed": 0, "refused": 0 },
        "invalid": 0,
        "invalidReason": null,
        "recordedRefusals": 0,
        "rules": [rule],
        "hardestHit": [{
            "rule": "login", "id": "a", "requests": 2, "refused": 1, "allowedToRefused": 1,
        }],
        "overTime": {
            "fromUs": 1_700_000_040_000_000_u64, "bucketUs": 1_000_000,
            "buckets": json["overTime"]["buckets"],
        },
    });
    assert_eq!(json, expected);
    assert_eq!(json["overTime"]["buckets"].as_array().map(Vec::len), Some(2));
}

#[test]
fn limits_are_in_words() {
    for (rule, text) in [
        (json!({ "limit": 5000, "window": "1m" }), "5,000 per 1m, sliding-window-log"),
        (
            json!({ "limit": 9, "window": "90s", "algorithm": "gcra", "burst": 2, "shadow": true }),
            "9 per 1m 30s, burst 2, gcra, shadow",
        ),
        (json!({ "limit": 0, "window": "1h" }), "0 per 1h, sliding-window-log"),
        (
            json!({
                "limit": 1, "window": "1s", "algorithm": "fixed-window", "enforce": "25%",
                "key-by": ["user_id", "resource"],
                "overrides": [{ "match": { "user_id": "a" }, "unlimited": true }],
            }),
            "1 per 1s, fixed-window, enforced for 25% of the keys, 1 override",
        ),
    ] {
        let mut rule = rule;
        rule["name"] = json!("login");
        let set = rules(&json!({ "rules": [rule] }));
        let report = run(SimulationSettings::new(set), []);
        let limit = report.rule("login").and_then(|rule| rule.candidate.clone());
        assert_eq!(limit.expect("a limit").to_string(), text);
    }
}
