//! A conflict: the catalogue of the store is not the one that an instance knows.
//!
//! Nothing is merged. An instance that finds that the store has fallen back marks it there, under its own
//! epoch, and all instances refuse writes until a person says which side is kept (`restore.rs`). All go on
//! with the catalogue that they have, without the keys that are known to have ended (`ended_keys.rs`);
//! keys can be revoked meanwhile.
//!
//! An instance that knows no catalogue, in a store that has none, can't know whether others have lost
//! theirs. So it makes a new one only after [`NEW_CATALOGUE_DELAY`], within which others mark it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rlaas_core::clock::{Deadline, Micros};
use rlaas_limiter::fleet::{CatalogueLook, CatalogueRelation, CatalogueStatus, ChangedWhileRead};
use rlaas_limiter::store::{Fate, StoreError};
use tokio::time::sleep;
use tracing::error;

use super::Registry;
use super::sync::{CALL_TIMEOUT, CatalogueUse, MAX_TRIES, Owned, SyncError, Synced};

/// Time for which a store must be known to have no catalogue before this instance makes one: other
/// instances look each second, and their connections may be broken.
pub(super) const NEW_CATALOGUE_DELAY: Micros = Micros::from_secs(3);

/// Time between two looks at whether others have marked a conflict.
const MARK_POLL: Duration = Duration::from_millis(250);

impl Registry {
    /// Sets the time for which a store must be known to have no catalogue before this instance makes
    /// one, 3 s by default: shorter only if no other instance can have lost one.
    pub fn set_new_catalogue_delay(&self, delay: Duration) {
        let delay_us = Micros::from(delay).as_micros();
        self.0.new_catalogue_delay_us.store(delay_us, Ordering::Relaxed);
    }

    /// Looks at the catalogue of the store. Marks one that lacks what this instance knows, if the ended
    /// keys are united.
    pub(super) async fn status(
        &self,
        synced: &mut Synced,
        deadline: Deadline,
    ) -> Result<CatalogueStatus, StoreError> {
        let call_deadline = deadline.or_within(CALL_TIMEOUT);
        let status = if let Some(shared) = self.0.catalogue.shared() {
            let look = CatalogueLook {
                own: synced.head,
                lineage: &synced.lineage,
                ended: synced.shared_ended_keys.as_deref().unwrap_or_default(),
                instance: if synced.shared_ended_keys.is_some() { self.instance() } else { "" },
                marks_foreign: synced.catalogue_use == CatalogueUse::Serving,
            };
            shared.look(look, call_deadline).await
        } else {
            let head = self.0.catalogue.head(synced.head, call_deadline).await;
            head.map(|head| CatalogueStatus { head, ..CatalogueStatus::default() })
        };
        let is_missing = status.as_ref().is_ok_and(|status| status.head.is_none());
        let since = synced.missing_since.unwrap_or_else(|| self.0.clock.now());
        synced.missing_since = is_missing.then_some(since);
        status
    }

    /// Looks at the catalogue of the store when its ended keys are known here, and those of this instance
    /// there. If it lacks what this instance knows, that is marked then.
    pub(super) async fn status_with_ended_keys(
        &self,
        synced: &mut Owned,
        deadline: Deadline,
    ) -> Result<CatalogueStatus, SyncError> {
        for _ in 0..MAX_TRIES {
            let status = self.status(synced, deadline).await?;
            if synced.shared_ended_keys.as_ref() == Some(&status.ended) || !self.0.fleet.is_shared()
            {
                return Ok(status);
            }
            self.sync_ended_keys(synced, deadline).await?;
        }
        Err(StoreError::custom(Fate::NotExecuted, ChangedWhileRead).into())
    }

    /// Decides what the catalogue of the store means for this instance, and says so.
    pub(super) async fn classify(
        &self,
        synced: &mut Synced,
        status: &CatalogueStatus,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        if is_foreign(status) && synced.catalogue_use != CatalogueUse::Serving {
            if synced.catalogue_use != CatalogueUse::Barred {
                error!(
                    "state-dir has projects of another redis: not ready until it is emptied, or \
                     rlaas project restore keeps either side"
                );
            }
            synced.catalogue_use = CatalogueUse::Barred;
        } else if status.head.is_some()
            || synced.head.is_some() && synced.catalogue_use != CatalogueUse::Barred
        {
            synced.catalogue_use = CatalogueUse::Serving;
        }
        self.set_barred(synced.catalogue_use == CatalogueUse::Barred);
        self.0.metrics.catalogue_conflict.set(is_conflict(synced, status).into());
        if synced.marks == status.marks {
            return Ok(());
        }
        if let Some(shared) = self.0.catalogue.shared().filter(|_| status.marks > 0) {
            for mark in shared.marks(deadline.or_within(CALL_TIMEOUT)).await? {
                let (instance, epoch, revision) = (mark.instance, mark.epoch, mark.revision);
                error!(
                    instance, %epoch, revision, since = ?mark.at,
                    "the store lacks projects that an instance knows: see rlaas project restore"
                );
            }
        }
        synced.marks = status.marks;
        Ok(())
    }

    /// Returns the time until this instance may make a catalogue, if it knows none.
    pub(super) fn new_catalogue_delay_left(&self, synced: &Synced) -> Duration {
        let delay_us = self.0.new_catalogue_delay_us.load(Ordering::Relaxed);
        if synced.head.is_some() || !self.0.fleet.is_shared() {
            return Duration::ZERO;
        }
        let now = self.0.clock.now();
        let since = synced.missing_since.unwrap_or(now);
        Duration::from_micros(delay_us.saturating_sub(now.since(since).as_micros()))
    }
}

/// Returns `true` if the catalogue of the store must not be taken.
pub(super) fn lacks_own(synced: &Synced, status: &CatalogueStatus) -> bool {
    match status.head {
        None => synced.head.is_some(),
        Some((_, relation)) => relation == CatalogueRelation::Lost || is_foreign(status),
    }
}

/// Returns `true` if nobody may write the catalogue of the store, or this instance must not.
pub(super) fn is_conflict(synced: &Synced, status: &CatalogueStatus) -> bool {
    status.marks > 0 || lacks_own(synced, status)
}

fn is_foreign(status: &CatalogueStatus) -> bool {
    status.head.is_some_and(|(_, relation)| relation == CatalogueRelation::Foreign)
}

/// Waits for a part of the time until a catalogue may be made.
///
/// # Errors
///
/// [`StoreError::Expired`] if the deadline is before that.
#[expect(clippy::disallowed_methods, reason = "others may mark a conflict meanwhile")]
pub(super) async fn wait_for_marks(left: Duration, deadline: Deadline) -> Result<(), StoreError> {
    if deadline.remaining() < left {
        return Err(StoreError::Expired);
    }
    sleep(left.min(MARK_POLL)).await;
    Ok(())
}
