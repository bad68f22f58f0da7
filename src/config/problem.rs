//! Problems of a configuration. A value is shown only if it can't be a secret.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::sources::Texts;

/// One problem.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// A file can't be read.
    #[error("{}: can't be read: {reason}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The reason, from the operating system.
        reason: String,
    },
    /// A file is not YAML.
    #[error("{origin}: {reason}")]
    Syntax {
        /// The file.
        origin: String,
        /// The parser's message, with line and column.
        reason: String,
    },
    /// An unknown key.
    #[error("{origin}: {key}: unknown key{}{}", suggest(suggestion.as_deref()), place(*line, None))]
    UnknownKey {
        /// The file, the environment variable or the command line.
        origin: String,
        /// The whole key.
        key: String,
        /// The most similar known key, if one is similar.
        suggestion: Option<String>,
        /// The line of the key, if known.
        line: Option<u64>,
    },
    /// A key that was removed.
    #[error("{origin}: {key} was removed: {instead}{}", place(*line, None))]
    Removed {
        /// The file, the environment variable or the command line.
        origin: String,
        /// The whole key.
        key: String,
        /// What to do instead.
        instead: &'static str,
        /// The line of the key, if known.
        line: Option<u64>,
    },
    /// Two spellings of the same key in one source.
    #[error("{origin}: {key}: the same as {other}; give only one of them{}", place(*line, None))]
    Twice {
        /// The file, the environment variable or the command line.
        origin: String,
        /// The later spelling.
        key: String,
        /// The earlier spelling.
        other: String,
        /// The line of `key`, if known.
        line: Option<u64>,
    },
    /// A value that is not valid.
    #[error("{origin}: {key}: {valid}{}", place(*line, found.as_deref()))]
    Invalid {
        /// The file, the environment variable or the command line.
        origin: String,
        /// The whole key.
        key: String,
        /// The requirement, such as "must be true or false".
        valid: String,
        /// The line of the key, or of the section that lacks it, if known.
        line: Option<u64>,
        /// The value or its type, if it can't be a secret.
        found: Option<String>,
    },
}

impl Problem {
    /// Returns an [`Self::Invalid`] without line and value.
    pub(super) fn invalid(origin: String, key: String, valid: String) -> Self {
        Self::Invalid { origin, key, valid, line: None, found: None }
    }

    /// Returns the origin, the line and the key.
    pub(super) fn place(&self) -> (Cow<'_, str>, Option<u64>, Option<&str>) {
        match self {
            Self::Unreadable { file, .. } => (file.to_string_lossy(), None, None),
            Self::Syntax { origin, .. } => (origin.into(), None, None),
            Self::UnknownKey { origin, key, line, .. }
            | Self::Removed { origin, key, line, .. }
            | Self::Twice { origin, key, line, .. }
            | Self::Invalid { origin, key, line, .. } => (origin.into(), *line, Some(key)),
        }
    }

    /// Replaces the key of a setting that is not valid or not known.
    pub(super) fn change_key(&mut self, change: impl FnOnce(&str) -> String) {
        if let Self::Invalid { key, .. } | Self::UnknownKey { key, .. } = self {
            *key = change(key);
        }
    }

    /// Sets the line of a problem with a key. `line_of` finds it from origin and key.
    pub(super) fn locate(&mut self, line_of: impl FnOnce(&str, &str) -> Option<u64>) {
        if let Self::UnknownKey { origin, key, line, .. }
        | Self::Removed { origin, key, line, .. }
        | Self::Twice { origin, key, line, .. }
        | Self::Invalid { origin, key, line, .. } = self
        {
            *line = line.or_else(|| line_of(origin, key));
        }
    }

    /// Shows a number as its line has it, such as `1.50`.
    pub(super) fn show_number_as_in(&mut self, texts: &Texts) {
        let Self::Invalid { origin, line: Some(at), found: Some(found), .. } = self else { return };
        let Ok(number) = found.parse::<f64>() else { return };
        let text = texts.get(origin.as_str()).map_or("", String::as_str);
        let line = text.lines().zip(1..).find_map(|(line, place)| (place == *at).then_some(line));
        let mut words = line.unwrap_or_default().split([' ', ',', ':', '}', ']']);
        if let Some(written) = words.find(|word| word.replace('_', "").parse() == Ok(number)) {
            written.clone_into(found);
        }
    }
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or(String::new(), |known| format!(", did you mean {known}?"))
}

fn place(line: Option<u64>, found: Option<&str>) -> String {
    match (line, found) {
        (None, None) => String::new(),
        (Some(line), None) => format!(" (line {line})"),
        (None, Some(found)) => format!(" (found {found})"),
        (Some(line), Some(found)) => format!(" (line {line}: found {found})"),
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
