//! What a simulation decides on one request.

use rlaas_core::algorithm::Decision;
use rlaas_core::plan::RuleIndex;
use rlaas_core::rules::descriptors::InvalidDescriptor;
use rlaas_core::rules::{Grant, InvalidRequest, Mode};
use rlaas_core::verdict::RuleDecision;
use smallvec::SmallVec;
use thiserror::Error;

/// The decisions on one request: by the candidate, and by the rules that it is compared with.
#[derive(Clone, Debug, Default)]
pub struct SimulatedRequest {
    /// Verdict of the candidate.
    pub candidate: SimulatedVerdict,
    /// Verdict of the rules that the candidate is compared with.
    pub against: Option<SimulatedVerdict>,
}

/// The verdict of one set of rules on one request.
#[derive(Clone, Debug, Default)]
pub struct SimulatedVerdict {
    /// Outcome of the request.
    pub outcome: SimulatedOutcome,
    /// The decision of each rule that matches: by name, or in the order of the descriptors.
    pub decisions: SmallVec<[SimulatedDecision; 1]>,
}

/// The decision of one rule on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedDecision {
    /// Position of the rule in its set.
    pub index: RuleIndex,
    /// Grant that decided.
    pub grant: Grant,
    /// Mode of the rule.
    pub mode: Mode,
    /// Outcome and numbers.
    pub decision: Decision,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimulatedOutcome {
    /// The request passes.
    #[default]
    Allowed,
    /// Rules refuse the request.
    Refused,
    /// No enforced rule matches, and such requests are refused.
    RefusedUnmatched,
    /// The service would not accept the request.
    Invalid(InvalidRecord),
}

/// The reason why the service would not accept a request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidRecord {
    /// A field is out of bounds.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// A descriptor is out of bounds, or its rule does not support it.
    #[error(transparent)]
    Descriptor(#[from] InvalidDescriptor),
}

impl SimulatedDecision {
    /// Returns the effective mode, and whether the rule denies the request.
    pub fn denial(&self) -> (Mode, bool) {
        (self.grant.effective_mode(self.mode), !self.decision.is_allowed())
    }
}

impl From<&RuleDecision> for SimulatedDecision {
    fn from(decided: &RuleDecision) -> Self {
        let RuleDecision { index, grant, mode, decision, .. } = *decided;
        Self { index, grant, mode, decision }
    }
}

impl SimulatedVerdict {
    /// Creates the verdict of these decisions.
    #[inline]
    pub(super) fn from_decisions(decisions: SmallVec<[SimulatedDecision; 1]>) -> Self {
        let is_refused = Mode::refuse(decisions.iter().map(SimulatedDecision::denial));
        let outcome =
            if is_refused { SimulatedOutcome::Refused } else { SimulatedOutcome::Allowed };
        Self { outcome, decisions }
    }

    pub(super) fn without_decisions(outcome: SimulatedOutcome) -> Self {
        Self { outcome, decisions: SmallVec::new() }
    }

    /// Returns `true` if the request is refused, by rules or because no rule matches.
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome, SimulatedOutcome::Refused | SimulatedOutcome::RefusedUnmatched)
    }

    /// Returns `true` if this decision refuses the request: that of an enforced rule that denies,
    /// or of a quota if all quotas deny.
    pub fn is_refused_by(&self, decided: &SimulatedDecision) -> bool {
        if self.outcome != SimulatedOutcome::Refused {
            return false;
        }
        match decided.denial() {
            (Mode::Enforced, denies) => denies,
            (Mode::Quota, denies) => {
                denies && Mode::quotas_refuse(self.decisions.iter().map(SimulatedDecision::denial))
            }
            (Mode::Shadow | Mode::ShadowQuota | Mode::Off, _) => false,
        }
    }
}
