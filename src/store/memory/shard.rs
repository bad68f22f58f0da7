//! One shard of the memory store: a bounded table of states that forgets without pauses.
//!
//! Slots lie densely in one vector with an index from hash to slot beside it, so that a cursor can
//! walk them a few at a time. When the shard is full, a new key takes the place of one of the next
//! [`CANDIDATES`] slots: an expired one, else the one that expires first, and an id at its limit
//! only where all of them are. What is evicted while it is alive is counted; its id starts afresh.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::algorithm::State;
use crate::clock::{Seen, Span, Timestamp};
use crate::telemetry::metrics::Metrics;

/// Slots that are looked at for one to evict.
const CANDIDATES: usize = 16;

/// A part of all keys, behind one lock.
#[derive(Debug)]
pub(super) struct Shard {
    /// From the hash of a key to its slot.
    index: HashTable<u32>,
    slots: Vec<Slot>,
    hasher: DefaultHashBuilder,
    /// Where the sweep goes on.
    cursor: usize,
    max_keys: usize,
    /// When this shard has decided.
    seen: Seen,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Slot {
    key: Box<str>,
    state: State,
    /// Nobody must get out of a limit because there was no room for it.
    at_limit: bool,
}

impl Slot {
    /// As Redis does it: in whole milliseconds, and alive at the very last one.
    fn is_expired(&self, time: Timestamp) -> bool {
        time.as_millis() > self.state.expires_at().as_millis()
    }
}

impl Shard {
    pub(super) fn new(max_keys: usize, hasher: DefaultHashBuilder, metrics: Arc<Metrics>) -> Self {
        Self {
            index: HashTable::new(),
            slots: Vec::new(),
            hasher,
            cursor: 0,
            max_keys,
            seen: Seen::default(),
            metrics,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Notes that a decision on a limit with this `window` was made at `time`.
    pub(super) fn see(&mut self, time: Timestamp, window: Span) {
        self.seen.note(window, time);
    }

    /// The time at which to decide on a limit with this `window` when the clock shows `time`.
    pub(super) fn held(&self, time: Timestamp, window: Span) -> Timestamp {
        time.hold(self.seen.at(window), window)
    }

    /// Is there a slot for this key?
    pub(super) fn holds(&self, hash: u64, key: &str) -> bool {
        self.position(hash, key).is_some()
    }

    /// What is remembered of a key at `time`.
    pub(super) fn state(&self, hash: u64, key: &str, time: Timestamp) -> &State {
        self.position(hash, key)
            .map(|position| &self.slots[position])
            .filter(|slot| !slot.is_expired(time))
            .map_or(&State::None, |slot| &slot.state)
    }

    /// Changes the state of a key; `change` tells whether it is at its limit.
    pub(super) fn update(
        &mut self,
        hash: u64,
        key: &str,
        time: Timestamp,
        change: impl FnOnce(&mut State) -> bool,
    ) {
        let position = self.position(hash, key).unwrap_or_else(|| self.insert(hash, key, time));
        let slot = &mut self.slots[position];
        if slot.is_expired(time) {
            slot.state = State::None;
        }
        slot.at_limit = change(&mut slot.state);
    }

    /// Looks at the next `count` slots and drops the expired ones.
    pub(super) fn sweep(&mut self, count: usize, time: Timestamp) {
        for _ in 0..count.min(self.slots.len()) {
            if self.cursor >= self.slots.len() {
                self.cursor = 0;
            }
            match self.slots.get(self.cursor) {
                Some(slot) if slot.is_expired(time) => self.remove(self.cursor),
                _ => self.cursor += 1,
            }
        }
    }

    fn position(&self, hash: u64, key: &str) -> Option<usize> {
        let slot = self.index.find(hash, |slot| *self.slots[*slot as usize].key == *key);
        slot.map(|slot| *slot as usize)
    }

    fn insert(&mut self, hash: u64, key: &str, time: Timestamp) -> usize {
        if self.slots.len() >= self.max_keys {
            self.evict(time);
        }
        let position = self.slots.len();
        self.slots.push(Slot { key: key.into(), state: State::None, at_limit: false });
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.index.insert_unique(hash, slot_number(position), |slot| {
            hasher.hash_one(&*slots[*slot as usize].key)
        });
        self.metrics.memory_keys.inc();
        position
    }

    /// Makes room for one key.
    fn evict(&mut self, time: Timestamp) {
        let len = self.slots.len();
        let candidates = (0..CANDIDATES.min(len)).map(|step| (self.cursor + step) % len);
        let victim = candidates.min_by_key(|position| {
            let slot = &self.slots[*position];
            (!slot.is_expired(time), slot.at_limit, slot.state.expires_at())
        });
        let Some(victim) = victim else { return };
        self.cursor = (self.cursor + CANDIDATES) % len;
        if !self.slots[victim].is_expired(time) {
            self.metrics.memory_evictions.inc();
        }
        self.remove(victim);
    }

    /// Removes a slot; the last one takes its place.
    fn remove(&mut self, position: usize) {
        self.entry_of(position).remove();
        let last = self.slots.len() - 1;
        if position != last {
            *self.entry_of(last).get_mut() = slot_number(position);
        }
        self.slots.swap_remove(position);
        self.metrics.memory_keys.dec();
    }

    fn entry_of(&mut self, position: usize) -> hashbrown::hash_table::OccupiedEntry<'_, u32> {
        let hash = self.hasher.hash_one(&*self.slots[position].key);
        self.index
            .find_entry(hash, |slot| *slot as usize == position)
            .expect("every slot is in the index")
    }
}

fn slot_number(position: usize) -> u32 {
    u32::try_from(position).expect("max_keys is below 2^32")
}
