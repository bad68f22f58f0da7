//! One hit and the state of its key: decided, committed, and given back to.

use super::slot::Slot;
use crate::algorithm::{Algorithm, Cost, Decision, Limit, OnChange, Outcome, State, TakenUnits};
use crate::operation::{Action, HitReply, StoreHit};

/// One hit with a limit, and the slot of its key.
pub(super) struct Entry<'h, S> {
    pub(super) hit: &'h StoreHit<'h>,
    /// The limit by which it is decided.
    pub(super) limit: &'h Limit,
    /// Units in use after a change of the limit; `None` if an override decides, or none is kept.
    pub(super) on_change: Option<OnChange>,
    pub(super) slot: S,
}

impl<S: Slot> Entry<'_, S> {
    pub(super) fn decide(&self, cost: Cost) -> Decision {
        let kept = self.left_to_others();
        if kept == 0 || cost == Cost::NONE {
            self.decide_on(cost)
        } else {
            self.decide_beside(kept, cost)
        }
    }

    /// Returns the units that the request leaves to others.
    pub(super) fn left_to_others(&self) -> u64 {
        self.hit.left_to_others(self.limit)
    }

    /// Decides on a cost of which so many more must be there. The numbers are those of the cost alone.
    #[cold]
    fn decide_beside(&self, kept: u64, cost: Cost) -> Decision {
        let own = self.decide_on(cost);
        let outcome = match self.limit.units().checked_sub(kept) {
            // A log has most units of a request, and counts as one of fewer units does.
            Some(units) if self.hit.algorithm == Algorithm::SlidingWindowLog => {
                let fewer = Limit::new(units, self.limit.windows());
                let decide =
                    |limit| self.hit.algorithm.decide(&self.state(), &limit, self.slot.now(), cost);
                fewer.map_or(Outcome::Impossible, |limit| decide(limit).outcome)
            }
            _ => self.decide_on(Cost::total(cost.units() + kept)).outcome,
        };
        match outcome {
            Outcome::Allowed => own,
            denied if own.is_allowed() => {
                Decision { outcome: denied, ..self.decide_on(Cost::NONE) }
            }
            outcome => Decision { outcome, ..own },
        }
    }

    fn decide_on(&self, cost: Cost) -> Decision {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let own = algorithm.decide(&self.state(), limit, self.slot.now(), cost);
        if self.hit.max_holds.is_none() { own } else { self.decide_beside_holds(own, cost) }
    }

    /// Decides on the cost, but returns the numbers of the state as it is, without the cost.
    pub(super) fn peek(&self, cost: Cost) -> Decision {
        let decision = self.decide(cost);
        if cost == Cost::NONE { decision } else { self.with_current_numbers(decision.outcome) }
    }

    /// Returns a decision with this outcome and the numbers of the current state.
    pub(super) fn with_current_numbers(&self, outcome: Outcome) -> Decision {
        Decision { outcome, ..self.decide(Cost::NONE) }
    }

    /// Executes any action other than a take of some units.
    pub(super) fn execute_other(&mut self) -> HitReply {
        let mut taken = 0;
        let decision = match self.hit.action {
            Action::Report(cost) if cost != Cost::NONE => {
                let decision;
                (decision, taken) = self.report(cost);
                decision
            }
            Action::Refund(_) | Action::Credit(_) | Action::Reset => {
                self.return_units();
                self.decide(Cost::NONE)
            }
            Action::Take(cost) | Action::Peek(cost) | Action::Report(cost) => self.peek(cost),
            Action::Hold(_)
            | Action::Settle(_)
            | Action::SetOverride
            | Action::ClearOverride(_) => self.decide(Cost::NONE),
        };
        HitReply::new(decision, taken)
    }

    /// Decides, and takes the cost if it is allowed.
    #[inline]
    pub(super) fn take(&mut self, cost: Cost) -> Decision {
        if self.hit.max_holds.is_some() || self.hit.headroom.is_some() {
            let decision = self.decide(cost);
            self.commit(cost, &decision);
            return decision;
        }
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        let take = |state: &mut State| algorithm.take(state, limit, now, cost);
        if let Some(decision) = self.slot.update(take) {
            return decision;
        }
        let decision = algorithm.decide(&State::None, limit, now, cost);
        self.insert(cost, &decision);
        decision
    }

    /// Takes the cost, or the remaining units if the cost is denied.
    pub(super) fn take_remaining(&mut self, cost: Cost) -> HitReply {
        let decision = self.take(cost);
        let left = u64::try_from(decision.remaining).unwrap_or_default();
        if decision.is_allowed() || left == 0 {
            return HitReply::new(decision, decision.outcome.taken(cost));
        }
        let left = Cost::total(left.min(self.hit.algorithm.max_cost().into()));
        let taken = self.take(left).outcome.taken(left);
        HitReply::new(self.decide(cost), taken)
    }

    pub(super) fn commit(&mut self, cost: Cost, decision: &Decision) {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        let updated = self.slot.update(|state| {
            algorithm.commit(state, limit, now, cost, decision);
            *decision
        });
        if updated.is_none() {
            self.insert(cost, decision);
        }
    }

    /// Creates the state after a decision. A denial creates none, so that denied requests use no
    /// memory.
    pub(super) fn insert(&mut self, cost: Cost, decision: &Decision) {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        if decision.is_allowed() {
            self.slot.insert(|state| {
                algorithm.commit(state, limit, now, cost, decision);
                *decision
            });
        }
    }

    /// Counts the cost even if too few units are left. Returns the decision and the number of units
    /// that were counted.
    pub(super) fn report(&mut self, cost: Cost) -> (Decision, u64) {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        let left = self.hit.max_holds.map(|_| self.decide(Cost::NONE).remaining);
        let mut counted = 0;
        let mut report = |state: &mut State| {
            let decision;
            (decision, counted) = algorithm.report(state, limit, now, cost);
            decision
        };
        let decision = match self.slot.update(&mut report) {
            Some(decision) => decision,
            None => self.slot.insert(report),
        };
        let fits = |left: i64| cost.units().cast_signed() <= left;
        match left.map(fits) {
            // What is held is not left.
            Some(true) => (self.with_current_numbers(Outcome::Allowed), counted),
            Some(false) => {
                let outcome = match self.decide(Cost::ONE).outcome {
                    Outcome::Allowed => Outcome::Impossible,
                    denied => denied,
                };
                (self.with_current_numbers(outcome), counted)
            }
            None => (decision, counted),
        }
    }

    /// Executes a refund, a credit or a reset.
    pub(super) fn return_units(&mut self) {
        let (algorithm, limit, action) = (self.hit.algorithm, self.limit, self.hit.action);
        let now = self.slot.now();
        match action {
            Action::Reset => {
                if self.hit.max_holds.is_some() {
                    self.slot.take_holds();
                }
                // The reset must be known while a refund of units taken before it could have an
                // effect: up to two windows (sliding window counter), or the time to fill.
                let window = limit.window();
                let fills_in = if algorithm.has_burst() { limit.fill_time() } else { window };
                self.slot.record_reset(now + (window + window).max(fills_in));
            }
            Action::Refund(TakenUnits { cost: Cost::NONE, .. }) | Action::Credit(Cost::NONE) => {
                return;
            }
            Action::Refund(taken)
                if self.slot.was_reset_since(taken.at) || self.was_settled_since(taken.at) =>
            {
                return;
            }
            _ => {}
        }
        self.slot.update(|state| {
            match action {
                Action::Refund(taken) => algorithm.refund(state, limit, now, &taken),
                Action::Credit(cost) => algorithm.credit(state, limit, now, cost),
                _ => *state = State::None,
            }
            algorithm.decide(state, limit, now, Cost::NONE)
        });
    }
}
