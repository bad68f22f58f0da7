//! A log of one process. When it is full, the project with most entries loses its oldest one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use super::{EntryId, LogEntry, LogRange, NewEntry};

/// Most bytes of a log.
const MAX_LOG_BYTES: usize = 64 * 1024 * 1024;

/// The project of an entry, and its id.
pub type ProjectEntryId = (Arc<str>, EntryId);

#[derive(Debug, Default)]
pub(super) struct CappedLog {
    /// Those that are being recorded are in their place.
    entries: BTreeMap<EntryId, Entry>,
    /// Ids by project; none is empty.
    projects: HashMap<Arc<str>, BTreeSet<EntryId>>,
    being_recorded: HashSet<EntryId>,
    bytes: usize,
    last: Option<EntryId>,
}

#[derive(Debug)]
struct Entry {
    project: Arc<str>,
    content: Vec<u8>,
}

impl CappedLog {
    /// Returns the id of an entry at `now`. The clock may have been set back.
    pub(super) fn next_id(&self, now: EntryId) -> EntryId {
        self.last.map_or(now, |last| now.max(last.next()))
    }

    /// Returns the entries of a range that were recorded, newest first, up to `count`: of one
    /// project, or of all if it is empty.
    pub(super) fn newest(&self, project: &str, range: LogRange, count: usize) -> Vec<LogEntry> {
        let ids = range.from..range.before.max(range.from);
        let is_recorded = |id: &&EntryId| !self.being_recorded.contains(id);
        let newest: Vec<&EntryId> = match project {
            "" => {
                let ids = self.entries.range(ids).rev().map(|(id, _)| id);
                ids.filter(is_recorded).take(count).collect()
            }
            project => {
                let of_project = self.projects.get(project).into_iter();
                let ids = of_project.flat_map(|all| all.range(ids.clone()).rev());
                ids.filter(is_recorded).take(count).collect()
            }
        };
        let entry = |id: &EntryId| LogEntry { id: *id, content: self.entries[id].content.clone() };
        newest.into_iter().map(entry).collect()
    }

    /// Adds an entry that is being recorded, and returns those that it removes once it was.
    pub(super) fn push(
        &mut self,
        project: &str,
        id: EntryId,
        entry: NewEntry<'_>,
    ) -> Vec<ProjectEntryId> {
        let project = match self.projects.get_key_value(project) {
            Some((project, _)) => Arc::clone(project),
            None => project.into(),
        };
        self.last = Some(id);
        self.bytes += entry.content.len();
        self.being_recorded.insert(id);
        self.projects.entry(Arc::clone(&project)).or_default().insert(id);
        self.entries.insert(id, Entry { project, content: entry.content.to_owned() });
        self.surplus(entry)
    }

    /// Returns the entries that are too many beside a new one.
    fn surplus(
        &self,
        NewEntry { max_entries, max_project_entries, .. }: NewEntry<'_>,
    ) -> Vec<ProjectEntryId> {
        let (mut entries, mut bytes) = (self.entries.len(), self.bytes);
        let mut surplus = Vec::new();
        if entries as u64 <= max_entries.max(1) && bytes <= MAX_LOG_BYTES {
            return surplus;
        }
        let oldest = |(project, ids): (_, &BTreeSet<EntryId>)| {
            Some((ids.len(), Reverse(*ids.first()?), project))
        };
        let mut projects: BinaryHeap<(usize, Reverse<EntryId>, &Arc<str>)> =
            self.projects.iter().filter_map(oldest).collect();
        while let Some((count, Reverse(id), project)) = projects.pop() {
            let has_many =
                count as u64 > max_project_entries && entries as u64 > max_entries.max(1);
            if !has_many && bytes <= MAX_LOG_BYTES {
                break;
            }
            surplus.push((Arc::clone(project), id));
            (entries, bytes) = (entries - 1, bytes - self.entries[&id].content.len());
            let rest = (Bound::Excluded(id), Bound::Unbounded);
            if let Some(next) = self.projects[project].range(rest).next() {
                projects.push((count - 1, Reverse(*next), project));
            }
        }
        surplus
    }

    /// Makes an entry visible and removes those that it replaces; or removes the entry, if it was
    /// not recorded.
    pub(super) fn end_recording(
        &mut self,
        id: EntryId,
        replaced: &[ProjectEntryId],
        is_recorded: bool,
    ) {
        self.being_recorded.remove(&id);
        if is_recorded {
            for (_, replaced) in replaced {
                self.remove(*replaced);
            }
        } else {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: EntryId) {
        let Some(Entry { project, content }) = self.entries.remove(&id) else { return };
        self.bytes -= content.len();
        if let Some(ids) = self.projects.get_mut(&project) {
            ids.remove(&id);
            if ids.is_empty() {
                self.projects.remove(&project);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends entries `COUNT PROJECT`, each of `len` bytes, and returns the number of those that are left by
    /// project.
    fn left(
        log: &mut CappedLog,
        appended: &[(u64, &str)],
        len: usize,
        most: (u64, u64),
    ) -> Vec<usize> {
        let content = vec![0; len];
        for (count, project) in appended {
            for _ in 0..*count {
                let id = log.next_id(EntryId::default());
                let (max_entries, max_project_entries) = most;
                let entry =
                    NewEntry { content: &content, max_entries, max_project_entries, ttl: None };
                let replaced = log.push(project, id, entry);
                log.end_recording(id, &replaced, true);
            }
        }
        let all = |project| log.newest(project, LogRange::default(), usize::MAX).len();
        ["", "quiet", "busy"].map(all).to_vec()
    }

    #[test]
    fn project_with_most_entries_loses_its_oldest() {
        let log = &mut CappedLog::default();
        let appended = [(3, "quiet"), (100, "busy"), (4, "quiet"), (5, "")];
        assert_eq!(left(log, &appended, 1, (20, 2)), [20, 7, 8]);
        let busy = log.newest("busy", LogRange::default(), usize::MAX);
        let newest = EntryId::new(0, 102);
        assert_eq!((busy[0].id, busy[7].id), (newest, EntryId::new(0, 95)));
        // Each project keeps its own although the log has more.
        assert_eq!(left(log, &[(100, "busy")], 1, (20, 9)), [21, 7, 9]);
        // A smaller maximum removes them at once.
        assert_eq!(left(log, &[(1, "quiet")], 1, (1, 0)), [1, 1, 0]);
    }

    #[test]
    fn bytes_are_bounded_whatever_each_project_keeps() {
        let (log, mebibyte) = (&mut CappedLog::default(), 1024 * 1024);
        let appended = [(10, "quiet"), (200, "busy")];
        assert_eq!(left(log, &appended, mebibyte, (1_000, 1_000)), [64, 10, 54]);
    }

    #[test]
    fn entry_that_is_not_recorded_removes_none() {
        let log = &mut CappedLog::default();
        assert_eq!(left(log, &[(5, "busy")], 1, (5, 0)), [5, 0, 5]);
        let id = log.next_id(EntryId::default());
        let entry = NewEntry { content: b"", max_entries: 5, max_project_entries: 0, ttl: None };
        let replaced = log.push("quiet", id, entry);
        assert_eq!(replaced, [("busy".into(), EntryId::default())]);
        log.end_recording(id, &replaced, false);
        assert_eq!(left(log, &[], 0, (5, 0)), [5, 0, 5]);
    }
}
