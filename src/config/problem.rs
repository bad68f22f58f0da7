//! What can be wrong with a configuration. A value is shown only where it can be no secret.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// One thing that is wrong.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// A file can't be read.
    #[error("{}: can't be read: {reason}", file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// Why, in the system's words.
        reason: String,
    },
    /// A file is not YAML.
    #[error("{origin}: {reason}")]
    Syntax {
        /// Which file.
        origin: String,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// A key that means nothing.
    #[error("{origin}: {key}: unknown key{}{}", suggest(suggestion.as_deref()), place(*line, None))]
    UnknownKey {
        /// Where it stands.
        origin: String,
        /// The whole key.
        key: String,
        /// The known key that is nearest, if one is near.
        suggestion: Option<String>,
        /// Its line, where that is known.
        line: Option<u64>,
    },
    /// Two spellings of the same key.
    #[error("{origin}: {key}: the same as {other}; give only one of them{}", place(*line, None))]
    Twice {
        /// Where they stand.
        origin: String,
        /// One spelling.
        key: String,
        /// The other.
        other: String,
        /// The line of one, where that is known.
        line: Option<u64>,
    },
    /// A value that is not valid.
    #[error("{origin}: {key}: {valid}{}", place(*line, found.as_deref()))]
    Invalid {
        /// Where it stands.
        origin: String,
        /// The whole key.
        key: String,
        /// What would be valid.
        valid: String,
        /// Its line, or that of the section that it is missing in, where that is known.
        line: Option<u64>,
        /// The value, or its kind, where that can be no secret.
        found: Option<String>,
    },
}

impl Problem {
    /// A value that is not valid, of which no more is known.
    pub(super) fn invalid(origin: String, key: String, valid: String) -> Self {
        Self::Invalid { origin, key, valid, line: None, found: None }
    }

    /// Its file or other origin, its line and its key, where it has them.
    pub(super) fn place(&self) -> (Cow<'_, str>, Option<u64>, Option<&str>) {
        match self {
            Self::Unreadable { file, .. } => (file.to_string_lossy(), None, None),
            Self::Syntax { origin, .. } => (origin.into(), None, None),
            Self::UnknownKey { origin, key, line, .. }
            | Self::Twice { origin, key, line, .. }
            | Self::Invalid { origin, key, line, .. } => (origin.into(), *line, Some(key)),
        }
    }

    /// Adds the line to a problem of a key, by its origin and the key.
    pub(super) fn locate(&mut self, line_of: impl FnOnce(&str, &str) -> Option<u64>) {
        if let Self::UnknownKey { origin, key, line, .. }
        | Self::Twice { origin, key, line, .. }
        | Self::Invalid { origin, key, line, .. } = self
        {
            *line = line.or_else(|| line_of(origin, key));
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

/// Everything that is wrong, a line each.
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
