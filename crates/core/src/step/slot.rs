//! Access of a step to the states of keys, which the store provides.

use crate::algorithm::{Decision, State};
use crate::clock::{Micros, Timestamp};
use crate::control::ControlRecord;
use crate::limit_history::LimitHistory;
use crate::reservation::Holds;

/// Access of a step to the state of one key.
pub trait Slot {
    /// Returns the time of the decision: the time that the clock shows, or a later one if it is
    /// [frozen](Timestamp::freeze).
    fn now(&self) -> Timestamp;

    /// Returns the difference between [`Slot::now`] and the time that the clock shows.
    fn frozen_for(&self) -> Micros;

    /// Returns the state; [`State::None`] if there is none or it has expired.
    fn state(&self) -> &State;

    /// Calls `change` with the state, if the key has one, and returns its decision. An expired
    /// state may be passed as [`State::None`].
    fn update(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Option<Decision>;

    /// Creates a state for a key that has none. Calls `change` with [`State::None`] and returns its
    /// decision.
    fn insert(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Decision;

    /// Records that the key is reset now. The record is needed up to `until`.
    fn record_reset(&mut self, until: Timestamp);

    /// Returns `true` if the key was reset at `taken_at` or later.
    fn was_reset_since(&self, taken_at: Timestamp) -> bool;

    /// Returns the control record of the key, if there is one. It may have ended.
    fn control(&self) -> Option<&ControlRecord>;

    /// Replaces the control record of the key. An empty record removes it.
    fn set_control(&mut self, record: ControlRecord);

    /// Returns the limits by which the key was counted, if they are kept and have not
    /// [expired](LimitHistory::is_alive).
    fn limit_history(&self) -> Option<&LimitHistory>;

    /// Replaces the limits by which the key was counted. They may be dropped once they have
    /// expired.
    fn set_limit_history(&mut self, history: LimitHistory);

    /// Changes the limits by which the key was counted. Returns `false` if they are not kept, or have
    /// expired.
    fn update_limit_history(&mut self, change: impl FnOnce(&mut LimitHistory)) -> bool {
        let Some(mut history) = self.limit_history().cloned() else { return false };
        change(&mut history);
        self.set_limit_history(history);
        true
    }

    /// Returns the holds of the key, if there are any. Some may have ended.
    fn holds(&self) -> Option<&Holds>;

    /// Removes and returns the holds of the key.
    fn take_holds(&mut self) -> Holds;

    /// Sets the holds of a key that has none.
    fn set_holds(&mut self, holds: Holds);

    /// Returns the time after which there may be space for a new hold, if there is none now.
    fn wait_for_space(&self) -> Option<Micros> {
        None
    }

    /// Returns the time that the clock shows.
    fn time(&self) -> Timestamp {
        self.now() - self.frozen_for()
    }
}

/// The slots of the hits of one request.
pub trait Slots {
    /// The slot of one hit.
    type Slot<'a>: Slot
    where
        Self: 'a;

    /// Returns the slot of the hit at this position.
    fn slot(&mut self, at: usize) -> Self::Slot<'_>;

    /// Returns `true` if the hits at these positions have the same key.
    fn have_same_key(&self, left: usize, right: usize) -> bool;
}

/// The slot of a request of one hit.
pub(super) struct OneSlot<S>(pub(super) S);

impl<S: Slot> Slots for OneSlot<S> {
    type Slot<'a>
        = &'a mut S
    where
        S: 'a;

    fn slot(&mut self, _at: usize) -> &mut S {
        &mut self.0
    }

    fn have_same_key(&self, _one: usize, _other: usize) -> bool {
        true
    }
}

impl<S: Slot> Slot for &mut S {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn frozen_for(&self) -> Micros {
        (**self).frozen_for()
    }

    fn state(&self) -> &State {
        (**self).state()
    }

    fn update(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Option<Decision> {
        (**self).update(change)
    }

    fn insert(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Decision {
        (**self).insert(change)
    }

    fn record_reset(&mut self, until: Timestamp) {
        (**self).record_reset(until);
    }

    fn was_reset_since(&self, taken_at: Timestamp) -> bool {
        (**self).was_reset_since(taken_at)
    }

    fn control(&self) -> Option<&ControlRecord> {
        (**self).control()
    }

    fn set_control(&mut self, record: ControlRecord) {
        (**self).set_control(record);
    }

    fn limit_history(&self) -> Option<&LimitHistory> {
        (**self).limit_history()
    }

    fn set_limit_history(&mut self, history: LimitHistory) {
        (**self).set_limit_history(history);
    }

    fn update_limit_history(&mut self, change: impl FnOnce(&mut LimitHistory)) -> bool {
        (**self).update_limit_history(change)
    }

    fn holds(&self) -> Option<&Holds> {
        (**self).holds()
    }

    fn take_holds(&mut self) -> Holds {
        (**self).take_holds()
    }

    fn set_holds(&mut self, holds: Holds) {
        (**self).set_holds(holds);
    }

    fn wait_for_space(&self) -> Option<Micros> {
        (**self).wait_for_space()
    }
}
