//! The catalogue of a single process.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::history::kept_entries;
use super::{
    COUNTED_PREFIX, CatalogueHead, CatalogueId, CatalogueRelation, CatalogueWrite, Document,
    DocumentChange, HistoryEntry, Lineage, LocalCopy, LocalCopyChanges, MAX_CHANGES, MAX_REMOVED,
    MAX_REVISION_IDS, WriteOutcome,
};
use crate::clock::{Clock, Deadline, Micros, Timestamp};
use crate::fleet::memory::FleetJournal;
use crate::store::StoreError;

/// Documents in the memory of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub(in crate::fleet) struct MemoryCatalogue {
    shared: Arc<Mutex<StoredCatalogue>>,
    /// Held while a write is recorded.
    writing: Arc<tokio::sync::Mutex<()>>,
    journal: Option<Arc<dyn FleetJournal>>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct StoredCatalogue {
    head: Option<CatalogueHead>,
    documents: HashMap<String, StoredDocument>,
    /// Documents by the revision that changed them last, removed ones too.
    changes: BTreeMap<u64, String>,
    last_changes: HashMap<String, u64>,
    /// Ids of the last revisions, oldest first.
    ids: VecDeque<(u64, CatalogueId)>,
    /// Documents that were removed.
    removed: RemovedDocuments,
    /// Ended keys that the journal had.
    ended: BTreeSet<String>,
}

/// Documents that were removed, with the time: the last [`MAX_REMOVED`].
#[derive(Debug, Default)]
struct RemovedDocuments {
    times: HashMap<String, Timestamp>,
    oldest_first: BTreeSet<(Timestamp, String)>,
}

impl RemovedDocuments {
    /// Adds a document, and returns the one that there is no room for.
    fn add(&mut self, name: &str, at: Timestamp) -> Option<String> {
        if let Some(before) = self.times.insert(name.to_owned(), at) {
            self.oldest_first.remove(&(before, name.to_owned()));
        }
        self.oldest_first.insert((at, name.to_owned()));
        let (_, dropped) =
            (self.times.len() > MAX_REMOVED).then(|| self.oldest_first.pop_first())??;
        self.times.remove(&dropped);
        Some(dropped)
    }

    /// Returns the one that would be dropped for another.
    fn next_dropped(&self, name: &str) -> Option<&str> {
        let is_full = self.times.len() >= MAX_REMOVED && !self.times.contains_key(name);
        is_full.then(|| self.oldest_first.first())?.map(|(_, name)| name.as_str())
    }
}

#[derive(Debug, Default)]
struct StoredDocument {
    document: Document,
    /// Newest first.
    history: VecDeque<HistoryEntry>,
}

impl MemoryCatalogue {
    /// Sets the journal, and the clock of removals. Writes are recorded before they are visible.
    pub(in crate::fleet) fn with_journal(
        self,
        journal: Option<Arc<dyn FleetJournal>>,
        clock: Clock,
    ) -> Self {
        Self { journal, clock, ..self }
    }

    pub(in crate::fleet) fn restore(&self, kept: LocalCopy) {
        let last = kept.documents.values().map(|document| document.revision).max();
        // Damage of the journal may have lost it.
        let made_up = || {
            let (epoch, id) = (CatalogueId::random(), CatalogueId::random());
            Some(CatalogueHead { epoch, revision: last?, id })
        };
        let Some(head) = kept.head.or_else(made_up) else { return };
        let mut histories = kept.histories;
        let mut stored = StoredCatalogue { ended: kept.ended, ..StoredCatalogue::default() };
        for (name, at) in kept.removed {
            stored.removed.add(&name, at);
        }
        for (name, document) in kept.documents {
            stored.changes.insert(document.revision, name.clone());
            stored.last_changes.insert(name.clone(), document.revision);
            let history = histories.remove(&name).unwrap_or_default().into();
            stored.documents.insert(name, StoredDocument { document, history });
        }
        stored.head = Some(head);
        stored.ids.push_back((head.revision, head.id));
        *self.lock() = stored;
    }

    pub(super) fn ended(&self) -> BTreeSet<String> {
        self.lock().ended.clone()
    }

    pub(super) fn head(
        &self,
        own: Option<CatalogueHead>,
        deadline: Deadline,
    ) -> Result<Option<(CatalogueHead, CatalogueRelation)>, StoreError> {
        let contents = self.contents(deadline)?;
        Ok(contents.head.map(|head| (head, contents.relation(head, own))))
    }

    pub(super) fn changes(
        &self,
        since: u64,
        deadline: Deadline,
    ) -> Result<Vec<DocumentChange>, StoreError> {
        let contents = self.contents(deadline)?;
        let newer = contents.changes.range(since.saturating_add(1)..).take(MAX_CHANGES);
        let change = |(revision, name): (&u64, &String)| DocumentChange {
            name: name.clone(),
            revision: *revision,
        };
        Ok(newer.map(change).collect())
    }

    pub(super) fn read(
        &self,
        document: &str,
        deadline: Deadline,
    ) -> Result<Option<Document>, StoreError> {
        let contents = self.contents(deadline)?;
        Ok(contents.documents.get(document).map(|stored| stored.document.clone()))
    }

    /// Returns the newest entry of a history that is older than a revision.
    pub(super) fn older_entry(
        &self,
        document: &str,
        than: Option<u64>,
        deadline: Deadline,
    ) -> Result<Option<HistoryEntry>, StoreError> {
        let contents = self.contents(deadline)?;
        let stored = contents.documents.get(document);
        let mut entries = stored.into_iter().flat_map(|stored| &stored.history);
        let is_older = |entry: &&HistoryEntry| than.is_none_or(|than| entry.revision < than);
        Ok(entries.find(is_older).cloned())
    }

    pub(super) async fn write(
        &self,
        own: Option<CatalogueHead>,
        write: &CatalogueWrite,
        deadline: Deadline,
    ) -> Result<WriteOutcome, StoreError> {
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let now = self.clock.now();
        let (head, changes, write) = {
            let contents = self.contents(deadline)?;
            if let Some(refused) = contents.refusal(own, write, now) {
                return Ok(refused);
            }
            let head = contents.next_head();
            let write = write.stamped(head.revision);
            if self.journal.is_none() {
                let mut contents = contents;
                contents.apply(&write, head, now);
                return Ok(WriteOutcome::Written { head });
            }
            (head, contents.kept_changes(&write, head, now), write)
        };
        if let Some(journal) = &self.journal {
            let catalogue = self.clone();
            let apply = move || {
                let _held = turn;
                catalogue.lock().apply(&write, head, now);
            };
            journal.catalogue(&changes, Box::new(apply)).await?;
        }
        Ok(WriteOutcome::Written { head })
    }

    fn contents(&self, deadline: Deadline) -> Result<MutexGuard<'_, StoredCatalogue>, StoreError> {
        if deadline.has_passed() {
            return Err(StoreError::Expired);
        }
        Ok(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, StoredCatalogue> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredCatalogue {
    fn relation(&self, head: CatalogueHead, own: Option<CatalogueHead>) -> CatalogueRelation {
        let Some(own) = own else { return CatalogueRelation::First };
        let oldest = self.ids.front().map_or(0, |(revision, _)| *revision);
        let still_current = self.ids.contains(&(own.revision, own.id)) || own.revision < oldest;
        if own.epoch != head.epoch {
            CatalogueRelation::Foreign
        } else if !still_current || own.revision > head.revision {
            CatalogueRelation::Lost
        } else if own.revision == head.revision {
            CatalogueRelation::Same
        } else {
            CatalogueRelation::Newer
        }
    }

    /// Returns the outcome of a write that is not made.
    fn refusal(
        &self,
        own: Option<CatalogueHead>,
        write: &CatalogueWrite,
        now: Timestamp,
    ) -> Option<WriteOutcome> {
        let follows = match (self.head, own) {
            (None, own) => own.is_none(),
            (Some(head), own) => {
                let relation = self.relation(head, own);
                matches!(relation, CatalogueRelation::Same | CatalogueRelation::Newer)
            }
        };
        if !follows {
            return Some(WriteOutcome::Conflict);
        }
        let stored = self.documents.get(&write.document);
        let revision = stored.map_or(0, |stored| stored.document.revision);
        if revision != write.expected {
            return Some(WriteOutcome::Raced { revision });
        }
        let removed = self.removed.times.get(&write.document).filter(|_| revision == 0);
        if removed.is_some_and(|at| !write.removes && now.since(*at) < Micros::from(write.rest)) {
            return Some(WriteOutcome::Removed);
        }
        self.excess(write)
    }

    /// Returns the outcome of a write that would exceed a bound.
    fn excess(&self, write: &CatalogueWrite) -> Option<WriteOutcome> {
        if write.removes {
            return None;
        }
        let stored = self.documents.get(&write.document);
        if stored.is_none() && self.documents.len() as u64 >= write.bounds.documents {
            return Some(WriteOutcome::TooManyDocuments);
        }
        let fields = stored.map(|stored| &stored.document.fields);
        let has = |name: &&String| fields.is_some_and(|fields| fields.contains_key(*name));
        let is_counted = |name: &&String| name.starts_with(COUNTED_PREFIX);
        let more = write.set.keys().filter(is_counted).filter(|name| !has(name)).count();
        let fewer = write.delete.iter().filter(is_counted).filter(has).count();
        let all = self.documents.values().flat_map(|stored| stored.document.fields.keys());
        let after = (all.filter(is_counted).count() + more).saturating_sub(fewer) as u64;
        (more > fewer && after > write.bounds.fields).then_some(WriteOutcome::TooManyFields)
    }

    fn next_head(&self) -> CatalogueHead {
        CatalogueHead {
            epoch: self.head.map_or_else(CatalogueId::random, |head| head.epoch),
            revision: self.head.map_or(0, |head| head.revision) + 1,
            id: CatalogueId::random(),
        }
    }

    /// Returns what a write changes in the journal.
    fn kept_changes(
        &self,
        write: &CatalogueWrite,
        head: CatalogueHead,
        now: Timestamp,
    ) -> LocalCopyChanges {
        let mut changes = LocalCopyChanges::default();
        if write.removes {
            if let Some(dropped) = self.removed.next_dropped(&write.document) {
                changes.set_removed(dropped, None);
            }
            changes.set_removed(&write.document, Some(now));
        }
        let stored = self.documents.get(&write.document);
        let fields = stored.into_iter().flat_map(|stored| stored.document.fields.keys());
        changes.write(write, head.revision, fields.map(String::as_str));
        let entries = || stored.into_iter().flat_map(|stored| &stored.history);
        let is_added = !write.removes && !write.history.is_empty();
        let added = is_added.then_some(write.history.len());
        let lengths = added.into_iter().chain(entries().map(|entry| entry.content.len()));
        let left = if write.removes { 0 } else { kept_entries(lengths) - usize::from(is_added) };
        for entry in entries().skip(left) {
            changes.set_history(&write.document, entry.revision, None);
        }
        if is_added {
            changes.set_history(&write.document, head.revision, Some(&write.history));
        }
        for ended in &write.ended {
            changes.set_ended(ended, true);
        }
        changes.set_head(Some(head), &Lineage::default());
        changes
    }

    fn apply(&mut self, write: &CatalogueWrite, head: CatalogueHead, now: Timestamp) {
        let revision = head.revision;
        if write.removes {
            self.documents.remove(&write.document);
            self.removed.add(&write.document, now);
        } else {
            let stored = self.documents.entry(write.document.clone()).or_default();
            stored.document.revision = revision;
            stored.document.fields.extend(write.set.clone());
            stored.document.fields.retain(|name, _| !write.delete.contains(name));
            if !write.history.is_empty() {
                let content = write.history.clone();
                stored.history.push_front(HistoryEntry { revision, content });
                let lengths = stored.history.iter().map(|entry| entry.content.len());
                let left = kept_entries(lengths);
                stored.history.truncate(left);
            }
        }
        if let Some(before) = self.last_changes.insert(write.document.clone(), revision) {
            self.changes.remove(&before);
        }
        self.changes.insert(revision, write.document.clone());
        self.ids.push_back((revision, head.id));
        while self.ids.len() > MAX_REVISION_IDS {
            self.ids.pop_front();
        }
        self.head = Some(head);
    }
}
