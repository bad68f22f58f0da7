//! The end of a conflict: a person decides which catalogue is kept, that of this instance or that of the
//! store.
//!
//! While it lasts the store refuses writes, so neither side changes but for keys that are revoked. Both
//! are read, and the kept one is written with the ends of keys that the other one knows: first step by
//! step into keys that nobody reads, each step less than a millisecond of the store's time, and last by
//! one step that makes these the catalogue, in a new epoch, and ends the conflict. That step is refused
//! if the store is not the one that was read. So an instance sees the catalogue before that step or after
//! it; if this process ends before, the conflict stays and the restore can be repeated. Then this
//! instance takes the restored catalogue like all others: because it replaces their epochs.
//!
//! | document | revision in the restored catalogue |
//! | --- | --- |
//! | only one side has it, or both have the same | as it is in the kept one |
//! | the sides differ, or keys were ended | a new one, above all of both; so have its rules that differ |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use rlaas_limiter::fleet::{
    COUNTED_PREFIX, CatalogueHead, CatalogueId, CatalogueRestore, CatalogueStatus, CatalogueWrite,
    Document, RestoreStep,
};
use thiserror::Error;
use tracing::{info, warn};

use super::conflict::{RevokedAside, lacks_own};
use super::document::{decode, document_name, encode, project_of};
use super::sync::{CALL_TIMEOUT, READS, SyncError, Synced};
use super::{ProjectState, Registry, run_blocking};
use crate::clock::{Deadline, Timestamp};
use crate::projects::ProjectId;
use crate::store::StoreError;

/// Times that a restore is tried while keys are revoked.
const MAX_TRIES: u32 = 3;

/// The catalogue that a restore keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogueSource {
    /// That of this instance.
    Instance,
    /// That of the store.
    Store,
}

/// The reason why a catalogue was not restored.
#[derive(Clone, Debug, Error)]
pub enum RestoreError {
    /// There is no conflict.
    #[error("there is no conflict of catalogues")]
    NoConflict,
    /// The side to keep has no catalogue, so that all projects would vanish.
    #[error("there is no catalogue to keep: the other side has one")]
    Nothing,
    /// The revision of the catalogue to keep is another one.
    #[error("expected_revision must be that of the catalogue to keep, which is {revision}")]
    Stale {
        /// Its revision.
        revision: u64,
    },
    /// A later release has written a project, so that this one cannot write it again.
    #[error("a later release has written a project: restore by way of an instance of that release")]
    Unreadable,
    /// The store has changed, or another restore has begun.
    #[error("the store has changed meanwhile: look at it again")]
    Changed,
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Both sides of a conflict.
struct Sides {
    kept: CatalogueSource,
    own_head: Option<CatalogueHead>,
    own: BTreeMap<ProjectId, Arc<ProjectState>>,
    store_head: Option<CatalogueHead>,
    /// Documents of the store; `None`: it was removed.
    store: BTreeMap<String, Option<Document>>,
    revoked: Vec<RevokedAside>,
    now: Timestamp,
}

/// A document to write.
struct StagedDocument {
    document: Option<Document>,
    keeps_history: bool,
}

/// What a restore writes.
struct Merged {
    documents: BTreeMap<String, StagedDocument>,
    revision: u64,
}

impl Registry {
    /// Ends a conflict: keeps the catalogue of one side, and takes the ends of keys from both. It must
    /// have the revision `expected`. Returns the revision of the restored catalogue.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]. After [`RestoreError::Store`] the conflict has possibly ended.
    pub async fn restore_catalogue(
        &self,
        kept: CatalogueSource,
        expected: u64,
        deadline: Deadline,
    ) -> Result<u64, RestoreError> {
        let mut synced = self.locked(deadline).await?;
        for _ in 0..MAX_TRIES {
            self.check(&mut synced, kept, expected, deadline).await?;
            let catalogue = &self.0.catalogue;
            let begun = catalogue.begin_restore(synced.head, deadline).await?;
            let generation = begun.ok_or(RestoreError::NoConflict)?;
            // From here on the store does not change.
            let status = self.check(&mut synced, kept, expected, deadline).await?;
            let Some(head) =
                self.write_restored(&synced, status, kept, generation, deadline).await?
            else {
                continue;
            };
            info!(revision = head.revision, epoch = %head.epoch, ?kept, "catalogue restored");
            let taken = self.sync_locked(synced, deadline).await;
            if let Err(error @ SyncError::Conflict) = taken {
                warn!(%error, "restored catalogue not taken yet");
            }
            if let Err(error) = catalogue.tidy(deadline).await {
                warn!(%error, "keys of the replaced catalogue stay until the next restore");
            }
            return Ok(head.revision);
        }
        Err(RestoreError::Changed)
    }

    /// Returns whether a restore is possible now, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`RestoreError`].
    pub async fn check_restore(
        &self,
        kept: CatalogueSource,
        expected: u64,
        deadline: Deadline,
    ) -> Result<(), RestoreError> {
        let mut synced = self.locked(deadline).await?;
        self.check(&mut synced, kept, expected, deadline).await.map(drop)
    }

    async fn check(
        &self,
        synced: &mut Synced,
        kept: CatalogueSource,
        expected: u64,
        deadline: Deadline,
    ) -> Result<CatalogueStatus, RestoreError> {
        let status = self.status(synced, deadline).await?;
        if !status.is_marked && !lacks_own(synced, status) {
            return Err(RestoreError::NoConflict);
        }
        let head = match kept {
            CatalogueSource::Instance if !synced.unreadable.is_empty() => {
                return Err(RestoreError::Unreadable);
            }
            CatalogueSource::Instance => synced.head,
            CatalogueSource::Store => status.head.map(|(head, _)| head),
        };
        match head.map(|head| head.revision) {
            None => Err(RestoreError::Nothing),
            Some(revision) if revision != expected => Err(RestoreError::Stale { revision }),
            Some(_) => Ok(status),
        }
    }

    /// Writes the kept catalogue; `None`: the store has changed meanwhile.
    async fn write_restored(
        &self,
        synced: &Synced,
        status: CatalogueStatus,
        kept: CatalogueSource,
        generation: CatalogueId,
        deadline: Deadline,
    ) -> Result<Option<CatalogueHead>, RestoreError> {
        let revoked = self.revoked_aside(deadline).await?;
        let store = self.read_documents(0, false, deadline).await?;
        let projects = self.projects().into_iter().filter(|state| state.revision > 0);
        let sides = Sides {
            kept,
            own_head: synced.head,
            own: projects.map(|state| (state.project.id.clone(), state)).collect(),
            store_head: status.head.map(|(head, _)| head),
            store: store.into_iter().map(|(change, document)| (change.name, document)).collect(),
            revoked,
            now: self.0.clock.now(),
        };
        let seen = sides.store_head;
        let merged = run_blocking(move || sides.merged()).await;
        let write = |(name, staged): (&String, &StagedDocument)| {
            let (name, document) = (name.clone(), staged.document.clone());
            let (keeps, deadline) = (staged.keeps_history, deadline.or_within(CALL_TIMEOUT));
            async move {
                let document = (name.as_str(), document.as_ref());
                self.0.catalogue.stage(generation, document, keeps, deadline).await
            }
        };
        let writes = stream::iter(&merged.documents).map(write).buffer_unordered(READS);
        let steps: Vec<RestoreStep> = writes.try_collect().await?;
        if steps.contains(&RestoreStep::Changed) {
            return Err(RestoreError::Changed);
        }
        let mut replaced = synced.replaced.clone();
        replaced.extend([synced.head, seen].into_iter().flatten().map(|head| head.epoch));
        let (epoch, id) = (CatalogueId::random(), CatalogueId::random());
        let head = CatalogueHead { epoch, revision: merged.revision, id };
        let aside = status.aside;
        let (documents, counted) = merged.counts();
        let restore =
            CatalogueRestore { generation, seen, aside, head, documents, counted, replaced };
        let ended = self.0.catalogue.end_restore(&restore, deadline).await?;
        Ok((ended == RestoreStep::Done).then_some(head))
    }
}

impl Sides {
    fn merged(mut self) -> Merged {
        let own = self.own.values().map(|state| state.revision);
        let heads = self.own_head.into_iter().chain(self.store_head).map(|head| head.revision);
        let store = self.store.values().flatten().map(|document| document.revision);
        let mut newest = own.chain(heads).chain(store).max().unwrap_or_default();
        let names: BTreeSet<String> = match self.kept {
            CatalogueSource::Instance => {
                self.own.keys().map(|id| document_name(id).to_owned()).collect()
            }
            CatalogueSource::Store => {
                let stored = self.store.iter().filter(|(_, document)| document.is_some());
                stored.map(|(name, _)| name.clone()).collect()
            }
        };
        let mut documents = BTreeMap::new();
        for name in &names {
            documents.insert(name.clone(), self.staged(name, &mut newest));
        }
        let own = self.own.keys().map(|id| document_name(id).to_owned());
        let omitted = own.chain(std::mem::take(&mut self.store).into_keys());
        for name in omitted.filter(|name| !names.contains(name)) {
            documents.insert(name, StagedDocument { document: None, keeps_history: false });
        }
        Merged { documents, revision: newest + 1 }
    }

    /// Returns a document of the kept side with the ends of keys of both.
    fn staged(&self, name: &str, newest: &mut u64) -> StagedDocument {
        let stored = self.store.get(name);
        let raw = stored.and_then(Option::as_ref);
        let of_store = raw.and_then(|document| decode(document).ok());
        let of_own = project_of(name).and_then(|id| self.own.get(&id));
        let (kept, other) = match self.kept {
            CatalogueSource::Instance => (of_own.map(|state| ProjectState::clone(state)), of_store),
            CatalogueSource::Store => (of_store, of_own.map(|state| ProjectState::clone(state))),
        };
        // What this release cannot read stays as it is.
        let Some(mut kept) = kept else {
            return StagedDocument { document: raw.cloned(), keeps_history: true };
        };
        let is_deleted = match self.kept {
            CatalogueSource::Instance => stored.is_some_and(Option::is_none),
            CatalogueSource::Store => other.is_none() && self.has_deleted(&kept),
        };
        let mut is_changed = match &other {
            Some(other) => {
                let is_other = (&other.project, &other.rules) != (&kept.project, &kept.rules);
                kept.project.end_keys_as(&other.project) || is_other
            }
            None => is_deleted && kept.project.revoke_all_keys(self.now),
        };
        let id = kept.project.id.clone();
        for revoked in self.revoked.iter().filter(|of| of.project == id) {
            let before = kept.project.clone();
            let _unknown_key = kept.project.revoke_key(&revoked.key, revoked.at);
            is_changed |= before != kept.project;
        }
        if is_changed {
            *newest += 1;
            kept.revision = *newest;
            if let Some(other) = &other {
                kept.rules.set_revision_beside(&other.rules, *newest);
            }
        }
        let keeps_history = match self.kept {
            CatalogueSource::Instance => other.is_some_and(|other| other.rules == kept.rules),
            CatalogueSource::Store => true,
        };
        let mut write = CatalogueWrite::new(name);
        encode(&mut write, None, &kept.project, &kept.rules);
        let document = Document { revision: kept.revision, fields: write.set };
        StagedDocument { document: Some(document), keeps_history }
    }

    /// Returns `true` if this instance has seen a project of the store, and its end.
    fn has_deleted(&self, project: &ProjectState) -> bool {
        self.own_head.zip(self.store_head).is_some_and(|(own, store)| {
            own.epoch == store.epoch && project.revision <= own.revision
        })
    }
}

impl Merged {
    /// Returns the number of documents, and of their counted fields.
    fn counts(&self) -> (u64, u64) {
        let documents = self.documents.values().filter_map(|staged| staged.document.as_ref());
        let is_counted = |field: &&String| field.starts_with(COUNTED_PREFIX);
        let counted = |of: &Document| of.fields.keys().filter(is_counted).count() as u64;
        documents.fold((0, 0), |(count, all), of| (count + 1, all + counted(of)))
    }
}
