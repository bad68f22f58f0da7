//! Administration of keys: looks at their state, and changes it, while decisions go on.
//!
//! No policy applies here, and the deny cache answers nothing: if the store does not answer, the
//! caller is told. The keys of one shard are looked at or changed in one atomic step, and that step
//! also reads their state before and after. In a cluster, keys may be in several shards; they are
//! changed one shard after the other, and a failure leaves the later ones as they were.
//!
//! A ban must not be lifted by an outage, so it decides before the policies of rules. Other
//! overrides are not kept: without the store, the grants of the rules decide.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use smallvec::SmallVec;
use thiserror::Error;

use super::Limiter;
use crate::algorithm::{Algorithm, Cost, Decision, Limit};
use crate::clock::{Deadline, Timestamp};
use crate::control::{ControlRecord, OverrideChange, OverrideKind};
use crate::expiring_map::ExpiringMap;
use crate::operation::{Action, Held, HitReply, Shard, StoreHit, StoreRequest};
use crate::plan::{GrantSource, KeyPart, SelectedKey};
use crate::rules::{Coupling, Grant, Key, LimitFrom, Mode};
use crate::store::StoreError;
use crate::verdict::HitResult;

/// A change of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// Makes a key as if nothing had ever been taken. Later refunds of units that were taken before
    /// have no effect. Overrides stay.
    Reset,
    /// Returns units, up to full and no further. A sliding window log loses its newest entries.
    Refund(Cost),
    /// Sets an override in place of an earlier one of the same kind. Only for keys whose rule is
    /// overridable.
    SetOverride(OverrideChange),
    /// Removes overrides. A key without one is no error.
    ClearOverride(OverrideKind),
}

/// The state of one key.
#[derive(Clone, Debug)]
pub struct KeyState {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Algorithm of the rule.
    pub algorithm: Algorithm,
    /// Mode of the rule for this key.
    pub mode: Mode,
    /// Name of the state.
    pub key: Key,
    /// Parts of the key, in the order of `key_by`.
    pub parts: Vec<KeyPart>,
    /// Name of the state in the store, without a window: see
    /// [`Store::key_name`](crate::store::Store::key_name).
    pub storage_key: String,
    /// Grant in force.
    pub grant: Grant,
    /// Grant that would be in force without a ban that was set for the key.
    pub below_ban: Grant,
    /// Origin of the grant.
    pub grant_from: GrantSource,
    /// Where requests of the rule have limits of their own.
    pub limit_from: Option<LimitFrom>,
    /// Overrides of the key: none, one of each kind, or both.
    pub overrides: ControlRecord,
    /// Whether one unit is left, with the numbers of the state.
    pub decision: Decision,
    /// What reservations hold, if the rule holds.
    pub held: Option<Box<Held>>,
}

impl KeyState {
    /// Returns the limit by which the state counts: that in force, or that beneath a ban.
    pub fn limit(&self) -> Option<&Limit> {
        self.grant.limit().or_else(|| self.below_ban.limit())
    }

    /// Returns the units in use: up to the limit and its debt. Attempts that a full fixed window counts are
    /// not among them.
    pub fn used(&self) -> u64 {
        let count = self.decision.current_count;
        let most = |limit: &Limit| limit.burst() + limit.max_debt().unwrap_or_default();
        self.limit().map_or(count, |limit| count.min(most(limit)))
    }
}

/// The state of keys before and after a change, in the same order.
#[derive(Clone, Debug, Default)]
pub struct KeysChanged {
    /// State before.
    pub before: Vec<KeyState>,
    /// State after.
    pub after: Vec<KeyState>,
}

/// A change that was not made, or not of all keys.
#[derive(Clone, Debug, Error)]
#[error("{error}")]
pub struct ChangeError {
    /// The keys that were changed, by atomic steps before the failure.
    pub done: KeysChanged,
    /// The failure. If it is [ambiguous](StoreError::is_ambiguous), the keys of one more shard may
    /// have been changed.
    #[source]
    pub error: StoreError,
}

impl Limiter {
    /// Returns the state of keys, in their order, by the rules that selected them. Counts nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn inspect(
        &self,
        keys: &[SelectedKey],
        deadline: Deadline,
    ) -> Result<Vec<KeyState>, StoreError> {
        let mut states = Slots::new(keys.len());
        for (shard, positions) in self.shards(keys) {
            let hits: StoreHits<'_> = positions.iter().filter_map(|at| look(&keys[*at])).collect();
            let mut replies = self.step(shard, &hits, deadline).await?.into_iter();
            for at in positions {
                states.set(at, self.state(&keys[at], &mut replies));
            }
        }
        Ok(states.into_vec())
    }

    /// Changes keys, and removes their cached denials from the deny cache of this limiter. A key
    /// without a limit that no override can change has no state: it stays as it is.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] if the store does not answer before the deadline, with the keys that were
    /// changed before.
    pub async fn change(
        &self,
        keys: &[SelectedKey],
        change: &KeyChange,
        deadline: Deadline,
    ) -> Result<KeysChanged, ChangeError> {
        let (mut before, mut after) = (Slots::new(keys.len()), Slots::new(keys.len()));
        for (shard, positions) in self.shards(keys) {
            let hits = positions.iter().filter_map(|at| look(&keys[*at]));
            let hits = hits.flat_map(|look| [look, change.hit(look), look]);
            let hits: StoreHits<'_> = hits.collect();
            let replies = self.step(shard, &hits, deadline).await;
            // After an unknown outcome too: the change may have been made.
            for at in &positions {
                self.forget_denials(&keys[*at].hit.key);
            }
            let replies = match replies {
                Ok(replies) => replies,
                Err(error) => {
                    let done = KeysChanged { before: before.into_vec(), after: after.into_vec() };
                    return Err(ChangeError { done, error });
                }
            };
            let mut looks_before = replies.iter().step_by(3).cloned();
            let mut looks_after = replies.iter().skip(2).step_by(3).cloned();
            for at in positions {
                before.set(at, self.state(&keys[at], &mut looks_before));
                after.set(at, self.state(&keys[at], &mut looks_after));
            }
        }
        Ok(KeysChanged { before: before.into_vec(), after: after.into_vec() })
    }

    /// Executes the hits of one shard in one atomic step, each by itself and in order.
    pub(super) async fn step(
        &self,
        shard: Shard,
        hits: &[StoreHit<'_>],
        deadline: Deadline,
    ) -> Result<SmallVec<[HitReply; 2]>, StoreError> {
        if hits.is_empty() {
            return Ok(SmallVec::new());
        }
        let request = StoreRequest {
            hits,
            coupling: Coupling::EachAlone,
            shard,
            once: None,
            reservation: None,
        };
        Ok(self.store.execute(request, deadline).await?.hits)
    }

    /// Returns the positions of the keys of each shard.
    fn shards(&self, keys: &[SelectedKey]) -> BTreeMap<Shard, Vec<usize>> {
        let mut shards: BTreeMap<Shard, Vec<usize>> = BTreeMap::new();
        for (at, key) in keys.iter().enumerate() {
            shards.entry(self.store.shard(&key.hit.key)).or_default().push(at);
        }
        shards
    }

    /// Returns the state of a key. Takes the reply to its look, if it has one.
    pub(super) fn state(
        &self,
        selected: &SelectedKey,
        replies: &mut impl Iterator<Item = HitReply>,
    ) -> Option<KeyState> {
        let SelectedKey { rule, hit, parts, grant_from, limit_from } = selected;
        let reply = match hit.for_store() {
            Some(_) => replies.next()?,
            None => HitResult::without_store(hit)?.reply,
        };
        self.shared.bans.record(&hit.key, &reply);
        let applied = reply.applied.as_deref();
        let overrides = applied.and_then(|applied| applied.record.clone()).unwrap_or_default();
        let set = overrides.iter().find(|set| set.kind() == OverrideKind::Grant);
        let below_ban = set.zip(hit.for_store()).map(|(set, hit)| set.grant.within(hit.frame()));
        Some(KeyState {
            rule: Arc::clone(rule),
            algorithm: hit.algorithm,
            mode: hit.mode,
            key: hit.key.clone(),
            parts: parts.clone(),
            storage_key: self.store.key_name(&hit.key),
            grant: applied.map_or(hit.grant, |applied| applied.grant),
            grant_from: applied.map_or(*grant_from, |_| GrantSource::KeyOverride),
            limit_from: limit_from.clone(),
            below_ban: below_ban.unwrap_or(hit.grant),
            overrides,
            decision: Decision { remaining: hit.remaining(&reply), ..reply.decision },
            held: reply.held,
        })
    }
}

impl KeyChange {
    const fn action(&self) -> Action {
        match self {
            Self::Reset => Action::Reset,
            Self::Refund(units) => Action::Credit(*units),
            Self::SetOverride(_) => Action::SetOverride,
            Self::ClearOverride(kind) => Action::ClearOverride(*kind),
        }
    }

    /// Returns the hit that changes the key of a look.
    const fn hit<'a>(&'a self, look: StoreHit<'a>) -> StoreHit<'a> {
        let change = match self {
            Self::SetOverride(change) => Some(change),
            Self::Reset | Self::Refund(_) | Self::ClearOverride(_) => None,
        };
        StoreHit { action: self.action(), change, ..look }
    }
}

type StoreHits<'a> = SmallVec<[StoreHit<'a>; 2]>;

/// Returns the hit that looks whether one unit is left; `None` if the key has no state.
pub(super) fn look(key: &SelectedKey) -> Option<StoreHit<'_>> {
    Some(StoreHit { action: Action::Peek(Cost::ONE), ..key.hit.for_store()? })
}

/// States by the position of their key.
struct Slots(Vec<Option<KeyState>>);

impl Slots {
    fn new(len: usize) -> Self {
        Self(vec![None; len])
    }

    fn set(&mut self, at: usize, state: Option<KeyState>) {
        self.0[at] = state;
    }

    fn into_vec(self) -> Vec<KeyState> {
        self.0.into_iter().flatten().collect()
    }
}

/// Most bans that are kept. Of more, those that end first are dropped.
const MAX_BANS: usize = 10_000;

/// Bans by key, with their ends by the clock of the store.
#[derive(Debug)]
pub(super) struct LastSeenBans(RwLock<ExpiringMap<Timestamp>>);

impl LastSeenBans {
    pub(super) fn new() -> Self {
        Self(RwLock::new(ExpiringMap::new(MAX_BANS)))
    }

    /// Learns from the reply of the store to an overridable hit.
    pub(super) fn record(&self, key: &Key, reply: &HitReply) {
        let ban = reply.applied.as_ref().filter(|applied| applied.grant == Grant::Banned);
        let ends_at = ban.map(|ban| ban.ends_at);
        let known =
            self.0.read().unwrap_or_else(PoisonError::into_inner).get(key.as_bytes()).copied();
        if known == ends_at {
            return;
        }
        let mut bans = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match ends_at {
            Some(ends_at) => {
                bans.insert_or_evict(key.as_bytes(), ends_at, ends_at, reply.decision.at);
            }
            None => bans.remove(key.as_bytes()),
        }
    }

    /// Returns the end of the ban of a key, if one holds when the clock of the store shows `time`.
    pub(super) fn ends_at(&self, key: &Key, time: Timestamp) -> Option<Timestamp> {
        let bans = self.0.read().unwrap_or_else(PoisonError::into_inner);
        bans.get(key.as_bytes()).copied().filter(|ends_at| time < *ends_at)
    }
}
