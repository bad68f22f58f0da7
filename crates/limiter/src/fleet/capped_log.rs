//! A log of one process: the oldest entries make room for new ones.

use std::collections::{HashSet, VecDeque};

use super::{EntryId, LogEntry, LogRange};

/// Most bytes of a log.
const MAX_LOG_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct CappedLog {
    /// Oldest first. Those that are being recorded are in their place.
    entries: VecDeque<LogEntry>,
    being_recorded: HashSet<EntryId>,
    bytes: usize,
    last: Option<EntryId>,
}

impl CappedLog {
    /// Returns the id of an entry at `now`. The clock may have been set back.
    pub(super) fn next_id(&self, now: EntryId) -> EntryId {
        self.last.map_or(now, |last| now.max(last.next()))
    }

    /// Returns the entries of a range that were recorded, newest first.
    pub(super) fn newest(&self, range: LogRange) -> impl Iterator<Item = &LogEntry> {
        let first = self.entries.partition_point(|entry| entry.id < range.from);
        let end = self.entries.partition_point(|entry| entry.id < range.before).max(first);
        let entries = self.entries.range(first..end).rev();
        entries.filter(|entry| !self.being_recorded.contains(&entry.id))
    }

    /// Adds an entry that is being recorded, and returns the ids of those that it removes once it
    /// was.
    pub(super) fn push(&mut self, entry: LogEntry, max_entries: u64) -> Vec<EntryId> {
        self.last = Some(entry.id);
        self.bytes += entry.content.len();
        self.being_recorded.insert(entry.id);
        self.entries.push_back(entry);
        let (mut entries, mut bytes) = (self.entries.len(), self.bytes);
        let is_removed = |entry: &&LogEntry| {
            let is_removed = entries as u64 > max_entries.max(1) || bytes > MAX_LOG_BYTES;
            (entries, bytes) = (entries - 1, bytes - entry.content.len());
            is_removed
        };
        self.entries.iter().take_while(is_removed).map(|entry| entry.id).collect()
    }

    /// Makes an entry visible and removes those that it replaces; or removes the entry, if it was
    /// not recorded.
    pub(super) fn end_recording(&mut self, id: EntryId, replaced: &[EntryId], is_recorded: bool) {
        self.being_recorded.remove(&id);
        let not_recorded = [id];
        for removed in if is_recorded { replaced } else { &not_recorded } {
            if let Ok(position) = self.entries.binary_search_by_key(removed, |entry| entry.id)
                && let Some(removed) = self.entries.remove(position)
            {
                self.bytes -= removed.content.len();
            }
        }
    }
}
