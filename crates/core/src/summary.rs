//! What a verdict tells callers, whether a limiter in this process or a service reached it.

use crate::algorithm::{Algorithm, Limit, Outcome};
use crate::clock::Micros;
use crate::rules::Grant;
use crate::verdict::{RuleDecision, Source, Verdict};

/// A verdict as reported to callers.
pub trait Summary: Clone {
    /// Returns `true` if the request may pass.
    fn is_allowed(&self) -> bool;

    /// Returns the time after which a refused request passes; `None` if the request is allowed or
    /// waiting does not help.
    fn retry_after(&self) -> Option<Micros>;

    /// Returns the enforced rules and quotas, except those without a limit.
    fn rules(&self) -> impl Iterator<Item = RuleSummary<'_>>;

    /// Returns the rule that decided; `None` if there is none or it has no limit.
    fn deciding_rule(&self) -> Option<RuleSummary<'_>>;

    /// Returns the time for which the refusal can be cached: the same request is refused until then
    /// unless units are returned. `None` if the request may pass, if waiting does not help, if no
    /// store decided, or if the refusal comes from a cache.
    fn refused_for(&self) -> Option<Micros>;

    /// Returns a refusal as it reads `elapsed` later, from a cache.
    #[must_use]
    fn after(&self, elapsed: Micros) -> Self;
}

/// The limit of a rule, and the units that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSummary<'a> {
    /// Name of the rule.
    pub name: &'a str,
    /// Units per window; 0 for a ban.
    pub quota: u64,
    /// Length of the window; `None` for a ban, or if it is not known.
    pub window: Option<Micros>,
    /// Units that can be taken at once; `None` for a ban, if equal to `quota`, or if not known.
    pub burst: Option<u64>,
    /// `true` if the quota is slots for work in flight: they have no window.
    pub has_slots: bool,
    /// Units left, 0 in debt; `None` if nothing was counted.
    pub remaining: Option<u64>,
    /// Time until a denied request passes, or else until all units are available again. `None` for
    /// a ban, which does not end with time.
    pub reset: Option<Micros>,
    /// `true` if the rule agrees with the verdict: it allows an allowed request, or it is a reason
    /// why the request is refused.
    pub is_relevant: bool,
}

impl Summary for Verdict {
    fn is_allowed(&self) -> bool {
        self.is_allowed()
    }

    fn retry_after(&self) -> Option<Micros> {
        match self.deciding().decision.outcome {
            Outcome::Denied { retry_after } if !self.is_allowed() => Some(retry_after),
            _ => None,
        }
    }

    fn rules(&self) -> impl Iterator<Item = RuleSummary<'_>> {
        let is_allowed = self.is_allowed();
        self.decisions.iter().filter(|decided| !decided.mode.is_shadow()).filter_map(
            move |decided| {
                let allows = || decided.decision.is_allowed();
                let is_relevant = if is_allowed { allows() } else { self.is_refused_by(decided) };
                RuleSummary::new(decided, is_relevant)
            },
        )
    }

    fn deciding_rule(&self) -> Option<RuleSummary<'_>> {
        RuleSummary::new(self.deciding(), true)
    }

    fn refused_for(&self) -> Option<Micros> {
        let is_fresh = matches!(self.deciding().source, Source::Store | Source::LocalFallback);
        self.retry_after().filter(|_| is_fresh && !self.deciding().is_held)
    }

    /// Leaves out the rules that allowed the request, because they may deny it by now.
    fn after(&self, elapsed: Micros) -> Self {
        let denying = self.decisions.iter().filter(|decided| !decided.decision.is_allowed());
        let later = denying.map(|decided| RuleDecision {
            decision: decided.decision.after(elapsed, decided.algorithm),
            source: Source::DenyCache,
            ..decided.clone()
        });
        let mut later = Self::from_decisions(later.collect());
        later.taken = self.taken;
        later
    }
}

impl<'a> RuleSummary<'a> {
    fn new(decided: &'a RuleDecision, is_relevant: bool) -> Option<Self> {
        let (quota, burst) = match &decided.grant {
            Grant::Limited(limit) => (limit.units(), burst(decided.algorithm, limit)),
            Grant::Banned => (0, None),
            Grant::Unlimited => return None,
        };
        let reset = match decided.decision.outcome {
            Outcome::Denied { retry_after } => retry_after,
            Outcome::Allowed | Outcome::Impossible => decided.decision.reset_after,
        };
        Some(Self {
            name: &decided.rule,
            quota,
            window: decided.window(),
            burst,
            has_slots: decided.algorithm.has_slots(),
            remaining: (decided.source != Source::FailOpen)
                .then(|| u64::try_from(decided.decision.remaining).unwrap_or_default()),
            reset: (decided.grant != Grant::Banned).then_some(reset),
            is_relevant,
        })
    }
}

/// Returns the burst, if the algorithm has one and it differs from the units per window.
fn burst(algorithm: Algorithm, limit: &Limit) -> Option<u64> {
    (algorithm.has_burst() && limit.burst() != limit.units()).then_some(limit.burst())
}
