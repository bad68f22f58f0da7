//! One set of rules, decided by a limiter of its own over a memory of its own.

use std::sync::Arc;

use rlaas_core::clock::{Clock, ManualClock};
use rlaas_core::rules::RuleSet;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::store::{MemoryStore, Store};
use rlaas_limiter::{CheckError, Limiter};
use smallvec::SmallVec;

use super::keys::KeyTable;
use super::prepared::{HitPosition, PreparedKind, PreparedRequest};
use super::rules::{RulePositions, RuleTable, Side};
use super::verdict::{SimulatedDecision, SimulatedOutcome, SimulatedVerdict};
use crate::request::Dictionary;

/// A limiter, and the requests that it has planned.
#[derive(Debug)]
pub(super) struct Engine {
    limiter: Limiter,
    positions: RulePositions,
    /// By their numbers in the dictionary. Boxed, so that growing copies little.
    prepared: Vec<Option<Box<PreparedRequest>>>,
}

impl Engine {
    /// Creates an engine whose time is that of `clock`.
    pub(super) fn new(
        rules: RuleSet,
        side: Side,
        table: &mut RuleTable,
        clock: &ManualClock,
    ) -> Self {
        let positions = table.add(&rules, side);
        let store = MemoryStore::for_all_keys(Clock::Manual(clock.clone()), Arc::new(NoObserver));
        let limiter = Limiter::new(rules, Store::Memory(store), Arc::new(NoObserver));
        Self { limiter, positions, prepared: Vec::new() }
    }

    /// Decides a request at the time of the clock. Returns the verdict, and the positions of the
    /// request's hits in the report, one for each decision.
    #[inline]
    pub(super) fn decide(
        &mut self,
        number: u32,
        dictionary: &Dictionary,
        keys: &mut KeyTable,
    ) -> (SimulatedVerdict, &[HitPosition]) {
        let (limiter, positions, at) = (&self.limiter, &self.positions, number as usize);
        if at >= self.prepared.len() {
            self.prepared.resize_with(at + 1, || None);
        }
        let request = self.prepared[at].get_or_insert_with(|| {
            let request = dictionary.request(number);
            Box::new(PreparedRequest::new(limiter, request, |hit| {
                let rule = positions.position(hit.rule);
                HitPosition { rule, key: keys.position(&hit.key, rule) }
            }))
        });
        let verdict = verdict(limiter, &request.check);
        debug_assert!(
            verdict.decisions.is_empty() || verdict.decisions.len() == request.hits.len()
        );
        (verdict, &request.hits)
    }

    /// Forgets the requests.
    pub(super) fn forget_requests(&mut self) {
        self.prepared.clear();
    }

    /// Returns how many requests are planned.
    #[cfg(test)]
    pub(super) fn planned_requests(&self) -> usize {
        self.prepared.iter().flatten().count()
    }
}

#[inline]
fn verdict(limiter: &Limiter, check: &PreparedKind) -> SimulatedVerdict {
    const WAITS: &str = "memory never waits";
    match check {
        PreparedKind::Check(check) => match limiter.execute_prepared(check).expect(WAITS) {
            Ok(results) => {
                let decided = check.plan().hits.iter().zip(&results).filter_map(|(hit, result)| {
                    Some(SimulatedDecision::from_result(hit, result.as_ref()?))
                });
                SimulatedVerdict::from_decisions(decided.collect())
            }
            Err(error) => without_decisions(&error),
        },
        PreparedKind::Descriptors(check) => {
            match limiter.decide_prepared_descriptors(check).expect(WAITS) {
                Ok(verdict) => {
                    let answers = verdict.answers.iter().flatten();
                    let decided = answers.map(|answer| SimulatedDecision::from(&answer.decided));
                    SimulatedVerdict::from_decisions(decided.collect())
                }
                Err(error) => without_decisions(&error),
            }
        }
        PreparedKind::Invalid(reason) => {
            let outcome = SimulatedOutcome::Invalid(*reason);
            SimulatedVerdict { outcome, decisions: SmallVec::new() }
        }
    }
}

/// Returns the verdict for an error. Memory has one error only, since nothing waits, no request has
/// a request id and descriptors were checked when they were planned.
#[cold]
fn without_decisions(error: &CheckError) -> SimulatedVerdict {
    debug_assert!(matches!(error, CheckError::NoRule), "{error}");
    SimulatedVerdict { outcome: SimulatedOutcome::RefusedUnmatched, decisions: SmallVec::new() }
}
