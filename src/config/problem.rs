//! What can be wrong with a configuration. No problem shows a value: it may hold a secret.

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
    #[error("{origin}: {key}: unknown key{}", suggest(suggestion.as_deref()))]
    UnknownKey {
        /// Where it stands.
        origin: String,
        /// The whole key.
        key: String,
        /// The known key that is nearest, if one is near.
        suggestion: Option<String>,
    },
    /// Two spellings of the same key.
    #[error("{origin}: {key}: the same as {other}; give only one of them")]
    Twice {
        /// Where they stand.
        origin: String,
        /// One spelling.
        key: String,
        /// The other.
        other: String,
    },
    /// A value that is not valid.
    #[error("{origin}: {key}: {valid}")]
    Invalid {
        /// Where it stands.
        origin: String,
        /// The whole key.
        key: String,
        /// What would be valid.
        valid: String,
    },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or(String::new(), |known| format!(", did you mean {known}?"))
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
