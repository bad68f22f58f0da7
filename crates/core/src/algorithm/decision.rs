//! What an algorithm says about one hit.

use super::{Algorithm, Cost};
use crate::clock::{Micros, Timestamp};

/// The outcome for one hit, with the numbers that callers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When it was decided, by the clock of the store as it was held; the epoch if no store was.
    pub at: Timestamp,
    /// May the request pass?
    pub outcome: Outcome,
    /// Units counted; each algorithm says which.
    pub current_count: u64,
    /// Units left after this request; below 0 is debt.
    pub remaining: i64,
    /// Until the whole quota is there again if nobody asks.
    pub reset_after: Micros,
    /// What the seed systems call `ttl`; each algorithm says which.
    pub ttl: Micros,
    /// How long to hold this request back for an even outflow: leaky bucket, else zero.
    pub delay: Micros,
}

impl Decision {
    /// Adds to every wait the time for which the store's clock is held.
    pub fn extend_waits(&mut self, held_for: Micros) {
        self.reset_after = self.reset_after + held_for;
        if let Outcome::Denied { retry_after } = &mut self.outcome {
            *retry_after = *retry_after + held_for;
        }
    }

    /// Returns the same decision `elapsed` later, if nobody takes or gives units: every wait is
    /// shorter.
    #[must_use]
    pub fn after(mut self, elapsed: Micros, algorithm: Algorithm) -> Self {
        let left = |span: Micros| (span - elapsed).max(Micros::from_micros(1));
        if let Outcome::Denied { retry_after } = &mut self.outcome {
            *retry_after = left(*retry_after);
        }
        self.reset_after = left(self.reset_after);
        // Of a log it is always the window.
        if algorithm != Algorithm::SlidingWindowLog {
            self.ttl = left(self.ttl);
        }
        self
    }

    /// Is the outcome [`Outcome::Allowed`]?
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }
}

/// What a hit has taken, as far as the algorithm needs it to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenUnits {
    /// Units that were counted.
    pub cost: Cost,
    /// When they were, by the clock of the store as it was held.
    pub at: Timestamp,
    /// How long after that the whole limit would have been there again.
    pub reset_after: Micros,
}

/// May the request pass, and if not, when?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may.
    Allowed,
    /// Not now.
    Denied {
        /// The same cost passes after this time, not a microsecond earlier, if nobody else takes
        /// the units. Never zero.
        retry_after: Micros,
    },
    /// Never: the cost is above what the rule can ever grant.
    Impossible,
}

impl Outcome {
    /// Allows what fits into the `available` units, so nothing in debt; denies what could fit into
    /// `most`.
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

    /// The units that are taken if this is committed.
    pub const fn taken(self, cost: Cost) -> u64 {
        match self {
            Self::Allowed => cost.units(),
            Self::Denied { .. } | Self::Impossible => 0,
        }
    }
}
