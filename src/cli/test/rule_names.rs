//! The rules of a configuration: their names, and those that requests reached.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use crate::config::Config;
use crate::plan::RuleIndex;
use crate::rules::{Rule, RuleSet, Unmatched};

/// Minimum Jaro-Winkler similarity at which a known name is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.75;

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
        let is_open = descriptors.placed().iter().any(|placed| {
            placed.rule.is_detailed || placed.path.iter().any(|step| step.value_to_metric)
        });
        let names = flat.chain(descriptors.every().map(|rule| rule.name.to_string()));
        Self { names: names.collect(), is_open }
    }

    /// Checks that a rule exists.
    ///
    /// # Errors
    ///
    /// A text that names the most similar rule.
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        if self.is_open || self.names.contains(name) {
            return Ok(());
        }
        let similar = |known: &&String| strsim::jaro_winkler(known, name);
        let nearest =
            self.names.iter().max_by(|left, right| similar(left).total_cmp(&similar(right)));
        match nearest.filter(|known| similar(known) >= MIN_SIMILARITY) {
            Some(known) => Err(format!("no rule is named {name:?}, did you mean {known}?")),
            None => Err(format!("no rule is named {name:?}")),
        }
    }
}

/// Where rules come from. Equal sources are one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleSources {
    /// Configuration files.
    pub(super) config: Vec<PathBuf>,
    /// Rule files of Envoy, in place of those of the configuration.
    pub(super) envoy: Vec<PathBuf>,
    /// Single settings.
    pub(super) set: Vec<(String, String)>,
}

/// The rules that requests reached, of one configuration.
pub(super) type ReachedRules = HashSet<RuleIndex>;

/// Returns the names of the rules that were not reached. The default rule is among them only if the
/// files set it, and if it can apply.
pub(super) fn unreached(config: &Config, reached: &ReachedRules) -> Vec<String> {
    let rules = &config.rules;
    let is_set = |key: &str| key.starts_with("rate-limiter.");
    let default_counts = rules.unmatched() == Unmatched::DefaultRule
        && config
            .effective
            .iter()
            .any(|setting| is_set(&setting.key) && setting.origin != "default");
    let flat = rules.iter().enumerate().filter(|(at, rule)| {
        let counts = *rule.name != *Rule::DEFAULT || default_counts;
        counts && !reached.contains(&RuleIndex::Flat(*at))
    });
    let flat = flat.map(|(_, rule)| rule.name.to_string());
    let placed = rules.descriptors().placed();
    let descriptors = placed.iter().filter(|placed| {
        let (position, is_override) = (placed.position, false);
        !reached.contains(&RuleIndex::Descriptor { position, is_override })
    });
    flat.chain(descriptors.map(|placed| format!("{} ({})", placed.rule.name, placed.rule.file)))
        .collect()
}
