//! The end of a conflict: a person decides which catalogue is kept whole, that of this instance or that of
//! the store.
//!
//! That of the store stays as it is; that of the instance is written step by step into keys that nobody
//! reads, each step less than a millisecond of the store's time. One last step makes it the catalogue, in a
//! new epoch whose lineage has the epochs of both sides and of all marks, and removes the marks. It is
//! refused if the store is not the one that was seen. So an instance sees the catalogue before that step or
//! after it; if this process ends before, the conflict stays and the restore can be repeated. Then this
//! instance takes the restored catalogue like all others: because it replaces their epochs. Keys that have
//! ended stay so: they are beside the catalogue.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use rlaas_auth::run_blocking;
use rlaas_core::clock::Deadline;
use rlaas_limiter::fleet::{
    CatalogueHead, CatalogueId, CatalogueMark, CatalogueStatus, CatalogueSwitch, CatalogueWrite,
    Document, Lineage, RestoreStep, SharedCatalogue, StagedCatalogue,
};
use rlaas_limiter::store::StoreError;
use thiserror::Error;
use tracing::{info, warn};

use super::Registry;
use super::conflict::is_conflict;
use super::document::{decode, document_name, encode};
use super::sync::{CALL_TIMEOUT, Owned, READS, SyncError, Synced};

/// Times that a restore is tried while others mark the conflict.
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
    #[error(
        "there is no catalogue to keep. Keep the other side; if it has none either, no instance knows \
         the lost one any more: delete the key {{rlaas:catalog}}:conflict from redis to begin anew"
    )]
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

impl From<SyncError> for RestoreError {
    fn from(error: SyncError) -> Self {
        match error {
            SyncError::Store(error) => Self::Store(error),
            SyncError::Conflict | SyncError::Busy => Self::Changed,
        }
    }
}

/// A document to write.
struct StagedDocument {
    document: Option<Document>,
    keeps_history: bool,
}

impl Registry {
    /// Ends a conflict: keeps the catalogue of one side, which must have the revision `expected`. Returns
    /// the revision of the restored catalogue.
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
        let shared = self.0.catalogue.shared().ok_or(RestoreError::NoConflict)?;
        for _ in 0..MAX_TRIES {
            let mut synced = self.own(deadline).await?;
            let (status, head) = self.check(&mut synced, kept, expected, deadline).await?;
            let switch = match kept {
                CatalogueSource::Store => {
                    let marks = shared.marks(deadline.or_within(CALL_TIMEOUT)).await?;
                    last_step(&synced, &status, &marks, head, None)
                }
                CatalogueSource::Instance => {
                    let (instance, lineage) = (self.instance(), &synced.lineage);
                    let begun = shared.begin_restore(synced.head, lineage, instance, deadline);
                    let generation = begun.await?.ok_or(RestoreError::NoConflict)?;
                    // From here on the store does not change, but for marks and other restores.
                    let heads = status.head.map(|(head, _)| head).into_iter().chain([head]);
                    let newest = heads.map(|head| head.revision).max().unwrap_or_default();
                    let (staged, newest) =
                        self.stage(&shared, generation, newest, deadline).await?;
                    let marks = shared.marks(deadline.or_within(CALL_TIMEOUT)).await?;
                    let mut switch = last_step(&synced, &status, &marks, head, Some(staged));
                    switch.head.revision = switch.head.revision.max(newest + 1);
                    switch
                }
            };
            if shared.switch(&switch, deadline).await? == RestoreStep::Changed {
                continue;
            }
            let CatalogueHead { epoch, revision, .. } = switch.head;
            info!(revision, %epoch, ?kept, "catalogue restored");
            if let Err(error @ SyncError::Conflict) = self.sync_owned(&mut synced, deadline).await {
                warn!(%error, "restored catalogue not taken yet");
            }
            // That may take long, and others wait for it.
            drop(synced);
            if let Err(error) = shared.tidy(deadline).await {
                warn!(%error, "keys of the replaced catalogue stay until the next restore");
            }
            return Ok(revision);
        }
        Err(RestoreError::Changed)
    }

    /// Returns whether a restore is possible now, and changes nothing but marks.
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
        let mut synced = self.own(deadline).await?;
        self.check(&mut synced, kept, expected, deadline).await.map(drop)
    }

    /// Returns the state of the store, and the catalogue to keep.
    async fn check(
        &self,
        synced: &mut Owned,
        kept: CatalogueSource,
        expected: u64,
        deadline: Deadline,
    ) -> Result<(CatalogueStatus, CatalogueHead), RestoreError> {
        let status = self.status_with_ended_keys(synced, deadline).await?;
        if !is_conflict(synced, &status) {
            return Err(RestoreError::NoConflict);
        }
        let head = match kept {
            CatalogueSource::Instance if !synced.unreadable.is_empty() => {
                return Err(RestoreError::Unreadable);
            }
            CatalogueSource::Instance => synced.head,
            CatalogueSource::Store => status.head.map(|(head, _)| head),
        };
        match head {
            None => Err(RestoreError::Nothing),
            Some(CatalogueHead { revision, .. }) if revision != expected => {
                Err(RestoreError::Stale { revision })
            }
            Some(head) => Ok((status, head)),
        }
    }

    /// Writes the catalogue of this instance beside that of the store, both of which have revisions up to
    /// `newest`. Also returns the newest one that was written.
    async fn stage(
        &self,
        shared: &SharedCatalogue,
        generation: CatalogueId,
        newest: u64,
        deadline: Deadline,
    ) -> Result<(StagedCatalogue, u64), RestoreError> {
        let store = self.read_documents(0, false, deadline).await?;
        let store = store.into_iter().map(|(change, document)| (change.name, document)).collect();
        let registry = self.clone();
        let (documents, newest) = run_blocking(move || registry.staged(&store, newest)).await;
        let write = |(name, staged): (&String, &StagedDocument)| {
            let (name, document) = (name.clone(), staged.document.clone());
            let (keeps, deadline) = (staged.keeps_history, deadline.or_within(CALL_TIMEOUT));
            async move { shared.stage(generation, &name, document.as_ref(), keeps, deadline).await }
        };
        let writes = stream::iter(&documents).map(write).buffer_unordered(READS);
        let steps: Vec<RestoreStep> = writes.try_collect().await?;
        if steps.contains(&RestoreStep::Changed) {
            return Err(RestoreError::Changed);
        }
        let kept = documents.values().filter_map(|staged| staged.document.as_ref());
        let (count, counted) = kept.fold((0, 0), |(count, counted), document| {
            (count + 1, counted + document.counted_fields())
        });
        Ok((StagedCatalogue { generation, documents: count, counted }, newest))
    }

    /// Returns the documents of this instance. Where the store has another one, it and the rules that
    /// differ get a new revision: callers, and limits by which keys were counted, may know the other's.
    fn staged(
        &self,
        store: &BTreeMap<String, Option<Document>>,
        newest: u64,
    ) -> (BTreeMap<String, StagedDocument>, u64) {
        let mut newest = newest;
        let gone = |name| (name, StagedDocument { document: None, keeps_history: false });
        let mut documents: BTreeMap<_, _> = store.keys().cloned().map(gone).collect();
        for state in self.projects().into_iter().filter(|state| state.revision > 0) {
            let name = document_name(&state.project.id);
            let of_store = store.get(name).and_then(Option::as_ref);
            let stored = of_store.and_then(|document| decode(document).ok());
            let keeps_history = stored.as_ref().is_some_and(|stored| stored.rules == state.rules);
            let (mut rules, mut revision) = (state.rules.clone(), state.revision);
            if of_store.is_some() && stored.as_ref() != Some(&*state) {
                newest += 1;
                revision = newest;
                if let Some(stored) = stored {
                    rules.set_revision_beside(&stored.rules, revision);
                }
            }
            let mut write = CatalogueWrite::new(name);
            encode(&mut write, None, &state.project, &rules);
            let document = Some(Document { revision, fields: write.set });
            documents.insert(name.to_owned(), StagedDocument { document, keeps_history });
        }
        (documents, newest)
    }
}

/// Returns the last step of a restore: the lineage has all epochs that instances may know.
fn last_step(
    synced: &Synced,
    status: &CatalogueStatus,
    marks: &[CatalogueMark],
    kept: CatalogueHead,
    staged: Option<StagedCatalogue>,
) -> CatalogueSwitch {
    let seen = status.head.map(|(head, _)| head);
    let heads = [synced.head, seen].into_iter().flatten();
    let heads = heads.map(|head| (head.epoch, head.revision));
    let replaced = heads.chain(marks.iter().map(|mark| (mark.epoch, mark.revision)));
    let newest = replaced.clone().map(|(_, revision)| revision).max().unwrap_or_default();
    let lineages = match staged {
        Some(_) => [&synced.lineage, &status.lineage],
        None => [&status.lineage, &synced.lineage],
    };
    let lineages = lineages.into_iter().chain(marks.iter().map(|mark| &mark.lineage));
    let lineage = Lineage::replacing(kept, replaced.chain(lineages.flat_map(Lineage::iter)));
    let (epoch, id) = (CatalogueId::random(), CatalogueId::random());
    let head = CatalogueHead { epoch, revision: newest + 1, id };
    CatalogueSwitch { seen, marks: marks.len() as u64, head, lineage, staged }
}
