//! Rules for recordings with hashed values, and for samples.

use rlaas_core::algorithm::{Algorithm, Limit};
use rlaas_core::clock::Micros;
use rlaas_core::rules::{Coupling, Override, Part};

use super::*;
use crate::recording::HashedHeader;

fn key() -> KeyHasher {
    KeyHasher::new(|value| {
        let sum = value.iter().fold(7_u128, |sum, byte| sum * 31 + u128::from(*byte));
        sum.to_le_bytes()
    })
}

fn header() -> Header {
    let parts = vec!["user_id".to_owned(), "attributes.tenant".to_owned()];
    let key = key_fingerprint(&key());
    let keys = RecordedKeys::Hashed(HashedHeader { parts, key });
    Header { keys, ..Header::default() }
}

fn rule(name: &str, part: Part, texts: &[&str]) -> Rule {
    let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
    let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    let matcher = Matcher { patterns: vec![(part, Pattern::any_of(&texts))] };
    Rule { name: name.into(), matcher, ..Rule::new_default(Algorithm::Gcra, limit) }
}

fn rules(named: Vec<Rule>) -> RuleSet {
    let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
    RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), named)
}

fn left_out(found: &RulesForRecording) -> Vec<(&str, String)> {
    let pair = |of: &UndecidableRule| of.reason.to_string();
    found.undecidable.iter().map(|of| (&*of.name, pair(of))).collect()
}

#[test]
fn exact_texts_are_hashed_and_other_parts_stay() {
    let mut exact = rule("exact", Part::UserId, &["alice", "bob"]);
    exact.overrides.push(Override {
        matcher: rule("", Part::Attribute("tenant".to_owned()), &["one"]).matcher,
        grant: exact.grant,
    });
    let clear = rule("clear", Part::Resource, &["/pay/*"]);
    let present = rule("present", Part::UserId, &["*"]);
    let rules = rules(vec![exact, clear.clone(), present.clone()]);
    let found = rules_for_recordings(&rules, &[header()], Some(&key())).expect("the key");
    assert_eq!(left_out(&found), []);
    let hashed = found.rules.iter().find(|rule| &*rule.name == "exact").expect("kept");
    let shown = |text: &str| TextPattern::Exact(key().shown(text));
    let Pattern::OneOf(texts) = &hashed.matcher.patterns[0].1 else { panic!("texts") };
    assert!(texts.contains(&shown("alice")) && texts.contains(&shown("bob")));
    let of_override = &hashed.overrides[0].matcher.patterns[0].1;
    assert_eq!(*of_override, Pattern::OneOf(vec![shown("one")]));
    assert!(found.rules.iter().any(|rule| *rule == clear));
    assert!(found.rules.iter().any(|rule| *rule == present));
}

#[test]
fn patterns_are_left_out_with_what_they_leave_open() {
    let mut shadow = rule("shadow", Part::UserId, &["vip-*"]);
    shadow.mode = Mode::Shadow;
    let found = rules_for_recordings(&rules(vec![shadow.clone()]), &[header()], Some(&key()));
    let found = found.expect("the key");
    let pattern = "a pattern on user_id, which is hashed".to_owned();
    assert_eq!(left_out(&found), [("shadow", pattern.clone())]);
    assert_eq!(found.rules.unmatched(), Unmatched::DefaultRule);
    let enforced = Rule { mode: Mode::Enforced, ..shadow };
    let found = rules_for_recordings(&rules(vec![enforced]), &[header()], Some(&key()));
    let found = found.expect("the key");
    let rest = "decides what such a rule does not match".to_owned();
    assert_eq!(left_out(&found), [("shadow", pattern), ("default", rest)]);
    assert_eq!(found.rules.unmatched(), Unmatched::Allow);
}

#[test]
fn without_the_key_conditions_on_hashed_parts_are_left_out() {
    let rules = rules(vec![
        rule("exact", Part::UserId, &["alice"]),
        rule("clear", Part::Resource, &["/pay"]),
    ]);
    let found = rules_for_recordings(&rules, &[header()], None).expect("no key");
    let names: Vec<&str> = found.undecidable.iter().map(|of| &*of.name).collect();
    assert_eq!(names, ["exact", "default"]);
    assert!(found.rules.iter().any(|rule| &*rule.name == "clear"));
    let clear = rules_for_recordings(&rules, &[Header::default()], None).expect("clear");
    assert_eq!((clear.rules, clear.undecidable), (rules, Vec::new()));
}

#[test]
fn another_key_and_different_recordings_are_refused() {
    let other = KeyHasher::new(|value| [value.len().to_le_bytes()[0]; 16]);
    let refused = |headers: &[Header], key: &KeyHasher| {
        rules_for_recordings(&rules(Vec::new()), headers, Some(key)).err()
    };
    assert_eq!(refused(&[header()], &other), Some(KeyError::OtherKey));
    assert_eq!(refused(&[header()], &key()), None);
    assert_eq!(refused(&[header(), Header::default()], &key()), Some(KeyError::Differ));
}

#[test]
fn shares_of_hashed_keys_are_left_out() {
    let mut share = rule("share", Part::Resource, &["/pay"]);
    share.enforce = EnforcedShare::new(500_000).expect("a share");
    share.mode = Mode::Shadow;
    let found = rules_for_recordings(&rules(vec![share]), &[header()], Some(&key()));
    assert_eq!(found.expect("the key").undecidable[0].reason, Undecidable::Share);
}

#[test]
fn values_of_trees_are_hashed_and_what_matches_after_a_pattern_is_left_out() {
    let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
    let node = |key: &str, value: Option<&str>, name: &str| Descriptor {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        shares: false,
        value_to_metric: false,
        rule: Some(rlaas_core::rules::descriptors::DescriptorRule {
            name: name.into(),
            ..tree_rule(limit)
        }),
        below: Vec::new(),
    };
    let top = vec![
        node("user_id", Some("alice"), "alice"),
        node("user_id", Some("vip-*"), "vip"),
        node("user_id", None, "users"),
        node("path", Some("/a*"), "path"),
    ];
    let trees = Descriptors::new(vec![("d".to_owned(), top)], Coupling::default());
    let rules = rules(Vec::new()).with_descriptors(trees);
    let found = rules_for_recordings(&rules, &[header()], Some(&key())).expect("the key");
    let names: Vec<&str> = found.undecidable.iter().map(|of| &*of.name).collect();
    assert_eq!(names, ["vip", "users"]);
    let placed = found.rules.descriptors().placed();
    let shown: Vec<_> =
        placed.iter().map(|of| (&*of.rule.name, of.path[0].value.map(str::to_owned))).collect();
    assert_eq!(shown, [("alice", Some(key().shown("alice"))), ("path", Some("/a*".to_owned()))]);
}

fn tree_rule(limit: Limit) -> rlaas_core::rules::descriptors::DescriptorRule {
    use rlaas_core::rules::descriptors::DescriptorSpec;
    use rlaas_core::rules::spec::{Field, RateSpec};
    let rate = RateSpec {
        limit: Field::Set(limit.units()),
        window: Field::Set(limit.window()),
        ..RateSpec::default()
    };
    let spec = DescriptorSpec { rate, ..DescriptorSpec::default() };
    spec.build(Coupling::default()).expect("a rule")
}
