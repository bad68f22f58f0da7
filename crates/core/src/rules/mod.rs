//! Rules: from a request to its limits.
//!
//! A [`RuleSet`] is a complete, valid and immutable snapshot. Matching a [`Request`] against it is
//! pure. This module knows no stores and no protocols.

mod attributes;
pub mod descriptors;
mod enforcement;
mod index;
mod key;
mod limit_from;
mod modes;
mod pattern;
mod privacy;
mod request;
mod rule;
pub mod spec;
mod violation;
pub mod warnings;
mod wildcard;

pub use attributes::{Attributes, Costs};
pub use enforcement::EnforcedShare;
pub(crate) use key::DecodedValue;
pub use key::Key;
pub use limit_from::{LimitFrom, OwnLimit};
pub use modes::{ModeScope, ModeSetting, ModeSettings, RuleMode, SetMode};
pub use pattern::{Matcher, Part, Pattern, TextPattern};
pub(crate) use privacy::Hashing;
pub use privacy::{HashedParts, HashedValue, KeyHasher};
pub use request::{InvalidRequest, Request, RequestBuilder, RequestFields};
pub use rule::{
    Coupling, Grant, HoldTerms, Mode, OnStoreFailure, Override, Percentage, Rule, RuleInfo, Share,
};
pub use violation::Violation;
pub use wildcard::Wildcard;

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use self::descriptors::Descriptors;
use self::index::ValueIndex;
use self::key::KeyProject;
use crate::clock::Timestamp;

/// Most named rules that are matched against every request, each with as many values at most: to look one up takes
/// as long.
const MAX_UNINDEXED: usize = 4;

/// The rules in force. Every rule that matches applies; their order has no meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    default: Rule,
    /// Sorted by name, so that the order in a file has no effect.
    named: Vec<Rule>,
    /// Positions of the rules that need a value of some part, or a beginning of it. Each rule is
    /// under one part only. Empty if there are few rules.
    by_value: HashMap<Part, ValueIndex>,
    /// Positions of the other rules, which are matched against every request.
    others: Vec<usize>,
    unmatched: Unmatched,
    descriptors: Descriptors,
    hashed: Option<Arc<HashedParts>>,
    project: Box<str>,
    key_project: KeyProject,
}

/// Policy for requests that no rule matches. Not for requests by descriptors: a descriptor
/// that matches no rule passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// The default rule decides.
    #[default]
    DefaultRule,
    /// The requests pass.
    Allow,
    /// The requests are refused.
    Deny,
}

impl Unmatched {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::DefaultRule, Self::Allow, Self::Deny];

    /// Returns the name of the policy in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DefaultRule => "default",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl RuleSet {
    /// Most rules that one request may match, the default rule included: the store decides them in
    /// one step.
    pub const MAX_MATCHES: usize = 64;

    /// Creates a rule set. The names of the rules must differ.
    pub fn new(mut default: Rule, mut named: Vec<Rule>) -> Self {
        named.iter_mut().chain([&mut default]).for_each(Rule::share_states);
        named.sort_by(|left, right| left.name.cmp(&right.name));
        let mut by_value: HashMap<Part, ValueIndex> = HashMap::new();
        let mut others = Vec::new();
        for (index, rule) in named.iter().enumerate() {
            match rule.matcher.starts() {
                Some((part, starts)) if named.len().max(starts.len()) > MAX_UNINDEXED => {
                    by_value.entry(part.clone()).or_default().insert(&starts, index);
                }
                _ => others.push(index),
            }
        }
        let (unmatched, descriptors) = (Unmatched::default(), Descriptors::default());
        let (project, key_project) = (Box::default(), KeyProject::default());
        Self {
            default,
            named,
            by_value,
            others,
            unmatched,
            descriptors,
            hashed: None,
            project,
            key_project,
        }
    }

    /// Makes these the rules of a project, or of none if it is empty. Keys have its id, so that no
    /// state is shared with the rules of another project, whatever the names of the rules and the
    /// values of requests. A project has no rules for descriptors: they are removed.
    ///
    /// ```
    /// use rlaas_core::algorithm::{Algorithm, Limit};
    /// use rlaas_core::clock::Micros;
    /// use rlaas_core::plan::Plan;
    /// use rlaas_core::rules::{Request, Rule, RuleSet};
    ///
    /// let limit = Limit::new(5, Micros::from_secs(60))?;
    /// let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    /// let shop = rules.clone().in_project("shop");
    /// let alice = Request::user("alice").build()?;
    /// let key = |rules| Plan::for_request(rules, &alice).hits[0].key.clone();
    /// assert_eq!((key(&shop).project(), key(&shop).id()), ("shop", "alice"));
    /// assert_ne!(key(&shop), key(&rules));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn in_project(self, project: &str) -> Self {
        let descriptors =
            if project.is_empty() { self.descriptors } else { Descriptors::default() };
        let key_project = KeyProject::new(project);
        Self { project: project.into(), key_project, descriptors, ..self }
    }

    /// Returns the project whose rules these are; empty for none.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// Returns `true` if the key is one of the project of these rules.
    pub(crate) fn has_project_of(&self, key: &Key) -> bool {
        key.project() == self.key_project.encoded()
    }

    /// Returns the key of the state of a rule for a request.
    #[inline]
    pub(crate) fn key_for(&self, rule: &Rule, request: &Request<'_>, hashing: Hashing<'_>) -> Key {
        rule.key_for(&self.key_project, request, hashing)
    }

    /// Adds rules, except for those whose names are taken.
    #[must_use]
    pub fn with_more(self, rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut all = self.named.clone();
        all.extend(rules.into_iter().filter(|rule| self.rule_named(&rule.name).is_none()));
        let Self { named, by_value, others, .. } = Self::new(self.default.clone(), all);
        Self { named, by_value, others, ..self }
    }

    /// Sets the policy for requests that no rule matches.
    #[must_use]
    pub fn with_unmatched(self, unmatched: Unmatched) -> Self {
        Self { unmatched, ..self }
    }

    /// Returns the policy for requests that no rule matches.
    pub fn unmatched(&self) -> Unmatched {
        self.unmatched
    }

    /// Sets the rules for requests by descriptors.
    #[must_use]
    pub fn with_descriptors(self, descriptors: Descriptors) -> Self {
        Self { descriptors: descriptors.with_hashed_parts(self.hashed.clone()), ..self }
    }

    /// Sets the parts whose values are hashed in keys. Other parts, or another hasher, start the
    /// state of their keys afresh.
    ///
    /// ```
    /// use rlaas_core::algorithm::{Algorithm, Limit};
    /// use rlaas_core::clock::Micros;
    /// use rlaas_core::plan::Plan;
    /// use rlaas_core::rules::{HashedParts, KeyHasher, Part, Request, Rule, RuleSet};
    ///
    /// let limit = Limit::new(5, Micros::from_secs(60))?;
    /// let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
    /// // Not a keyed hash: use HMAC-SHA-256 or the like.
    /// let hasher = KeyHasher::new(|value| [value[0]; 16]);
    /// let rules = rules.with_hashed_parts(HashedParts::new(hasher, [Part::UserId]));
    /// let alice = Request::user("alice").build()?;
    /// assert_eq!(Plan::for_request(&rules, &alice).hits[0].key.id(), "mfqwcylbmfqwcylbmfqwcylbme");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_hashed_parts(self, hashed: HashedParts) -> Self {
        let hashed = Some(Arc::new(hashed));
        let descriptors = self.descriptors.with_hashed_parts(hashed.clone());
        Self { descriptors, hashed, ..self }
    }

    /// Returns the parts whose values are hashed in keys.
    pub fn hashed_parts(&self) -> Option<&HashedParts> {
        self.hashed.as_deref()
    }

    /// Returns how the values of requests become parts of keys.
    #[inline]
    pub(crate) fn hashing(&self) -> Hashing<'_> {
        self.hashed.as_deref().map_or(Hashing::Off, Hashing::Values)
    }

    /// Returns how values that somebody names become parts of keys.
    pub(crate) fn hashing_of_named(&self) -> Hashing<'_> {
        self.hashed.as_deref().map_or(Hashing::Off, Hashing::Shown)
    }

    /// Returns the rules for requests by descriptors.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Sets the modes in force at `now`, in place of those of the configuration.
    #[must_use]
    pub fn with_modes(mut self, modes: &ModeSettings, now: Timestamp) -> Self {
        let project = std::mem::take(&mut self.project);
        let mode_of = |rule: &str| modes.in_force(&project, rule, now);
        for rule in std::iter::once(&mut self.default).chain(&mut self.named) {
            rule.mode.switch(&mut rule.set_mode, mode_of(&rule.name));
        }
        self.descriptors.set_modes(&mode_of);
        Self { project, ..self }
    }

    /// Turns off the rules that bound work in flight: for requests of which nobody knows how long they took.
    #[must_use]
    pub fn without_slots(mut self) -> Self {
        let with_slots = self.named.iter_mut().filter(|rule| rule.algorithm.has_slots());
        with_slots.for_each(|rule| rule.mode = Mode::Off);
        self
    }

    /// Calls `visit` with each rule that matches and its position in [`RuleSet::iter`], also with
    /// those that are off. If all of them are in shadow mode by configuration, and the policy says
    /// so, the default rule is visited too; a mode that is set at run time changes nothing in that.
    /// Returns `true` if a rule matches.
    pub(crate) fn for_each_match<'a>(
        &'a self,
        request: &Request<'_>,
        visit: impl FnMut(usize, &'a Rule),
    ) -> bool {
        self.for_each_match_of(request, |_| true, visit)
    }

    /// As [`Self::for_each_match`], as if there were only the rules that `may_apply`.
    #[inline]
    pub(crate) fn for_each_match_of<'a>(
        &'a self,
        request: &Request<'_>,
        may_apply: impl Fn(&Rule) -> bool,
        mut visit: impl FnMut(usize, &'a Rule),
    ) -> bool {
        let (mut is_matched, mut replaces_default) = (false, false);
        if !self.named.is_empty() {
            self.for_each_named(request, |position, rule| {
                if !may_apply(rule) {
                    return;
                }
                is_matched = true;
                replaces_default |= rule.configured_mode() != Mode::Shadow;
                visit(position, rule);
            });
        }
        let by_default = self.unmatched == Unmatched::DefaultRule && !replaces_default;
        if by_default && may_apply(&self.default) {
            visit(0, &self.default);
            return true;
        }
        is_matched
    }

    fn for_each_named<'a>(&'a self, request: &Request<'_>, mut visit: impl FnMut(usize, &'a Rule)) {
        let mut try_rule = |index: usize| {
            let rule = &self.named[index];
            if rule.matcher.fit(request).is_some() {
                visit(index + 1, rule);
            }
        };
        if self.by_value.is_empty() {
            self.others.iter().for_each(|index| try_rule(*index));
            return;
        }
        let looked_up = self
            .by_value
            .iter()
            .filter_map(|(part, by_value)| Some(by_value.find(part.value_in(request)?)));
        let mut candidates: SmallVec<[usize; 8]> =
            looked_up.flatten().chain(self.others.iter().copied()).collect();
        candidates.sort_unstable();
        candidates.into_iter().for_each(try_rule);
    }

    /// Returns the rule at a position of [`RuleSet::iter`].
    pub(crate) fn rule_at(&self, position: usize) -> &Rule {
        match position.checked_sub(1) {
            None => &self.default,
            Some(index) => &self.named[index],
        }
    }

    /// Returns the rule with this name, and its position in [`RuleSet::iter`].
    pub(crate) fn rule_named(&self, name: &str) -> Option<(usize, &Rule)> {
        if *self.default.name == *name {
            return Some((0, &self.default));
        }
        let index = self.named.binary_search_by(|rule| (*rule.name).cmp(name)).ok()?;
        Some((index + 1, &self.named[index]))
    }

    /// Returns an upper bound of the rules that one request can match.
    pub fn max_matches(&self) -> usize {
        let of_parts = self.by_value.values().map(ValueIndex::max_matches);
        1 + self.others.len() + of_parts.sum::<usize>()
    }

    /// Returns the default rule, which applies if no other rule matches, or those that do are in
    /// shadow mode by configuration.
    pub fn default_rule(&self) -> &Rule {
        &self.default
    }

    /// Returns all rules: the default rule first, then the others by name.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        std::iter::once(&self.default).chain(&self.named)
    }
}
