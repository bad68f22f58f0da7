//! Verdicts: the outcome of a request, folded from the decisions on its hits.

use std::cmp::Reverse;
use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Decision, Limit, Outcome};
use crate::clock::{Micros, Timestamp};
use crate::operation::HitReply;
use crate::plan::{Hit, Plan, RuleIndex};
use crate::rules::{Grant, Mode, OnStoreFailure, RuleInfo, RuleSet, Share};

/// The reply to one hit, and its origin.
#[derive(Clone, Debug)]
pub struct HitResult {
    /// Outcome and numbers.
    pub reply: HitReply,
    /// Origin of the reply.
    pub source: Source,
}

/// The results of the hits of a plan, in order. `None` for hits that were not decided because the
/// request is refused already.
pub type HitResults = SmallVec<[Option<HitResult>; 1]>;

impl HitResult {
    /// Returns the result for hits that need no store: a ban or an unlimited grant, unless it is
    /// overridable. `None` for others.
    pub fn without_store(hit: &Hit) -> Option<Self> {
        let needs_store = hit.overridable || hit.counted_by.is_some();
        if needs_store { None } else { Self::by_grant_alone(&hit.grant) }
    }

    /// Returns the result that a ban or an unlimited grant has by itself. `None` for limits.
    pub fn by_grant_alone(grant: &Grant) -> Option<Self> {
        let outcome = match grant {
            Grant::Limited(_) => return None,
            Grant::Banned => Outcome::Impossible,
            Grant::Unlimited => Outcome::Allowed,
        };
        Some(Self::uncounted(outcome, Source::Store))
    }

    /// Returns a result for which nothing is counted.
    pub const fn uncounted(outcome: Outcome, source: Source) -> Self {
        Self { reply: HitReply::new(Decision::uncounted(outcome), 0), source }
    }

    /// Returns the grant that decided the hit: its own, unless an override replaced it.
    #[inline]
    pub fn grant(&self, hit: &Hit) -> Grant {
        self.reply.applied.as_ref().map_or(hit.grant, |applied| applied.grant)
    }

    /// Returns the part of a limit of the rule that counts where the decision was made: an instance that decides alone
    /// has a share.
    pub(crate) fn limit_here(&self, limit: &Limit, rule: RuleInfo<'_>) -> Limit {
        match (self.source, rule.on_store_failure) {
            (Source::LocalFallback, OnStoreFailure::Local(share)) => {
                limit.share(share.millionths())
            }
            _ => *limit,
        }
    }

    /// Returns the mode in view of the grant, and whether the hit denies the request.
    pub fn denial(&self, hit: &Hit) -> (Mode, bool) {
        (self.grant(hit).effective_mode(hit.mode), !self.reply.decision.is_allowed())
    }
}

/// The origin of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The store decided, or no store was needed.
    Store,
    /// An earlier denial by the store still holds.
    DenyCache,
    /// The store failed, and the rule allows requests then.
    FailOpen,
    /// The store failed, and the rule denies requests then.
    FailClosed,
    /// The store failed, and this instance decided alone, by its share of the limit.
    LocalFallback,
    /// No rule applies. Decisions of rules never have this source.
    NoRule,
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The decision of each rule that matches, by name.
    pub decisions: SmallVec<[RuleDecision; 1]>,
    /// Position of the deciding one; `None` if no rule is enforced.
    deciding: Option<usize>,
    /// `true` if an earlier request with the same request id took the units, and nothing was taken
    /// now.
    pub replayed: bool,
    /// Units that the caller may use, if the request [takes what is there](crate::rules::Request::with_at_least):
    /// 0 on a denial, in a dry run what they would be. `None` for other requests.
    pub taken: Option<u64>,
}

/// The decision of one rule on a request.
#[derive(Clone, Debug)]
pub struct RuleDecision {
    /// Position of the rule in its set.
    pub index: RuleIndex,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Algorithm of the rule.
    pub algorithm: Algorithm,
    /// Grant that decided: of the rule to this request, or of an override set at run time.
    pub grant: Grant,
    /// Mode of the rule.
    pub mode: Mode,
    /// Outcome and numbers.
    pub decision: Decision,
    /// Origin of the decision.
    pub source: Source,
    /// Whether the units in use are at or above the rule's [`near_limit`](RuleInfo::near_limit)
    /// part of the limit. `false` for decisions without counted units.
    pub is_near_limit: bool,
    /// Whether holds alone deny it: the state has enough.
    pub is_held: bool,
    /// Units, or slots, that the reservation of the request holds after it. 0 without one.
    pub held: u64,
}

/// Stands in for the deciding decision if no rule applies.
static NO_RULE: LazyLock<RuleDecision> = LazyLock::new(|| RuleDecision {
    index: RuleIndex::Flat(usize::MAX),
    rule: "".into(),
    algorithm: Algorithm::FixedWindow,
    grant: Grant::Unlimited,
    mode: Mode::Enforced,
    decision: Decision::uncounted(Outcome::Allowed),
    source: Source::NoRule,
    is_near_limit: false,
    is_held: false,
    held: 0,
});

impl Verdict {
    /// Folds the results of the hits of `plan`, which `rules` have made.
    #[inline]
    pub fn fold(rules: &RuleSet, plan: &Plan, results: &[Option<HitResult>]) -> Self {
        let mut verdict = Self::fold_decisions(rules, plan, results);
        if plan.up_to.is_some() {
            let taken = plan.units_taken(rules, results).filter(|_| verdict.is_allowed());
            verdict.taken = taken.or(Some(0));
        }
        verdict
    }

    #[inline]
    fn fold_decisions(rules: &RuleSet, plan: &Plan, results: &[Option<HitResult>]) -> Self {
        if let ([hit], [Some(result)]) = (&*plan.hits, results) {
            let mut decisions = SmallVec::new();
            decisions.push(RuleDecision::new(rules.rule(hit.rule), hit, result));
            let deciding = (hit.mode != Mode::Shadow).then_some(0);
            return Self { decisions, deciding, replayed: false, taken: None };
        }
        let decisions = plan.hits.iter().zip(results).filter_map(|(hit, result)| {
            Some(RuleDecision::new(rules.rule(hit.rule), hit, result.as_ref()?))
        });
        let decisions: SmallVec<[RuleDecision; 1]> = decisions.collect();
        // No rule is enforced for this request: each is in shadow mode, or for these keys.
        if decisions.iter().all(|decided| decided.mode == Mode::Shadow) {
            return Self { decisions, deciding: None, replayed: false, taken: None };
        }
        Self::from_decisions(decisions)
    }

    /// Folds at least one decision.
    ///
    /// The deciding decision is, if the request is refused, the one with the longest wait of those
    /// that refuse it; a rule that never allows it has the longest. If all quotas deny, only the
    /// one with the shortest wait is among them, since the request passes as soon as one quota
    /// allows it. If nothing refuses the request, the decision with the fewest units left decides.
    pub fn from_decisions(decisions: SmallVec<[RuleDecision; 1]>) -> Self {
        let quotas_refuse = Mode::quotas_refuse(decisions.iter().map(RuleDecision::denial));
        let quota_wait = decisions.iter().filter_map(|rule| rule.wait_of(Mode::Quota)).min();
        let weight = |rule: &RuleDecision| {
            let refuses = rule.wait_of(Mode::Enforced).or_else(|| {
                rule.wait_of(Mode::Quota).filter(|wait| quotas_refuse && Some(*wait) == quota_wait)
            });
            (rule.mode == Mode::Enforced || refuses.is_some(), refuses, Reverse(rule.scarcity()))
        };
        // `max_by_key` returns the last of equals: reversed, the first by name.
        let heaviest = decisions.iter().enumerate().rev().max_by_key(|(_, rule)| weight(rule));
        let deciding = heaviest.map(|(position, _)| position);
        Self { decisions, deciding, replayed: false, taken: None }
    }

    /// Returns the verdict for a request that may pass because no rule applies.
    pub fn unmatched() -> Self {
        Self { decisions: SmallVec::new(), deciding: None, replayed: false, taken: None }
    }

    /// Returns the position of the deciding decision; `None` if no rule applies.
    pub fn deciding_position(&self) -> Option<usize> {
        self.deciding
    }

    /// Returns the deciding decision; if no rule applies, one with [`Source::NoRule`] and an empty
    /// name.
    pub fn deciding(&self) -> &RuleDecision {
        match self.deciding {
            Some(position) => &self.decisions[position],
            None => &NO_RULE,
        }
    }

    /// Returns `true` if the request may pass.
    pub fn is_allowed(&self) -> bool {
        !Mode::refuse(self.decisions.iter().map(RuleDecision::denial))
    }

    /// Returns `true` if an enforced rule or a quota is near its limit.
    pub fn is_near_limit(&self) -> bool {
        self.decisions.iter().any(|decided| decided.is_near_limit && !decided.mode.is_shadow())
    }

    /// Returns `true` if this decision refuses the request: that of an enforced rule that denies,
    /// or of a quota if all quotas deny.
    pub fn is_refused_by(&self, decided: &RuleDecision) -> bool {
        let (mode, denies) = decided.denial();
        let all = self.decisions.iter().map(RuleDecision::denial);
        match mode {
            Mode::Enforced => denies,
            Mode::Quota => Mode::quotas_refuse(all),
            Mode::Shadow | Mode::ShadowQuota | Mode::Off => false,
        }
    }
}

impl RuleDecision {
    /// Returns the end of the current window of a calendar, or of one from the first use, if it has begun; `None`
    /// for a decision without the store, which has no time.
    pub fn reset_at(&self) -> Option<Timestamp> {
        let Decision { at, reset_after, .. } = self.decision;
        let windows = self.grant.limit().filter(|_| at != Timestamp::EPOCH)?.windows();
        let has_begun = windows.is_from_first_use() && reset_after > Micros::ZERO;
        let of_calendar = windows.calendar().map(|calendar| calendar.window_at(at).end);
        of_calendar.or_else(|| has_begun.then(|| at + reset_after))
    }

    /// Returns the length of the window, of a calendar that of the window in which the decision was made;
    /// `None` for slots, and without a limit.
    pub fn window(&self) -> Option<Micros> {
        let limit = self.grant.limit().filter(|_| !self.algorithm.has_slots())?;
        Some(limit.windows().length_at(self.decision.at))
    }

    /// Creates the decision of a rule from the result of its hit.
    #[inline]
    pub fn new(rule: RuleInfo<'_>, hit: &Hit, result: &HitResult) -> Self {
        let outcome = match (result.grant(hit), result.reply.decision.outcome) {
            // What the limit beneath says of a report is not what its key is granted.
            (Grant::Banned, Outcome::Allowed) => Outcome::Impossible,
            (Grant::Unlimited, _) => Outcome::Allowed,
            (_, outcome) => outcome,
        };
        let remaining = hit.remaining(&result.reply);
        let remaining = match hit.headroom {
            None => remaining,
            Some(share) => {
                remaining.saturating_sub(left_to_others(share, rule, hit, result)).max(0)
            }
        };
        Self {
            index: hit.rule,
            rule: Arc::clone(rule.name),
            algorithm: hit.algorithm,
            grant: result.grant(hit),
            mode: hit.mode,
            decision: Decision { outcome, remaining, ..result.reply.decision },
            source: result.source,
            is_near_limit: rule.near_limit.is_some_and(|from| is_near(from, rule, hit, result)),
            is_held: result.reply.held.as_ref().is_some_and(|held| held.denies),
            held: result.reply.own_hold().unwrap_or_default(),
        }
    }

    /// Returns the units left; `None` if the grant is unlimited.
    pub fn remaining(&self) -> Option<i64> {
        (self.grant != Grant::Unlimited).then_some(self.decision.remaining)
    }

    /// Orders decisions by the units left; unlimited ones come last.
    fn scarcity(&self) -> (bool, i64) {
        (self.grant == Grant::Unlimited, self.decision.remaining)
    }

    /// Returns the wait that a denial of this rule causes, if the rule has this mode.
    fn wait_of(&self, mode: Mode) -> Option<Micros> {
        match self.decision.outcome {
            _ if self.mode != mode => None,
            Outcome::Allowed => None,
            Outcome::Denied { retry_after } => Some(retry_after),
            Outcome::Impossible => Some(Micros::from_micros(u64::MAX)),
        }
    }

    /// Returns the effective mode, and whether the rule denies the request.
    pub fn denial(&self) -> (Mode, bool) {
        (self.grant.effective_mode(self.mode), !self.decision.is_allowed())
    }
}

/// Returns the units that the request leaves to others.
#[cold]
fn left_to_others(share: Share, rule: RuleInfo<'_>, hit: &Hit, result: &HitResult) -> i64 {
    let grant = result.grant(hit);
    let Some(limit) = grant.limit() else { return 0 };
    share.units_at_once(&result.limit_here(limit, rule)).cast_signed()
}

/// Returns `true` if the units in use are at or above `from` of the limit that decided; for a descriptor above
/// it, as in envoyproxy/ratelimit.
fn is_near(from: Share, rule: RuleInfo<'_>, hit: &Hit, result: &HitResult) -> bool {
    if matches!(result.source, Source::FailOpen | Source::FailClosed | Source::NoRule) {
        return false;
    }
    let Some(limit) = hit.counted_grant(&result.reply).limit() else { return false };
    let used = from.compare_use(&result.limit_here(limit, rule), result.reply.decision.remaining);
    match hit.rule {
        RuleIndex::Descriptor { .. } => used.is_gt(),
        RuleIndex::Flat(_) => used.is_ge(),
    }
}

impl Source {
    /// Returns the value of the metrics' label `source`. [`Source::NoRule`] is not used there.
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
