//! Rules as texts that people edit: the format of rules files. The configuration, a layer below, gives
//! the functions that read and print it.

use crate::projects::RulesFile;

/// The format of rules files.
#[derive(Clone, Copy, Debug)]
pub struct RulesFormat {
    /// Reads rules as far as they can be read, and finds every problem.
    pub read: fn(&str) -> RulesReading,
    /// Prints rules, so that `read` reads the same.
    pub print: fn(&RulesFile) -> String,
    /// Returns the fields of a rule.
    pub fields: fn() -> Vec<FieldHelp>,
}

/// Rules that were read from a text.
#[derive(Clone, Debug, Default)]
pub struct RulesReading {
    /// The rules, as far as they can be read.
    pub file: RulesFile,
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
