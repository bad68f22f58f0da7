//! Notices: values in a file that are valid but have less effect than written.

use std::borrow::Cow;
use std::fmt;

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
