//! One set of rules, decided by a limiter of its own over a memory of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rlaas_core::clock::{Clock, ManualClock};
use rlaas_core::rules::RuleSet;
use rlaas_limiter::observer::{NoObserver, Observer, RuleObserver, StoreEvent};
use rlaas_limiter::store::{MemorySettings, MemoryStore, Store};
use rlaas_limiter::{CheckError, Limiter};
use smallvec::SmallVec;

use super::counts::{RulePositions, RuleTable, Side};
use super::ids::KeyCounts;
use super::prepared::{HitCounts, PreparedKind, PreparedRequest, PreparedRequests};
use super::verdict::{SimulatedDecision, SimulatedOutcome, SimulatedVerdict};
use crate::request::Dictionary;

/// A limiter, and the requests that it has planned.
#[derive(Debug)]
pub(super) struct Engine {
    limiter: Limiter,
    evictions: Arc<EvictionCounter>,
    positions: RulePositions,
    prepared: PreparedRequests,
}

impl Engine {
    /// Creates an engine whose time is that of `clock`.
    pub(super) fn new(
        rules: RuleSet,
        side: Side,
        table: &mut RuleTable,
        clock: &ManualClock,
        max_keys: Option<u32>,
    ) -> Self {
        let positions = table.add(&rules, side);
        let evictions = Arc::new(EvictionCounter::default());
        let observer = Arc::clone(&evictions) as Arc<dyn Observer>;
        let clock = Clock::Manual(clock.clone());
        let store = match max_keys {
            Some(max_keys) => {
                MemoryStore::new(MemorySettings { max_keys }, clock, Arc::clone(&observer))
            }
            None => MemoryStore::for_all_keys(clock, Arc::clone(&observer)),
        };
        let limiter = Limiter::new(rules, Store::Memory(store), observer);
        Self { limiter, evictions, positions, prepared: PreparedRequests::default() }
    }

    /// Decides a request at the time of the clock. Returns the verdict, and the counts of the
    /// request's hits, one for each decision.
    #[inline]
    pub(super) fn decide(
        &mut self,
        number: u32,
        dictionary: &Dictionary,
        table: &mut RuleTable,
    ) -> (SimulatedVerdict, &mut [HitCounts]) {
        let (limiter, positions) = (&self.limiter, &self.positions);
        let request = self.prepared.entry(number, || {
            PreparedRequest::new(limiter, dictionary.request(number), |hit| {
                let rule = positions.position(hit.rule);
                table.rule(rule).record_limit(hit);
                rule
            })
        });
        let verdict = verdict(limiter, &request.check);
        debug_assert!(
            verdict.decisions.is_empty() || verdict.decisions.len() == request.hits.len()
        );
        (verdict, &mut request.hits)
    }

    /// Forgets the requests. Their counts are added to those of their keys.
    pub(super) fn forget_requests(&mut self, keys: Option<&mut KeyCounts>) {
        let requests = self.prepared.drain();
        match keys {
            Some(keys) => requests.for_each(|request| keys.add(&request)),
            None => drop(requests),
        }
    }

    /// Returns how many requests are planned.
    #[cfg(test)]
    pub(super) fn planned_requests(&self) -> usize {
        self.prepared.len()
    }

    /// Returns how many keys were dropped because there was no space for them.
    pub(super) fn keys_dropped(&self) -> u64 {
        self.evictions.count.load(Ordering::Relaxed)
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

/// Counts keys that the store evicts.
#[derive(Debug, Default)]
struct EvictionCounter {
    count: AtomicU64,
}

impl Observer for EvictionCounter {
    fn rule(&self, _rule: rlaas_core::rules::RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        Arc::new(NoObserver)
    }

    fn store(&self, event: StoreEvent) {
        if matches!(event, StoreEvent::KeyEvicted) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
