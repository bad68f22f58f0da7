//! API keys that have ended, which instances tell each other during a conflict.
//!
//! Several instances may each know revisions that the store has lost, and go on with their own keys. One
//! of them may have revoked a key that another one has not heard of. So each writes the keys that it
//! knows as ended to the list beside the catalogue, which all obey.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::PoisonError;

use rlaas_limiter::fleet::{CatalogueStatus, SetAside};
use tracing::warn;

use super::conflict::RevokedAside;
use super::sync::{CALL_TIMEOUT, Synced};
use super::{ProjectState, Registry, run_blocking};
use crate::clock::{Deadline, Timestamp};
use crate::projects::{ApiKey, ApiKeyState, ProjectId};
use crate::store::StoreError;

/// Most ends of keys that an instance writes, the newest ones: the list is bounded, and keys are revoked
/// there during the conflict, too.
const MAX_WRITTEN: usize = 1_000;
/// Ends that are written by one call.
const BATCH: usize = 200;

/// Keys of projects that were deleted, the last ones.
#[derive(Debug, Default)]
pub(super) struct DeletedKeys(VecDeque<RevokedAside>);

impl DeletedKeys {
    fn add(&mut self, project: &ProjectState, at: Timestamp) {
        let keys = &project.project.keys;
        self.0.extend(keys.iter().map(|key| RevokedAside::new(&project.project.id, &key.id, at)));
        let excess = self.0.len().saturating_sub(MAX_WRITTEN);
        self.0.drain(..excess);
    }
}

impl Registry {
    /// Remembers the keys of a project that is deleted.
    pub(super) fn remember_deleted(&self, project: &ProjectState) {
        let now = self.0.clock.now();
        let deleted = self.0.deleted_keys.lock();
        deleted.unwrap_or_else(PoisonError::into_inner).add(project, now);
    }

    /// Writes the keys that have ended since the last call beside the catalogue, if a conflict is
    /// marked.
    pub(super) async fn write_ends(
        &self,
        synced: &mut Synced,
        status: CatalogueStatus,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        if !status.is_marked {
            return Ok(());
        }
        let (now, since, registry) = (self.0.clock.now(), synced.ends_written, self.clone());
        let ended = run_blocking(move || registry.ended_keys(since, now)).await;
        for batch in ended.chunks(BATCH) {
            let entries: Vec<_> = batch.iter().map(RevokedAside::entry).collect();
            let deadline = deadline.or_within(CALL_TIMEOUT);
            match self.0.catalogue.set_aside(&entries, deadline).await? {
                SetAside::Done => {}
                SetAside::NoConflict => return Ok(()),
                SetAside::Full => {
                    warn!("ends of API keys can't be told to other instances: the list is full");
                    break;
                }
            }
        }
        synced.ends_written = Some(now);
        Ok(())
    }

    /// Returns keys that have ended by `now` and after `since`, the newest ones first.
    fn ended_keys(&self, since: Option<Timestamp>, now: Timestamp) -> Vec<RevokedAside> {
        let is_new = |of: &RevokedAside| since.is_none_or(|since| of.at > since);
        let mut ended: Vec<_> = self
            .projects()
            .iter()
            .flat_map(|state| ends(&state.project.id, &state.project.keys, now))
            .filter(is_new)
            .collect();
        let deleted = self.0.deleted_keys.lock().unwrap_or_else(PoisonError::into_inner);
        // A restored catalogue may have the project again.
        let is_gone = |of: &&RevokedAside| self.stored(&of.project).is_none();
        ended.extend(deleted.0.iter().filter(is_gone).filter(|of| is_new(of)).cloned());
        drop(deleted);
        ended.sort_unstable_by_key(|of| Reverse(of.at));
        ended.truncate(MAX_WRITTEN);
        ended
    }
}

/// Returns the keys of a project that have ended by `now`.
fn ends(
    project: &ProjectId,
    keys: &[ApiKey],
    now: Timestamp,
) -> impl Iterator<Item = RevokedAside> {
    let has_ended = move |key: &&ApiKey| key.state(now) != ApiKeyState::Active;
    let ended = move |key: &ApiKey| {
        let at = key.end().filter(|end| *end <= now).unwrap_or(now);
        RevokedAside::new(project, &key.id, at)
    };
    keys.iter().filter(has_ended).map(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::projects::{ApiKeySecret, Environment, NewKey, Project, ProjectRules};

    const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn shop(keys: usize) -> Project {
        let mut shop = Project::new("shop".parse().expect("an id"), "", START).expect("a project");
        for _ in 0..keys {
            let secret = ApiKeySecret::generate(&Environment::default()).expect("random numbers");
            shop.create_key(NewKey::default(), &secret, START).expect("a key");
        }
        shop
    }

    #[test]
    fn keys_have_ended_when_they_are_revoked_or_replaced_without_grace() {
        let mut shop = shop(4);
        let ids: Vec<String> = shop.keys.iter().map(|key| key.id.clone()).collect();
        let at = |seconds| START + Micros::from_secs(seconds);
        let secret = || ApiKeySecret::generate(&Environment::default()).expect("random numbers");
        shop.revoke_key(&ids[0], at(1)).expect("a key");
        shop.rotate_key(&ids[1], Micros::ZERO, &secret(), at(2)).expect("keys");
        shop.rotate_key(&ids[2], Micros::from_secs(9), &secret(), at(2)).expect("keys");
        let ended = |by| {
            let ends = ends(&shop.id, &shop.keys, at(by));
            ends.map(|end| (end.key, end.at)).collect::<Vec<_>>()
        };
        let mut expected = vec![(ids[0].clone(), at(1)), (ids[1].clone(), at(2))];
        assert_eq!(ended(3), expected);
        expected.push((ids[2].clone(), at(11)));
        assert_eq!(ended(11), expected);
    }

    #[test]
    fn the_last_deleted_keys_are_remembered() {
        let (mut deleted, rules) = (DeletedKeys::default(), ProjectRules::default());
        let state = ProjectState { project: shop(8), rules, revision: 1 };
        for second in 0..200 {
            deleted.add(&state, START + Micros::from_secs(second));
        }
        assert_eq!(deleted.0.len(), MAX_WRITTEN);
        assert_eq!(deleted.0[0].at, START + Micros::from_secs(75));
    }
}
