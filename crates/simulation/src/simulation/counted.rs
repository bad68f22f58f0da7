//! Counting of decided requests.

use rlaas_core::clock::{Micros, Timestamp};

use super::engine::HitPosition;
use super::report::{CountsReport, RuleReport, SimulatedSpan, SimulationReport, UnmatchedReport};
use super::rules::{KeyTable, RuleTable};
use super::timeline::Timeline;
use super::verdict::{SimulatedDecision, SimulatedOutcome, SimulatedRequest, SimulatedVerdict};
use crate::request::TimedRequest;

/// The counts of a simulation.
#[derive(Debug, Default)]
pub(super) struct Counted {
    warm_up: Micros,
    first: Option<Timestamp>,
    /// Times of the first and the last request that is counted.
    pub(super) span: Option<(Timestamp, Timestamp)>,
    pub(super) in_warm_up: u64,
    pub(super) rules: RuleTable,
    pub(super) keys: KeyTable,
    pub(super) all: CountsReport,
    pub(super) matched: u64,
    pub(super) unmatched: UnmatchedReport,
    pub(super) invalid: u64,
    /// The reason of the first request that is not valid.
    pub(super) invalid_reason: Option<String>,
    pub(super) was_refused: u64,
    pub(super) timeline: Timeline,
}

impl Counted {
    pub(super) fn new(warm_up: Micros) -> Self {
        Self { warm_up, ..Self::default() }
    }

    /// Counts a request. `hits` and `before` are the hits of both verdicts.
    #[inline]
    pub(super) fn count(
        &mut self,
        arrival: &TimedRequest,
        decided: &SimulatedRequest,
        hits: &[HitPosition],
        before: &[HitPosition],
    ) {
        let TimedRequest { at, was_refused, .. } = *arrival;
        let first = *self.first.get_or_insert(at);
        if at.since(first) < self.warm_up {
            self.in_warm_up += 1;
            return;
        }
        self.was_refused += u64::from(was_refused);
        let since = self.span.map_or(at, |(since, _)| since);
        self.span = Some((since, at.max(since)));
        let counts = counts_of(decided);
        self.all.add(&counts);
        self.timeline.counts_at(at).add(&counts);
        self.count_outcome(&decided.candidate);
        for at in 0..decided.candidate.decisions.len() {
            self.count_hit(decided, hits, at);
        }
        if let Some(against) = &decided.against {
            for at in 0..against.decisions.len() {
                self.count_hit_before(&decided.candidate, against, before, at);
            }
        }
    }

    fn count_outcome(&mut self, verdict: &SimulatedVerdict) {
        match verdict.outcome {
            SimulatedOutcome::RefusedUnmatched => self.unmatched.refused += 1,
            SimulatedOutcome::Allowed if verdict.decisions.is_empty() => {
                self.unmatched.allowed += 1;
            }
            SimulatedOutcome::Allowed | SimulatedOutcome::Refused => self.matched += 1,
            SimulatedOutcome::Invalid(reason) => {
                self.invalid += 1;
                self.invalid_reason.get_or_insert_with(|| reason.to_string());
            }
        }
    }

    /// Counts one decision of the candidate. Descriptors of one request may match the same rule: the
    /// request counts once.
    #[inline]
    fn count_hit(&mut self, request: &SimulatedRequest, hits: &[HitPosition], at: usize) {
        let verdict = &request.candidate;
        let (hit, decided) = (hits[at], &verdict.decisions[at]);
        let rule = &mut self.rules.rules[hit.rule].counts;
        let key = &mut self.keys.counts[hit.key];
        let mut earlier = earlier_of_rule(verdict, hits, at);
        key.requests += 1;
        rule.requests += u64::from(earlier.clone().next().is_none());
        if decided.mode.is_shadow() {
            let is_first = !earlier.any(|other| !other.decision.is_allowed());
            rule.shadow_denied += u64::from(!decided.decision.is_allowed() && is_first);
        } else if verdict.is_refused_by(decided) {
            let against = request.against.as_ref();
            let is_new = u64::from(against.is_some_and(|against| !against.is_refused()));
            key.refused += 1;
            key.allowed_to_refused += is_new;
            if !earlier.any(|other| verdict.is_refused_by(other)) {
                rule.refused += 1;
                rule.allowed_to_refused += is_new;
            }
        }
    }

    /// Counts one decision of the rules that the candidate is compared with.
    fn count_hit_before(
        &mut self,
        candidate: &SimulatedVerdict,
        verdict: &SimulatedVerdict,
        hits: &[HitPosition],
        at: usize,
    ) {
        let mut earlier = earlier_of_rule(verdict, hits, at);
        let is_refused = verdict.is_refused_by(&verdict.decisions[at]);
        if is_refused && !earlier.any(|other| verdict.is_refused_by(other)) {
            let rule = &mut self.rules.rules[hits[at].rule].counts;
            rule.refused_before += 1;
            rule.refused_to_allowed += u64::from(!candidate.is_refused());
        }
    }

    /// Returns the report, with at most `top` keys that were refused most often.
    pub(super) fn report(self, is_compared: bool, top: usize) -> SimulationReport {
        let mut rules = self.rules.rules;
        self.keys.count_in(&mut rules);
        let hardest_hit = self.keys.hardest_hit(&rules, top);
        rules.retain(RuleReport::is_shown);
        rules.sort_by_key(|rule| (rule.candidate.is_none(), rule.rule.clone()));
        SimulationReport {
            is_compared,
            span: self.span.map(|(from, until)| SimulatedSpan { from, length: until.since(from) }),
            warm_up_requests: self.in_warm_up,
            all: self.all,
            matched: self.matched,
            unmatched: self.unmatched,
            invalid: self.invalid,
            invalid_reason: self.invalid_reason,
            recorded_refusals: self.was_refused,
            rules,
            hardest_hit,
            over_time: self.timeline.report(),
        }
    }
}

/// Returns the counts of one request.
fn counts_of(decided: &SimulatedRequest) -> CountsReport {
    let SimulatedRequest { candidate, against } = decided;
    let is_refused = candidate.is_refused();
    let was_refused = against.as_ref().map(SimulatedVerdict::is_refused);
    let denies_in_shadow =
        |decided: &SimulatedDecision| decided.mode.is_shadow() && !decided.decision.is_allowed();
    CountsReport {
        requests: 1,
        refused: u64::from(is_refused),
        refused_before: u64::from(was_refused == Some(true)),
        allowed_to_refused: u64::from(is_refused && was_refused == Some(false)),
        refused_to_allowed: u64::from(!is_refused && was_refused == Some(true)),
        shadow_denied: u64::from(candidate.decisions.iter().any(denies_in_shadow)),
    }
}

/// Returns the decisions before one, of the same rule.
fn earlier_of_rule<'a>(
    verdict: &'a SimulatedVerdict,
    hits: &'a [HitPosition],
    at: usize,
) -> impl Iterator<Item = &'a SimulatedDecision> + Clone {
    let earlier = hits[..at].iter().zip(&verdict.decisions);
    let same = earlier.filter(move |(hit, _)| hit.rule == hits[at].rule);
    same.map(|(_, decided)| decided)
}
