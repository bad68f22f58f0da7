//! One pass over the hits: many limits side by side, each decided by the algorithm itself.

use rlaas_core::algorithm::{Algorithm, Cost, Limit, State, window_index};
use rlaas_core::clock::{Micros, Timestamp};

use super::LimitsError;
use super::hit_log::{HitLog, LoggedHit};
use super::profile::KeyBounds;

/// The keys of the hits: the rule and the bounds of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweptKeys<'a> {
    /// Number of the rule of each key.
    pub(super) rules: &'a [u32],
    pub(super) bounds: &'a [KeyBounds],
}

/// What a limit refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrialResult {
    /// Requests refused.
    pub(super) requests: u64,
    /// Ids of which at least one request was refused.
    pub(super) ids: u64,
    /// Upper bound of the requests that any limit between this one and the next one refuses.
    pub(super) requests_between: u64,
}

/// Bytes of a key's state at one limit, without the entries of a log.
const CELL_BYTES: u64 = size_of::<TrialCell>() as u64;
/// Bytes of an entry of a log.
const ENTRY_BYTES: u64 = 16;

/// The state of one key at one limit.
#[derive(Debug, Default)]
struct TrialCell {
    state: State,
    was_refused: bool,
    /// Whether this limit and the next one have decided differently, and may still have different
    /// states because of that.
    has_diverged: bool,
}

/// The states of one key at the limits that may refuse it.
#[derive(Debug)]
struct KeyTrials {
    last: Timestamp,
    cells: Box<[TrialCell]>,
}

/// Returns about how many bytes the states of a sweep take.
pub(super) fn sweep_bytes(keys: SweptKeys<'_>, algorithm: Algorithm, limits: &[Vec<u64>]) -> u64 {
    let bytes_of = |(rule, bounds): (&u32, &KeyBounds)| -> u64 {
        let limits = may_refuse(&limits[*rule as usize], *bounds);
        let entries: u64 = match algorithm {
            Algorithm::SlidingWindowLog => limits.iter().map(|one| bounds.units.min(*one)).sum(),
            _ => 0,
        };
        limits.len() as u64 * CELL_BYTES + entries * ENTRY_BYTES
    };
    keys.rules.iter().zip(keys.bounds).map(bytes_of).sum()
}

/// Returns the limits at which a request of the key may be refused.
fn may_refuse(limits: &[u64], bounds: KeyBounds) -> &[u64] {
    &limits[..limits.partition_point(|limit| *limit < bounds.never_refused_from)]
}

/// Limits that are tried on the same hits, in one pass.
pub(super) struct Sweep<'a> {
    keys: SweptKeys<'a>,
    algorithm: Algorithm,
    window: Micros,
    /// Of each rule, in ascending order.
    limits: Vec<Vec<Limit>>,
    units: &'a [Vec<u64>],
    trials: Vec<Option<KeyTrials>>,
    results: Vec<Vec<TrialResult>>,
}

impl<'a> Sweep<'a> {
    /// Prepares a pass. `units` are the limits of each rule, in ascending order; the algorithm must
    /// accept them.
    pub(super) fn new(
        keys: SweptKeys<'a>,
        algorithm: Algorithm,
        (window, burst): (Micros, Option<u64>),
        units: &'a [Vec<u64>],
    ) -> Self {
        let limit = |units: &u64| {
            let limit = Limit::new(*units, window);
            let limit = limit.and_then(|limit| burst.map_or(Ok(limit), |it| limit.with_burst(it)));
            limit.expect("limits that were checked")
        };
        let limits = units.iter().map(|of_rule| of_rule.iter().map(limit).collect()).collect();
        let results = units.iter().map(|of_rule| vec![TrialResult::default(); of_rule.len()]);
        let results = results.collect();
        let trials = keys.rules.iter().map(|_| None).collect();
        Self { keys, algorithm, window, limits, units, trials, results }
    }

    /// Decides each hit at each limit of its rule. Returns the results of each rule and limit.
    pub(super) fn run(mut self, hits: &HitLog) -> Result<Vec<Vec<TrialResult>>, LimitsError> {
        hits.for_each(|hit| self.decide(hit))?;
        Ok(self.results)
    }

    fn decide(&mut self, hit: LoggedHit) {
        let key = hit.key as usize;
        let (rule, bounds) = (self.keys.rules[key] as usize, self.keys.bounds[key]);
        // A cost of 0 takes nothing and is never refused.
        if hit.cost == 0
            || self.units[rule].first().is_none_or(|it| *it >= bounds.never_refused_from)
        {
            return;
        }
        let trials = self.trials[key].get_or_insert_with(|| {
            let count = may_refuse(&self.units[rule], bounds).len();
            let cells = (0..count).map(|_| TrialCell::default()).collect();
            KeyTrials { last: hit.at, cells }
        });
        let (limits, results) = (&self.limits[rule], &mut self.results[rule]);
        let cost = Cost::new(hit.cost);
        let mut is_next_allowed = true;
        for at in (0..trials.cells.len()).rev() {
            let (cell, limit, result) = (&mut trials.cells[at], &limits[at], &mut results[at]);
            if cell.has_diverged && is_fresh(self.algorithm, limit, trials.last, hit.at) {
                cell.has_diverged = false;
            }
            let decision = self.algorithm.take(&mut cell.state, limit, hit.at, cost);
            let is_allowed = decision.is_allowed();
            if !is_allowed {
                result.requests += 1;
                result.ids += u64::from(!cell.was_refused);
                cell.was_refused = true;
            }
            cell.has_diverged |= is_allowed != is_next_allowed;
            let is_unknown = cell.has_diverged && !bounds.is_monotone;
            result.requests_between += u64::from(!is_allowed || is_unknown);
            is_next_allowed = is_allowed;
        }
        trials.last = hit.at;
        debug_assert_eq!(self.window, limits[0].window());
    }
}

/// Returns `true` if the state of a key whose last request was at `last` is as new at this limit and
/// at each larger one, whatever was allowed before.
fn is_fresh(algorithm: Algorithm, limit: &Limit, last: Timestamp, now: Timestamp) -> bool {
    let window = limit.window();
    match algorithm {
        Algorithm::FixedWindow => window_index(last, window) != window_index(now, window),
        Algorithm::SlidingWindowLog => now.as_millis() >= last.as_millis() + window.as_millis(),
        Algorithm::SlidingWindowCounter => now.since(last) >= window + window,
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => {
            now.since(last) >= limit.fill_time()
        }
    }
}
