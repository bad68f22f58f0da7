//! Descriptor rules: trees of keys and values by domain, as envoyproxy/ratelimit has them.
//!
//! A request names a domain and descriptors, each a path of keys and values; each meets at most one
//! rule, which stands at the same depth of the tree. To look that up is pure, and costs a few
//! look-ups for each entry, however many rules there are.
//!
//! **Source:** envoyproxy/ratelimit, "Configuration".

mod metadata;
mod request;
mod spec;
mod tree;

pub use metadata::{Metadata, MetadataValue};
pub use request::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, LimitOverride, RequestDescriptor,
};
pub use spec::DescriptorSpec;
pub use tree::{Descriptor, PathStep};

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use smallvec::SmallVec;

use self::tree::{Level, Path};
use super::key::IdValue;
use super::{Coupling, Grant, Key, Mode, OnStoreFailure, RuleInfo, TextPattern};
use crate::algorithm::{Algorithm, Limit, LimitError};
use crate::clock::Micros;

/// The descriptor rules in force, by domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    domains: HashMap<String, Domain>,
    /// Those of the trees, then one for each domain.
    rules: Vec<DescriptorRule>,
    /// How many stand in trees.
    in_trees: usize,
    coupling: Coupling,
}

/// A rule that stands in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorRule {
    /// Its path as configured ([`label`]): its name in metrics.
    pub name: Arc<str>,
    /// What answers and `replaces` of other rules call it.
    pub limit_name: Option<Arc<str>>,
    /// Which algorithm decides.
    pub algorithm: Algorithm,
    /// What it grants.
    pub grant: Grant,
    /// How it is enforced.
    pub mode: Mode,
    /// What a request meets when the store does not answer.
    pub on_store_failure: OnStoreFailure,
    /// Requests pass once the store is no longer asked.
    pub breaker_opens: bool,
    /// The rules that do not apply where this one does.
    pub replaces: Vec<Arc<str>>,
    /// The window of its limit, even where that is 0.
    pub window: Micros,
    /// Do metrics tell the values that requests have?
    pub is_detailed: bool,
    /// Are hits reports of what has happened already, counted whatever is left?
    pub is_post_paid: bool,
    /// The most units that reports may count above the limit, where that is not one limit.
    pub max_debt: Option<u64>,
    /// What it says of itself to those who ask, if anything.
    pub metadata: Option<Arc<Metadata>>,
    /// The file that it stands in, for messages; empty for none.
    pub file: Arc<str>,
}

/// A rule with its place in a tree.
#[derive(Clone, Debug)]
pub struct PlacedRule<'a> {
    /// Domain of the tree.
    pub domain: &'a str,
    /// From the top of the tree down.
    pub path: Vec<PathStep<'a>>,
    /// The rule that stands there.
    pub rule: &'a DescriptorRule,
}

/// What a descriptor meets.
#[derive(Clone, Debug)]
pub(crate) struct MatchedDescriptor {
    /// Where the rule stands in [`Descriptors::every`].
    pub(crate) position: usize,
    /// `true` if the request has a limit of its own.
    pub(crate) is_override: bool,
    pub(crate) grant: Grant,
    /// Per how long, even where that is nothing.
    pub(crate) window: Micros,
    pub(crate) key: Key,
    pub(crate) detailed_label: Option<String>,
    pub(crate) hits: HitsAddend,
}

/// What each descriptor of a request meets, in order.
pub(crate) type MatchedDescriptors = SmallVec<[Option<MatchedDescriptor>; 2]>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Domain {
    top: Level,
    /// The entry of limits that requests bring along where no rule stands.
    others: usize,
}

impl Descriptors {
    /// Indexes the trees of each domain. Of the descriptors of a level no two may have the same key
    /// and value.
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
        Self { domains, rules, in_trees, coupling }
    }

    /// How the hits of a request depend on each other.
    pub fn coupling(&self) -> Coupling {
        self.coupling
    }

    /// The rules that stand in trees.
    pub fn iter(&self) -> impl Iterator<Item = &DescriptorRule> {
        self.rules[..self.in_trees].iter()
    }

    /// Every rule, those of [`Descriptors::iter`] first, then one for each domain: it stands for
    /// limits that requests bring along.
    pub fn every(&self) -> impl Iterator<Item = &DescriptorRule> {
        self.rules.iter()
    }

    /// Visits the value of each descriptor, with the path to it as [`label`] writes it.
    pub fn visit_values(&self, mut visit: impl FnMut(&dyn Fn() -> String, &TextPattern)) {
        for (name, domain) in &self.domains {
            domain.top.visit_values(&mut Vec::new(), &mut |path, text| {
                visit(&|| label(name, path.iter().copied()), text);
            });
        }
    }

    /// Returns the rules that stand in trees with their places, by name and place.
    pub fn placed(&self) -> Vec<PlacedRule<'_>> {
        let mut placed = Vec::with_capacity(self.in_trees);
        for (domain, Domain { top, .. }) in &self.domains {
            top.visit(&mut Vec::new(), &mut |path, position| {
                let rule = &self.rules[position];
                placed.push(PlacedRule { domain, path: path.to_vec(), rule });
            });
        }
        placed.sort_by(|one, other| {
            let by_name = one.rule.name.cmp(&other.rule.name);
            by_name.then_with(|| (one.domain, &one.path).cmp(&(other.domain, &other.path)))
        });
        placed
    }

    /// How many rules there are: those in trees, and one for each domain.
    pub fn count(&self) -> usize {
        self.rules.len()
    }

    /// The rule at a position of [`Descriptors::every`]. Limits that requests bring along are
    /// enforced.
    pub(crate) fn rule_at(&self, position: usize, is_override: bool) -> RuleInfo<'_> {
        let rule = self.rules[position].info();
        if is_override { RuleInfo { mode: Mode::Enforced, ..rule } } else { rule }
    }

    /// The name of the limit at a position; one that a request brought along has none.
    pub fn limit_name(&self, position: usize, is_override: bool) -> Option<&Arc<str>> {
        self.rules[position].limit_name.as_ref().filter(|_| !is_override)
    }

    /// What the rule at a position says of itself; that of a limit that a request brought along says
    /// nothing.
    pub fn metadata(&self, position: usize, is_override: bool) -> Option<&Arc<Metadata>> {
        self.rules[position].metadata.as_ref().filter(|_| !is_override)
    }

    /// What each descriptor meets; rules that another one of them replaces are met by none.
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] if what is asked for can't be had from the algorithm of a rule.
    pub(crate) fn match_request(
        &self,
        request: &DescriptorRequest<'_>,
    ) -> Result<MatchedDescriptors, InvalidDescriptor> {
        let asked = request.descriptors();
        let Some(domain) = self.domains.get(request.domain()) else {
            return Ok(asked.iter().map(|_| None).collect());
        };
        let mut all = MatchedDescriptors::with_capacity(asked.len());
        for (index, asked) in asked.iter().enumerate() {
            all.push(self.match_one(request.domain(), domain, asked, index)?);
        }
        self.drop_replaced(&mut all);
        Ok(all)
    }

    fn match_one(
        &self,
        name: &str,
        domain: &Domain,
        asked: &RequestDescriptor<'_>,
        index: usize,
    ) -> Result<Option<MatchedDescriptor>, InvalidDescriptor> {
        let path = domain.top.walk(&asked.entries);
        let position = path.last().and_then(|step| step.node.rule);
        let found = match (asked.limit, position) {
            (None, None) => return Ok(None),
            (None, Some(position)) => self.by_rule(position, name, &path, asked),
            (Some(limit), position) => {
                let position = position.unwrap_or(domain.others);
                self.by_override(limit, position, name, asked)
            }
        };
        let algorithm = self.rule_at(found.position, found.is_override).algorithm;
        if let Grant::Limited(limit) = &found.grant {
            // Of more, a report would count a part.
            let max = u64::from(algorithm.max_cost());
            let is_reported_whole = limit.max_debt().is_none() || limit.units() <= max;
            let too_many = LimitError::TooMany { algorithm: algorithm.name(), max };
            let accepted = if is_reported_whole { algorithm.accepts(limit) } else { Err(too_many) };
            accepted.map_err(|error| InvalidDescriptor::Limit { index, error })?;
        }
        if matches!(asked.hits, HitsAddend::Credit(_)) && algorithm == Algorithm::SlidingWindowLog {
            return Err(InvalidDescriptor::NegativeHits { index });
        }
        Ok(Some(found))
    }

    fn by_rule(
        &self,
        position: usize,
        domain: &str,
        path: &Path<'_>,
        asked: &RequestDescriptor<'_>,
    ) -> MatchedDescriptor {
        let DescriptorRule { grant, window, is_detailed, .. } = &self.rules[position];
        let values = path.iter().map(|step| (step.key, step.id_value()));
        MatchedDescriptor {
            position,
            is_override: false,
            grant: *grant,
            window: *window,
            key: Key::for_descriptor(domain, values, None),
            detailed_label: tree::detailed_label(domain, path, *is_detailed),
            hits: asked.hits,
        }
    }

    /// A limit that the request brings along has a state of its own, for each window: that of the
    /// rule in the tree counts by another one.
    fn by_override(
        &self,
        limit: LimitOverride,
        position: usize,
        domain: &str,
        asked: &RequestDescriptor<'_>,
    ) -> MatchedDescriptor {
        let values = asked.entries.iter().map(|(key, value)| (*key, IdValue::Own(value)));
        MatchedDescriptor {
            position,
            is_override: true,
            grant: self.rules[position].with_debt(limit.grant(), self.coupling),
            window: limit.window(),
            key: Key::for_descriptor(domain, values, Some(limit.window())),
            detailed_label: None,
            hits: asked.hits,
        }
    }

    fn drop_replaced(&self, all: &mut MatchedDescriptors) {
        let of_trees = all.iter().flatten().filter(|found| !found.is_override);
        let replaced: SmallVec<[&Arc<str>; 4]> =
            of_trees.flat_map(|found| &self.rules[found.position].replaces).collect();
        if replaced.is_empty() {
            return;
        }
        for one in all {
            let name =
                one.as_ref().and_then(|found| self.limit_name(found.position, found.is_override));
            let is_limited = one.as_ref().is_some_and(|found| found.grant != Grant::Unlimited);
            if is_limited && name.is_some_and(|name| replaced.contains(&name)) {
                *one = None;
            }
        }
    }
}

impl DescriptorRule {
    /// Stands in for a rule where a request brings its own limit.
    fn for_domain(domain: &str) -> Self {
        let limit = Limit::new(1, Limit::MAX_WINDOW).expect("a valid limit");
        Self {
            name: domain.into(),
            limit_name: None,
            algorithm: Algorithm::FixedWindow,
            grant: Grant::Limited(limit),
            mode: Mode::Enforced,
            on_store_failure: OnStoreFailure::Error,
            breaker_opens: false,
            replaces: Vec::new(),
            window: limit.window(),
            is_detailed: false,
            is_post_paid: false,
            max_debt: None,
            metadata: None,
            file: Arc::default(),
        }
    }

    /// What it has in common with flat rules.
    pub fn info(&self) -> RuleInfo<'_> {
        let Self { name, algorithm, mode, on_store_failure, breaker_opens, .. } = self;
        let (algorithm, mode, on_store_failure) = (*algorithm, *mode, *on_store_failure);
        RuleInfo { name, algorithm, mode, on_store_failure, breaker_opens: *breaker_opens }
    }

    /// The grant as hits on it are counted: where they are reports, what is above it is debt. Where
    /// everything is counted, every hit on a fixed window is a report, as in envoyproxy/ratelimit;
    /// other algorithms would lock out for ever who keeps asking.
    fn with_debt(&self, grant: Grant, coupling: Coupling) -> Grant {
        let Grant::Limited(limit) = grant else { return grant };
        let is_counter = self.algorithm == Algorithm::FixedWindow;
        if !(self.is_post_paid || is_counter && coupling == Coupling::EachAlone) {
            return grant;
        }
        let most = match self.algorithm {
            // It keeps an entry a unit, and none above its limit.
            Algorithm::SlidingWindowLog => 0,
            _ => limit.units(),
        };
        let max_debt = self.max_debt.unwrap_or(most).min(most);
        Grant::Limited(limit.with_max_debt(max_debt).unwrap_or(limit))
    }
}

/// A path as metrics name it: `domain.key_value.key`.
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
