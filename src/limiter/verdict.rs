//! The outcome for a request, folded from the decisions of its rules.

use crate::algorithm::{Algorithm, Cost, Decision, Limit, Outcome};
use crate::clock::Span;
use crate::rules::Rule;

/// The outcome for a request.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The decision that tells most: of the denying ones that with the longest wait, else the one
    /// with the least left.
    pub deciding: RuleDecision,
}

impl Verdict {
    /// The verdict of one rule.
    pub fn fold(decided: RuleDecision) -> Self {
        Self { deciding: decided }
    }

    /// May the request pass?
    pub fn is_allowed(&self) -> bool {
        self.deciding.decision.is_allowed()
    }
}

/// What one rule says about a request.
#[derive(Clone, Debug)]
pub struct RuleDecision {
    /// Name of the rule.
    pub rule: String,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// Its limit.
    pub limit: Limit,
    /// What it says.
    pub decision: Decision,
    /// Where that comes from.
    pub source: Source,
}

impl RuleDecision {
    pub(super) fn decided(rule: &Rule, decision: Decision) -> Self {
        Self {
            rule: rule.name.clone(),
            algorithm: rule.algorithm,
            limit: rule.limit,
            decision,
            source: Source::Store,
        }
    }

    /// The request passes because the store did not answer. Nothing is known, so nothing is said
    /// to be used.
    pub(super) fn fail_open(rule: &Rule, cost: Cost) -> Self {
        let decision = Decision {
            outcome: Outcome::Allowed,
            current_count: 0,
            remaining: rule.limit.units().saturating_sub(cost.units()),
            reset_after: Span::ZERO,
            ttl: Span::ZERO,
            delay: Span::ZERO,
        };
        Self { source: Source::FailOpen, ..Self::decided(rule, decision) }
    }
}

/// Where a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The store decided.
    Store,
    /// The store did not answer and the rule lets requests pass.
    FailOpen,
}

impl Source {
    /// The source as a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::FailOpen => "fail_open",
        }
    }
}
