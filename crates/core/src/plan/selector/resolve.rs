//! The keys that a selector names, by the rules in force.

use std::sync::Arc;

use smallvec::SmallVec;

use super::parts::{PartsOfRequest, entries_of, has_parts, pairs, values_of};
use super::{GrantSource, KeyPart, SelectError, SelectedKey, Selector, SelectorTarget};
use crate::algorithm::Cost;
use crate::operation::Action;
use crate::plan::{Hit, Plan, RuleIndex};
use crate::rules::descriptors::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, PlacedRule, RequestDescriptor,
};
use crate::rules::{Attributes, Hashing, Key, OwnLimit, Part, Request, Rule, RuleSet};

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
            (SelectorTarget::Request(request), named) => self.keys_met(request, named.as_ref()),
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
        keys.sort_by(|left, right| left.rule.cmp(&right.rule));
        Ok(keys)
    }

    /// Returns the keys that consist of these parts, in any order, of every rule for requests: as
    /// [`SelectorTarget::Parts`] without a rule, but however many. In the order of
    /// [`RuleSet::iter`].
    ///
    /// # Errors
    ///
    /// [`SelectError`] of the parts.
    pub fn select_all(&self, parts: &[KeyPart]) -> Result<Vec<SelectedKey>, SelectError> {
        self.keys_of_parts(parts, None)
    }

    /// Returns the keys of a user: those that consist of the user id, and those that a request of the
    /// user without anything else meets; however many.
    ///
    /// # Errors
    ///
    /// [`SelectError::Value`] if no request has this user id.
    pub fn select_user(&self, user_id: &str) -> Result<Vec<SelectedKey>, SelectError> {
        let mut keys = self.keys_of_parts(&[user_part(user_id)], None)?;
        let request = Request::user(user_id).build().map_err(SelectError::Value)?;
        let met = self.keys_of_request(&request).into_iter();
        keys.extend(met.filter(|key| !key.parts.iter().map(|part| &*part.name).eq(["user_id"])));
        Ok(keys)
    }

    /// Returns the keys that consist of one attribute with this value, whatever its name, such as that of a
    /// customer; however many. In the order of [`RuleSet::iter`].
    pub fn select_attribute(&self, value: &str) -> Vec<SelectedKey> {
        let rules = self.iter().enumerate();
        let keys = rules.filter_map(|(position, rule)| match &*rule.key_by {
            [Part::Attribute(name) | Part::AttributeOrUserId(name)] => {
                let pairs = [(name.as_str(), value)];
                let request = Request::for_key(None, None, Attributes::Pairs(&pairs)).ok()?;
                Some(self.key_of_rule(position, rule, &request))
            }
            _ => None,
        });
        keys.collect()
    }

    /// Returns the name of the rule in force that a key belongs to, and the parts of the key. The
    /// name is `None`, or the parts are empty, if no rule of this project has such keys any more.
    pub fn describe(&self, key: &Key) -> (Option<Arc<str>>, Vec<KeyPart>) {
        if !self.has_project_of(key) {
            return (None, Vec::new());
        }
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
            let mut owners = placed.iter().filter_map(|rule| self.key_of_placed(rule, &entries));
            owners.find(|owner| owner.hit.key == *key)
        };
        (met.or_else(shared).map(|owner| owner.rule), entries)
    }

    /// Returns `true` if a rule has this name.
    pub fn has_rule(&self, name: &str) -> bool {
        self.named_rules(name).is_ok()
    }

    /// Returns the keys that a request meets. If that is of a user alone and does not meet the named
    /// rule, the key of this rule that consists of the user id.
    fn keys_met(&self, request: &Request<'_>, named: Option<&NamedRules<'_>>) -> Vec<SelectedKey> {
        let met = self.keys_of_request(request);
        let Some(NamedRules { flat: Some((_, rule)), .. }) = named else { return met };
        let is_user_alone = request.resource().is_empty() && request.attributes().is_empty();
        if !is_user_alone || met.iter().any(|key| key.rule == rule.name) {
            return met;
        }
        self.keys_of_parts(&[user_part(request.user_id())], named).unwrap_or_default()
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
            value: part.value_in(request).map(|value| {
                if rule.is_anchor(part) { value.to_owned() } else { hashing.show(part, value) }
            }),
        };
        let is_own = hit.own_limit == OwnLimit::InForce;
        SelectedKey {
            rule: Arc::clone(&rule.name),
            // Whatever the request takes or leaves to others.
            hit: Hit { action: Action::Peek(Cost::ONE), headroom: None, at_least: None, ..hit },
            parts: rule.key_by.iter().map(part).collect(),
            grant_from: match rule.closest_override(request) {
                Some(_) => GrantSource::RuleOverride,
                None if is_own => GrantSource::Request,
                None => GrantSource::Rule,
            },
            limit_from: rule.limit_from.clone(),
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
            .map(|(position, rule)| self.key_of_rule(position, rule, &request))
            .collect();
        match named {
            Some(_) if keys.is_empty() => Err(SelectError::OtherParts),
            _ => Ok(keys),
        }
    }

    /// Returns the key of a rule, at this position, that has its parts of a request.
    fn key_of_rule(&self, position: usize, rule: &Rule, request: &Request<'_>) -> SelectedKey {
        let (hashing, look) = (self.hashing_of_named(), Action::Peek(Cost::ONE));
        let hit = Hit::of_rule(self, position, rule, request, hashing, look);
        self.selected(position, request, hit, hashing)
    }

    /// Returns the rule of a key, and a hit of the key. `None` if no rule has such keys any more.
    pub(in crate::plan) fn hit_of(&self, key: &Key) -> Option<(&Rule, Hit)> {
        let name = key.rule_name().filter(|_| self.has_project_of(key))?;
        let named = self.named_rules(&name).ok()?;
        let (position, _) = named.flat?;
        let found = self.keys_of_id(key.id(), &named).ok()?.pop()?;
        Some((self.rule_at(position), found.hit))
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
            limit_from: None,
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
            on_change: None,
            revision: None,
            max_holds: rule.holds.map(|terms| terms.most),
            cost_share: None,
            headroom: None,
            at_least: None,
            counted_by: None,
            own_limit: OwnLimit::None,
            hides_debt: false,
            mode: rule.mode,
            action: Action::Peek(Cost::ONE),
            key: placed.key_of(&entries, hashing),
        };
        let parts = entries_of(hit.key.id(), self.hashing()).unwrap_or_default();
        let (rule, grant_from) = (Arc::clone(&rule.name), GrantSource::Rule);
        Some(SelectedKey { rule, hit, parts, grant_from, limit_from: None })
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

fn user_part(user_id: &str) -> KeyPart {
    KeyPart { name: Part::UserId.to_string(), value: Some(user_id.to_owned()) }
}

/// The rules with one name. Rules for descriptors may share theirs.
struct NamedRules<'a> {
    flat: Option<(usize, &'a Rule)>,
    placed: Vec<PlacedRule<'a>>,
}
