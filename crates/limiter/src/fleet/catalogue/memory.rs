//! The catalogue of a single process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    COUNTED_PREFIX, CatalogueHead, CatalogueId, CatalogueRelation, CatalogueWrite, Document,
    DocumentChange, HistoryEntry, MAX_CHANGES, MAX_HISTORY, MAX_REVISION_IDS, WriteOutcome,
};
use crate::clock::Deadline;
use crate::store::StoreError;

/// Documents in the memory of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub(in crate::fleet) struct MemoryCatalogue(Arc<Mutex<StoredCatalogue>>);

#[derive(Debug, Default)]
struct StoredCatalogue {
    head: Option<CatalogueHead>,
    documents: HashMap<String, StoredDocument>,
    /// Documents by the revision that changed them last, removed ones too.
    changes: BTreeMap<u64, String>,
    last_changes: HashMap<String, u64>,
    /// Ids of the last revisions, oldest first.
    ids: VecDeque<(u64, CatalogueId)>,
}

#[derive(Debug, Default)]
struct StoredDocument {
    document: Document,
    /// Newest first.
    history: VecDeque<HistoryEntry>,
}

impl MemoryCatalogue {
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

    pub(super) fn history(
        &self,
        document: &str,
        deadline: Deadline,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let contents = self.contents(deadline)?;
        let stored = contents.documents.get(document);
        Ok(stored.map_or_else(Vec::new, |stored| stored.history.iter().cloned().collect()))
    }

    pub(super) fn write(
        &self,
        own: Option<CatalogueHead>,
        write: &CatalogueWrite,
        deadline: Deadline,
    ) -> Result<WriteOutcome, StoreError> {
        let mut contents = self.contents(deadline)?;
        let follows = match (contents.head, own) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(head), own) => {
                let relation = contents.relation(head, own);
                matches!(relation, CatalogueRelation::Same | CatalogueRelation::Newer)
            }
        };
        if !follows {
            return Ok(WriteOutcome::Conflict);
        }
        let revision =
            contents.documents.get(&write.document).map_or(0, |stored| stored.document.revision);
        if revision != write.expected {
            return Ok(WriteOutcome::Raced { revision });
        }
        Ok(contents.refusal(write).unwrap_or_else(|| contents.apply(write)))
    }

    fn contents(&self, deadline: Deadline) -> Result<MutexGuard<'_, StoredCatalogue>, StoreError> {
        if deadline.has_passed() {
            return Err(StoreError::Expired);
        }
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StoredCatalogue {
    fn relation(&self, head: CatalogueHead, own: Option<CatalogueHead>) -> CatalogueRelation {
        let Some(own) = own else { return CatalogueRelation::First };
        let oldest = self.ids.front().map_or(0, |(revision, _)| *revision);
        let stands = self.ids.contains(&(own.revision, own.id)) || own.revision < oldest;
        if own.epoch != head.epoch || !stands || own.revision > head.revision {
            CatalogueRelation::Conflict
        } else if own.revision == head.revision {
            CatalogueRelation::Same
        } else {
            CatalogueRelation::Newer
        }
    }

    /// Returns the outcome of a write that would exceed a bound.
    fn refusal(&self, write: &CatalogueWrite) -> Option<WriteOutcome> {
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

    fn apply(&mut self, write: &CatalogueWrite) -> WriteOutcome {
        let revision = self.head.map_or(0, |head| head.revision) + 1;
        if write.removes {
            self.documents.remove(&write.document);
        } else {
            let stored = self.documents.entry(write.document.clone()).or_default();
            stored.document.revision = revision;
            stored.document.fields.extend(write.set.clone());
            stored.document.fields.retain(|name, _| !write.delete.contains(name));
            if !write.history.is_empty() {
                let content = write.history.clone();
                stored.history.push_front(HistoryEntry { revision, content });
                stored.history.truncate(MAX_HISTORY);
            }
        }
        if let Some(before) = self.last_changes.insert(write.document.clone(), revision) {
            self.changes.remove(&before);
        }
        self.changes.insert(revision, write.document.clone());
        let epoch = self.head.map_or_else(CatalogueId::random, |head| head.epoch);
        let id = CatalogueId::random();
        self.ids.push_back((revision, id));
        while self.ids.len() > MAX_REVISION_IDS {
            self.ids.pop_front();
        }
        let head = CatalogueHead { epoch, revision, id };
        self.head = Some(head);
        WriteOutcome::Written { head }
    }
}
