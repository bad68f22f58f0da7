//! Rules for descriptors: a tree of keys and values for each domain, as in envoyproxy/ratelimit.
//!
//! A request has a domain and descriptors, each of which is a path of keys and values. A descriptor
//! matches at most one rule, at the same depth of the tree. Matching is pure, and takes a few
//! look-ups for each entry, independent of the number of rules.
//!
//! **Source:** envoyproxy/ratelimit, "Configuration".

mod placed;
mod request;
mod rule;
mod spec;
mod tree;

pub use placed::PlacedRule;
pub use request::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, LimitOverride, RequestDescriptor,
};
pub use rule::{DescriptorRule, Metadata, MetadataValue};
pub use spec::DescriptorSpec;
pub(crate) use tree::Choice;
pub use tree::{Descriptor, PathStep};

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use smallvec::SmallVec;

use self::placed::hashed_key;
use self::tree::{Level, Path};
use super::key::IdValue;
use super::{
    Coupling, Grant, HashedParts, Hashing, HoldTerms, Key, Mode, RuleInfo, RuleMode, TextPattern,
};
use crate::algorithm::{Algorithm, Window};
use crate::clock::{Micros, Timestamp};

/// The descriptor rules in force, by domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// Shared by clones, as the rules are: a service has several of them.
    domains: Arc<HashMap<String, Domain>>,
    /// The rules in trees, then one rule for each domain.
    rules: Arc<[DescriptorRule]>,
    /// Number of rules in trees.
    in_trees: usize,
    coupling: Coupling,
    hashed: Option<Arc<HashedParts>>,
    /// Window of the months of requests' own limits, if they are those of a calendar.
    month: Option<Window>,
}

/// A descriptor of a request with the rule that it matches.
#[derive(Clone, Debug)]
pub(crate) struct MatchedDescriptor {
    /// Position of the rule in [`Descriptors::every`].
    pub(crate) position: usize,
    /// `true` if the limit is one of the request.
    pub(crate) is_override: bool,
    pub(crate) grant: Grant,
    /// Window of the limit; set for a limit of 0 too.
    pub(crate) window: Window,
    pub(crate) key: Key,
    pub(crate) detailed_label: Option<String>,
    pub(crate) hits: HitsAddend,
}

/// One entry for each descriptor of a request, in order. `None` if it matches no rule.
pub(crate) type MatchedDescriptors = SmallVec<[Option<MatchedDescriptor>; 2]>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Domain {
    top: Level,
    /// Position of the rule for limits of requests that match no rule of the tree.
    others: usize,
}

impl Descriptors {
    /// Creates an index of the trees by domain. Key and value of the descriptors on one level must
    /// be unique.
    pub fn new(domains: Vec<(String, Vec<Descriptor>)>, coupling: Coupling) -> Self {
        let mut rules = Vec::new();
        let mut tops = Vec::new();
        for (domain, descriptors) in domains {
            tops.push((domain, Level::new(descriptors, &mut rules)));
        }
        let in_trees = rules.len();
        let mut domains = HashMap::new();
        for (domain, top) in tops {
            rules.push(DescriptorRule::for_domain(&domain));
            domains.insert(domain, Domain { top, others: rules.len() - 1 });
        }
        for rule in &mut rules {
            rule.grant = rule.with_debt(rule.grant, coupling);
        }
        let (domains, rules) = (Arc::new(domains), rules.into());
        Self { domains, rules, in_trees, coupling, hashed: None, month: None }
    }

    /// Makes the months of requests' own limits those of a calendar, where they have fixed windows.
    #[must_use]
    pub fn with_months(self, month: Option<Window>) -> Self {
        Self { month, ..self }
    }

    /// Sets the parts whose values are hashed in keys.
    pub(super) fn with_hashed_parts(self, hashed: Option<Arc<HashedParts>>) -> Self {
        Self { hashed, ..self }
    }

    /// Returns the key of a descriptor, with hashed values where the parts say so.
    fn key_of<'a>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, IdValue<'a>)>,
        window: Option<Micros>,
    ) -> Key {
        match self.hashed.as_deref() {
            None => Key::for_descriptor(domain, entries, window),
            Some(hashed) => hashed_key(domain, entries, window, Hashing::Values(hashed)),
        }
    }

    /// Sets the modes in force.
    pub(super) fn set_modes(&mut self, mode_of: &impl Fn(&str) -> Option<(RuleMode, Timestamp)>) {
        let switches =
            |rule: &DescriptorRule| rule.set_mode.is_some() || mode_of(&rule.name).is_some();
        if self.iter().any(switches) {
            for rule in &mut Arc::make_mut(&mut self.rules)[..self.in_trees] {
                rule.mode.switch(&mut rule.set_mode, mode_of(&rule.name));
            }
        }
    }

    /// Returns how the hits of a request depend on each other.
    pub fn coupling(&self) -> Coupling {
        self.coupling
    }

    /// Returns the rules in trees.
    pub fn iter(&self) -> impl Iterator<Item = &DescriptorRule> {
        self.rules[..self.in_trees].iter()
    }

    /// Returns all rules: those of [`Descriptors::iter`], then one for each domain, which stands
    /// for the limits of requests.
    pub fn every(&self) -> impl Iterator<Item = &DescriptorRule> {
        self.rules.iter()
    }

    /// Calls `visit` with the label of the path ([`label`]) and the value of each descriptor.
    pub fn visit_values(&self, mut visit: impl FnMut(&dyn Fn() -> String, &TextPattern)) {
        for (name, domain) in &*self.domains {
            domain.top.visit_values(&mut Vec::new(), &mut |path, text| {
                visit(&|| label(name, path.iter().copied()), text);
            });
        }
    }

    /// Returns the rules in trees with their paths, sorted by name and path.
    pub fn placed(&self) -> Vec<PlacedRule<'_>> {
        let mut placed = Vec::with_capacity(self.in_trees);
        for (domain, Domain { top, .. }) in &*self.domains {
            top.visit(&mut Vec::new(), &mut |path, position| {
                let rule = &self.rules[position];
                placed.push(PlacedRule { domain, path: path.to_vec(), rule, position });
            });
        }
        placed.sort_by(|left, right| {
            let by_name = left.rule.name.cmp(&right.rule.name);
            by_name.then_with(|| (left.domain, &left.path).cmp(&(right.domain, &right.path)))
        });
        placed
    }

    /// Returns `true` if there is a tree for a domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns the number of rules: those in trees, and one for each domain.
    pub fn count(&self) -> usize {
        self.rules.len()
    }

    /// Returns the rule at a position of [`Descriptors::every`]. A limit of a request is always
    /// enforced, and not overridable.
    pub(crate) fn rule_at(&self, position: usize, is_override: bool) -> RuleInfo<'_> {
        let rule = self.rules[position].info();
        if !is_override {
            return rule;
        }
        RuleInfo { mode: Mode::Enforced, set_mode: None, overridable: false, ..rule }
    }

    /// Returns how long, and how often, keys of the rule at a position may be held.
    pub(crate) fn holds_at(&self, position: usize) -> Option<HoldTerms> {
        self.rules[position].holds
    }

    /// Returns `true` if the debt that the limits at a position keep, if any, is that of hits: it is not for
    /// settlements alone.
    pub(crate) fn has_debt_of_hits(&self, position: usize) -> bool {
        self.rules[position].is_post_paid || self.rules[position].holds.is_none()
    }

    /// Returns the name of the limit at a position. A limit of a request has none.
    pub fn limit_name(&self, position: usize, is_override: bool) -> Option<&Arc<str>> {
        self.rules[position].limit_name.as_ref().filter(|_| !is_override)
    }

    /// Returns the metadata of the rule at a position. A limit of a request has none.
    pub fn metadata(&self, position: usize, is_override: bool) -> Option<&Arc<Metadata>> {
        self.rules[position].metadata.as_ref().filter(|_| !is_override)
    }

    /// Matches the descriptors of a request. Leaves out rules that other rules of the request
    /// replace.
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] if the algorithm of a rule does not support a limit or negative hits
    /// of the request.
    pub(crate) fn match_request(
        &self,
        request: &DescriptorRequest<'_>,
    ) -> Result<MatchedDescriptors, InvalidDescriptor> {
        let descriptors = request.descriptors();
        let Some(domain) = self.domains.get(request.domain()) else {
            return Ok(descriptors.iter().map(|_| None).collect());
        };
        let mut all = MatchedDescriptors::with_capacity(descriptors.len());
        for (index, descriptor) in descriptors.iter().enumerate() {
            all.push(self.match_one(request.domain(), domain, descriptor, index)?);
        }
        self.drop_replaced(&mut all);
        Ok(all)
    }

    fn match_one(
        &self,
        name: &str,
        domain: &Domain,
        descriptor: &RequestDescriptor<'_>,
        index: usize,
    ) -> Result<Option<MatchedDescriptor>, InvalidDescriptor> {
        let path = domain.top.walk(&descriptor.entries);
        let position = path.last().and_then(|step| step.node.rule);
        let found = match (descriptor.limit, position) {
            (None, None) => return Ok(None),
            (None, Some(position)) => self.by_rule(position, name, &path, descriptor),
            (Some(limit), position) => {
                let position = position.unwrap_or(domain.others);
                self.by_override(limit, position, name, descriptor)
            }
        };
        let algorithm = self.rule_at(found.position, found.is_override).algorithm;
        if let Grant::Limited(limit) = &found.grant {
            algorithm.accepts(limit).map_err(|error| InvalidDescriptor::Limit { index, error })?;
        }
        if matches!(descriptor.hits, HitsAddend::Credit(_))
            && algorithm == Algorithm::SlidingWindowLog
        {
            return Err(InvalidDescriptor::NegativeHits { index });
        }
        Ok(Some(found))
    }

    fn by_rule(
        &self,
        position: usize,
        domain: &str,
        path: &Path<'_>,
        descriptor: &RequestDescriptor<'_>,
    ) -> MatchedDescriptor {
        let DescriptorRule { grant, window, is_detailed, .. } = &self.rules[position];
        let values = path.iter().map(|step| (step.key, step.id_value()));
        MatchedDescriptor {
            position,
            is_override: false,
            grant: *grant,
            window: *window,
            key: self.key_of(domain, values, None),
            detailed_label: tree::detailed_label(domain, path, *is_detailed),
            hits: descriptor.hits,
        }
    }

    /// Applies the limit of the request. Its state has a key of its own for each window, because
    /// the state of the rule in the tree belongs to another limit.
    fn by_override(
        &self,
        limit: LimitOverride,
        position: usize,
        domain: &str,
        descriptor: &RequestDescriptor<'_>,
    ) -> MatchedDescriptor {
        let values = descriptor.entries.iter().map(|(key, value)| (*key, IdValue::Own(value)));
        let rule = &self.rules[position];
        let month = self.month.filter(|_| rule.algorithm == Algorithm::FixedWindow);
        let (grant, window) =
            month.map_or((limit.grant(), limit.window().into()), |month| limit.by_month(month));
        MatchedDescriptor {
            position,
            is_override: true,
            grant: rule.with_debt(grant, self.coupling),
            window,
            key: self.key_of(domain, values, Some(limit.window())),
            detailed_label: None,
            hits: descriptor.hits,
        }
    }

    fn drop_replaced(&self, all: &mut MatchedDescriptors) {
        let of_trees = all.iter().flatten().filter(|found| !found.is_override);
        let replaced: SmallVec<[&Arc<str>; 4]> =
            of_trees.flat_map(|found| &self.rules[found.position].replaces).collect();
        if replaced.is_empty() {
            return;
        }
        for matched in all {
            let name = matched
                .as_ref()
                .and_then(|found| self.limit_name(found.position, found.is_override));
            let is_limited = matched.as_ref().is_some_and(|found| found.grant != Grant::Unlimited);
            if is_limited && name.is_some_and(|name| replaced.contains(&name)) {
                *matched = None;
            }
        }
    }
}

/// Returns the name of a path in metrics: `domain.key_value.key`.
pub fn label<'a>(domain: &str, path: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> String {
    let mut label = domain.to_owned();
    for (key, value) in path {
        let _infallible = write!(label, ".{key}");
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let _infallible = write!(label, "_{value}");
        }
    }
    label
}
