//! The rules of a configuration: their names, and those that requests reached.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use super::outcome::DecidedStep;
use crate::config::Config;
use crate::plan::RuleIndex;
use crate::rules::{Rule, RuleSet, Unmatched};

/// The names that decisions can have.
#[derive(Debug, Default)]
pub(super) struct RuleNames {
    names: BTreeSet<String>,
    /// Any other name may occur: the rules could not be read, or the names have parts of requests.
    is_open: bool,
}

impl RuleNames {
    /// Returns the names of rules; any if there are none because they are not valid.
    pub(super) fn new(rules: Option<&RuleSet>) -> Self {
        let Some(rules) = rules else { return Self { is_open: true, ..Self::default() } };
        let flat = rules.iter().map(|rule| rule.name.to_string());
        let descriptors = rules.descriptors();
        let is_open = descriptors
            .placed()
            .iter()
            .any(|of| of.rule.is_detailed || of.path.iter().any(|step| step.value_to_metric));
        let names = flat.chain(descriptors.every().map(|rule| rule.name.to_string()));
        Self { names: names.collect(), is_open }
    }

    pub(super) fn may_have(&self, name: &str) -> bool {
        self.is_open || self.names.contains(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

/// Where rules come from. Equal sources are one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleSources {
    /// Configuration files.
    pub(super) config: Vec<PathBuf>,
    /// Rule files of Envoy, in place of those of the configuration.
    pub(super) envoy: Vec<PathBuf>,
    /// Single settings.
    pub(super) set: Vec<(String, String)>,
}

/// The rules of one configuration that requests reached.
#[derive(Debug, Default)]
pub(super) struct ReachedRules {
    flat: HashSet<usize>,
    descriptors: HashSet<usize>,
}

impl ReachedRules {
    /// Records the rules that took part in a decision.
    pub(super) fn record(&mut self, decided: &DecidedStep) {
        for decision in &decided.verdict.decisions {
            match decision.index {
                RuleIndex::Flat(position) => self.flat.insert(position),
                RuleIndex::Descriptor { position, is_override: false } => {
                    self.descriptors.insert(position)
                }
                RuleIndex::Descriptor { is_override: true, .. } => false,
            };
        }
    }

    /// Adds what other cases reached.
    pub(super) fn merge(&mut self, other: Self) {
        self.flat.extend(other.flat);
        self.descriptors.extend(other.descriptors);
    }

    /// Returns the names of the rules that were not reached. The default rule is among them only if
    /// the files set it, and if it can apply.
    pub(super) fn missing(&self, config: &Config) -> Vec<String> {
        let rules = &config.rules;
        let is_set = |key: &str| key.starts_with("rate-limiter.");
        let default_counts = rules.unmatched() == Unmatched::DefaultRule
            && config.effective.iter().any(|of| is_set(&of.key) && of.origin != "default");
        let flat = rules.iter().enumerate().filter(|(at, rule)| {
            !self.flat.contains(at) && (*rule.name != *Rule::DEFAULT || default_counts)
        });
        let flat = flat.map(|(_, rule)| rule.name.to_string());
        let placed = rules.descriptors().placed();
        let descriptors = placed.iter().filter(|of| !self.descriptors.contains(&of.position));
        let descriptors = descriptors.map(|of| format!("{} ({})", of.rule.name, of.rule.file));
        flat.chain(descriptors).collect()
    }
}
