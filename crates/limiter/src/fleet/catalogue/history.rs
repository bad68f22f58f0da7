//! The history of a document, read newest first and in pieces: a long one holds nobody up, and a reader
//! can stop early.
//!
//! Writes may add entries while it is read. These are newer than those that were read, so they are left
//! out.

#[cfg(feature = "redis")]
use std::collections::VecDeque;

use super::{Catalogue, CatalogueBackend};
use crate::clock::Deadline;
use crate::fleet::check_name;
use crate::store::StoreError;

/// Most entries of a document's history.
pub const MAX_HISTORY: usize = 100;
/// Most bytes of an entry of a history.
pub const MAX_ENTRY_LEN: usize = 4 * 1024 * 1024;
/// Bytes of a history that are stored and read together.
const PIECE_LEN: usize = 64 * 1024;
/// Most pieces of a document's history: with [`MAX_HISTORY`] the bound of its length.
pub(super) const MAX_PIECES: usize = 256;

/// An entry of the history of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Revision that it describes.
    pub revision: u64,
    /// Its content.
    pub content: Vec<u8>,
}

/// Returns how many of the newest entries with these lengths are kept.
pub(super) fn kept_entries(lengths: impl Iterator<Item = usize>) -> usize {
    let pieces = lengths.scan(0, |all, length| {
        *all += length.div_ceil(PIECE_LEN).max(1);
        Some(*all)
    });
    pieces.take(MAX_HISTORY).take_while(|all| *all <= MAX_PIECES).count()
}

/// Reads the history of a document: at most [`MAX_HISTORY`] entries, newest first.
#[derive(Debug)]
pub struct HistoryReader<'a> {
    catalogue: &'a Catalogue,
    document: String,
    /// Entries that were returned.
    count: usize,
    /// Revision of the last one.
    last: Option<u64>,
    #[cfg(feature = "redis")]
    pieces: HistoryPieces,
}

impl Catalogue {
    /// Returns a reader of the history of a document. It has the last [`MAX_HISTORY`] entries, or
    /// fewer if they are long: 16 MiB in pieces of 64 KiB are kept.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the name is too long.
    pub fn history(&self, document: &str) -> Result<HistoryReader<'_>, StoreError> {
        check_name(document)?;
        Ok(HistoryReader {
            catalogue: self,
            document: document.to_owned(),
            count: 0,
            last: None,
            #[cfg(feature = "redis")]
            pieces: HistoryPieces::default(),
        })
    }
}

#[cfg_attr(
    not(feature = "redis"),
    expect(clippy::unused_async, reason = "Redis is waited for, memory is not")
)]
impl HistoryReader<'_> {
    /// Returns the next older entry; `None` if there is none. Redis is asked for about 64 KiB at a time.
    ///
    /// # Errors
    ///
    /// As [`Catalogue::head`].
    pub async fn next(&mut self, deadline: Deadline) -> Result<Option<HistoryEntry>, StoreError> {
        if self.count == MAX_HISTORY {
            return Ok(None);
        }
        let entry = match &self.catalogue.0 {
            CatalogueBackend::Memory(catalogue) => {
                catalogue.older_entry(&self.document, self.last, deadline)?
            }
            #[cfg(feature = "redis")]
            CatalogueBackend::Redis(fleet) => loop {
                if let Some(entry) = self.pieces.entries.pop_front() {
                    break Some(entry);
                }
                let (at, name) = (self.pieces.position, &self.document);
                let read = fleet.catalogue_history(name, at, deadline).await?;
                if read.is_empty() {
                    break None;
                }
                for piece in read {
                    self.pieces.add(piece);
                }
            },
        };
        if let Some(entry) = &entry {
            self.last = Some(entry.revision);
            self.count += 1;
        }
        Ok(entry)
    }
}

/// A piece of an entry as Redis has it.
#[cfg(feature = "redis")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryPiece {
    /// Revision of the entry.
    pub(crate) revision: u64,
    /// Its number, from 0.
    pub(crate) number: u64,
    /// Pieces of the entry.
    pub(crate) count: u64,
    /// The content.
    pub(crate) content: Vec<u8>,
}

#[cfg(feature = "redis")]
impl HistoryPiece {
    /// Parses an element of the list: `REVISION CONTENT` or `REVISION/NUMBER/OF CONTENT`.
    pub(crate) fn parse(mut element: Vec<u8>) -> Option<Self> {
        let space = element.iter().position(|byte| *byte == b' ')?;
        let content = element.split_off(space + 1);
        let mut numbers = str::from_utf8(&element[..space]).ok()?.split('/').map(str::parse);
        let revision = numbers.next()?.ok()?;
        let (number, count) = match (numbers.next(), numbers.next(), numbers.next()) {
            (None, None, None) => (0, 1),
            (Some(Ok(number)), Some(Ok(count)), None) if number < count => (number, count),
            _ => return None,
        };
        Some(Self { revision, number, count, content })
    }
}

/// Joins pieces to entries.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
struct HistoryPieces {
    /// Position of the next piece in the list, where new ones are at the front.
    position: usize,
    /// Revision and number of the last piece.
    last: Option<(u64, u64)>,
    /// The beginning of an entry.
    begun: Option<HistoryEntry>,
    /// Entries that are whole.
    entries: VecDeque<HistoryEntry>,
}

#[cfg(feature = "redis")]
impl HistoryPieces {
    fn add(&mut self, piece: HistoryPiece) {
        let HistoryPiece { revision, number, count, content } = piece;
        self.position += 1;
        // New ones have moved it here.
        let is_known = self.last.is_some_and(|(last, last_number)| {
            revision > last || revision == last && number <= last_number
        });
        if is_known {
            return;
        }
        let follows = number > 0 && self.last == Some((revision, number - 1));
        self.last = Some((revision, number));
        let begun = self.begun.take().filter(|_| follows);
        let entry = match begun {
            Some(mut entry) => {
                entry.content.extend(content);
                entry
            }
            None if number == 0 => HistoryEntry { revision, content },
            None => return,
        };
        if number + 1 == count {
            self.entries.push_back(entry);
        } else {
            self.begun = Some(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_entries_are_bounded_in_number_and_length() {
        assert_eq!(kept_entries([0; 200].into_iter()), MAX_HISTORY);
        assert_eq!(kept_entries([PIECE_LEN + 1; 200].into_iter()), MAX_HISTORY);
        assert_eq!(kept_entries([4 * PIECE_LEN; 200].into_iter()), MAX_PIECES / 4);
        assert_eq!(kept_entries([MAX_ENTRY_LEN; 200].into_iter()), 4);
        assert_eq!(kept_entries([1, PIECE_LEN * 255, 1].into_iter()), 2);
    }

    #[cfg(feature = "redis")]
    fn joined(pieces: &mut HistoryPieces, elements: &[&str]) -> Vec<(u64, String)> {
        for element in elements {
            pieces.add(HistoryPiece::parse(element.as_bytes().to_vec()).expect("a piece"));
        }
        let text = |entry: HistoryEntry| String::from_utf8(entry.content).expect("a text");
        pieces.entries.drain(..).map(|entry| (entry.revision, text(entry))).collect()
    }

    #[cfg(feature = "redis")]
    #[test]
    fn pieces_are_joined_though_new_entries_move_them() {
        let mut pieces = HistoryPieces::default();
        assert_eq!(joined(&mut pieces, &["9 nine", "8/0/3 ei", "8/1/3 g"]), [(9, "nine".into())]);
        // Two elements were added at the front.
        assert_eq!(joined(&mut pieces, &["8/0/3 ei", "8/1/3 g"]), []);
        let rest = ["8/2/3 ht", "7 ", "5/1/3 lost", "5/2/3 lost", "4/0/2 cut"];
        assert_eq!(joined(&mut pieces, &rest), [(8, "eight".into()), (7, String::new())]);
        assert_eq!(pieces.position, 10);
        for garbled in ["", "7", "x 1", "1/2 x", "1/2/2 x", "1/0/1/1 x"] {
            assert_eq!(HistoryPiece::parse(garbled.into()), None, "{garbled}");
        }
    }
}
