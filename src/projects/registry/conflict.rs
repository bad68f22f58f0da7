//! A conflict: the catalogue of the store is not the one that instances know.
//!
//! An instance that notices it goes on with its own catalogue and marks the conflict in the store, so
//! that all instances refuse writes. Meanwhile keys are revoked beside the catalogue (`PROJECT KEY` with
//! the time in Unix microseconds), which every instance obeys. Instances also write there the keys that
//! they know as ended (`ended_keys.rs`).
//!
//! An instance that knows no catalogue, in a store that has none, can't know whether others have lost
//! theirs. So it makes a new one only after [`NEW_CATALOGUE_DELAY`], within which others mark it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rlaas_limiter::fleet::{
    CatalogueHead, CatalogueRelation, CatalogueStatus, CatalogueWrite, SetAside, WriteOutcome,
};
use tokio::sync::OwnedMutexGuard;
use tokio::time::sleep;

use super::document::{decode, document_name, encode};
use super::sync::{CALL_TIMEOUT, ReadDocument, SyncError, Synced};
use super::{ChangeError, ProjectState, Registry, run_blocking};
use crate::clock::{Deadline, Micros, Timestamp};
use crate::projects::{ApiKey, ApiKeyError, ProjectId};
use crate::store::StoreError;

/// Time for which a store must be known to have no catalogue before this instance makes one: other
/// instances look each second, and their connections may be broken.
pub(super) const NEW_CATALOGUE_DELAY: Micros = Micros::from_secs(3);

/// Time between two looks at whether others have marked a conflict.
const MARK_POLL: Duration = Duration::from_millis(250);

/// A key that was revoked beside the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RevokedAside {
    pub(super) project: ProjectId,
    pub(super) key: String,
    pub(super) at: Timestamp,
}

impl RevokedAside {
    pub(super) fn new(project: &ProjectId, key: &str, at: Timestamp) -> Self {
        Self { project: project.clone(), key: key.to_owned(), at }
    }

    /// Returns the name and content of its entry.
    pub(super) fn entry(&self) -> (String, Vec<u8>) {
        let Self { project, key, at } = self;
        (format!("{project} {key}"), at.as_micros().to_string().into_bytes())
    }

    fn parse((name, content): (String, Vec<u8>)) -> Option<Self> {
        let (project, key) = name.split_once(' ')?;
        let at_us = str::from_utf8(&content).ok()?.parse().ok()?;
        let (project, at) = (project.parse().ok()?, Timestamp::from_micros(at_us));
        Some(Self { project, key: key.to_owned(), at })
    }
}

impl Registry {
    /// Sets the time for which a store must be known to have no catalogue before this instance makes
    /// one, 3 s by default: shorter only if no other instance can have lost one.
    pub fn set_new_catalogue_delay(&self, delay: Duration) {
        let delay_us = Micros::from(delay).as_micros();
        self.0.new_catalogue_delay_us.store(delay_us, Ordering::Relaxed);
    }

    /// Revokes a key beside the catalogue, on this instance at once, on the others within 2 s.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Conflict`] if no conflict is marked in the store.
    pub async fn revoke_aside(
        &self,
        id: &ProjectId,
        key: &str,
        deadline: Deadline,
    ) -> Result<ApiKey, ChangeError<ApiKeyError>> {
        let synced = self.locked(deadline).await.map_err(ChangeError::Unavailable)?;
        let find = || {
            let state = self.stored(id)?;
            state.project.keys.iter().find(|one| one.id == key).cloned()
        };
        find().ok_or(ChangeError::Refused(ApiKeyError::NotFound))?;
        let at = self.0.clock.now();
        let revoked = RevokedAside::new(id, key, at);
        let set = self.0.catalogue.set_aside(&[revoked.entry()], deadline).await;
        match set.map_err(ChangeError::Unavailable)? {
            SetAside::Done => {}
            SetAside::Full => return Err(ChangeError::TooLarge),
            SetAside::NoConflict => return Err(ChangeError::Conflict),
        }
        drop(self.revoke(synced, vec![revoked]).await);
        find().ok_or(ChangeError::Refused(ApiKeyError::NotFound))
    }

    /// Looks at the catalogue of the store.
    pub(super) async fn status(
        &self,
        synced: &mut Synced,
        deadline: Deadline,
    ) -> Result<CatalogueStatus, StoreError> {
        let call_deadline = deadline.or_within(CALL_TIMEOUT);
        let status = self.0.catalogue.status(synced.head, synced.in_step, call_deadline).await;
        let is_missing = status.as_ref().is_ok_and(|status| status.head.is_none());
        let since = synced.missing_since.unwrap_or_else(|| self.0.clock.now());
        synced.missing_since = is_missing.then_some(since);
        status
    }

    /// Returns `true` if the catalogue of the store must not be taken.
    pub(super) fn is_conflict(&self, synced: &Synced, status: CatalogueStatus) -> bool {
        let lacks = lacks_own(synced, status);
        let is_conflict = lacks || status.is_marked;
        self.0.metrics.catalogue_conflict.set(is_conflict.into());
        self.0.keyring.set_outdated(is_conflict && !lacks);
        is_conflict
    }

    /// Revokes the keys that are revoked beside the catalogue, if there are others than before.
    pub(super) async fn obey_aside(
        &self,
        synced: OwnedMutexGuard<Synced>,
        count: u64,
        deadline: Deadline,
    ) -> Result<OwnedMutexGuard<Synced>, SyncError> {
        if synced.aside == count {
            return Ok(synced);
        }
        let entries = self.revoked_aside(deadline).await?;
        let mut synced = self.revoke(synced, entries).await;
        synced.aside = count;
        Ok(synced)
    }

    pub(super) async fn revoked_aside(
        &self,
        deadline: Deadline,
    ) -> Result<Vec<RevokedAside>, StoreError> {
        let entries = self.0.catalogue.aside(deadline.or_within(CALL_TIMEOUT)).await?;
        Ok(entries.into_iter().filter_map(RevokedAside::parse).collect())
    }

    /// Revokes keys on this instance alone.
    async fn revoke(
        &self,
        synced: OwnedMutexGuard<Synced>,
        revoked: Vec<RevokedAside>,
    ) -> OwnedMutexGuard<Synced> {
        let (registry, mut synced) = (self.clone(), synced);
        let mut synced = run_blocking(move || {
            for RevokedAside { project, key, at } in revoked {
                let Some(state) = registry.stored(&project) else { continue };
                let mut after = ProjectState::clone(&state);
                if after.project.revoke_key(&key, at).is_ok() && after != *state {
                    let changes = registry.put_in_force(&project, Some(after));
                    synced.keep(changes);
                }
            }
            synced
        })
        .await;
        synced.flush().await;
        synced
    }

    /// Writes the ends of keys that this instance knows into a restored catalogue that lacks them, before
    /// it is taken: somebody may have restored it who did not know them. Returns `true` if there were
    /// any.
    pub(super) async fn write_ended_keys(
        &self,
        head: CatalogueHead,
        documents: &[ReadDocument],
        deadline: Deadline,
    ) -> Result<bool, SyncError> {
        let mut writes = BTreeMap::new();
        for (change, document) in documents {
            let Some(Ok(taken)) = document.as_ref().map(decode) else { continue };
            let Some(own) = self.stored(&taken.project.id) else { continue };
            let mut project = taken.project.clone();
            if project.end_keys_as(&own.project) {
                let name = document_name(&taken.project.id);
                let write = CatalogueWrite::new(name);
                let mut write = CatalogueWrite { expected: change.revision, ..write };
                encode(&mut write, Some(&taken), &project, &taken.rules);
                writes.insert(name.to_owned(), write);
            }
        }
        for write in writes.values() {
            let deadline = deadline.or_within(CALL_TIMEOUT);
            let outcome = self.0.catalogue.write(Some(head), write, deadline).await?;
            // It is read again after others have written it.
            if !matches!(outcome, WriteOutcome::Written { .. } | WriteOutcome::Raced { .. }) {
                return Err(SyncError::Conflict);
            }
        }
        Ok(!writes.is_empty())
    }

    /// Waits until this instance may make a catalogue, if the store has none.
    pub(super) async fn await_new_catalogue(
        &self,
        synced: OwnedMutexGuard<Synced>,
        deadline: Deadline,
    ) -> Result<OwnedMutexGuard<Synced>, SyncError> {
        let mut synced = synced;
        while synced.head.is_none() {
            let left = self.new_catalogue_delay_left(&synced);
            if left.is_zero() {
                break;
            }
            drop(synced);
            if deadline.remaining() < left {
                return Err(StoreError::Expired.into());
            }
            wait(left.min(MARK_POLL)).await;
            synced = self.sync_locked(self.locked(deadline).await?, deadline).await?;
        }
        Ok(synced)
    }

    /// Returns the time until this instance may make a catalogue.
    pub(super) fn new_catalogue_delay_left(&self, synced: &Synced) -> Duration {
        let delay_us = self.0.new_catalogue_delay_us.load(Ordering::Relaxed);
        if !self.0.fleet.is_shared() {
            return Duration::ZERO;
        }
        let now = self.0.clock.now();
        let since = synced.missing_since.unwrap_or(now);
        Duration::from_micros(delay_us.saturating_sub(now.since(since).as_micros()))
    }
}

/// Returns `true` if the catalogue of the store lacks what this instance knows.
pub(super) fn lacks_own(synced: &Synced, status: CatalogueStatus) -> bool {
    match status.head {
        None => synced.head.is_some(),
        Some((_, relation)) => relation == CatalogueRelation::Conflict,
    }
}

#[expect(clippy::disallowed_methods, reason = "others may mark a conflict meanwhile")]
async fn wait(time: Duration) {
    sleep(time).await;
}
