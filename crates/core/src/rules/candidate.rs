//! Candidates: limits on trial, counted beside the limit of a rule and never enforced.

use crate::algorithm::{Algorithm, Limit};

/// A limit on trial.
///
/// It counts the requests that the rule meets by its own limit, in a state of its own, as if it
/// stood in the place of the rule's limit: a request takes its units from the candidate if the
/// candidate and all other rules that are enforced allow it, whatever the limit of the rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Algorithm that decides.
    pub algorithm: Algorithm,
    /// The limit.
    pub limit: Limit,
}

impl Candidate {
    /// Most candidates of a rule.
    pub const MAX: usize = 8;
}
