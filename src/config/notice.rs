//! What is valid in a file and does less than it says.

use std::fmt;

/// Something in a file that is valid and does less than it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Where it stands.
    pub(super) origin: String,
    /// The whole key, or the path of what is meant; empty for all of the file.
    pub(super) key: String,
    /// How many more keys of the same file it is about.
    pub(super) others: usize,
    /// What it does instead.
    pub(super) text: &'static str,
}

impl Notice {
    /// Adds a notice to others; those of one file that say the same become one.
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
        f.write_str(self.text)
    }
}
