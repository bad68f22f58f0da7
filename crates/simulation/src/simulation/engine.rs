//! One set of rules, decided by a limiter of its own over a memory of its own.

use std::sync::Arc;

use rlaas_core::clock::{Clock, ManualClock};
use rlaas_core::plan::Plan;
use rlaas_core::rules::RuleSet;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::store::{MemoryStore, Store};
use rlaas_limiter::{CheckError, Limiter};
use smallvec::SmallVec;

use super::rules::{KeyTable, RulePositions, RuleTable, Side};
use super::verdict::{InvalidRecord, SimulatedDecision, SimulatedOutcome, SimulatedVerdict};
use crate::request::{RecordedRequest, descriptor_request, with_request};

const WAITS: &str = "memory never waits";

/// A limiter, and where its decisions are counted.
#[derive(Debug)]
pub(super) struct Engine {
    limiter: Limiter,
    positions: RulePositions,
}

/// Where a hit is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct HitPosition {
    /// Position of the rule among all rules.
    pub(super) rule: usize,
    /// Position of the key among all keys.
    pub(super) key: usize,
}

/// Where the hits of a request are counted, one for each decision.
pub(super) type HitPositions = SmallVec<[HitPosition; 1]>;

impl Engine {
    /// Creates an engine whose time is that of `clock`.
    pub(super) fn new(
        rules: RuleSet,
        side: Side,
        table: &mut RuleTable,
        clock: &ManualClock,
    ) -> Self {
        let rules = rules.without_slots();
        let positions = table.add(&rules, side);
        let store = MemoryStore::for_all_keys(Clock::Manual(clock.clone()), Arc::new(NoObserver));
        let limiter = Limiter::new(rules, Store::Memory(store), Arc::new(NoObserver));
        Self { limiter, positions }
    }

    /// Decides a request at the time of the clock.
    pub(super) fn decide(
        &self,
        request: &RecordedRequest,
        keys: &mut KeyTable,
    ) -> (SimulatedVerdict, HitPositions) {
        self.decide_valid(request, keys).unwrap_or_else(|reason| {
            (
                SimulatedVerdict::without_decisions(SimulatedOutcome::Invalid(reason)),
                SmallVec::new(),
            )
        })
    }

    fn decide_valid(
        &self,
        request: &RecordedRequest,
        keys: &mut KeyTable,
    ) -> Result<(SimulatedVerdict, HitPositions), InvalidRecord> {
        let snapshot = self.limiter.snapshot();
        let (plan, decided) = match request {
            RecordedRequest::Fields(fields) => with_request(fields, |request| {
                let decided = self.limiter.check_now(request).expect(WAITS);
                let decisions = decided
                    .map(|verdict| verdict.decisions.iter().map(SimulatedDecision::from).collect());
                (Plan::for_request(&snapshot.rules, request), decisions)
            })?,
            RecordedRequest::Descriptors(descriptors) => {
                let request = descriptor_request(descriptors)?;
                let plan = snapshot.rules.descriptors().plan(&request)?.plan;
                let decided = self.limiter.check_descriptors_now(&request).expect(WAITS);
                let decisions = decided.map(|verdict| {
                    let answers = verdict.answers.iter().flatten();
                    answers.map(|answer| SimulatedDecision::from(&answer.decided)).collect()
                });
                (plan, decisions)
            }
        };
        let hits = plan.hits.iter().map(|hit| {
            let rule = self.positions.position(hit.rule);
            HitPosition { rule, key: keys.position(&hit.key, rule) }
        });
        let hits: HitPositions = hits.collect();
        let verdict =
            decided.map_or_else(|error| unmatched(&error), SimulatedVerdict::from_decisions);
        debug_assert!(verdict.decisions.is_empty() || verdict.decisions.len() == hits.len());
        Ok((verdict, hits))
    }
}

/// Returns the verdict for an error. Memory has one error only, since nothing waits, no request has
/// a request id and descriptors were checked when they were planned.
#[cold]
fn unmatched(error: &CheckError) -> SimulatedVerdict {
    debug_assert!(matches!(error, CheckError::NoRule), "{error}");
    SimulatedVerdict::without_decisions(SimulatedOutcome::RefusedUnmatched)
}
