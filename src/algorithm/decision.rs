//! What an algorithm says about one hit.

use crate::clock::Span;

/// The outcome for one hit, with the numbers that callers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// May the request pass?
    pub outcome: Outcome,
    /// Units counted; each algorithm says which.
    pub current_count: u64,
    /// Units that are left after this request.
    pub remaining: u64,
    /// Until the whole quota is there again if nobody asks.
    pub reset_after: Span,
    /// What the seed systems call `ttl`; each algorithm says which.
    pub ttl: Span,
}

impl Decision {
    /// Is the outcome [`Outcome::Allowed`]?
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }
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
        retry_after: Span,
    },
    /// Never: the cost is above what the rule can ever grant.
    Impossible,
}
