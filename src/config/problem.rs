//! Problems of a configuration. A value is shown only if it can't be a secret.

use std::fmt::{self, Display};
use std::path::Path;

use thiserror::Error;

use super::sources::Texts;

/// A problem of a source.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{origin}: {}", self.text())]
pub struct Problem {
    /// The file, the environment variable or the command line.
    pub origin: String,
    /// The whole key; empty if the problem is not about one.
    pub key: String,
    /// The line of the key, or of the section that lacks it, if known.
    pub line: Option<u64>,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// The kinds of problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// A file that can't be read, or is not YAML, for this reason.
    Source(String),
    /// An unknown key, and the most similar known key, if one is similar.
    UnknownKey(Option<String>),
    /// A key that was removed, and what to do instead.
    Removed(&'static str),
    /// Another spelling of this key in the same source.
    Twice(String),
    /// A value that is not valid.
    Invalid {
        /// The requirement, such as "must be true or false".
        must: String,
        /// The value or its type, if it can't be a secret.
        found: Option<String>,
    },
}

impl Problem {
    /// Creates the problem of a key whose line is not known yet.
    pub(super) fn new(origin: String, key: String, kind: ProblemKind) -> Self {
        Self { origin, key, line: None, kind }
    }

    /// Creates the problem of a file that can't be read.
    pub fn unreadable(file: &Path, reason: impl Display) -> Self {
        let kind = ProblemKind::Source(format!("can't be read: {reason}"));
        Self::new(file.display().to_string(), String::new(), kind)
    }

    /// Creates the problem of a value that is not valid, and is not shown.
    pub fn invalid(origin: String, key: String, must: String) -> Self {
        Self::new(origin, key, ProblemKind::Invalid { must, found: None })
    }

    /// Returns the problem without its origin.
    pub fn text(&self) -> String {
        let key = &self.key;
        let (text, found) = match &self.kind {
            ProblemKind::Source(reason) => return reason.clone(),
            ProblemKind::UnknownKey(None) => (format!("{key}: unknown key"), None),
            ProblemKind::UnknownKey(Some(known)) => {
                (format!("{key}: unknown key, did you mean {known}?"), None)
            }
            ProblemKind::Removed(instead) => (format!("{key} was removed: {instead}"), None),
            ProblemKind::Twice(other) => {
                (format!("{key}: the same as {other}; give only one of them"), None)
            }
            ProblemKind::Invalid { must, found } => (format!("{key}: {must}"), found.as_ref()),
        };
        match (self.line, found) {
            (None, None) => text,
            (Some(line), None) => format!("{text} (line {line})"),
            (None, Some(found)) => format!("{text} (found {found})"),
            (Some(line), Some(found)) => format!("{text} (line {line}: found {found})"),
        }
    }

    /// Shows a number as its line has it, such as `1.50`.
    pub(super) fn show_number_as_in(&mut self, texts: &Texts) {
        let Self { kind: ProblemKind::Invalid { found: Some(found), .. }, .. } = self else {
            return;
        };
        let (Some(at), Ok(number)) = (self.line, found.parse::<f64>()) else { return };
        let text = texts.get(self.origin.as_str()).map_or("", String::as_str);
        let line = text.lines().zip(1..).find_map(|(line, place)| (place == at).then_some(line));
        let mut words = line.unwrap_or_default().split([' ', ',', ':', '}', ']']);
        if let Some(written) = words.find(|word| word.replace('_', "").parse() == Ok(number)) {
            written.clone_into(found);
        }
    }
}

/// All problems, one line each.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}
