//! JSON lines: one object a line, in any shape.
//!
//! The scanner is our own. An access log has bytes that a strict reader of JSON refuses with the
//! whole line: a header that is not UTF-8 (nginx writes it as it came), `\x22` (nginx again, if
//! `escape=json` was forgotten), and numbers that must stay the text they are. It builds nothing and
//! keeps only the wanted values. A property test compares it with `serde_json`.

mod path;
mod scanner;

use std::sync::Arc;

use super::FieldValues;
use path::PathTree;
use scanner::Scanner;

pub use path::PathProblem;
pub use scanner::{JsonProblem, JsonProblemKind};

/// Reads the wanted values of JSON lines.
#[derive(Clone, Debug)]
pub(super) struct JsonParser {
    tree: Arc<PathTree>,
}

impl JsonParser {
    /// Returns a parser for these paths, or the number of the first one that is none and why.
    pub(super) fn new(wanted: &[Option<&str>]) -> Result<Self, (usize, PathProblem)> {
        Ok(Self { tree: Arc::new(PathTree::new(wanted)?) })
    }

    pub(super) fn parse(&self, line: &[u8], values: &mut FieldValues) -> Result<(), JsonProblem> {
        Scanner::new(line, &self.tree, values).object_line()
    }
}

#[cfg(test)]
mod tests;
