//! Costs that depend on the keys: those of reservations that hold a share, and those of requests that take
//! what is there.

use super::slot::Slots;
use super::{AtomicStep, DecidedHit};
use crate::algorithm::Cost;
use crate::operation::Action;

impl<S: Slots> AtomicStep<'_, S> {
    /// Returns the action of a hit, with the cost that is decided on.
    pub(super) fn action(&self, at: usize) -> Action {
        self.actions.get(at).copied().unwrap_or(self.hits[at].action)
    }

    /// Cuts costs to shares of the grants in force. A request that takes what is there is decided on the fewest
    /// units first.
    pub(super) fn set_costs(&mut self) {
        if self.hits.iter().all(|hit| hit.cost_share.is_none() && hit.least().is_none()) {
            return;
        }
        let first = |at: usize| {
            let least = self.hits[at].least().map(|least| Cost::new(least.get()));
            self.with_cost(at, least.unwrap_or(self.hits[at].action.cost()))
        };
        self.actions = (0..self.hits.len()).map(first).collect();
    }

    /// Returns the action of a hit with this cost, cut to its share.
    fn with_cost(&self, at: usize, cost: Cost) -> Action {
        let most = self.most_held(at).unwrap_or(u64::MAX);
        self.hits[at].action.with_cost(cost.min(Cost::total(most)))
    }

    /// Returns the most units to which the cost of a hit is cut.
    fn most_held(&self, at: usize) -> Option<u64> {
        let share = self.hits[at].cost_share?;
        self.grant(at).limit().map(|limit| share.units_at_once(limit).max(1))
    }

    /// Decides again, on the most units that are there, if the fewest are allowed. What is denied is only looked
    /// at, so that it counts no attempt.
    pub(super) fn take_what_is_there(&mut self, decided: &mut [Option<DecidedHit>], refused: bool) {
        if self.hits.iter().all(|hit| hit.least().is_none()) {
            return;
        }
        let mut units = u64::MAX;
        for (at, hit) in self.hits.iter().enumerate() {
            if hit.least().is_some() && !hit.mode.is_shadow() {
                let bound = self.left(at).filter(|left| {
                    // What is left of more than a reservation may hold is no bound.
                    self.most_held(at).is_none_or(|most| *left < most)
                });
                units = units.min(bound.unwrap_or(u64::MAX));
            }
        }
        for (at, hit) in self.hits.iter().enumerate() {
            let Some(known) = &decided[at] else { continue };
            if refused || !known.reply.decision.is_allowed() {
                self.actions[at] = self.action(at).when_refused();
            } else if hit.least().is_some() {
                let left = self.left(at).filter(|_| hit.mode.is_shadow()).unwrap_or(u64::MAX);
                let cost = hit.action.cost().min(Cost::total(units.min(left)));
                self.actions[at] = self.with_cost(at, cost);
                decided[at] = Some(self.decide(at));
            }
        }
    }

    /// Returns the most units that a hit may take now; `None` without a limit.
    fn left(&mut self, at: usize) -> Option<u64> {
        let entry = self.entry(at)?;
        let left = u64::try_from(entry.decide(Cost::NONE).remaining).unwrap_or_default();
        let left = left.saturating_sub(entry.left_to_others());
        Some(left.min(entry.hit.algorithm.max_cost().into()))
    }
}
