//! Rules as texts that people edit: the format of rules files. The service gives the functions that
//! read and print it.

use std::collections::BTreeMap;

use rlaas_proto::ratelimit::v1::{Rule, UnmatchedPolicy};

/// The format of rules files.
#[derive(Clone, Copy, Debug)]
pub struct RulesFormat {
    /// Reads rules as far as they can be read, and finds every problem.
    pub read: fn(&str) -> RulesReading,
    /// Prints rules of a project, given as fields have its id, so that `read` reads the same.
    pub print: fn(&str, &[Rule]) -> String,
    /// Returns the fields of a rule that are not at their defaults, but for its name.
    pub fields: fn(&Rule) -> BTreeMap<String, String>,
    /// Returns the fields that a rule may have.
    pub help: fn() -> Vec<FieldHelp>,
}

/// Rules that were read from a text.
#[derive(Clone, Debug, Default)]
pub struct RulesReading {
    /// Id of the project that the text names.
    pub project: Option<String>,
    /// The policy that it sets.
    pub unmatched: Option<UnmatchedPolicy>,
    /// The rules, as far as they can be read.
    pub rules: Vec<Rule>,
    /// Problems, each with its field and line; with any the rules can't be used.
    pub problems: Vec<String>,
}

/// A field of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldHelp {
    /// Its name, such as `match.resource`.
    pub name: String,
    /// Description, in whole sentences.
    pub about: &'static str,
    /// Valid values; empty if it has fields of its own.
    pub must_be: String,
}
