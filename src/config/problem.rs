//! Problems of a configuration with hints at what was meant, and notices of values that have less effect
//! than written. A value is shown only if it can't be a secret.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::path::Path;

use figment::value::Value;
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

/// Minimum Jaro-Winkler similarities at which a known key or value is suggested for an unknown one.
pub(super) const SIMILAR_KEY: f64 = 0.75;
const SIMILAR_VALUE: f64 = 0.85;
const UNITS: &str = "; units are ms, s, m, h, d and w, and months are windows of calendar";

/// Returns the known word that is nearest to another one, if one is near.
pub(super) fn nearest<'a>(
    known: impl Iterator<Item = &'a str>,
    word: &str,
    min_similarity: f64,
) -> Option<&'a str> {
    let near = known.map(|known| (strsim::jaro_winkler(known, word), known));
    let nearest = near.max_by(|(left, _), (right, _)| left.total_cmp(right));
    nearest.filter(|(similarity, _)| *similarity >= min_similarity).map(|(_, known)| known)
}

/// Returns what a requirement lacks for a text that does not meet it: the nearest of its words, or the
/// units of a time.
pub(super) fn of_value(requirement: &str, given: &Value) -> Option<String> {
    let text = given.as_str()?;
    let must_be = requirement.strip_prefix("must be ")?;
    if must_be.starts_with("a window") {
        let is_number = text.starts_with(|first: char| first.is_ascii_digit());
        return (is_number && humantime::parse_duration(text).is_err()).then(|| UNITS.to_owned());
    }
    let words = must_be.split(", ").flat_map(|words| words.split(" or "));
    if words.clone().any(|word| word.contains(' ')) {
        return None;
    }
    nearest(words, text, SIMILAR_VALUE).map(|word| format!(", did you mean {word}?"))
}

/// A value in a file that is valid but has less effect than written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The file.
    pub(super) origin: String,
    /// The whole key; empty if the notice is about the whole file.
    pub(super) key: String,
    /// Number of further keys of the same file with the same notice.
    pub(super) others: usize,
    /// The actual effect.
    pub(super) text: Cow<'static, str>,
}

impl Notice {
    /// Adds the notice to a list. Notices of one file with the same text are merged.
    pub(super) fn add_to(self, notices: &mut Vec<Self>) {
        let same = |other: &&mut Self| other.origin == self.origin && other.text == self.text;
        match notices.iter_mut().find(same) {
            Some(other) => other.others += self.others + 1,
            None => notices.push(self),
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        match (self.key.as_str(), self.others) {
            ("", _) => {}
            (key, 0) => write!(f, "{key}: ")?,
            (key, others) => write!(f, "{key} and {others} more: ")?,
        }
        f.write_str(&self.text)
    }
}
