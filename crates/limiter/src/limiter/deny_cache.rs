//! A cache of denials, so that clients that keep calling at their limit cause no store calls.
//!
//! A denial holds until its `retry_after`, at most for `deny-cache.max-age`, for requests of the
//! same cost. Until then the store would deny them as well, unless one of three things happens.
//! Rules are replaced: entries of another revision do not match. Units are refunded: this instance
//! removes the entry, but other instances may deny until their entries expire. The key is changed
//! by an operator: this instance removes the entry, and tells the others (`forget.rs`).
//!
//! A reply that was on its way while its key was changed is not cached, because the store may have
//! decided it before the change.
//!
//! Counts are those of the cached denial. A full fixed window does not count attempts that the
//! cache denies.
//!
//! Entries live in two generations, so that no search for an entry to evict is needed. If there are
//! projects, the one with most entries makes space for those of the others.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithm::{Algorithm, Cost, Limit, Outcome};
use crate::clock::{Clock, Micros, Timestamp};
use crate::operation::{Action, HitReply, StoreHit};
use crate::project_counts::ProjectCounts;
use crate::rules::{Grant, Key, Share};

/// Longest key in bytes that is cached. It bounds the memory whatever ids are sent.
const MAX_KEY_LEN: usize = 256;

/// Number of stripes, each with its own lock.
const STRIPES: usize = 16;

/// Settings of the deny cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCacheSettings {
    /// Longest time that a denial is cached.
    pub max_age: Duration,
    /// Maximum number of cached denials.
    pub max_keys: u32,
}

/// Cached denials by key.
#[derive(Debug)]
pub struct DenyCache {
    stripes: Box<[Mutex<CacheStripe>]>,
    hasher: RandomState,
    max_age: Micros,
    keys_per_generation: usize,
    clock: Clock,
    /// Number of removals so far.
    removals: AtomicU64,
}

/// The time before a call of the store, for [`DenyCache::record`].
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedAt {
    time: Timestamp,
    /// [`DenyCache::removals`] at that time.
    removals: u64,
}

#[derive(Debug, Default)]
struct CacheStripe {
    young: Generation,
    old: Generation,
    /// [`DenyCache::removals`] at the last removal from this stripe.
    removed: u64,
}

#[derive(Debug, Default)]
struct Generation {
    since: Timestamp,
    denials: HashMap<Box<[u8]>, Denial>,
}

/// A denial by the store.
#[derive(Debug)]
struct Denial {
    revision: u64,
    algorithm: Algorithm,
    /// Compared on lookup: an override of the rule may grant another limit for the same key.
    grant: Grant,
    cost: Cost,
    headroom: Option<Share>,
    at_least: Option<NonZeroU32>,
    /// Time before the store was called; the store decided no earlier.
    requested_at: Timestamp,
    holds_until: Timestamp,
    reply: HitReply,
}

impl DenyCache {
    /// Creates an empty cache.
    pub fn new(settings: DenyCacheSettings, clock: Clock) -> Self {
        let keys = settings.max_keys as usize;
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            max_age: settings.max_age.into(),
            keys_per_generation: (keys / STRIPES / 2).max(1),
            clock,
            removals: AtomicU64::new(0),
        }
    }

    /// Returns the longest time that a denial is cached.
    pub(super) fn max_age(&self) -> Micros {
        self.max_age
    }

    /// Returns the time to pass to [`DenyCache::record`], read before the store is called.
    pub(super) fn now(&self) -> RequestedAt {
        let removals = self.removals.load(Ordering::SeqCst);
        RequestedAt { time: self.clock.now(), removals }
    }

    /// Caches a denial that the store decided after `requested_at`.
    pub(super) fn record(
        &self,
        hit: &StoreHit<'_>,
        revision: u64,
        requested_at: RequestedAt,
        reply: &HitReply,
    ) {
        let StoreHit { key, algorithm, grant: &grant, action, .. } = *hit;
        // Reports are always counted, and a peek for cost 0 is no denial of a cost.
        let cost = match action {
            Action::Take(cost) | Action::Peek(cost) if cost != Cost::NONE => cost,
            _ => return,
        };
        // A look does not store the conversion of a state to another limit. Until a take does, units
        // may become available earlier than it has announced.
        if hit.on_change.is_some() && matches!(action, Action::Peek(_)) {
            return;
        }
        // A request by another limit on the state, of a larger rate, may shorten the wait.
        if !Self::may_have(key) || grant.limit().is_some_and(Limit::shares_state) {
            return;
        }
        let RequestedAt { time: requested_at, removals } = requested_at;
        let Outcome::Denied { retry_after } = reply.decision.outcome else { return };
        let holds_until = requested_at + retry_after.min(self.max_age);
        let denial = Denial {
            revision,
            algorithm,
            grant,
            cost,
            headroom: hit.headroom,
            at_least: hit.least(),
            requested_at,
            holds_until,
            reply: reply.clone(),
        };
        let mut stripe = self.stripe(key.as_bytes());
        if stripe.removed > removals {
            return;
        }
        stripe.rotate(self.clock.now(), self.max_age, self.keys_per_generation);
        stripe.young.denials.insert(key.as_bytes().into(), denial);
    }

    /// Removes the entry of a key, because units were returned to it, or its grant was changed.
    pub(super) fn forget(&self, key: &Key) {
        self.forget_bytes(key.as_bytes());
    }

    /// As [`DenyCache::forget`], by the bytes of the key.
    pub(super) fn forget_bytes(&self, key: &[u8]) {
        let mut stripe = self.stripe(key);
        stripe.removed = 1 + self.removals.fetch_add(1, Ordering::SeqCst);
        stripe.young.denials.remove(key);
        stripe.old.denials.remove(key);
    }

    /// Removes all entries.
    pub(super) fn clear(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
            let removed = 1 + self.removals.fetch_add(1, Ordering::SeqCst);
            *stripe = CacheStripe { removed, ..CacheStripe::default() };
        }
    }

    /// Returns `true` if denials of the key may be cached.
    pub(super) fn may_have(key: &Key) -> bool {
        key.as_bytes().len() <= MAX_KEY_LEN
    }

    /// Returns the cached denial of a hit, with the waits that are left.
    pub(super) fn denial(&self, hit: &StoreHit<'_>, revision: u64) -> Option<HitReply> {
        let stripe = self.stripe(hit.key.as_bytes());
        let denial = stripe.denial(hit.key)?;
        let now = self.clock.now();
        let cost = hit.action.cost();
        let is_same = (denial.revision, denial.cost, denial.grant) == (revision, cost, *hit.grant)
            && (denial.headroom, denial.at_least) == (hit.headroom, hit.least());
        if !is_same || now >= denial.holds_until {
            return None;
        }
        let elapsed = now.since(denial.requested_at);
        let decision = denial.reply.decision.after(elapsed, denial.algorithm);
        Some(HitReply { decision, ..denial.reply.clone() })
    }

    /// Returns for how long [`DenyCache::denial`] goes on to return a denial.
    pub(super) fn holds_for(&self, hit: &StoreHit<'_>, revision: u64) -> Option<Micros> {
        self.denial(hit, revision)?;
        let key = hit.key.as_bytes();
        let holds_until = self.stripe(key).denial(hit.key)?.holds_until;
        Some(holds_until.since(self.clock.now()))
    }

    fn stripe(&self, key: &[u8]) -> MutexGuard<'_, CacheStripe> {
        let hash = self.hasher.hash_one(key);
        let stripe = usize::try_from(hash % STRIPES as u64).unwrap_or_default();
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheStripe {
    fn denial(&self, key: &Key) -> Option<&Denial> {
        let found = self.young.denials.get(key.as_bytes());
        found.or_else(|| self.old.denials.get(key.as_bytes()))
    }

    /// Starts a new generation once the young one is older than `max_age` or full. Entries of the
    /// dropped generation have expired, or there is no space for them but in place of entries of a
    /// project that has more.
    fn rotate(&mut self, now: Timestamp, max_age: Micros, keys: usize) {
        let is_aged = now.since(self.young.since) >= max_age;
        if is_aged || self.young.denials.len() >= keys {
            let young = Generation { since: now, denials: HashMap::new() };
            let old = std::mem::replace(&mut self.young, young);
            let dropped = std::mem::replace(&mut self.old, old);
            if !is_aged {
                self.old.replace_largest_project(dropped, now);
            }
        }
    }
}

impl Generation {
    /// Takes over the entries of a dropped generation that hold, in place of as many entries of the
    /// project that has most. Not those of this project.
    fn replace_largest_project(&mut self, dropped: Self, now: Timestamp) {
        let mut counts = ProjectCounts::default();
        for key in self.denials.keys().chain(dropped.denials.keys()) {
            counts.add(Key::project_in(key));
        }
        if counts.is_empty() {
            return;
        }
        let largest = counts.largest(self.denials.len() + dropped.denials.len());
        let is_of_largest = |key: &[u8]| *Key::project_in(key) == *largest;
        let kept = dropped.denials.into_iter().filter(|(key, denial)| {
            now < denial.holds_until && !is_of_largest(key) && !self.denials.contains_key(key)
        });
        let kept: Vec<_> = kept.collect();
        let replaced = self.denials.extract_if(|key, _| is_of_largest(key)).take(kept.len());
        let space = replaced.count();
        self.denials.extend(kept.into_iter().take(space));
    }
}
