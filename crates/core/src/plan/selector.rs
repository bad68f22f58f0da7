//! Selectors: the keys that an administrator names, by a request, by their parts, by their id, or
//! by a descriptor.
//!
//! A selector is resolved against the rules in force, without I/O. The result has what a store
//! needs for each key, and what a person needs to recognise it.

use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;

use super::{Hit, Plan, RuleIndex};
use crate::algorithm::Cost;
use crate::operation::Action;
use crate::rules::descriptors::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, PlacedRule, RequestDescriptor,
};
use crate::rules::{
    Attributes, DecodedValue, HashedValue, Hashing, InvalidRequest, Key, Part, Request, Rule,
    RuleSet,
};

/// Names keys: at most [`Selector::MAX_KEYS`].
#[derive(Clone, Copy, Debug)]
pub struct Selector<'a> {
    /// Whose keys.
    pub target: SelectorTarget<'a>,
    /// Only keys of the rule with this name. `None`: of every rule.
    pub rule: Option<&'a str>,
}

/// Whose keys a [`Selector`] names.
#[derive(Clone, Copy, Debug)]
pub enum SelectorTarget<'a> {
    /// The keys that a request meets. Its cost makes no difference.
    Request(&'a Request<'a>),
    /// The keys that consist of these parts, in any order. Without a rule, they are those of every
    /// rule whose `key_by` has exactly these parts. With a rule for descriptors, the parts are the
    /// entries of a descriptor, in its order.
    ///
    /// Overrides of a rule that depend on other parts than those of the key do not apply.
    Parts(&'a [KeyPart]),
    /// The key with this [id](Key::id). Requires a rule.
    Id(&'a str),
    /// The key that a descriptor meets.
    Descriptor {
        /// Domain of the tree: 1 to 1024 bytes.
        domain: &'a str,
        /// Keys and values, from the top of the tree down. At least one.
        entries: &'a [(&'a str, &'a str)],
    },
}

/// A part of a key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// `user_id`, `resource` or `attributes.NAME`; of a descriptor the key of the entry.
    pub name: String,
    /// The value; `None` if the request does not have the part. Of a descriptor whose values share
    /// one state it is the pattern.
    pub value: Option<String>,
}

/// A key of a rule.
#[derive(Clone, Debug)]
pub struct SelectedKey {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// A hit that looks whether one unit is left, by the grant of the rule to this key.
    pub hit: Hit,
    /// Parts of the key, in the order of `key_by`.
    pub parts: Vec<KeyPart>,
    /// Origin of the grant.
    pub grant_from: GrantSource,
}

/// The origin of the grant to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantSource {
    /// The rule.
    Rule,
    /// An override of the rule.
    RuleOverride,
    /// A grant that was set for the key at run time.
    KeyOverride,
}

/// The field of a selector that is not valid. The text names the field and what it must be, never
/// its value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SelectError {
    /// No rule has this name.
    #[error("selector.rule must be the name of a rule in force")]
    UnknownRule,
    /// An id without a rule.
    #[error("selector.rule must be set if key.id is")]
    RuleRequired,
    /// More keys than can be named at once.
    #[error("selector must name at most {} keys; set rule", Selector::MAX_KEYS)]
    TooManyKeys,
    /// No parts, or too many.
    #[error("selector.key.parts must have 1 to {} entries", Selector::MAX_PARTS)]
    Parts,
    /// Neither a part of a request nor, with a rule, one of its key.
    #[error(
        "selector.key.parts must have names such as user_id, resource or attributes.NAME, each once"
    )]
    PartName,
    /// Parts of another rule.
    #[error("selector.key.parts must be those of the rule's keys, with values that it matches")]
    OtherParts,
    /// Every request has this part.
    #[error("selector.key.parts must have values for user_id and resource")]
    NoValue,
    /// A value that no request can have.
    #[error("selector.key.parts must be those of a valid request: {0}")]
    Value(InvalidRequest),
    /// No key of the rule has this id.
    #[error("selector.key.id must be the id of a key of the rule, as Inspect returns it")]
    Id,
    /// A domain that no request can have.
    #[error("selector.envoy.domain must be 1 to {} bytes", DescriptorRequest::MAX_DOMAIN)]
    Domain,
    /// No entries, or too long ones.
    #[error(
        "selector.envoy.entries must have at least one entry, and at most {} bytes of keys and values",
        DescriptorRequest::MAX_BYTES
    )]
    Entries,
}

impl Selector<'_> {
    /// Most keys that one selector may name.
    pub const MAX_KEYS: usize = 100;
    /// Most parts of a key: user, resource and all attributes of a request.
    pub const MAX_PARTS: usize = 2 + Request::MAX_ATTRIBUTES;
}

impl SelectError {
    /// Returns the field that is not valid, with which the text begins.
    pub const fn field(self) -> &'static str {
        match self {
            Self::UnknownRule | Self::RuleRequired => "selector.rule",
            Self::TooManyKeys => "selector",
            Self::Parts | Self::PartName | Self::OtherParts | Self::NoValue | Self::Value(_) => {
                "selector.key.parts"
            }
            Self::Id => "selector.key.id",
            Self::Domain => "selector.envoy.domain",
            Self::Entries => "selector.envoy.entries",
        }
    }
}

impl RuleSet {
    /// Returns the keys that a selector names, sorted by the name of their rule. None if the
    /// request or the descriptor meets no rule.
    ///
    /// # Errors
    ///
    /// [`SelectError`] for the first field that is not valid.
    ///
    /// ```
    /// use rlaas_core::algorithm::{Algorithm, Limit};
    /// use rlaas_core::clock::Micros;
    /// use rlaas_core::plan::{Selector, SelectorTarget};
    /// use rlaas_core::rules::{Request, Rule, RuleSet};
    ///
    /// let limit = Limit::new(5, Micros::from_secs(60))?;
    /// let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    /// let alice = Request::user("alice").build()?;
    /// let keys = rules.select(&Selector { target: SelectorTarget::Request(&alice), rule: None })?;
    /// assert_eq!((&*keys[0].rule, keys[0].hit.key.id()), ("default", "alice"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn select(&self, selector: &Selector<'_>) -> Result<Vec<SelectedKey>, SelectError> {
        let Selector { target, rule } = *selector;
        let named = rule.map(|name| self.named_rules(name)).transpose()?;
        let mut keys = match (target, &named) {
            (SelectorTarget::Request(request), _) => self.keys_of_request(request),
            (SelectorTarget::Parts(parts), named) => self.keys_of_parts(parts, named.as_ref())?,
            (SelectorTarget::Id(_), None) => return Err(SelectError::RuleRequired),
            (SelectorTarget::Id(id), Some(named)) => self.keys_of_id(id, named)?,
            (SelectorTarget::Descriptor { domain, entries }, _) => {
                self.keys_of_descriptor(domain, entries)?
            }
        };
        keys.retain(|key| rule.is_none_or(|name| &*key.rule == name));
        if keys.len() > Selector::MAX_KEYS {
            return Err(SelectError::TooManyKeys);
        }
        keys.sort_by(|one, other| one.rule.cmp(&other.rule));
        Ok(keys)
    }

    /// Returns the name of the rule in force that a key belongs to, and the parts of the key. The
    /// name is `None`, or the parts are empty, if no rule has such keys any more.
    pub fn describe(&self, key: &Key) -> (Option<Arc<str>>, Vec<KeyPart>) {
        let name = key.rule_name();
        if let Some((_, rule)) = name.as_deref().and_then(|name| self.rule_named(name)) {
            let values = values_of(rule, key.id(), self.hashing());
            return (Some(Arc::clone(&rule.name)), values.unwrap_or_default());
        }
        let Some(entries) = entries_of(key.id(), self.hashing()) else { return (None, Vec::new()) };
        let domain = name.as_deref().and_then(|name| name.strip_prefix("envoy/"));
        let met = pairs(&entries).and_then(|pairs| self.keys_of_descriptor(domain?, &pairs).ok());
        let met = met.into_iter().flatten().find(|owner| owner.hit.key == *key);
        let shared = || {
            let placed = self.descriptors().placed();
            let mut owners = placed.iter().filter_map(|one| self.key_of_placed(one, &entries));
            owners.find(|owner| owner.hit.key == *key)
        };
        (met.or_else(shared).map(|owner| owner.rule), entries)
    }

    /// Returns `true` if a rule has this name.
    pub fn has_rule(&self, name: &str) -> bool {
        self.named_rules(name).is_ok()
    }

    fn keys_of_request(&self, request: &Request<'_>) -> Vec<SelectedKey> {
        let plan = Plan::for_request(self, request);
        let hits = plan.hits.into_iter().filter_map(|hit| match hit.rule {
            RuleIndex::Flat(position) => {
                Some(self.selected(position, request, hit, self.hashing()))
            }
            RuleIndex::Descriptor { .. } => None,
        });
        hits.collect()
    }

    /// Returns the key of a rule, at this position, that a request meets.
    pub(crate) fn selected(
        &self,
        position: usize,
        request: &Request<'_>,
        hit: Hit,
        hashing: Hashing<'_>,
    ) -> SelectedKey {
        let rule = self.rule_at(position);
        let part = |part: &Part| KeyPart {
            name: part.to_string(),
            value: part.value_in(request).map(|value| hashing.show(part, value)),
        };
        SelectedKey {
            rule: Arc::clone(&rule.name),
            hit: Hit { action: Action::Peek(Cost::ONE), ..hit },
            parts: rule.key_by.iter().map(part).collect(),
            grant_from: match rule.closest_override(request) {
                Some(_) => GrantSource::RuleOverride,
                None => GrantSource::Rule,
            },
        }
    }

    fn keys_of_parts(
        &self,
        parts: &[KeyPart],
        named: Option<&NamedRules<'_>>,
    ) -> Result<Vec<SelectedKey>, SelectError> {
        if !(1..=Selector::MAX_PARTS).contains(&parts.len()) {
            return Err(SelectError::Parts);
        }
        if let Some(NamedRules { flat: None, placed }) = named {
            let keys: Vec<_> =
                placed.iter().filter_map(|placed| self.key_of_placed(placed, parts)).collect();
            return if keys.is_empty() { Err(SelectError::OtherParts) } else { Ok(keys) };
        }
        let request = PartsOfRequest::new(parts)?;
        let request = request.request()?;
        let named = named.and_then(|named| named.flat);
        let is_named = |position: &usize| named.is_none_or(|(named, _)| named == *position);
        let rules = self.iter().enumerate().filter(|(position, _)| is_named(position));
        let keys: Vec<_> = rules
            .filter(|(_, rule)| has_parts(rule, parts))
            .map(|(position, rule)| {
                let hashing = self.hashing_of_named();
                self.selected(position, &request, hit(position, rule, &request, hashing), hashing)
            })
            .collect();
        match named {
            Some(_) if keys.is_empty() => Err(SelectError::OtherParts),
            _ => Ok(keys),
        }
    }

    fn keys_of_id(
        &self,
        id: &str,
        named: &NamedRules<'_>,
    ) -> Result<Vec<SelectedKey>, SelectError> {
        let mut keys = if let Some((_, rule)) = named.flat {
            let parts = values_of(rule, id, self.hashing()).ok_or(SelectError::Id)?;
            self.keys_of_parts(&parts, Some(named)).map_err(|_| SelectError::Id)?
        } else {
            let entries = entries_of(id, self.hashing()).ok_or(SelectError::Id)?;
            let keys = named.placed.iter();
            keys.filter_map(|placed| self.key_of_placed(placed, &entries)).collect()
        };
        keys.retain(|key| key.hit.key.id() == id);
        if keys.is_empty() { Err(SelectError::Id) } else { Ok(keys) }
    }

    fn keys_of_descriptor(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> Result<Vec<SelectedKey>, SelectError> {
        if entries.is_empty() {
            return Err(SelectError::Entries);
        }
        let entries = entries.iter().copied().collect();
        let descriptor =
            RequestDescriptor { entries, limit: None, hits: HitsAddend::Take(Cost::NONE) };
        let request = DescriptorRequest::new(domain, SmallVec::from_iter([descriptor]));
        let invalid = |invalid| match invalid {
            InvalidDescriptor::Domain => SelectError::Domain,
            _ => SelectError::Entries,
        };
        let plan =
            request.and_then(|request| self.descriptors().plan(&request)).map_err(invalid)?;
        let keys = plan.plan.hits.into_iter().map(|hit| self.selected_by_descriptor(hit));
        Ok(keys.collect())
    }

    /// Returns the key of a hit that a descriptor has made.
    pub(crate) fn selected_by_descriptor(&self, hit: Hit) -> SelectedKey {
        SelectedKey {
            rule: Arc::clone(self.rule(hit.rule).name),
            parts: entries_of(hit.key.id(), self.hashing()).unwrap_or_default(),
            hit: Hit { action: Action::Peek(Cost::ONE), ..hit },
            grant_from: GrantSource::Rule,
        }
    }

    /// Returns the key of a rule for descriptors with these entries. `None` if they do not match
    /// the rule, or match another rule more closely.
    fn key_of_placed(&self, placed: &PlacedRule<'_>, entries: &[KeyPart]) -> Option<SelectedKey> {
        let entries = pairs(entries)?;
        let hashing = self.hashing_of_named();
        if !placed.fits(&entries, hashing) {
            return None;
        }
        // The value behind a hash is not known, nor whether it matches another rule more closely.
        let names_hash = entries.iter().any(|(key, value)| hashing.names_hash(key, value));
        let owner = || self.keys_of_descriptor(placed.domain, &entries).map(|mut keys| keys.pop());
        let owner = if names_hash { None } else { owner().ok()? };
        let position = placed.position;
        let index = RuleIndex::Descriptor { position, is_override: false };
        if let Some(key) = owner {
            return (key.hit.rule == index).then_some(key);
        }
        // The value of an entry is the pattern, which need not match itself.
        let rule = placed.rule;
        let hit = Hit {
            rule: index,
            algorithm: rule.algorithm,
            grant: rule.grant,
            window: rule.window,
            overridable: rule.overridable,
            stricter: None,
            mode: rule.mode,
            action: Action::Peek(Cost::ONE),
            key: placed.key_of(&entries, hashing),
        };
        let parts = entries_of(hit.key.id(), self.hashing()).unwrap_or_default();
        let (rule, grant_from) = (Arc::clone(&rule.name), GrantSource::Rule);
        Some(SelectedKey { rule, hit, parts, grant_from })
    }

    fn named_rules(&self, name: &str) -> Result<NamedRules<'_>, SelectError> {
        let flat = self.rule_named(name);
        let mut placed = self.descriptors().placed();
        placed.retain(|placed| &*placed.rule.name == name);
        if flat.is_none() && placed.is_empty() {
            return Err(SelectError::UnknownRule);
        }
        Ok(NamedRules { flat, placed })
    }
}

/// The rules with one name. Rules for descriptors may share theirs.
struct NamedRules<'a> {
    flat: Option<(usize, &'a Rule)>,
    placed: Vec<PlacedRule<'a>>,
}

/// Parts of a request, from the parts of a key.
struct PartsOfRequest<'a> {
    user_id: Option<&'a str>,
    resource: Option<&'a str>,
    attributes: Vec<(&'a str, &'a str)>,
}

impl<'a> PartsOfRequest<'a> {
    fn new(parts: &'a [KeyPart]) -> Result<Self, SelectError> {
        let mut request = Self { user_id: None, resource: None, attributes: Vec::new() };
        for (position, KeyPart { name, value }) in parts.iter().enumerate() {
            if parts[..position].iter().any(|other| other.name == *name) {
                return Err(SelectError::PartName);
            }
            match (name.as_str(), value.as_deref()) {
                ("user_id" | "resource", None) => return Err(SelectError::NoValue),
                ("user_id", value) => request.user_id = value,
                ("resource", value) => request.resource = value,
                (name, value) => {
                    let name = name.strip_prefix("attributes.").ok_or(SelectError::PartName)?;
                    request.attributes.extend(value.map(|value| (name, value)));
                }
            }
        }
        Ok(request)
    }

    fn request(&self) -> Result<Request<'_>, SelectError> {
        let attributes = Attributes::Pairs(&self.attributes);
        Request::for_key(self.user_id, self.resource, attributes).map_err(SelectError::Value)
    }
}

fn hit(position: usize, rule: &Rule, request: &Request<'_>, hashing: Hashing<'_>) -> Hit {
    Hit {
        rule: RuleIndex::Flat(position),
        key: rule.key_for(request, hashing),
        algorithm: rule.algorithm,
        grant: rule.grant_for(request),
        window: rule.window,
        overridable: rule.overridable,
        stricter: None,
        mode: rule.mode,
        action: Action::Peek(Cost::ONE),
    }
}

/// Returns `true` if these are the parts of the rule's keys, in any order.
fn has_parts(rule: &Rule, parts: &[KeyPart]) -> bool {
    let given = |part: &Part| {
        let name = part.to_string();
        let of_user = matches!(part, Part::AttributeOrUserId(_));
        parts.iter().any(|given| given.name == name && (given.value.is_some() || !of_user))
    };
    rule.key_by.len() == parts.len() && rule.key_by.iter().all(given)
}

/// Returns the parts in the id of a rule's key; `None` if they are not those of the rule.
fn values_of(rule: &Rule, id: &str, hashing: Hashing<'_>) -> Option<Vec<KeyPart>> {
    let values = DecodedValue::all(id)?;
    if values.len() != rule.key_by.len() {
        return None;
    }
    let part = |(part, value): (&Part, DecodedValue)| {
        let value = match value {
            DecodedValue::Text(text) => {
                let is_hashed = hashing.parts().is_some_and(|all| all.hasher_of(part).is_some());
                Some(shown(text, is_hashed))
            }
            DecodedValue::Absent => None,
            DecodedValue::Pattern(_) | DecodedValue::Window => return None,
        };
        Some(KeyPart { name: part.to_string(), value })
    };
    rule.key_by.iter().zip(values).map(part).collect()
}

fn pairs(entries: &[KeyPart]) -> Option<Vec<(&str, &str)>> {
    entries.iter().map(|entry| Some((entry.name.as_str(), entry.value.as_deref()?))).collect()
}

/// Returns the entries in the id of a descriptor's key, without the window of a limit of the
/// request.
fn entries_of(id: &str, hashing: Hashing<'_>) -> Option<Vec<KeyPart>> {
    let mut values = DecodedValue::all(id)?;
    if values.last() == Some(&DecodedValue::Window) {
        values.pop();
    }
    let mut values = values.into_iter();
    let mut entries = Vec::new();
    while let Some(key) = values.next() {
        let (DecodedValue::Text(name), Some(value)) = (key, values.next()) else { return None };
        let value = match value {
            DecodedValue::Text(value) => {
                let hashed = hashing.parts();
                shown(value, hashed.is_some_and(|all| all.hasher_of_entry(&name).is_some()))
            }
            DecodedValue::Pattern(value) => value,
            DecodedValue::Absent | DecodedValue::Window => return None,
        };
        entries.push(KeyPart { name, value: Some(value) });
    }
    Some(entries)
}

/// Returns the text for callers of a value in a key.
fn shown(text: String, is_hashed: bool) -> String {
    let hashed = is_hashed.then(|| HashedValue::show_hashed(&text)).flatten();
    hashed.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Limit};
    use crate::clock::Micros;
    use crate::rules::descriptors::{Descriptor, DescriptorRule, Descriptors};
    use crate::rules::{Coupling, Grant, Matcher, Mode, OnStoreFailure, Override, Pattern};

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
            overrides: vec![Override {
                matcher: Matcher { patterns: ops },
                grant: Grant::Unlimited,
            }],
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
                limit_name: None,
                algorithm: Algorithm::FixedWindow,
                grant: Grant::Limited(limit),
                mode: Mode::Enforced,
                on_store_failure: OnStoreFailure::Error,
                breaker_opens: false,
                near_limit: None,
                replaces: Vec::new(),
                window: limit.window(),
                overridable: false,
                is_detailed: false,
                is_post_paid: false,
                max_debt: None,
                metadata: None,
                file: Arc::default(),
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
    fn parts_name_the_keys_that_consist_of_them() {
        let ops = parts(&[("user_id", Some("ops"))]);
        let vip = ("vip".to_owned(), "ops".to_owned(), GrantSource::RuleOverride);
        let both = vec![key("default", "ops"), vip.clone()];
        assert_eq!(select(SelectorTarget::Parts(&ops), None), Ok(both));
        assert_eq!(select(SelectorTarget::Parts(&ops), "vip"), Ok(vec![vip]));
        assert_eq!(select(SelectorTarget::Parts(&ops), "pay"), Err(SelectError::OtherParts));
        let pay =
            parts(&[("user_id", Some("a")), ("attributes.plan", None), ("resource", Some(""))]);
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
            let expected =
                if id == ":%41:a" { Err(SelectError::Id) } else { Ok(vec![key("pay", id)]) };
            assert_eq!(select(SelectorTarget::Id(id), "pay"), expected, "{id}");
        }
        for id in
            ["", "a", "a:b", "a:b:c:d", "a:b:%", "a:b:", "a:b:{c", "a:b:%/1", "a:b:\n", "%:a:b"]
        {
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
}
