//! Specifications of rule sets.

use std::collections::HashSet;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::problem::Problems;
use super::{Field, Problem, RuleSpec};
use crate::rules::{RuleSet, Unmatched};

/// Most rules.
const MAX_RULES: usize = 100_000;

/// A set of rules that are not checked yet, in the format of rules files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields, rename_all = "kebab-case"))]
pub struct RulesSpec {
    /// The default rule, without a name. By default a sliding window log of 5 units per 60 s.
    #[cfg_attr(feature = "serde", serde(rename = "rate-limiter", alias = "rate_limiter"))]
    pub default_rule: RuleSpec,
    /// The other rules. Their order has no meaning.
    pub rules: Vec<RuleSpec>,
    /// Policy for requests that no enforced rule matches.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub unmatched: Field<Unmatched>,
}

impl RulesSpec {
    /// Builds all rules, for a project. Requests that no enforced rule matches are refused unless
    /// `unmatched` is set.
    ///
    /// # Errors
    ///
    /// As [`RulesSpec::build`].
    pub fn build_in_project(&self, project: &str) -> Result<RuleSet, Vec<Problem>> {
        let rules = self.build()?;
        let is_set = !self.unmatched.is_unset();
        let unmatched = if is_set { rules.unmatched() } else { Unmatched::Deny };
        Ok(rules.with_unmatched(unmatched).in_project(project))
    }

    /// Builds all rules.
    ///
    /// # Errors
    ///
    /// All [`Problem`]s, each with the path of its field, such as `rules[3].limit`.
    pub fn build(&self) -> Result<RuleSet, Vec<Problem>> {
        let mut problems = Problems::default();
        let default = self.default_rule.build_default();
        let default = default.map_err(|own| problems.add_below("rate-limiter", own)).ok();
        if self.rules.len() > MAX_RULES {
            problems.add("rules", format!("must have at most {MAX_RULES} entries"));
        }
        let mut names = HashSet::new();
        let mut rules = Vec::with_capacity(self.rules.len());
        for (index, spec) in self.rules.iter().take(MAX_RULES).enumerate() {
            let path = format!("rules[{index}]");
            if spec.name.value().is_some_and(|name| !names.insert(name)) {
                problems.add(format!("{path}.name"), "another rule has this name");
            }
            match spec.build() {
                Ok(rule) => rules.push(rule),
                Err(own) => problems.add_below(&path, own),
            }
        }
        let policy = "must be default, allow or deny";
        let unmatched = problems.read("unmatched", self.unmatched, policy);
        let unmatched = unmatched.ok().flatten().unwrap_or_default();
        let rules = default.map(|rule| RuleSet::new(rule, rules).with_unmatched(unmatched));
        if rules.as_ref().is_some_and(|rules| rules.max_matches() > RuleSet::MAX_MATCHES) {
            problems.add(
                "rules",
                format!("must have at most {} rules that one request can match, the default rule included", RuleSet::MAX_MATCHES),
            );
        }
        problems.finish(rules)
    }
}
