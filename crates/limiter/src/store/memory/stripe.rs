//! One stripe of the memory store: a bounded table of states that evicts keys without pauses.
//!
//! Slots are dense in one list, with an index from hash to slot beside it, so a cursor can sweep a
//! few slots at a time. If the stripe is full, a new key replaces one of the next
//! [`EVICTION_CANDIDATES`] slots: an expired one, else the one that expires first. A key at its
//! limit is evicted only if all candidates are at their limits. If there are projects, the one with
//! most keys in the stripe loses its keys first. Evictions of live keys are counted; such a key
//! starts afresh.

#[cfg(feature = "journal")]
use std::borrow::Cow;
use std::sync::Arc;

use compact_str::CompactString;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::hash_key;
use super::segmented_vec::SegmentedVec;
use crate::algorithm::{Decision, State};
use crate::clock::{HighWaterMarks, Micros, Timestamp};
use crate::control::ControlRecord;
use crate::expiring_map::ExpiringMap;
#[cfg(feature = "journal")]
use crate::journal::{Block, Part};
use crate::limit_history::LimitHistory;
use crate::observer::{Observer, StoreEvent};
use crate::project_counts::ProjectCounts;
use crate::rules::Key;

/// Slots that are candidates for an eviction.
const EVICTION_CANDIDATES: usize = 16;

/// Slots that are swept for each new key: more than one, so that expired slots do not pile up.
const SLOTS_SWEPT_PER_INSERT: usize = 2;

/// A part of all keys, behind one lock. The field that each decision writes comes first, next to
/// the lock.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Stripe {
    /// Latest times of decisions, at which the clock is frozen if it steps back: see
    /// [`Timestamp::freeze`].
    seen: HighWaterMarks,
    /// Index from the hash of a key to its slot. A stripe has fewer than 2^16 slots.
    index: HashTable<u16>,
    /// The slots. A mark denotes a key at its limit, which should not escape its limit by eviction.
    slots: SegmentedVec<Slot>,
    hasher: DefaultHashBuilder,
    /// Slot at which the sweep continues.
    cursor: usize,
    max_keys: usize,
    observer: Arc<dyn Observer>,
    /// For each reset key, the time of the reset. It ends when no refund needs it any more.
    resets: ExpiringMap<Timestamp>,
    /// Overrides of keys.
    controls: ExpiringMap<ControlRecord>,
    /// Limits by which keys were counted, for rules that keep them.
    limits: ExpiringMap<LimitHistory>,
    /// Keys of each project.
    projects: ProjectCounts,
}

/// Time of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionTime {
    /// Time of the clock, by which states expire.
    time: Timestamp,
    /// Time to decide by: that of the clock, or later while the clock is frozen.
    pub(super) now: Timestamp,
}

impl DecisionTime {
    /// Returns for how long the clock is frozen.
    pub(super) fn frozen_for(self) -> Micros {
        self.now.since(self.time)
    }
}

/// Index of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotIndex(usize);

/// A key and its state, on one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    /// The key. Up to 24 bytes are stored inline.
    key: CompactString,
    state: State,
}

impl Slot {
    /// Returns `true` if the state has expired. As in Redis, it is still alive in the millisecond
    /// that begins at its `expires_at`.
    fn is_expired(&self, time: Timestamp) -> bool {
        time >= self.state.expires_at() + Micros::from_millis(1)
    }
}

impl Stripe {
    pub(super) fn new(
        max_keys: usize,
        hasher: DefaultHashBuilder,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            index: HashTable::new(),
            slots: SegmentedVec::default(),
            hasher,
            cursor: 0,
            max_keys,
            seen: HighWaterMarks::default(),
            observer,
            resets: ExpiringMap::new(max_keys),
            controls: ExpiringMap::new(max_keys),
            limits: ExpiringMap::new(max_keys),
            projects: ProjectCounts::default(),
        }
    }

    /// Records that a key was reset at `now`, so that refunds of units taken before do nothing.
    /// At most `max_keys` resets are on record: that of a further key is not recorded.
    pub(super) fn record_reset(&mut self, key: &[u8], now: Timestamp, until: Timestamp) {
        self.resets.insert(key, now, until, now);
    }

    /// Returns `true` if the key was reset at this time or later.
    pub(super) fn was_reset_since(&self, key: &[u8], taken_at: Timestamp) -> bool {
        self.resets.get(key).is_some_and(|reset_at| taken_at <= *reset_at)
    }

    /// Returns the overrides of a key, ended or not.
    pub(super) fn control(&self, key: &[u8]) -> Option<&ControlRecord> {
        self.controls.get(key)
    }

    /// Replaces the overrides of a key; an empty record removes them. There is space for those of
    /// `max_keys` keys: see [`Stripe::has_space_for_control`].
    pub(super) fn set_control(&mut self, key: &[u8], record: ControlRecord, time: Timestamp) {
        if record.is_empty() {
            self.controls.remove(key);
        } else {
            let ends_at = record.ends_at();
            self.controls.insert(key, record, ends_at, time);
        }
    }

    /// Returns `true` if an override of the key can be set.
    pub(super) fn has_space_for_control(&mut self, key: &[u8], time: Timestamp) -> bool {
        !self.controls.is_full(time) || self.controls.get(key).is_some()
    }

    /// Iterates over the keys with overrides, in no order.
    pub(super) fn controls(&self) -> impl Iterator<Item = (&str, &ControlRecord)> {
        self.controls.iter()
    }

    /// Returns the limits by which a key was counted, if they are kept and have not expired.
    pub(super) fn limit_history(&self, key: &[u8], time: Timestamp) -> Option<&LimitHistory> {
        self.limits.get(key).filter(|history| history.is_alive(time))
    }

    /// Replaces the limits by which a key was counted. Those of at most `max_keys` keys are kept:
    /// that of a further key is not, and its state stays as it is when its limit changes.
    pub(super) fn set_limit_history(&mut self, key: &[u8], history: LimitHistory, time: Timestamp) {
        let end = end_of(&history);
        self.limits.insert(key, history, end, time);
    }

    /// Changes the limits by which a key was counted. Returns `false` if they are not kept, or have
    /// expired.
    pub(super) fn update_limit_history(
        &mut self,
        key: &[u8],
        time: Timestamp,
        change: impl FnOnce(&mut LimitHistory),
    ) -> bool {
        self.limits.update(key, |history| {
            history.is_alive(time).then(|| {
                change(history);
                end_of(history)
            })
        })
    }

    /// Removes resets, overrides and limits that have ended.
    pub(super) fn drop_ended(&mut self, time: Timestamp) {
        self.limits.drop_ended(time);
        self.resets.drop_ended(time);
        self.controls.drop_ended(time);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the time to decide by for a limit with this `window`, if the clock shows `time`.
    #[inline]
    pub(super) fn decision_time(&mut self, time: Timestamp, window: Micros) -> DecisionTime {
        DecisionTime { time, now: self.seen.record(window, time) }
    }

    /// Returns the slot of a key. It is valid until the next change of this stripe.
    #[inline]
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<SlotIndex> {
        let has_key = |slot: &u16| self.slots[usize::from(*slot)].key.as_bytes() == key;
        self.index.find(hash, has_key).map(|slot| SlotIndex(usize::from(*slot)))
    }

    /// Returns the state of a slot; [`State::None`] if there is no slot, or it has expired.
    pub(super) fn state(&self, position: Option<SlotIndex>, decision_time: DecisionTime) -> &State {
        position
            .map(|SlotIndex(position)| &self.slots[position])
            .filter(|slot| !slot.is_expired(decision_time.time))
            .map_or(&State::None, |slot| &slot.state)
    }

    /// Changes the state of a slot by `change`, and marks the slot if no units remain.
    #[inline]
    pub(super) fn update(
        &mut self,
        SlotIndex(position): SlotIndex,
        decision_time: DecisionTime,
        change: impl FnOnce(&mut State) -> Decision,
    ) -> Decision {
        let slot = &mut self.slots[position];
        if slot.is_expired(decision_time.time) {
            slot.state = State::None;
        }
        let decision = change(&mut slot.state);
        self.slots.mark(position, decision.remaining <= 0);
        decision
    }

    /// Adds a slot for a new key. Sweeps some slots, and evicts one if the stripe is full.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        decision_time: DecisionTime,
    ) -> SlotIndex {
        let time = decision_time.time;
        self.sweep(SLOTS_SWEPT_PER_INSERT, time);
        if self.slots.len() >= self.max_keys {
            self.evict(time);
        }
        let position = self.slots.len();
        self.projects.add(Key::project_in(key));
        let key = CompactString::from_utf8_lossy(key);
        self.slots.push(Slot { key, state: State::None });
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.index.insert_unique(hash, slot_number(position), |slot| {
            hash_key(hasher, slots[usize::from(*slot)].key.as_bytes())
        });
        self.observer.store(StoreEvent::KeyInserted);
        SlotIndex(position)
    }

    /// Visits the next `count` slots and removes the expired ones.
    pub(super) fn sweep(&mut self, count: usize, time: Timestamp) {
        for _ in 0..count.min(self.slots.len()) {
            if self.cursor >= self.slots.len() {
                self.cursor = 0;
            }
            if self.slots[self.cursor].is_expired(time) {
                self.remove(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Removes one slot to make space for another.
    fn evict(&mut self, time: Timestamp) {
        let len = self.slots.len();
        let has_projects = !self.projects.is_empty();
        let largest = has_projects.then(|| self.projects.largest(len));
        let is_neighbour = |slot: &Slot| {
            let project = Key::project_in(slot.key.as_bytes());
            largest.as_deref().is_some_and(|largest| project != largest)
        };
        if has_projects {
            // There is a slot of the largest project.
            let makes_space = |position: &usize| {
                let slot = &self.slots[*position];
                slot.is_expired(time) || !is_neighbour(slot)
            };
            let mut from_cursor = (0..len).map(|step| (self.cursor + step) % len);
            self.cursor = from_cursor.find(makes_space).unwrap_or(self.cursor);
        }
        let candidates = (0..EVICTION_CANDIDATES.min(len)).map(|step| (self.cursor + step) % len);
        let victim = candidates.min_by_key(|position| {
            let slot = &self.slots[*position];
            let (is_alive, is_marked) = (!slot.is_expired(time), self.slots.is_marked(*position));
            (is_alive, is_neighbour(slot), is_marked, slot.state.expires_at())
        });
        let Some(victim) = victim else { return };
        self.cursor = (self.cursor + EVICTION_CANDIDATES) % len;
        if !self.slots[victim].is_expired(time) {
            self.observer.store(StoreEvent::KeyEvicted);
        }
        self.remove(victim);
    }

    /// Removes a slot. The last slot moves to its position.
    fn remove(&mut self, position: usize) {
        self.index_entry(position).remove();
        self.projects.remove(Key::project_in(self.slots[position].key.as_bytes()));
        let last = self.slots.len() - 1;
        if position != last {
            *self.index_entry(last).get_mut() = slot_number(position);
        }
        self.slots.swap_remove(position);
        self.observer.store(StoreEvent::KeyRemoved);
    }

    fn index_entry(&mut self, position: usize) -> hashbrown::hash_table::OccupiedEntry<'_, u16> {
        let hash = hash_key(&self.hasher, self.slots[position].key.as_bytes());
        self.index
            .find_entry(hash, |slot| usize::from(*slot) == position)
            .expect("every slot is in the index")
    }
}

#[cfg(feature = "journal")]
impl Stripe {
    /// Restores the latest time of decisions on limits with this window.
    pub(super) fn restore_mark(&mut self, window: Micros, time: Timestamp) {
        self.seen.set(window, time);
    }

    /// Restores a state of a snapshot.
    pub(super) fn restore(&mut self, hash: u64, key: &str, state: State, time: Timestamp) {
        let key = key.as_bytes();
        let position = match self.find(hash, key) {
            Some(position) => position,
            None => self.insert(hash, key, DecisionTime { time, now: time }),
        };
        self.slots[position.0].state = state;
    }

    /// Returns the latest times of decisions.
    pub(super) fn marks(&self) -> &HighWaterMarks {
        &self.seen
    }

    /// Copies up to `count` states before `end`, and what belongs to their keys, from the last to
    /// the first. So the slots that a removal moves are not left out: they move from the end.
    /// Returns the position before which the next call continues.
    pub(super) fn copy_states(
        &self,
        end: usize,
        count: usize,
        time: Timestamp,
        block: &mut Block,
    ) -> usize {
        let end = end.min(self.slots.len());
        for position in (end.saturating_sub(count)..end).rev() {
            if block.is_full() {
                return position + 1;
            }
            let slot = &self.slots[position];
            if !slot.is_expired(time) {
                block.push(&Part::State(&slot.key, Cow::Borrowed(&slot.state)));
            }
            if let Some(history) = self.limit_history(slot.key.as_bytes(), time) {
                block.push(&Part::Limits(&slot.key, Cow::Borrowed(history)));
            }
        }
        end.saturating_sub(count)
    }
}

/// Returns the time from which the limits of a key make no difference.
fn end_of(history: &LimitHistory) -> Timestamp {
    history.expires_at() + Micros::from_millis(1)
}

fn slot_number(position: usize) -> u16 {
    u16::try_from(position).expect("a stripe has fewer than 2^16 slots")
}
