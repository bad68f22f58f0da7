//! Conversion of the state of a hit whose limit has changed.

use std::borrow::Cow;

use super::Slot;
use super::entry::Entry;
use crate::algorithm::{Cost, LimitChange, State};
use crate::clock::Timestamp;
use crate::limit_history::{ChangedLimit, LimitHistory};

impl<S: Slot> Entry<'_, S> {
    /// Returns the state by which the hit is decided. A look must not store a conversion, so it
    /// sees a converted copy.
    pub(super) fn state(&self) -> Cow<'_, State> {
        let state = self.slot.state();
        match self.changed_limit() {
            None => Cow::Borrowed(state),
            Some(changed) => {
                let mut state = state.clone();
                self.convert(&mut state, &changed);
                Cow::Owned(state)
            }
        }
    }

    /// Converts the state if the limit has changed.
    pub(super) fn adopt_limit(&mut self) {
        let Some(changed) = self.changed_limit() else { return };
        let (algorithm, limit, now) = (self.hit.algorithm, self.limit, self.slot.now());
        let converted = self.state().into_owned();
        let mut history = self.slot.limit_history().cloned().expect("a limit that has changed");
        history.apply(limit, self.hit.revision, &changed, now);
        let store = |state: &mut State| {
            state.clone_from(&converted);
            algorithm.decide(state, limit, now, Cost::NONE)
        };
        if self.slot.update(store).is_none() && converted != State::None {
            self.slot.insert(store);
        }
        history.renew(limit, self.hit.revision, now);
        self.slot.set_limit_history(history);
    }

    /// Records the limit if units were `taken`. A record that the key has already is extended.
    pub(super) fn record_limit(&mut self, taken: u64) {
        if self.on_change.is_none() {
            return;
        }
        let (limit, revision, now) = (self.limit, self.hit.revision, self.slot.now());
        let is_known =
            self.slot.update_limit_history(|history| history.renew(limit, revision, now));
        if !is_known && taken > 0 {
            let mut history = LimitHistory::new(limit);
            history.renew(limit, revision, now);
            self.slot.set_limit_history(history);
        }
    }

    /// Returns `true` if a conversion has settled which units are in use since this time.
    pub(super) fn was_settled_since(&self, taken_at: Timestamp) -> bool {
        self.on_change.is_some()
            && self.slot.limit_history().is_some_and(|history| history.was_settled_since(taken_at))
    }

    fn changed_limit(&self) -> Option<ChangedLimit> {
        let policy = self.on_change?;
        let (history, revision) = (self.slot.limit_history()?, self.hit.revision);
        history.change_to(self.limit, revision, policy, self.slot.now())
    }

    fn convert(&self, state: &mut State, changed: &ChangedLimit) {
        let ChangedLimit { from, replaced, on_change } = changed;
        let change = LimitChange { from, to: self.limit, replaced, on_change: *on_change };
        self.hit.algorithm.convert(state, &change, self.slot.now());
    }
}
