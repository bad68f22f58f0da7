//! The outcome for a request, folded from what became of its hits.

use std::cmp::Reverse;
use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Decision, Outcome};
use crate::clock::{Micros, Timestamp};
use crate::operation::HitReply;
use crate::plan::{Hit, Plan, RuleIndex};
use crate::rules::{Grant, Mode, RuleInfo, RuleSet};

/// What became of a hit, and who says so.
#[derive(Clone, Copy, Debug)]
pub struct HitResult {
    /// Its outcome and numbers.
    pub reply: HitReply,
    /// Where they come from.
    pub source: Source,
}

/// What became of each hit of a plan, in order. `None` where nothing is known of one, because the
/// request is refused anyhow.
pub type HitResults = SmallVec<[Option<HitResult>; 1]>;

impl HitResult {
    /// What needs no store: a ban, and what is unlimited. `None` for what has a limit.
    pub fn without_store(grant: Grant) -> Option<Self> {
        let outcome = match grant {
            Grant::Limited(_) => return None,
            Grant::Banned => Outcome::Impossible,
            Grant::Unlimited => Outcome::Allowed,
        };
        Some(Self::uncounted(outcome, Source::Store))
    }

    /// An outcome for which nothing is counted.
    pub const fn uncounted(outcome: Outcome, source: Source) -> Self {
        Self { reply: HitReply { decision: uncounted(outcome), taken: 0 }, source }
    }
}

/// Where a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The store decided, or nothing had to be counted.
    Store,
    /// The store has denied as much a moment ago.
    DenyCache,
    /// The store did not answer and the rule lets requests pass.
    FailOpen,
    /// The store did not answer and the rule denies.
    FailClosed,
    /// The store did not answer and this instance decides alone, by its share of the limit.
    LocalFallback,
    /// No rule applies. Of no decision of a rule.
    NoRule,
}

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
    pub index: RuleIndex,
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
    index: RuleIndex::Flat(usize::MAX),
    rule: "".into(),
    algorithm: Algorithm::FixedWindow,
    grant: Grant::Unlimited,
    mode: Mode::Enforced,
    decision: uncounted(Outcome::Allowed),
    source: Source::NoRule,
});

impl Verdict {
    /// Folds what became of the hits of `plan`, which `rules` have made.
    #[inline]
    pub fn fold(rules: &RuleSet, plan: &Plan, settled: &[Option<HitResult>]) -> Self {
        if let ([hit], [Some(settled)], false) = (&*plan.hits, settled, plan.is_unmatched) {
            let mut decisions = SmallVec::new();
            decisions.push(RuleDecision::new(rules.rule(hit.rule), hit, settled));
            return Self { decisions, deciding: Some(0) };
        }
        let decisions = plan.hits.iter().zip(settled).filter_map(|(hit, settled)| {
            Some(RuleDecision::new(rules.rule(hit.rule), hit, settled.as_ref()?))
        });
        let decisions = decisions.collect();
        if plan.is_unmatched {
            return Self { decisions, deciding: None };
        }
        Self::from_decisions(decisions)
    }

    /// Folds decisions, of one request or of descriptors, of which there is at least one.
    ///
    /// The one that decides: of the enforced rules that deny that with the longest wait, for ever
    /// being the longest. Where all quotas deny, the one with the shortest wait decides among them,
    /// since the request passes as soon as one has room. If nothing refuses, the rule with the least
    /// left.
    pub fn from_decisions(decisions: SmallVec<[RuleDecision; 1]>) -> Self {
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

    /// The verdict where no rule applies and the request may pass.
    pub fn unmatched() -> Self {
        Self { decisions: SmallVec::new(), deciding: None }
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
    /// What became of a hit of this rule.
    #[inline]
    pub fn new(rule: RuleInfo<'_>, hit: &Hit, settled: &HitResult) -> Self {
        Self {
            index: hit.rule,
            rule: Arc::clone(rule.name),
            algorithm: hit.algorithm,
            grant: hit.grant,
            mode: hit.mode,
            decision: settled.reply.decision,
            source: settled.source,
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
    fn wait_of(&self, mode: Mode) -> Option<Micros> {
        match self.decision.outcome {
            _ if self.mode != mode => None,
            Outcome::Allowed => None,
            Outcome::Denied { retry_after } => Some(retry_after),
            Outcome::Impossible => Some(Micros::from_micros(u64::MAX)),
        }
    }

    /// How it is enforced, and whether it denies.
    pub fn denial(&self) -> (Mode, bool) {
        (self.grant.effective_mode(self.mode), !self.decision.is_allowed())
    }
}

/// A decision for which nothing is counted.
pub const fn uncounted(outcome: Outcome) -> Decision {
    Decision {
        at: Timestamp::EPOCH,
        outcome,
        current_count: 0,
        remaining: 0,
        reset_after: Micros::ZERO,
        ttl: Micros::ZERO,
        delay: Micros::ZERO,
    }
}

impl Source {
    /// The source as a metric label, but for [`Source::NoRule`], which no decision has.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenyCache => "deny_cache",
            Self::FailOpen => "fail_open",
            Self::FailClosed => "fail_closed",
            Self::LocalFallback => "local_fallback",
            Self::NoRule => "no_rule",
        }
    }
}
