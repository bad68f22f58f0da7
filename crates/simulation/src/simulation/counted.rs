//! Counting of decided requests.

use std::collections::BTreeMap;

use rlaas_core::clock::{Micros, Timestamp};

use super::SimulationSettings;
use super::counts::{Counts, RuleTable};
use super::ids::KeyCounts;
use super::prepared::HitCounts;
use super::timeline::Timeline;
use super::verdict::{
    InvalidRecord, SimulatedDecision, SimulatedOutcome, SimulatedRequest, SimulatedVerdict,
};
use super::waits::wait_of;
use crate::request::TimedRequest;

/// Most different reasons why requests are not valid that a report lists.
const MAX_REASONS: usize = 10;

/// The counts of a simulation.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) warm_up: Micros,
    pub(super) top: usize,
    pub(super) first: Option<Timestamp>,
    /// Times of the first and the last request that is counted.
    pub(super) span: Option<(Timestamp, Timestamp)>,
    pub(super) in_warm_up: u64,
    pub(super) table: RuleTable,
    pub(super) all: Counts,
    pub(super) matched: u64,
    pub(super) unmatched_allowed: u64,
    pub(super) unmatched_refused: u64,
    pub(super) invalid: u64,
    pub(super) reasons: BTreeMap<String, u64>,
    pub(super) was_refused: u64,
    pub(super) keys: KeyCounts,
    pub(super) timeline: Timeline,
}

impl Counted {
    pub(super) fn new(table: RuleTable, warm_up: Micros, max_keys: Option<u32>) -> Self {
        let timeline = Timeline::new(table.rules.len() + 1);
        Self {
            warm_up,
            top: SimulationSettings::DEFAULT_TOP,
            first: None,
            span: None,
            in_warm_up: 0,
            table,
            all: Counts::default(),
            matched: 0,
            unmatched_allowed: 0,
            unmatched_refused: 0,
            invalid: 0,
            reasons: BTreeMap::new(),
            was_refused: 0,
            keys: KeyCounts::new(max_keys),
            timeline,
        }
    }

    /// Counts a request. `hits` and `before` are the hits of both verdicts.
    #[inline]
    pub(super) fn count(
        &mut self,
        arrival: TimedRequest,
        decided: &SimulatedRequest,
        hits: &mut [HitCounts],
        before: &[HitCounts],
    ) {
        let TimedRequest { at, was_refused, .. } = arrival;
        let first = *self.first.get_or_insert(at);
        if at.since(first) < self.warm_up {
            self.in_warm_up += 1;
            return;
        }
        self.was_refused += u64::from(was_refused);
        let since = self.span.map_or(at, |(since, _)| since);
        self.span = Some((since, at.max(since)));
        let SimulatedRequest { candidate, against } = decided;
        self.timeline.advance(at);
        self.count_all(candidate, against.as_ref());
        for at in 0..candidate.decisions.len() {
            self.count_hit(decided, hits, at);
        }
        if let Some(against) = against {
            for at in 0..against.decisions.len() {
                self.count_hit_before(candidate, against, before, at);
            }
        }
    }

    fn count_all(&mut self, candidate: &SimulatedVerdict, against: Option<&SimulatedVerdict>) {
        let is_refused = candidate.is_refused();
        let bucket = self.timeline.counts(0);
        self.all.requests += 1;
        bucket.requests += 1;
        if is_refused {
            self.all.refused += 1;
            bucket.refused += 1;
        }
        if let Some(against) = against {
            let was_refused = against.is_refused();
            self.all.refused_before += u64::from(was_refused);
            bucket.refused_before += u64::from(was_refused);
            self.all.allowed_to_refused += u64::from(is_refused && !was_refused);
            self.all.refused_to_allowed += u64::from(!is_refused && was_refused);
        }
        match candidate.outcome {
            SimulatedOutcome::RefusedUnmatched => self.unmatched_refused += 1,
            SimulatedOutcome::Invalid(reason) => self.count_invalid(reason),
            SimulatedOutcome::Allowed if candidate.decisions.is_empty() => {
                self.unmatched_allowed += 1;
            }
            SimulatedOutcome::Allowed => self.matched += 1,
            SimulatedOutcome::Refused => {
                self.matched += 1;
                match candidate.wait() {
                    Some(wait) => self.all.waits.record(wait),
                    None => self.all.never_pass += 1,
                }
            }
        }
        let denies_in_shadow = |decided: &SimulatedDecision| {
            decided.mode.is_shadow() && !decided.decision.is_allowed()
        };
        if candidate.decisions.iter().any(denies_in_shadow) {
            self.all.shadow_denied += 1;
            self.timeline.counts(0).shadow_denied += 1;
        }
    }

    #[cold]
    fn count_invalid(&mut self, reason: InvalidRecord) {
        self.invalid += 1;
        let reason = reason.to_string();
        if self.reasons.len() < MAX_REASONS || self.reasons.contains_key(&reason) {
            *self.reasons.entry(reason).or_default() += 1;
        }
    }

    /// Counts one decision of the candidate.
    #[inline]
    fn count_hit(&mut self, request: &SimulatedRequest, hits: &mut [HitCounts], at: usize) {
        let verdict = &request.candidate;
        let decided = &verdict.decisions[at];
        let (earlier, rest) = hits.split_at_mut(at);
        let Some(hit) = rest.first_mut() else { return };
        let rule = &mut self.table.rules[hit.rule as usize];
        let bucket = self.timeline.counts(hit.rule as usize + 1);
        let is_denied = !decided.decision.is_allowed();
        hit.requests += 1;
        rule.units_asked += u64::from(hit.units);
        if !is_denied && !verdict.is_refused() {
            rule.units_granted += u64::from(hit.units);
        }
        // Descriptors of one request may match the same rule: the request counts once.
        let same = earlier.iter().zip(&verdict.decisions);
        let mut same = same.filter(|(one, _)| one.rule == hit.rule);
        if same.clone().next().is_none() {
            rule.counts.requests += 1;
            bucket.requests += 1;
        }
        if !is_denied {
            return;
        }
        if decided.mode.is_shadow() {
            if !same.any(|(_, one)| !one.decision.is_allowed()) {
                rule.counts.shadow_denied += 1;
                bucket.shadow_denied += 1;
            }
        } else if verdict.is_refused_by(decided) {
            let against = request.against.as_ref();
            let passed_before = against.is_some_and(|against| !against.is_refused());
            hit.refused += 1;
            hit.allowed_to_refused += u64::from(passed_before);
            let wait = wait_of(decided.decision.outcome);
            hit.longest_wait = hit.longest_wait.max(wait.unwrap_or_default());
            if !same.any(|(_, one)| verdict.is_refused_by(one)) {
                rule.counts.refused += 1;
                bucket.refused += 1;
                rule.counts.allowed_to_refused += u64::from(passed_before);
                match wait {
                    Some(wait) => rule.counts.waits.record(wait),
                    None => rule.counts.never_pass += 1,
                }
            }
        }
    }

    /// Counts one decision of the rules that the candidate is compared with.
    fn count_hit_before(
        &mut self,
        candidate: &SimulatedVerdict,
        verdict: &SimulatedVerdict,
        hits: &[HitCounts],
        at: usize,
    ) {
        let (Some(hit), decided) = (hits.get(at), &verdict.decisions[at]) else { return };
        let rule = &mut self.table.rules[hit.rule as usize];
        let same = hits[..at].iter().zip(&verdict.decisions);
        let mut same = same.filter(|(one, _)| one.rule == hit.rule);
        if same.clone().next().is_none() {
            rule.matched_before += 1;
        }
        if verdict.is_refused_by(decided) && !same.any(|(_, one)| verdict.is_refused_by(one)) {
            rule.counts.refused_before += 1;
            rule.counts.refused_to_allowed += u64::from(!candidate.is_refused());
            self.timeline.counts(hit.rule as usize + 1).refused_before += 1;
        }
    }
}
