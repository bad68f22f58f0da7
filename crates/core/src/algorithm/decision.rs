//! The decision of an algorithm on one hit.

use super::{Algorithm, Cost};
use crate::clock::{Micros, Timestamp};

/// The outcome of one hit, with the numbers for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Time of the decision by the store's clock, after [`Timestamp::freeze`]. The epoch if no store
    /// decided.
    pub at: Timestamp,
    /// Whether the request may pass.
    pub outcome: Outcome,
    /// Units counted, as the algorithm defines them.
    pub current_count: u64,
    /// Units left after this request. Negative: debt.
    pub remaining: i64,
    /// Time until all units of the limit are available again if no further request is made.
    pub reset_after: Micros,
    /// Time to live, as the algorithm defines it. Compatible with RLaaS Users Service.
    pub ttl: Micros,
    /// Time to hold this request back for an even pace. Leaky bucket only, else zero.
    pub delay: Micros,
}

impl Decision {
    /// Returns a decision for which nothing is counted, at the epoch.
    pub const fn uncounted(outcome: Outcome) -> Self {
        Self {
            at: Timestamp::EPOCH,
            outcome,
            current_count: 0,
            remaining: 0,
            reset_after: Micros::ZERO,
            ttl: Micros::ZERO,
            delay: Micros::ZERO,
        }
    }

    /// Adds to each wait the time by which the store's clock is frozen ahead.
    pub fn extend_waits(&mut self, frozen_for: Micros) {
        self.reset_after = self.reset_after + frozen_for;
        if let Outcome::Denied { retry_after } = &mut self.outcome {
            *retry_after = *retry_after + frozen_for;
        }
    }

    /// Returns this decision as it would be `elapsed` later: each wait is shorter, and ends when it did.
    #[must_use]
    pub fn after(mut self, elapsed: Micros, algorithm: Algorithm) -> Self {
        let left = |wait: Micros| (wait - elapsed).max(Micros::from_micros(1));
        if let Outcome::Denied { retry_after } = &mut self.outcome {
            *retry_after = left(*retry_after);
        }
        self.reset_after = left(self.reset_after);
        self.at = self.at + elapsed;
        // The time to live of a log is always the window.
        if algorithm != Algorithm::SlidingWindowLog {
            self.ttl = left(self.ttl);
        }
        self
    }

    /// Returns `true` if the outcome is [`Outcome::Allowed`].
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }
}

/// The units that a hit has taken, with the data that a refund needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenUnits {
    /// Units that were taken.
    pub cost: Cost,
    /// [`Decision::at`] of the decision that took them.
    pub at: Timestamp,
    /// [`Decision::reset_after`] of the decision that took them.
    pub reset_after: Micros,
}

/// Whether a request may pass, and if not, when it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request may pass.
    Allowed,
    /// The request may not pass now.
    Denied {
        /// Time after which the same cost passes if nobody else takes the units: exact to the
        /// microsecond, never zero.
        retry_after: Micros,
    },
    /// The request can never pass: its cost is above the most that the rule grants.
    Impossible,
}

impl Outcome {
    /// Decides on `cost`. Up to `available` units it is allowed; up to `most` it is denied, to be
    /// tried again after `wait`; above that it is impossible. `available` is negative in debt, so
    /// that not even a cost of 0 is allowed.
    pub(super) fn new(
        cost: Cost,
        available: i64,
        most: u64,
        wait: impl FnOnce() -> Micros,
    ) -> Self {
        if cost.units().cast_signed() <= available {
            Self::Allowed
        } else if cost.units() > most {
            Self::Impossible
        } else {
            Self::Denied { retry_after: wait() }
        }
    }

    /// Returns the units that a commit of this outcome takes.
    pub const fn taken(self, cost: Cost) -> u64 {
        match self {
            Self::Allowed => cost.units(),
            Self::Denied { .. } | Self::Impossible => 0,
        }
    }
}
