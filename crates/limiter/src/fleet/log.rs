//! Entries of a log, and their ids.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::clock::Timestamp;

/// The id of an entry of a log: ids are unique, and later entries have larger ones.
///
/// It is the time of the entry by the clock of the store, in milliseconds since the Unix epoch, and
/// a number within that millisecond: `1700000100000-0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    millis: u64,
    sequence: u64,
}

impl EntryId {
    /// The largest id.
    pub const MAX: Self = Self { millis: u64::MAX, sequence: u64::MAX };

    /// Creates an id.
    pub const fn new(millis: u64, sequence: u64) -> Self {
        Self { millis, sequence }
    }

    /// Returns the milliseconds and the number within them.
    #[cfg(feature = "journal")]
    pub(super) const fn parts(self) -> (u64, u64) {
        (self.millis, self.sequence)
    }

    /// Returns the smallest id of the millisecond of a time.
    pub fn at(time: Timestamp) -> Self {
        Self::new(time.as_micros() / 1_000, 0)
    }

    /// Returns the time of the entry, in whole milliseconds.
    pub fn time(self) -> Timestamp {
        Timestamp::from_micros(self.millis.saturating_mul(1_000))
    }

    /// Returns the next larger id.
    #[must_use]
    pub fn next(self) -> Self {
        match self.sequence.checked_add(1) {
            Some(sequence) => Self { sequence, ..self },
            None => Self::new(self.millis.saturating_add(1), 0),
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

/// The text is not an id.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be two numbers with a hyphen between them, such as 1700000100000-0")]
pub struct InvalidEntryId;

impl FromStr for EntryId {
    type Err = InvalidEntryId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (millis, sequence) = text.split_once('-').ok_or(InvalidEntryId)?;
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number).ok_or(InvalidEntryId)
        };
        Ok(Self::new(number(millis)?, number(sequence)?))
    }
}

/// The entries of one project in a log. The empty id stands for all entries of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectLog<'a> {
    /// Name of the log.
    pub log: &'a str,
    /// Id of the project.
    pub project: &'a str,
}

/// An entry to append, and what is kept beside it.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'a> {
    /// The entry: up to [`MAX_VALUE_LEN`](super::MAX_VALUE_LEN) bytes.
    pub content: &'a [u8],
    /// Entries that the log keeps, at least 1.
    pub max_entries: u64,
    /// Entries that are kept of each project although the log has more.
    pub max_project_entries: u64,
    /// Time after which the entries of the project may be removed if none follows. `None`: never.
    pub ttl: Option<Duration>,
}

/// Entries to read: all by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// Only entries with this id or a larger one.
    pub from: EntryId,
    /// Only entries with a smaller id.
    pub before: EntryId,
}

impl Default for LogRange {
    fn default() -> Self {
        Self { from: EntryId::default(), before: EntryId::MAX }
    }
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The id.
    pub id: EntryId,
    /// The content.
    pub content: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_printed_and_parsed() {
        let id = EntryId::new(1_700_000_100_000, 7);
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "-", "1", "1-", "-1", "+1-0", "1-0-0", "1 -0", "1-18446744073709551616"] {
            assert_eq!(text.parse::<EntryId>(), Err(InvalidEntryId), "{text}");
        }
    }

    #[test]
    fn ids_are_ordered_by_time() {
        let time = Timestamp::from_millis(5);
        assert_eq!(EntryId::at(time), EntryId::new(5, 0));
        assert_eq!(EntryId::new(5, 9).time(), time);
        assert!(EntryId::new(5, u64::MAX) < EntryId::new(6, 0));
        assert_eq!(EntryId::new(5, u64::MAX).next(), EntryId::new(6, 0));
        assert_eq!(EntryId::new(5, 1).next(), EntryId::new(5, 2));
    }
}
