//! Tests: keys with hashed parts, made from requests and found by selectors.

use proptest::prelude::*;
use smallvec::SmallVec;

use super::selector::{KeyPart, SelectError, Selector, SelectorTarget};
use super::{Hit, Plan};
use crate::algorithm::{Algorithm, Cost, Limit};
use crate::clock::Micros;
use crate::rules::descriptors::{
    Descriptor, DescriptorRequest, DescriptorRule, Descriptors, HitsAddend, RequestDescriptor,
};
use crate::rules::{
    Coupling, Grant, HashedParts, HashedValue, KeyHasher, Part, Request, Rule, RuleSet,
};

/// A hash for tests: no two values of a test share their first bytes and their length.
fn hasher() -> KeyHasher {
    KeyHasher::new(|value| {
        let seed = value.iter().fold(14_695_981_039_346_656_037_u128, |hash, byte| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B)
        });
        seed.to_be_bytes()
    })
}

fn limit() -> Limit {
    Limit::new(5, Micros::from_secs(60)).expect("a valid limit")
}

/// `each` by user; `pay` by resource, plan and user; a tree of `domain` with `user_id`.
fn rules(hashed: &[Part]) -> RuleSet {
    let default = Rule::new_default(Algorithm::Gcra, limit());
    let plan = Part::Attribute("plan".to_owned());
    let key_by = vec![Part::Resource, plan, Part::UserId];
    let pay = Rule { name: "pay".into(), key_by, ..default.clone() };
    let each = Rule { name: "each".into(), ..default.clone() };
    let leaf = |value: Option<&str>, name: &str| Descriptor {
        key: "user_id".to_owned(),
        value: value.map(str::to_owned),
        shares: false,
        value_to_metric: false,
        rule: Some(DescriptorRule {
            name: name.into(),
            grant: Grant::Limited(limit()),
            ..DescriptorRule::for_domain("domain")
        }),
        below: Vec::new(),
    };
    let tree = vec![leaf(None, "any"), leaf(Some("ops"), "ops"), leaf(Some("vip-*"), "vip")];
    let descriptors = Descriptors::new(vec![("domain".to_owned(), tree)], Coupling::AllOrNothing);
    let rules = RuleSet::new(default, vec![each, pay]).with_descriptors(descriptors);
    if hashed.is_empty() {
        return rules;
    }
    rules.with_hashed_parts(HashedParts::new(hasher(), hashed.iter().cloned()))
}

fn hit_of(rules: &RuleSet, user_id: &str, rule: &str) -> Hit {
    let attributes = [("plan", "free")];
    let request = Request::user(user_id).resource("/pay").attributes(&attributes);
    let request = request.build().expect("a valid request");
    let plan = Plan::for_request(rules, &request);
    let is_named = |hit: &Hit| &**rules.rule(hit.rule).name == rule;
    plan.hits.into_iter().find(is_named).expect("the rule matches")
}

fn descriptor_key(rules: &RuleSet, value: &str) -> String {
    let entries = SmallVec::from_iter([("user_id", value)]);
    let descriptor = RequestDescriptor { entries, limit: None, hits: HitsAddend::Take(Cost::ONE) };
    let request = DescriptorRequest::new("domain", SmallVec::from_iter([descriptor]));
    let plan = rules.descriptors().plan(&request.expect("a valid request")).expect("a plan");
    plan.plan.hits[0].key.id().to_owned()
}

fn part(name: &str, value: &str) -> KeyPart {
    KeyPart { name: name.to_owned(), value: Some(value.to_owned()) }
}

/// Returns the ids and parts of the keys that a selector names.
fn select(
    rules: &RuleSet,
    target: SelectorTarget<'_>,
    rule: Option<&str>,
) -> Result<Vec<(String, Vec<KeyPart>)>, SelectError> {
    let keys = rules.select(&Selector { target, rule })?;
    Ok(keys.into_iter().map(|key| (key.hit.key.id().to_owned(), key.parts)).collect())
}

#[test]
fn only_listed_parts_are_hashed() {
    let alice = hasher().hash("alice");
    let id = |hashed: &[Part]| hit_of(&rules(hashed), "alice", "pay").key.id().to_owned();
    assert_eq!(id(&[]), "/pay:free:alice");
    assert_eq!(id(&[Part::UserId]), format!("/pay:free:{}", alice.as_str()));
    let plan = Part::Attribute("plan".to_owned());
    let (pay, free) = (hasher().hash("/pay"), hasher().hash("free"));
    let all = [Part::UserId, Part::Resource, plan];
    let expected = [pay.as_str(), free.as_str(), alice.as_str()].join(":");
    assert_eq!(id(&all), expected);
    let key = hit_of(&rules(&all), "alice", "pay").key;
    assert_eq!(key.rule(), "pay", "names of rules stay readable");
}

#[test]
fn entries_of_descriptors_are_hashed_by_their_key() {
    let alice = hasher().hash("alice");
    assert_eq!(descriptor_key(&rules(&[]), "alice"), "user_id:alice");
    let rules = rules(&[Part::UserId]);
    assert_eq!(descriptor_key(&rules, "alice"), format!("user_id:{}", alice.as_str()));
    // What the configuration says is no secret.
    assert_eq!(descriptor_key(&rules, "ops"), "user_id:ops");
    let vip = hasher().hash("vip-1");
    assert_eq!(descriptor_key(&rules, "vip-1"), format!("user_id:{}", vip.as_str()));
}

#[test]
fn hashed_keys_are_found_by_clear_parts_by_shown_parts_and_by_id() {
    let rules = rules(&[Part::UserId]);
    let id = hit_of(&rules, "alice", "pay").key.id().to_owned();
    let shown = hasher().shown("alice");
    let parts = |user: &str| {
        vec![part("resource", "/pay"), part("attributes.plan", "free"), part("user_id", user)]
    };
    let expected = Ok(vec![(id.clone(), parts(&shown))]);
    let (clear, hashed) = (parts("alice"), parts(&shown));
    for target in
        [SelectorTarget::Parts(&clear), SelectorTarget::Parts(&hashed), SelectorTarget::Id(&id)]
    {
        assert_eq!(select(&rules, target, Some("pay")), expected, "{target:?}");
    }
    let attributes = [("plan", "free")];
    let request = Request::user("alice").resource("/pay").attributes(&attributes);
    let request = request.build().expect("a valid request");
    assert_eq!(select(&rules, SelectorTarget::Request(&request), Some("pay")), expected);
    let key = hit_of(&rules, "alice", "pay").key;
    assert_eq!(rules.describe(&key), (Some("pay".into()), parts(&shown)));
    // An id in clear text names no key any more.
    let clear = select(&rules, SelectorTarget::Id("/pay:free:alice"), Some("pay"));
    assert_eq!(clear, Err(SelectError::Id));
}

#[test]
fn hashed_keys_of_descriptors_are_found() {
    let rules = rules(&[Part::UserId]);
    for (value, rule) in [("alice", "any"), ("vip-1", "vip"), ("ops", "ops")] {
        let id = descriptor_key(&rules, value);
        let shown = if value == "ops" { value.to_owned() } else { hasher().shown(value) };
        let parts = vec![part("user_id", &shown)];
        let expected = Ok(vec![(id.clone(), parts.clone())]);
        let clear = vec![part("user_id", value)];
        for target in
            [SelectorTarget::Id(&id), SelectorTarget::Parts(&parts), SelectorTarget::Parts(&clear)]
        {
            assert_eq!(select(&rules, target, Some(rule)), expected, "{target:?}");
        }
        let entries = [("user_id", value)];
        let target = SelectorTarget::Descriptor { domain: "domain", entries: &entries };
        assert_eq!(select(&rules, target, None), expected);
    }
}

#[test]
fn nobody_gets_the_key_of_another_by_its_hash() {
    let rules = rules(&[Part::UserId]);
    let alice = hit_of(&rules, "alice", "each").key;
    let hash = hasher().hash("alice");
    for forged in [hash.as_str().to_owned(), hash.shown()] {
        assert_ne!(hit_of(&rules, &forged, "each").key, alice, "{forged}");
        assert_ne!(descriptor_key(&rules, &forged), descriptor_key(&rules, "alice"), "{forged}");
    }
    // A selector by a request means the user of this name.
    let forged = hash.shown();
    let request = Request::user(&forged).build().expect("a valid request");
    let found = select(&rules, SelectorTarget::Request(&request), Some("each")).expect("a key");
    assert_ne!(found[0].0, alice.id());
}

proptest! {
    #[test]
    fn id_of_a_hashed_key_has_no_text_of_its_value(user_id in "[A-Z\\x00\\n{}:%0189]{1,40}") {
        let rules = rules(&[Part::UserId]);
        let key = hit_of(&rules, &user_id, "each").key;
        let hash = hasher().hash(&user_id);
        prop_assert_eq!(key.id(), hash.as_str());
        prop_assert_eq!(key.id().len(), HashedValue::LEN);
        let id = key.id().to_owned();
        let named = select(&rules, SelectorTarget::Id(&id), Some("each"));
        prop_assert_eq!(named, Ok(vec![(id, vec![part("user_id", &hasher().shown(&user_id))])]));
    }
}
