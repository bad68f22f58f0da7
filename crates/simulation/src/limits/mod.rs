//! Limits that would have refused few of the requests of recorded traffic.
//!
//! For each rule, algorithm and window: the smallest limit such that it *and every larger one*
//! refuse at most a share of the requests, or of the ids. With costs above 1 a larger limit may
//! refuse more than a smaller one, so the smallest limit that happens to refuse few enough would be
//! a trap, and a bisection may find neither.
//!
//! Every number comes from the algorithms themselves, which decide every request at each limit that
//! is tried (`sweep`). The `search` tries many limits in each pass over the hits, and proves
//! bounds for those between them. Where it can't, the answer is a range, and says so.
//!
//! Each rule is looked at alone. The units that it takes do not depend on what others refuse.

mod hit_log;
mod notes;
mod profile;
mod recorder;
mod report;
mod search;
mod sweep;

pub use hit_log::SpoolSettings;
pub use recorder::{HitRecorder, RecordedHits};
pub use report::{
    CurvePoint, FoundLimit, LimitCurve, LimitReport, RefusalMeasure, RuleLimits, SmallestLimit,
};

use std::io;

use rlaas_core::algorithm::{Algorithm, Limit, LimitError};
use rlaas_core::clock::Micros;
use thiserror::Error;

use self::profile::{KeyBounds, KeyProfile};
use self::search::{LimitSearch, SoughtLimit};
use self::sweep::{Sweep, SweptKeys, sweep_bytes};
use crate::simulation::MaxShare;

/// Limits of a rule that one pass evaluates, as far as memory allows.
const LIMITS_IN_A_PASS: usize = 24;
/// Most bytes of the states of one pass.
const PASS_BYTES: u64 = 256 << 20;
/// Most passes for one algorithm and window.
const PASSES: usize = 48;

/// The limits to find.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// Algorithms; empty: that of each rule.
    pub algorithms: Vec<Algorithm>,
    /// Windows; empty: that of each rule.
    pub windows: Vec<Micros>,
    /// Burst of every limit; `None`: as many units as the limit. Only for algorithms with a burst.
    pub burst: Option<u64>,
    /// Shares that may be refused.
    pub shares: Vec<MaxShare>,
    /// What the shares are shares of.
    pub measures: Vec<RefusalMeasure>,
}

impl LimitSettings {
    /// Checks windows and burst against the bounds of limits.
    ///
    /// # Errors
    ///
    /// [`LimitsError::InvalidLimit`].
    pub fn check(&self) -> Result<(), LimitsError> {
        let invalid = |option| move |error| LimitsError::InvalidLimit { option, error };
        for window in &self.windows {
            Limit::new(1, *window).map_err(invalid("window"))?;
        }
        let Some(burst) = self.burst else { return Ok(()) };
        if let Some(algorithm) = self.algorithms.iter().find(|algorithm| !algorithm.has_burst()) {
            let error = LimitError::NoBurst { algorithm: algorithm.name() };
            return Err(invalid("burst")(error));
        }
        let fastest = Limit::new(Limit::MAX_UNITS, Limit::MIN_WINDOW);
        fastest.and_then(|limit| limit.with_burst(burst)).map_err(invalid("burst"))?;
        Ok(())
    }
}

/// A pass over the hits that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct LimitPass {
    /// Algorithm that decides.
    pub algorithm: Algorithm,
    /// Window of the limits.
    pub window: Micros,
    /// Number of the pass for this algorithm and window, from 1.
    pub number: usize,
    /// Pairs of algorithm and window that are finished.
    pub finished: usize,
    /// Pairs of algorithm and window in all.
    pub total: usize,
}

/// The reason why no limits were found.
#[derive(Debug, Error)]
pub enum LimitsError {
    /// A name that no rule has.
    #[error("--rule must be the name of a rule; there is no rule {name:?}")]
    UnknownRule {
        /// The name.
        name: String,
    },
    /// A window or a burst that no limit may have.
    #[error("--{option} {error}")]
    InvalidLimit {
        /// The option.
        option: &'static str,
        /// The reason.
        error: LimitError,
    },
    /// The hits take too much space.
    #[error("the traffic takes more temporary space than --spool-max = {max_bytes} bytes")]
    SpoolFull {
        /// The most bytes.
        max_bytes: u64,
    },
    /// The temporary file failed.
    #[error("the temporary file for traffic failed")]
    Spool(#[source] io::Error),
}

/// Finds the limits.
///
/// # Errors
///
/// [`LimitsError::InvalidLimit`] for settings that no limit may have, [`LimitsError::Spool`].
pub fn find_limits(
    hits: &RecordedHits,
    settings: &LimitSettings,
    mut progress: impl FnMut(LimitPass),
) -> Result<LimitReport, LimitsError> {
    settings.check()?;
    let (from, to) = hits.range.unwrap_or_default();
    let rule_limits = |rule: &recorder::RecordedRule| RuleLimits {
        rule: rule.name.clone(),
        requests: rule.requests,
        ids: rule.ids,
        curves: Vec::new(),
    };
    let mut rules: Vec<RuleLimits> = hits.rules.iter().map(rule_limits).collect();
    let pairs = pairs(hits, settings);
    for (finished, (algorithm, window)) in pairs.iter().copied().enumerate() {
        let mut number = 0;
        let pass = || {
            number += 1;
            progress(LimitPass { algorithm, window, number, finished, total: pairs.len() });
        };
        let finder = PairFinder { hits, settings, algorithm, window };
        for (rule, curve) in finder.find(pass)? {
            let is_window_longer_than_traffic = window > to.since(from);
            rules[rule].curves.push(LimitCurve { is_window_longer_than_traffic, ..curve });
        }
    }
    rules.sort_by(|one, other| one.rule.cmp(&other.rule));
    let RecordedHits { requests, unmatched, invalid, left_out, .. } = *hits;
    Ok(LimitReport { from, to, requests, unmatched, invalid, left_out, rules })
}

/// Returns the algorithms and windows to look at, in the order of the settings.
fn pairs(hits: &RecordedHits, settings: &LimitSettings) -> Vec<(Algorithm, Micros)> {
    let mut pairs = Vec::new();
    for rule in &hits.rules {
        let (own_algorithm, own_window) = ([rule.algorithm], [rule.window]);
        for algorithm in or(&settings.algorithms, &own_algorithm) {
            for window in or(&settings.windows, &own_window) {
                if !pairs.contains(&(*algorithm, *window)) {
                    pairs.push((*algorithm, *window));
                }
            }
        }
    }
    pairs
}

/// Returns what is set, or else what is the rule's own.
fn or<'a, T>(set: &'a [T], own: &'a [T]) -> &'a [T] {
    if set.is_empty() { own } else { set }
}

/// Finds the limits of every rule for one algorithm and window.
struct PairFinder<'a> {
    hits: &'a RecordedHits,
    settings: &'a LimitSettings,
    algorithm: Algorithm,
    window: Micros,
}

impl PairFinder<'_> {
    /// Returns the numbers and the curves of the rules. Calls `pass` before each pass.
    fn find(&self, mut pass: impl FnMut()) -> Result<Vec<(usize, LimitCurve)>, LimitsError> {
        pass();
        let bounds = self.bounds()?;
        let keys = SweptKeys { rules: &self.hits.key_rules, bounds: &bounds };
        let mut searches = self.searches(keys);
        let frame = (self.window, self.burst());
        for _ in 0..PASSES {
            let limits = self.next_limits(keys, &searches);
            if limits.iter().all(Vec::is_empty) {
                break;
            }
            pass();
            let results = Sweep::new(keys, self.algorithm, frame, &limits).run(&self.hits.log)?;
            for ((search, limits), results) in searches.iter_mut().zip(&limits).zip(&results) {
                if let Some(search) = search {
                    search.learn(limits, results);
                }
            }
        }
        let curves = searches.iter().enumerate();
        Ok(curves.filter_map(|(rule, one)| Some((rule, self.curve(rule, one.as_ref()?)))).collect())
    }

    /// Returns the burst of all limits. Algorithms without a burst have none.
    fn burst(&self) -> Option<u64> {
        self.settings.burst.filter(|_| self.algorithm.has_burst())
    }

    fn bounds(&self) -> Result<Vec<KeyBounds>, LimitsError> {
        let mut profiles = vec![KeyProfile::default(); self.hits.key_rules.len()];
        self.hits.log.for_each(|hit| profiles[hit.key as usize].add(hit, self.window))?;
        let (algorithm, window, burst) = (self.algorithm, self.window, self.burst());
        Ok(profiles.iter().map(|profile| profile.bounds(algorithm, window, burst)).collect())
    }

    /// Returns a search for each rule of this algorithm and window.
    fn searches(&self, keys: SweptKeys<'_>) -> Vec<Option<LimitSearch>> {
        let mut ranges = vec![(0, true); self.hits.rules.len()];
        for (rule, bounds) in keys.rules.iter().zip(keys.bounds) {
            let (largest, is_monotone) = &mut ranges[*rule as usize];
            *largest = bounds.constant_from.max(*largest);
            *is_monotone &= bounds.is_monotone;
        }
        let smallest = self.smallest_limit();
        let rules = self.hits.rules.iter().zip(ranges).enumerate();
        let search = rules.map(|(number, (rule, (largest, is_monotone)))| {
            let is_algorithm =
                or(&self.settings.algorithms, &[rule.algorithm]).contains(&self.algorithm);
            let is_window = or(&self.settings.windows, &[rule.window]).contains(&self.window);
            let largest = largest.clamp(smallest, self.algorithm.max_units());
            let sought = self.sought(number).map(|(sought, _)| sought).collect();
            let search = LimitSearch::new((smallest, largest), is_monotone, sought);
            Some(search).filter(|_| is_algorithm && is_window)
        });
        search.collect()
    }

    /// Returns the smallest limit by which the burst becomes available again in time.
    fn smallest_limit(&self) -> u64 {
        let Some(burst) = self.burst() else { return 1 };
        let fill = u128::from(Limit::MAX_FILL.as_micros());
        let smallest = (u128::from(burst) * u128::from(self.window.as_micros())).div_ceil(fill);
        u64::try_from(smallest).unwrap_or(u64::MAX).max(1)
    }

    /// Returns what is sought for a rule, with the shares.
    fn sought(&self, rule: usize) -> impl Iterator<Item = (SoughtLimit, MaxShare)> {
        let recorder::RecordedRule { requests, ids, .. } = self.hits.rules[rule];
        let of_measure = move |measure: RefusalMeasure| {
            let total = if measure == RefusalMeasure::Ids { ids } else { requests };
            let shares = self.settings.shares.iter();
            shares.map(move |share| (SoughtLimit { measure, most: share.most_of(total) }, *share))
        };
        self.settings.measures.iter().copied().flat_map(of_measure)
    }

    /// Returns the limits of each rule for the next pass: as many as the memory allows.
    fn next_limits(&self, keys: SweptKeys<'_>, searches: &[Option<LimitSearch>]) -> Vec<Vec<u64>> {
        let mut budget = LIMITS_IN_A_PASS;
        loop {
            let next = |search: &Option<LimitSearch>| {
                search.as_ref().map_or_else(Vec::new, |search| search.next_limits(budget))
            };
            let limits: Vec<Vec<u64>> = searches.iter().map(next).collect();
            if budget == 1 || sweep_bytes(keys, self.algorithm, &limits) <= PASS_BYTES {
                return limits;
            }
            budget /= 2;
        }
    }

    fn curve(&self, rule: usize, search: &LimitSearch) -> LimitCurve {
        let limits = self.sought(rule).map(|(sought, share)| {
            let (of, found) = (sought.measure, search.answer(sought));
            SmallestLimit { of, share, found }
        });
        LimitCurve {
            algorithm: self.algorithm,
            window: self.window,
            burst: self.burst(),
            is_window_longer_than_traffic: false,
            limits: limits.collect(),
            points: search.curve(),
        }
    }
}
