//! Specifications of rules: rules from files, messages or code that are not checked yet.
//!
//! [`RulesSpec::build`] checks all rules and returns a [`RuleSet`], or all problems
//! at once. A problem has the path of its field. Only the source of the specification knows files
//! and lines.
//!
//! With the feature `serde` specifications can be deserialized and serialized in the format of
//! rules files, such as YAML: keys in kebab-case, unknown keys refused.
#![cfg_attr(feature = "serde", doc = "```")]
#![cfg_attr(not(feature = "serde"), doc = "```ignore")]
//! use rlaas_core::rules::spec::RulesSpec;
//!
//! let json = r#"{ "rules": [{ "name": "login", "key-by": "ip", "limit": 5, "window": "1m" }] }"#;
//! let spec: RulesSpec = serde_json::from_str(json)?;
//! assert_eq!(spec.build().expect("valid rules").iter().count(), 2);
//!
//! let json = r#"{ "rules": [{ "name": "login", "limit": "many", "window": "1m", "shadow": 5 }]
//! }"#; let problems = serde_json::from_str::<RulesSpec>(json)?.build().expect_err("two problems");
//! assert_eq!(problems[0].field, "rules[0].limit"); assert_eq!(problems[1].to_string(),
//! "rules[0].shadow: must be true or false");
//! # Ok::<(), serde_json::Error>(())
//! ```

mod calendar;
mod code;
#[cfg(feature = "serde")]
mod fields;
mod key_by;
mod problem;
mod rate;
mod rule;
#[cfg(feature = "serde")]
mod value;

pub use calendar::CalendarSpec;
pub use problem::Problem;
#[doc(hidden)]
pub use rate::Whole;
pub use rate::{RateSpec, StoreFailurePolicy, StoreFailureSpec};
pub use rule::{MatcherSpec, OverrideSpec, RuleSpec};
// The table is for the program: it grows with every field.
#[cfg(feature = "serde")]
#[doc(hidden)]
pub use {
    fields::{FieldKind, RuleField},
    value::{Value, ValueKind},
};

pub(super) use problem::Problems;
pub(super) use rate::{DebtSpec, HoldSpec, Rate, SHARE};

use std::collections::HashSet;

use crate::rules::{RuleSet, Unmatched};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A field of a specification, not checked yet.
///
/// Deserializing a field never fails: a value of the wrong type becomes [`Field::Unreadable`], so
/// that building the specification reports it together with all other problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Field<T> {
    /// The field is not given.
    #[default]
    Unset,
    /// The field has this value.
    Set(T),
    /// The field is given, but its value has the wrong type.
    Unreadable,
}

impl<T> Field<T> {
    /// Returns `true` if the field is not given.
    pub const fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }

    /// Returns the value, if one of the right type is given.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Unset | Self::Unreadable => None,
        }
    }

    /// Returns the field with another value.
    pub(crate) fn map<U>(self, other: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Unset => Field::Unset,
            Self::Set(value) => Field::Set(other(value)),
            Self::Unreadable => Field::Unreadable,
        }
    }

    /// Returns the field, or `default` if it is not given.
    #[must_use]
    pub fn or(self, default: T) -> Self {
        if self.is_unset() { Self::Set(default) } else { self }
    }
}

impl<T> From<T> for Field<T> {
    fn from(value: T) -> Self {
        Self::Set(value)
    }
}

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
