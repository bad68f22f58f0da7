//! Rules: from a request to the limits that it meets.
//!
//! A [`RuleSet`] is a whole, valid, immutable snapshot; matching a [`Request`] against it is pure.
//! This room knows nothing of stores and protocols.

mod attributes;
pub mod descriptors;
mod key;
mod matcher;
mod pattern;
mod request;
mod rule;
pub mod spec;
mod wildcard;

pub use attributes::Attributes;
pub use key::Key;
pub use matcher::Matcher;
pub use pattern::{Pattern, TextPattern};
pub use request::{InvalidRequest, Request, RequestBuilder, RequestFields};
pub use rule::{Coupling, Grant, Mode, OnStoreFailure, Override, Part, Rule, RuleInfo, Share};
pub use wildcard::Wildcard;

use std::collections::HashMap;

use smallvec::SmallVec;

use self::descriptors::Descriptors;

/// The rules in force: every one that matches applies, in no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    default: Rule,
    /// By name, so that the order in a file changes nothing.
    named: Vec<Rule>,
    /// Rules that ask for an exact value of a part, by that part and value: each rule stands under
    /// one part.
    by_value: HashMap<Part, HashMap<String, Vec<usize>>>,
    /// The other rules: each request looks at all of them.
    others: Vec<usize>,
    unmatched: Unmatched,
    descriptors: Descriptors,
}

/// Policy for requests that no enforced rule matches. Requests by descriptors have none: what meets no
/// rule passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// The default rule decides.
    #[default]
    DefaultRule,
    /// They pass.
    Allow,
    /// They are refused.
    Deny,
}

impl Unmatched {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::DefaultRule, Self::Allow, Self::Deny];

    /// The policy as configuration names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DefaultRule => "default",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl RuleSet {
    /// Indexes the rules. Their names must differ.
    pub fn new(default: Rule, mut named: Vec<Rule>) -> Self {
        named.sort_by(|one, other| one.name.cmp(&other.name));
        let mut by_value: HashMap<Part, HashMap<String, Vec<usize>>> = HashMap::new();
        let mut others = Vec::new();
        for (index, rule) in named.iter().enumerate() {
            let Some((part, values)) = rule.matcher.exact() else {
                others.push(index);
                continue;
            };
            let of_part = by_value.entry(part.clone()).or_default();
            for value in values {
                let of_value = of_part.entry(value.to_owned()).or_default();
                // A value that is said twice counts once.
                if of_value.last() != Some(&index) {
                    of_value.push(index);
                }
            }
        }
        let (unmatched, descriptors) = (Unmatched::default(), Descriptors::default());
        Self { default, named, by_value, others, unmatched, descriptors }
    }

    /// The same rules, with a policy for requests that none of them matches.
    #[must_use]
    pub fn with_unmatched(self, unmatched: Unmatched) -> Self {
        Self { unmatched, ..self }
    }

    /// Policy for requests that no enforced rule matches.
    pub fn unmatched(&self) -> Unmatched {
        self.unmatched
    }

    /// The same rules, and these for requests by descriptors.
    #[must_use]
    pub fn with_descriptors(self, descriptors: Descriptors) -> Self {
        Self { descriptors, ..self }
    }

    /// The rules for requests by descriptors.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Calls `meet` with each rule that `request` meets and where it stands in [`RuleSet::iter`]; where
    /// no other is enforced also with the default rule, if that is the policy.
    pub(crate) fn for_each_match<'a>(
        &'a self,
        request: &Request<'_>,
        mut meet: impl FnMut(usize, &'a Rule),
    ) {
        let mut is_enforced = false;
        if !self.named.is_empty() {
            self.for_each_named(request, |position, rule| {
                is_enforced |= rule.mode != Mode::Shadow;
                meet(position, rule);
            });
        }
        if self.unmatched == Unmatched::DefaultRule && !is_enforced {
            meet(0, &self.default);
        }
    }

    fn for_each_named<'a>(&'a self, request: &Request<'_>, mut meet: impl FnMut(usize, &'a Rule)) {
        let mut meet = |index: usize| {
            let rule = &self.named[index];
            if rule.matcher.fit(request).is_some() {
                meet(index + 1, rule);
            }
        };
        if self.by_value.is_empty() {
            self.others.iter().for_each(|index| meet(*index));
            return;
        }
        let looked_up = self
            .by_value
            .iter()
            .filter_map(|(part, by_value)| by_value.get(part.value_in(request)?));
        let mut candidates: SmallVec<[usize; 8]> =
            looked_up.flatten().chain(&self.others).copied().collect();
        candidates.sort_unstable();
        candidates.into_iter().for_each(meet);
    }

    /// The rule at a position of [`RuleSet::iter`].
    pub(crate) fn rule_at(&self, position: usize) -> &Rule {
        match position.checked_sub(1) {
            None => &self.default,
            Some(index) => &self.named[index],
        }
    }

    /// The most rules that one request may meet, at a guess from above.
    pub fn max_matches(&self) -> usize {
        let longest = |by_value: &HashMap<String, Vec<usize>>| {
            by_value.values().map(Vec::len).max().unwrap_or_default()
        };
        1 + self.others.len() + self.by_value.values().map(longest).sum::<usize>()
    }

    /// The rule that applies where no other is enforced.
    pub fn default_rule(&self) -> &Rule {
        &self.default
    }

    /// Every rule, the default one first, then by name.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        std::iter::once(&self.default).chain(&self.named)
    }
}
