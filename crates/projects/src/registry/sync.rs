//! Following the catalogue of the store.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use rlaas_auth::{KnownApiKeys, ProjectId, run_blocking};
use rlaas_core::clock::{Deadline, Micros, Timestamp};
use rlaas_limiter::fleet::{
    Catalogue, CatalogueHead, CatalogueLook, CatalogueRelation, CatalogueStatus, ChangedWhileRead,
    Document, DocumentChange, FleetEvent, Lineage, LocalCopy, LocalCopyChanges, MAX_CHANGES,
};
use rlaas_limiter::store::{Fate, Health, StoreError};
use thiserror::Error;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, error, info, warn};

use super::change_queues::ChangeRank;
use super::conflict::{is_conflict, lacks_own};
use super::document::{decode, project_of};
use super::ended_keys::EndedKey;
use super::risks::LoggedRisks;
use super::state_dir::StateDir;
use super::{ProjectState, Registry};

/// Message on the topic of the catalogue: modes were set, which lie beside it.
pub const MODES_SET: &[u8] = b"modes";
/// Time between two looks at the catalogue without a message.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// That time while the store denies access, which only an operator can change.
const DENIED_INTERVAL: Duration = Duration::from_mins(1);
/// Longest time of one call of the store.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Documents that are read at the same time.
pub(super) const READS: usize = 16;
/// Times that a catalogue is read which changes meanwhile.
pub(super) const MAX_TRIES: u32 = 8;

/// What this process knows of the catalogue. One command at a time owns it ([`Registry::own`]), so that
/// changes are put in force in their order.
#[derive(Debug)]
pub(super) struct Synced {
    /// The revision in force; `None` if there was no catalogue yet.
    pub(super) head: Option<CatalogueHead>,
    /// Projects that this release cannot read.
    pub(super) unreadable: HashSet<ProjectId>,
    /// Epochs that the catalogue in force has replaced.
    pub(super) lineage: Lineage,
    /// Whether this process decides by it.
    pub(super) catalogue_use: CatalogueUse,
    /// Id of the ends of keys that this process and the store have in common; `None`: it is not known.
    pub(super) shared_ended_keys: Option<String>,
    /// Number of marks of a conflict that were logged.
    pub(super) marks: u64,
    /// Time since which the store is known to have no catalogue.
    pub(super) missing_since: Option<Timestamp>,
    /// Time of the last answer by which the catalogue in force is that of the store; at first that
    /// of the start.
    confirmed_at: Timestamp,
    /// Kind of the failure of the last look.
    failure: Option<&'static str>,
    /// The folder that has the catalogue in force.
    pub(super) state_dir: Option<StateDir>,
}

impl Synced {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            head: None,
            unreadable: HashSet::new(),
            lineage: Lineage::default(),
            catalogue_use: CatalogueUse::Starting,
            shared_ended_keys: None,
            marks: 0,
            missing_since: None,
            confirmed_at: now,
            failure: None,
            state_dir: None,
        }
    }

    pub(super) fn keep(&mut self, changes: LocalCopyChanges) {
        if let Some(state_dir) = &mut self.state_dir {
            state_dir.add(changes);
        }
    }

    /// Sets how long ago the catalogue in force was that of the store.
    fn set_age(&mut self, age: Option<Micros>) {
        if let (Some(_), Some(age), Some(state_dir)) = (self.head, age, &mut self.state_dir) {
            state_dir.set_age(age);
        }
    }

    /// Writes the catalogue in force into the folder.
    pub(super) async fn flush(&mut self) {
        let head = self.head;
        if let Some(state_dir) = &mut self.state_dir {
            state_dir.flush(head, &self.lineage).await;
        }
    }
}

/// What a command owns from its beginning to its end.
#[derive(Debug)]
pub(super) struct Owned(Option<OwnedMutexGuard<Synced>>);

impl Owned {
    /// Runs long work on a thread of its own.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &mut self,
        registry: &Registry,
        work: impl FnOnce(&Registry, &mut Synced) -> T + Send + 'static,
    ) -> T {
        let (registry, mut lent) = (registry.clone(), Self(self.0.take()));
        let (lent, done) = run_blocking(move || {
            let done = work(&registry, &mut lent);
            (lent, done)
        })
        .await;
        *self = lent;
        done
    }
}

impl Deref for Owned {
    type Target = Synced;

    fn deref(&self) -> &Synced {
        self.0.as_deref().expect("it comes back from each thread")
    }
}

impl DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut Synced {
        self.0.as_deref_mut().expect("it comes back from each thread")
    }
}

/// Whether an instance decides by its catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatalogueUse {
    /// It has not heard from the store, nor missed its answer.
    Starting,
    /// It must not: it started with a catalogue that the store does not know.
    Barred,
    /// It does.
    Serving,
}

/// The reason why the catalogue of the store is not in force.
#[derive(Clone, Debug, Error)]
pub enum SyncError {
    /// The store did not answer.
    #[error(transparent)]
    Store(StoreError),
    /// The catalogue of the store conflicts with that of an instance.
    #[error("the catalogue of the store conflicts with that of an instance")]
    Conflict,
    /// Other changes, or a restore, are made on this instance, or others write faster than this one reads.
    #[error("too many changes are being made")]
    Busy,
}

impl From<StoreError> for SyncError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Custom { source, .. } if source.is::<ChangedWhileRead>() => Self::Busy,
            _ => Self::Store(error),
        }
    }
}

/// A document that has changed; `None` if it was removed.
pub(super) type ReadDocument = (DocumentChange, Option<Document>);

impl Registry {
    /// Follows the catalogue, for ever. Notifies `modes` when modes may have been set elsewhere.
    pub async fn run(&self, modes: &Notify) {
        let mut subscription = self.0.fleet.subscribe(Catalogue::TOPIC);
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut risks = LoggedRisks::default();
        loop {
            tokio::select! {
                event = subscription.next() => {
                    let is_of_modes = is_of_modes(&event);
                    let may_be_new = event == FleetEvent::Gap;
                    if is_of_modes || may_be_new {
                        modes.notify_one();
                    }
                    if may_be_new {
                        risks.check_again();
                    }
                    if is_of_modes || self.is_known(&event).await {
                        continue;
                    }
                }
                _ = ticks.tick() => {}
            }
            match self.look().await {
                None => risks.look(self).await,
                Some("noperm") => ticks.reset_after(DENIED_INTERVAL),
                Some(_) => {}
            }
        }
    }

    /// Puts in force what has changed in the store, without waiting in the queues of changes.
    ///
    /// # Errors
    ///
    /// [`SyncError`]: what was in force stays so.
    pub async fn sync(&self, deadline: Deadline) -> Result<(), SyncError> {
        let mut synced = self.own(deadline).await?;
        self.sync_owned(&mut synced, deadline).await
    }

    /// Puts in force what has changed in the store, when it is the turn of a caller.
    ///
    /// # Errors
    ///
    /// As [`Registry::sync`].
    pub async fn sync_as(&self, rank: ChangeRank, deadline: Deadline) -> Result<(), SyncError> {
        let _turn = self.0.queues.wait(rank, deadline).await?;
        self.sync(deadline).await
    }

    /// Returns `true` for the message of a revision that is in force.
    async fn is_known(&self, event: &FleetEvent) -> bool {
        let FleetEvent::Message(message) = event else { return false };
        let revision = str::from_utf8(message).ok().and_then(|text| text.parse::<u64>().ok());
        let known = self.own_at_last().await.head.map_or(0, |head| head.revision);
        revision.is_some_and(|revision| revision <= known)
    }

    /// Puts in force what has changed, and returns the kind of the failure.
    async fn look(&self) -> Option<&'static str> {
        let mut synced = self.own_at_last().await;
        let outcome = self.sync_owned(&mut synced, Deadline::NEVER).await;
        let failure = match &outcome {
            Ok(()) => None,
            Err(SyncError::Store(error)) => Some(error.kind()),
            Err(SyncError::Conflict) => Some("conflict"),
            Err(SyncError::Busy) => Some("busy"),
        };
        if failure != synced.failure {
            match &outcome {
                Err(SyncError::Store(error)) if error.kind() == "noperm" => {
                    warn!(%error, "redis denies access to projects");
                }
                Ok(()) => info!("catalogue of the store in force"),
                Err(SyncError::Store(error @ StoreError::Refused { code, .. }))
                    if code == "FORMAT" =>
                {
                    error!(%error, "projects are of another release: nothing was changed");
                }
                // The store's own log says when it is away.
                Err(error @ SyncError::Conflict) => error!(%error, "catalogue not taken"),
                Err(error) => debug!(%error, "catalogue can't be read"),
            }
            synced.failure = failure;
        }
        let is_away = matches!(&outcome, Err(SyncError::Store(error)) if error.kind() != "custom");
        if synced.catalogue_use == CatalogueUse::Starting && is_away {
            synced.catalogue_use = CatalogueUse::Serving;
            self.set_barred(false);
        }
        self.0.first_sync_done.send_replace(true);
        let age = self.0.clock.now().since(synced.confirmed_at).as_secs_ceil();
        self.0.metrics.catalogue_age.set(age.cast_signed());
        synced.set_age(self.0.keyring.age());
        synced.flush().await;
        failure
    }

    /// Begins a command.
    ///
    /// # Errors
    ///
    /// [`SyncError::Busy`] if others last until the deadline.
    pub(super) async fn own(&self, deadline: Deadline) -> Result<Owned, SyncError> {
        timeout(deadline.remaining(), self.own_at_last()).await.map_err(|_elapsed| {
            match *self.0.limiter.store().health().borrow() {
                // Others wait for it too.
                Health::Down => StoreError::Unreachable.into(),
                Health::Unknown | Health::Up => SyncError::Busy,
            }
        })
    }

    /// Begins a command after all others.
    pub(super) async fn own_at_last(&self) -> Owned {
        Owned(Some(Arc::clone(&self.0.synced).lock_owned().await))
    }

    pub(super) async fn sync_owned(
        &self,
        synced: &mut Owned,
        deadline: Deadline,
    ) -> Result<(), SyncError> {
        for _ in 0..MAX_TRIES {
            let status = self.status_with_ended_keys(synced, deadline).await?;
            self.classify(synced, &status, deadline).await?;
            if !self.take(synced, &status, deadline).await? {
                continue;
            }
            let is_conflict = is_conflict(synced, &status);
            let is_known = match synced.head {
                Some(_) => synced.catalogue_use == CatalogueUse::Serving,
                None => !is_conflict && self.new_catalogue_delay_left(synced).is_zero(),
            };
            self.0.keyring.set_awaited(synced.head.is_none() && !is_conflict);
            if is_known {
                if !lacks_own(synced, &status) {
                    synced.confirmed_at = self.0.clock.now();
                }
                self.0.keyring.confirm();
                synced.set_age(self.0.keyring.age());
            }
            synced.flush().await;
            return if is_conflict { Err(SyncError::Conflict) } else { Ok(()) };
        }
        Err(StoreError::custom(Fate::NotExecuted, ChangedWhileRead).into())
    }

    /// Puts the catalogue of the store in force, unless it lacks what this instance knows. Returns `false`
    /// if it has changed meanwhile.
    async fn take(
        &self,
        synced: &mut Owned,
        status: &CatalogueStatus,
        deadline: Deadline,
    ) -> Result<bool, SyncError> {
        let taken = status.head.filter(|(_, relation)| {
            *relation != CatalogueRelation::Same && !lacks_own(synced, status)
        });
        let Some((head, relation)) = taken else { return Ok(true) };
        let is_whole = relation != CatalogueRelation::Newer;
        let since = synced.head.filter(|_| !is_whole).map_or(0, |own| own.revision);
        let documents = self.read_documents(since, !is_whole, deadline).await?;
        if !self.is_still_current(synced, head, status, deadline).await? {
            return Ok(false);
        }
        log_taken(synced, status, relation);
        let lineage = status.lineage.clone();
        let install = move |registry: &Self, synced: &mut Synced| {
            registry.install(synced, documents, is_whole);
            synced.lineage = lineage;
            registry.set_head(synced, head);
        };
        synced.run_blocking(self, install).await;
        Ok(true)
    }

    /// Returns `true` if the store still has a revision, and its ended keys are known: others may have
    /// written meanwhile, or another server answers.
    async fn is_still_current(
        &self,
        synced: &mut Owned,
        head: CatalogueHead,
        status: &CatalogueStatus,
        deadline: Deadline,
    ) -> Result<bool, SyncError> {
        let Some(shared) = self.0.catalogue.shared() else { return Ok(true) };
        let look = CatalogueLook::without_marks(Some(head), &status.lineage);
        let is_there =
            |(_, relation)| matches!(relation, CatalogueRelation::Same | CatalogueRelation::Newer);
        for _ in 0..MAX_TRIES {
            let now = shared.look(look, deadline.or_within(CALL_TIMEOUT)).await?;
            if !now.head.is_some_and(is_there) {
                break;
            }
            if synced.shared_ended_keys.as_ref() == Some(&now.ended) {
                return Ok(true);
            }
            self.sync_ended_keys(synced, deadline).await?;
        }
        Ok(false)
    }

    fn set_head(&self, synced: &mut Synced, head: CatalogueHead) {
        synced.head = Some(head);
        self.0.revision.store(head.revision, Ordering::Relaxed);
    }

    /// Reads the documents that have changed since a revision; with `only_unseen`, those that are not in
    /// force.
    pub(super) async fn read_documents(
        &self,
        since: u64,
        only_unseen: bool,
        deadline: Deadline,
    ) -> Result<Vec<ReadDocument>, StoreError> {
        let changes = self.changes(since, deadline).await?;
        let read = |change: DocumentChange| async move {
            let deadline = deadline.or_within(CALL_TIMEOUT);
            let document = self.0.catalogue.read(&change.name, deadline).await?;
            Ok::<ReadDocument, StoreError>((change, document))
        };
        let unseen = changes.into_iter().filter(|change| !only_unseen || !self.has(change));
        stream::iter(unseen).map(read).buffer_unordered(READS).try_collect().await
    }

    /// Puts a document in force that this process has written.
    pub(super) fn written(
        &self,
        synced: &mut Synced,
        document: &str,
        after: Option<ProjectState>,
        ended: Vec<EndedKey>,
        head: CatalogueHead,
    ) {
        if let Some(id) = project_of(document) {
            let changes = self.put_in_force(&id, after);
            synced.keep(changes);
        }
        self.end_keys(synced, ended);
        synced.catalogue_use = CatalogueUse::Serving;
        // Else others have written too, and the next look reads that.
        if synced.head.map_or(0, |own| own.revision) + 1 == head.revision {
            self.set_head(synced, head);
        }
    }

    /// Puts the catalogue of a folder in force, and the ends of keys. Its age goes on; if that is not
    /// known, the API keys are older than any bound.
    pub(super) fn restore(&self, synced: &mut Synced, kept: LocalCopy, age: Option<Micros>) {
        let documents = kept.documents.into_iter().map(|(name, document)| {
            let revision = document.revision;
            (DocumentChange { name, revision }, Some(document))
        });
        self.ended().add_texts(&kept.ended);
        let Some(head) = kept.head else { return };
        self.install(synced, documents.collect(), false);
        synced.lineage = kept.lineage;
        self.set_head(synced, head);
        let age = age.unwrap_or(Micros::from_micros(u64::MAX));
        self.0.keyring.confirm_as_of(age);
        // Until the store says whether it knows this catalogue, or does not answer.
        self.0.keyring.set_barred(true);
    }

    /// Returns all changes since a revision.
    async fn changes(
        &self,
        since: u64,
        deadline: Deadline,
    ) -> Result<Vec<DocumentChange>, StoreError> {
        let (mut since, mut all) = (since, Vec::new());
        loop {
            let deadline = deadline.or_within(CALL_TIMEOUT);
            let changes = self.0.catalogue.changes(since, deadline).await?;
            let is_last = changes.len() < MAX_CHANGES;
            since = changes.last().map_or(since, |last| last.revision);
            all.extend(changes);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Returns `true` if a change is in force.
    fn has(&self, change: &DocumentChange) -> bool {
        let stored = project_of(&change.name).and_then(|id| self.stored(&id));
        stored.is_some_and(|stored| stored.revision >= change.revision)
    }

    /// Puts documents in force; if they are all there are, those that are missing are removed.
    fn install(&self, synced: &mut Synced, documents: Vec<ReadDocument>, is_whole: bool) {
        let known = self.projects().into_iter().map(|state| state.project.id.clone());
        let mut missing: HashSet<ProjectId> =
            if is_whole { known.collect() } else { HashSet::new() };
        for (change, document) in documents {
            let Some(id) = project_of(&change.name) else { continue };
            missing.remove(&id);
            synced.unreadable.remove(&id);
            match document.as_ref().map(decode).transpose() {
                Ok(state) => {
                    let changes = self.put_in_force(&id, state);
                    synced.keep(changes);
                }
                Err(error) => {
                    error!(project = %id, %error, "project can't be read: it stays as it was");
                    synced.unreadable.insert(id);
                }
            }
        }
        for id in missing {
            let changes = self.put_in_force(&id, None);
            synced.keep(changes);
        }
    }
}

/// Logs what is not known of a catalogue that is taken, or dropped by it.
fn log_taken(synced: &Synced, status: &CatalogueStatus, relation: CatalogueRelation) {
    let Some(own) = synced.head else { return };
    if relation == CatalogueRelation::Unchecked {
        warn!(
            revision = own.revision,
            "the store has too many newer revisions to check that it has this one: they are taken"
        );
    }
    let replaced = status.lineage.revision_of(own.epoch);
    if let Some(replaced) = replaced.filter(|replaced| own.revision > *replaced) {
        warn!(
            revision = own.revision,
            replaced, "projects were restored without later revisions that are known here: dropped"
        );
    }
}

fn is_of_modes(event: &FleetEvent) -> bool {
    matches!(event, FleetEvent::Message(message) if **message == *MODES_SET)
}
