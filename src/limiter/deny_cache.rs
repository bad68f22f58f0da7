//! Denials that are still true need no store: whoever hammers at a limit is answered from here.
//!
//! A denial holds until its `retry_after`, at most for `deny-cache.max-age`, and for the same cost:
//! a dearer request waits longer, or can never pass. That is exact for whether a request may pass:
//! until then nothing but a change of rules, which names another revision, lets it. Counts are
//! those of the denial itself; a full fixed window does not count the attempts that are answered
//! here.
//!
//! Entries live in two generations, so that nothing is ever searched for one to drop.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithm::{Algorithm, Cost, Decision, Outcome};
use crate::clock::{Clock, Span, Timestamp};
use crate::rules::Key;
use crate::store::Hit;

/// Parts with a lock of their own.
const SHARDS: usize = 16;

/// Whether and how long denials are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCacheSettings {
    /// The longest that a denial holds here.
    pub max_age: Duration,
    /// Most denials that are held.
    pub max_keys: u32,
}

/// Denials by key.
#[derive(Debug)]
pub struct DenyCache {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    max_age: Span,
    keys_per_generation: usize,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    since: Timestamp,
    denials: HashMap<Box<[u8]>, Denial>,
}

/// A denial by the store.
#[derive(Clone, Copy, Debug)]
struct Denial {
    revision: u64,
    algorithm: Algorithm,
    cost: Cost,
    /// When the store was asked: it has decided no earlier.
    asked_at: Timestamp,
    holds_until: Timestamp,
    decision: Decision,
}

impl DenyCache {
    /// An empty cache.
    pub fn new(settings: DenyCacheSettings, clock: Clock) -> Self {
        let keys = settings.max_keys as usize;
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            max_age: settings.max_age.into(),
            keys_per_generation: (keys / SHARDS / 2).max(1),
            clock,
        }
    }

    /// The time of a question to the store, which may end in a denial.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Remembers a denial by the store, which was asked at `asked_at`.
    pub(super) fn note(
        &self,
        hit: &Hit<'_>,
        revision: u64,
        asked_at: Timestamp,
        decision: &Decision,
    ) {
        let Hit { key, algorithm, cost, .. } = *hit;
        let Outcome::Denied { retry_after } = decision.outcome else { return };
        let holds_until = asked_at + retry_after.min(self.max_age);
        let denial =
            Denial { revision, algorithm, cost, asked_at, holds_until, decision: *decision };
        let mut shard = self.shard(key);
        shard.make_room(self.clock.now(), self.max_age, self.keys_per_generation);
        shard.young.denials.insert(key.as_bytes().into(), denial);
    }

    /// What a request of this cost surely meets, with the waits that are left.
    pub(super) fn denial(&self, key: &Key, revision: u64, cost: Cost) -> Option<Decision> {
        let denial = self.shard(key).denial(key)?;
        let now = self.clock.now();
        let holds = denial.revision == revision && cost == denial.cost && now < denial.holds_until;
        holds.then(|| denial.decision_at(now))
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key.as_bytes());
        let shard = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn denial(&self, key: &Key) -> Option<Denial> {
        let found = self.young.denials.get(key.as_bytes());
        found.or_else(|| self.old.denials.get(key.as_bytes())).copied()
    }

    /// Drops the older generation once the younger one has lived for `max_age` or is full: by
    /// then nothing of the older holds, or there is no room for it.
    fn make_room(&mut self, now: Timestamp, max_age: Span, keys: usize) {
        let is_aged = now.since(self.young.since) >= max_age;
        if is_aged || self.young.denials.len() >= keys {
            let young = Generation { since: now, denials: HashMap::new() };
            self.old = std::mem::replace(&mut self.young, young);
        }
    }
}

impl Denial {
    /// The same denial later: every wait is shorter.
    fn decision_at(&self, now: Timestamp) -> Decision {
        let elapsed = now.since(self.asked_at);
        let left = |span: Span| (span - elapsed).max(Span::from_micros(1));
        let mut decision = self.decision;
        if let Outcome::Denied { retry_after } = &mut decision.outcome {
            *retry_after = left(*retry_after);
        }
        decision.reset_after = left(decision.reset_after);
        // Of a log it is always the window.
        if self.algorithm != Algorithm::SlidingWindowLog {
            decision.ttl = left(decision.ttl);
        }
        decision
    }
}
