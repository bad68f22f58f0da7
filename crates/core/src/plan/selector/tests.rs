//! Tests: the keys that selectors name.

use super::*;
use crate::algorithm::{Algorithm, Limit};
use crate::clock::Micros;
use crate::rules::descriptors::{Descriptor, DescriptorRule, Descriptors};
use crate::rules::{Coupling, Grant, Matcher, Mode, Override, Part, Pattern, Rule, RuleSet};

/// `default` by user; `pay` by resource, plan and user; `vip` by user, with an override.
fn rules() -> RuleSet {
    let limit = Limit::new(5, Micros::from_secs(60)).expect("a valid limit");
    let rule = |name: &str, key_by: &[Part]| Rule {
        name: name.into(),
        key_by: key_by.to_vec(),
        ..Rule::new_default(Algorithm::Gcra, limit)
    };
    let plan = Part::Attribute("plan".to_owned());
    let pay = rule("pay", &[Part::Resource, plan, Part::UserId]);
    let ops = vec![(Part::UserId, Pattern::one("ops"))];
    let vip = Rule {
        overrides: vec![Override::new(Matcher { patterns: ops }, Grant::Unlimited)],
        mode: Mode::Shadow,
        ..rule("vip", &[Part::UserId])
    };
    let leaf = |key: &str, value: Option<&str>, shares, name: &str| Descriptor {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        shares,
        value_to_metric: false,
        rule: Some(DescriptorRule {
            name: name.into(),
            grant: Grant::Limited(limit),
            window: limit.windows(),
            ..DescriptorRule::for_domain("edge")
        }),
        below: Vec::new(),
    };
    let tree = vec![
        leaf("ip", None, false, "edge.ip"),
        leaf("ip", Some("10.*"), true, "edge.ip_10.*"),
        leaf("ip", Some("10.9"), false, "edge.ip_10.9"),
    ];
    let descriptors = Descriptors::new(vec![("edge".to_owned(), tree)], Coupling::EachAlone);
    RuleSet::new(rule("default", &[Part::UserId]), vec![pay, vip]).with_descriptors(descriptors)
}

fn parts(of: &[(&str, Option<&str>)]) -> Vec<KeyPart> {
    let part = |(name, value): &(&str, Option<&str>)| KeyPart {
        name: (*name).to_owned(),
        value: value.map(str::to_owned),
    };
    of.iter().map(part).collect()
}

/// Name of the rule, id and origin of the grant of each key.
fn select<'a>(
    target: SelectorTarget<'_>,
    rule: impl Into<Option<&'a str>>,
) -> Result<Vec<(String, String, GrantSource)>, SelectError> {
    let keys = rules().select(&Selector { target, rule: rule.into() })?;
    let shown =
        |key: SelectedKey| (key.rule.to_string(), key.hit.key.id().to_owned(), key.grant_from);
    Ok(keys.into_iter().map(shown).collect())
}

fn key(rule: &str, id: &str) -> (String, String, GrantSource) {
    (rule.to_owned(), id.to_owned(), GrantSource::Rule)
}

#[test]
fn a_request_names_the_keys_that_it_meets() {
    let request = Request::user("a:b").resource("/p").build().expect("a valid request");
    let target = SelectorTarget::Request(&request);
    let pay = key("pay", "/p:%:a%3Ab");
    assert_eq!(select(target, None), Ok(vec![pay.clone(), key("vip", "a%3Ab")]));
    assert_eq!(select(target, "pay"), Ok(vec![pay]));
    // An enforced rule matches, so the default rule does not apply.
    assert_eq!(select(target, "default"), Ok(Vec::new()));
    assert_eq!(select(target, "other"), Err(SelectError::UnknownRule));
}

#[test]
fn a_user_alone_names_its_key_of_a_rule_for_other_requests() {
    let request = Request::user("a").build().expect("a valid request");
    let target = SelectorTarget::Request(&request);
    assert_eq!(select(target, "default"), Ok(vec![key("default", "a")]));
    assert_eq!(select(target, "pay"), Ok(vec![key("pay", ":%:a")]));
    assert_eq!(select(target, "edge.ip"), Ok(Vec::new()));
    let keys = rules().select_user("a").expect("keys");
    let ids = keys.iter().map(|key| (&*key.rule, key.hit.key.id())).collect::<Vec<_>>();
    assert_eq!(ids, [("default", "a"), ("vip", "a"), ("pay", ":%:a")]);
    assert!(matches!(rules().select_user(""), Err(SelectError::Value(_))));
}

#[test]
fn an_attribute_alone_names_its_keys_whatever_its_name() {
    let limit = Limit::new(5, Micros::from_secs(60)).expect("a valid limit");
    let rule = |name: &str, key_by: Vec<Part>| Rule {
        name: name.into(),
        key_by,
        ..Rule::new_default(Algorithm::Gcra, limit)
    };
    let attribute = |name: &str| Part::Attribute(name.to_owned());
    let all = vec![
        rule("of-customer", vec![attribute("customer")]),
        rule("of-plan", vec![Part::AttributeOrUserId("plan".to_owned())]),
        rule("of-two", vec![attribute("customer"), Part::UserId]),
        rule("of-user", vec![Part::UserId]),
    ];
    let rules = RuleSet::new(rule("default", vec![Part::UserId]), all);
    let keys = rules.select_attribute("acme");
    let shown: Vec<_> =
        keys.iter().map(|key| (&*key.rule, key.parts[0].value.as_deref())).collect();
    assert_eq!(shown, [("of-customer", Some("acme")), ("of-plan", Some("acme"))]);
    assert!(rules.select_attribute(&"x".repeat(1025)).is_empty());
    for key in &keys {
        let again = rules.select_all(&key.parts).expect("keys");
        assert_eq!(again.iter().map(|key| &key.hit.key).collect::<Vec<_>>(), [&key.hit.key]);
    }
}

#[test]
fn parts_name_the_keys_that_consist_of_them() {
    let ops = parts(&[("user_id", Some("ops"))]);
    let vip = ("vip".to_owned(), "ops".to_owned(), GrantSource::RuleOverride);
    let both = vec![key("default", "ops"), vip.clone()];
    assert_eq!(select(SelectorTarget::Parts(&ops), None), Ok(both));
    assert_eq!(select(SelectorTarget::Parts(&ops), "vip"), Ok(vec![vip]));
    assert_eq!(select(SelectorTarget::Parts(&ops), "pay"), Err(SelectError::OtherParts));
    let pay = parts(&[("user_id", Some("a")), ("attributes.plan", None), ("resource", Some(""))]);
    assert_eq!(select(SelectorTarget::Parts(&pay), None), Ok(vec![key("pay", ":%:a")]));
    let none = parts(&[("user_id", Some("a")), ("resource", Some("/"))]);
    assert_eq!(select(SelectorTarget::Parts(&none), None), Ok(Vec::new()));
}

#[test]
fn parts_that_no_request_has_are_refused() {
    let twice: &[(&str, Option<&str>)] = &[("user_id", Some("a")), ("user_id", Some("a"))];
    let long = "x".repeat(1025);
    for (of, expected) in [
        (&[][..], SelectError::Parts),
        (&vec![("user_id", Some("a")); 35], SelectError::Parts),
        (twice, SelectError::PartName),
        (&[("user", Some("a"))], SelectError::PartName),
        (&[("user_id", None)], SelectError::NoValue),
        (&[("user_id", Some(""))], SelectError::Value(InvalidRequest::UserId)),
        (&[("user_id", Some(&long))], SelectError::Value(InvalidRequest::UserId)),
        (&[("attributes.", Some("a"))], SelectError::Value(InvalidRequest::AttributeName)),
    ] {
        assert_eq!(select(SelectorTarget::Parts(&parts(of)), None), Err(expected), "{of:?}");
    }
}

#[test]
fn an_id_names_one_key_of_a_rule() {
    assert_eq!(select(SelectorTarget::Id("a"), None), Err(SelectError::RuleRequired));
    for id in ["/p:%:a", ":%41:a", "::%00%0A%7B", "é::a"] {
        let expected = if id == ":%41:a" { Err(SelectError::Id) } else { Ok(vec![key("pay", id)]) };
        assert_eq!(select(SelectorTarget::Id(id), "pay"), expected, "{id}");
    }
    for id in ["", "a", "a:b", "a:b:c:d", "a:b:%", "a:b:", "a:b:{c", "a:b:%/1", "a:b:\n", "%:a:b"] {
        assert_eq!(select(SelectorTarget::Id(id), "pay"), Err(SelectError::Id), "{id:?}");
    }
}

#[test]
fn a_descriptor_names_the_key_that_it_meets() {
    for (value, rule, id) in [
        ("10.1", "edge.ip_10.*", "ip:%%10.*"),
        ("10.9", "edge.ip_10.9", "ip:10.9"),
        ("::1", "edge.ip", "ip:%3A%3A1"),
    ] {
        let target = SelectorTarget::Descriptor { domain: "edge", entries: &[("ip", value)] };
        let expected = Ok(vec![key(rule, id)]);
        assert_eq!(select(target, None), expected);
        // The same key by its parts, and by its id.
        let shown = rules().select(&Selector { target, rule: None }).expect(value);
        assert_eq!(select(SelectorTarget::Parts(&shown[0].parts), rule), expected);
        assert_eq!(select(SelectorTarget::Id(id), rule), expected);
        let described = rules().describe(&shown[0].hit.key);
        assert_eq!((described.0.as_deref(), described.1), (Some(rule), shown[0].parts.clone()));
    }
    // The state of `10.9` belongs to another rule.
    let other = parts(&[("ip", Some("10.9"))]);
    assert_eq!(select(SelectorTarget::Parts(&other), "edge.ip"), Err(SelectError::OtherParts));
    assert_eq!(select(SelectorTarget::Id("ip:10.9"), "edge.ip"), Err(SelectError::Id));
    for (domain, entries, expected) in [
        ("edge", &[("port", "1")][..], Ok(Vec::new())),
        ("other", &[("ip", "1")], Ok(Vec::new())),
        ("edge", &[], Err(SelectError::Entries)),
        ("", &[("ip", "1")], Err(SelectError::Domain)),
    ] {
        assert_eq!(select(SelectorTarget::Descriptor { domain, entries }, None), expected);
    }
}

#[test]
fn a_key_is_described_by_the_rule_in_force() {
    let request = Request::user("a:b").resource("{\n}").build().expect("a valid request");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
    for key in rules().select(&selector).expect("two keys") {
        assert_eq!(rules().describe(&key.hit.key), (Some(key.rule), key.parts));
    }
}

#[test]
fn at_most_100_keys_are_named() {
    let limit = Limit::new(5, Micros::from_secs(60)).expect("a valid limit");
    let rule = |number: usize| Rule {
        name: format!("r{number}").into(),
        ..Rule::new_default(Algorithm::Gcra, limit)
    };
    let named = |count| {
        let rules = RuleSet::new(rule(count), (0..count).map(rule).collect());
        let request = Request::user("a").build().expect("a valid request");
        let target = SelectorTarget::Request(&request);
        rules.select(&Selector { target, rule: None }).map(|keys| keys.len())
    };
    assert_eq!(named(100), Ok(100));
    assert_eq!(named(101), Err(SelectError::TooManyKeys));
}
