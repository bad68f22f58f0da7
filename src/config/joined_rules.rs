//! The rules of several files as one list.
//!
//! A rule may stand in the place of one of an earlier file that has its name: if it says
//! `replace: true`. The rules are values as files have them; `rules.rs` reads them.

use std::collections::HashMap;
use std::path::PathBuf;

use figment::value::Value;

use super::problem::Problem;
use super::rules::REPLACE;
use super::values;

/// The rules of all files so far.
#[derive(Default)]
pub(super) struct JoinedRules(pub(super) Vec<FileRule>);

/// A rule, and where it is from.
pub(super) struct FileRule {
    pub(super) origin: String,
    pub(super) file: Option<PathBuf>,
    /// Place in the list of its file.
    pub(super) index: usize,
    pub(super) value: Value,
}

impl JoinedRules {
    /// Adds the rules of a file. Returns what is wrong with their names.
    pub(super) fn join(&mut self, rules: impl Iterator<Item = FileRule>) -> Vec<Problem> {
        let names = self.0.iter().enumerate();
        let mut earlier: HashMap<String, usize> =
            names.filter_map(|(place, rule)| Some((rule.name()?.to_owned(), place))).collect();
        let mut problems = Vec::new();
        for rule in rules {
            let Some(place) = rule.name().and_then(|name| earlier.remove(name)) else {
                self.0.push(rule);
                continue;
            };
            let before = std::mem::replace(&mut self.0[place], rule);
            problems.extend(self.0[place].problem_beside(&before));
        }
        problems
    }
}

impl FileRule {
    fn name(&self) -> Option<&str> {
        self.value.as_dict()?.get("name")?.as_str()
    }

    /// Returns the problem of a rule with the name of an earlier one, unless it replaces that.
    fn problem_beside(&self, earlier: &Self) -> Option<Problem> {
        let replaces = self.value.as_dict().and_then(|rule| rule.get(REPLACE.key));
        if replaces.is_some_and(|given| values::boolean(given).is_ok_and(|(replaces, _)| replaces))
        {
            return None;
        }
        let text = format!(
            "{} has a rule of this name (rules[{}]); with replace: true this one stands in its place",
            earlier.origin, earlier.index
        );
        Some(Problem::invalid(self.origin.clone(), format!("rules[{}].name", self.index), text))
    }
}
