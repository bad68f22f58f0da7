//! The outcome for a request, folded from the decisions of its rules.

use std::cmp::Reverse;
use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Decision, Outcome};
use crate::clock::{Span, Timestamp};
use crate::observer::Source;
use crate::rules::{Grant, Match, Mode};

/// The outcome for a request.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What each rule that matched says, by name.
    pub decisions: SmallVec<[RuleDecision; 1]>,
    /// Which of them tells most; `None` where no rule applies.
    deciding: Option<usize>,
}

/// What one rule says about a request.
#[derive(Clone, Debug)]
pub struct RuleDecision {
    /// Where the rule stands in its set.
    pub(super) position: usize,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// What it grants to this request.
    pub grant: Grant,
    /// Is it enforced?
    pub mode: Mode,
    /// What it says.
    pub decision: Decision,
    /// Where that comes from.
    pub source: Source,
}

/// Stands for the decision that there is none of.
static NO_RULE: LazyLock<RuleDecision> = LazyLock::new(|| RuleDecision {
    position: usize::MAX,
    rule: "".into(),
    algorithm: Algorithm::FixedWindow,
    grant: Grant::Unlimited,
    mode: Mode::Enforced,
    decision: uncounted(Outcome::Allowed),
    source: Source::NoRule,
});

impl Verdict {
    /// Folds the decisions of all rules that matched, of which there is at least one.
    ///
    /// The one that decides: of the enforced rules that deny that with the longest wait, for ever
    /// being the longest. Where all quotas deny, the one with the shortest wait decides among them,
    /// since the request passes as soon as one has room. If nothing refuses, the rule with the least
    /// left.
    pub(super) fn fold(decisions: SmallVec<[RuleDecision; 1]>) -> Self {
        let quotas_refuse = Mode::quotas_refuse(decisions.iter().map(RuleDecision::denial));
        let quota_wait = decisions.iter().filter_map(|one| one.wait_of(Mode::Quota)).min();
        let weight = |one: &RuleDecision| {
            let refuses = one.wait_of(Mode::Enforced).or_else(|| {
                one.wait_of(Mode::Quota).filter(|wait| quotas_refuse && Some(*wait) == quota_wait)
            });
            (one.mode == Mode::Enforced || refuses.is_some(), refuses, Reverse(one.scarcity()))
        };
        // Of equals the first by name: the last of the reversed order.
        let heaviest = decisions.iter().enumerate().rev().max_by_key(|(_, one)| weight(one));
        let deciding = heaviest.map(|(position, _)| position);
        Self { decisions, deciding }
    }

    /// No rule applies, and the request may pass; `shadows` are reported all the same.
    pub(super) fn unmatched(shadows: SmallVec<[RuleDecision; 1]>) -> Self {
        Self { decisions: shadows, deciding: None }
    }

    /// What the only rule says.
    pub(super) fn of(decided: RuleDecision) -> Self {
        let mut decisions = SmallVec::new();
        decisions.push(decided);
        Self { decisions, deciding: Some(0) }
    }

    /// Which of the decisions is that of [`Verdict::deciding`]; `None` where no rule applies.
    pub fn deciding_position(&self) -> Option<usize> {
        self.deciding
    }

    /// The decision that tells most; where no rule applies one of [`Source::NoRule`], without a name.
    pub fn deciding(&self) -> &RuleDecision {
        match self.deciding {
            Some(position) => &self.decisions[position],
            None => &NO_RULE,
        }
    }

    /// May the request pass?
    pub fn is_allowed(&self) -> bool {
        !Mode::refuse(self.decisions.iter().map(RuleDecision::denial))
    }

    /// Returns `true` if this decision of the request is why it is refused: an enforced rule that
    /// denies, or a quota where all of them do.
    pub fn is_refused_by(&self, decided: &RuleDecision) -> bool {
        let (mode, denies) = decided.denial();
        let all = self.decisions.iter().map(RuleDecision::denial);
        match mode {
            Mode::Enforced => denies,
            Mode::Quota => Mode::quotas_refuse(all),
            Mode::Shadow | Mode::ShadowQuota => false,
        }
    }
}

impl RuleDecision {
    pub(super) fn new(found: &Match<'_>, decision: Decision, source: Source) -> Self {
        let Match { position, rule, grant, .. } = found;
        Self {
            position: *position,
            rule: Arc::clone(&rule.name),
            algorithm: rule.algorithm,
            grant: *grant,
            mode: rule.mode,
            decision,
            source,
        }
    }

    /// Units that are left; `None` if the grant is unlimited.
    pub fn remaining(&self) -> Option<i64> {
        (self.grant != Grant::Unlimited).then_some(self.decision.remaining)
    }

    /// The less is left, the less this is.
    fn scarcity(&self) -> (bool, i64) {
        (self.grant == Grant::Unlimited, self.decision.remaining)
    }

    /// How long the request has to wait for this rule, if it has this mode and denies.
    fn wait_of(&self, mode: Mode) -> Option<Span> {
        match self.decision.outcome {
            _ if self.mode != mode => None,
            Outcome::Allowed => None,
            Outcome::Denied { retry_after } => Some(retry_after),
            Outcome::Impossible => Some(Span::from_micros(u64::MAX)),
        }
    }

    /// How it is enforced, and whether it denies.
    pub(super) fn denial(&self) -> (Mode, bool) {
        (self.grant.mode(self.mode), !self.decision.is_allowed())
    }
}

/// A decision for which nothing is counted.
pub(super) const fn uncounted(outcome: Outcome) -> Decision {
    Decision {
        at: Timestamp::EPOCH,
        outcome,
        current_count: 0,
        remaining: 0,
        reset_after: Span::ZERO,
        ttl: Span::ZERO,
        delay: Span::ZERO,
    }
}
