//! Counters of the decisions of rules, which metrics and statistics read alike.
//!
//! Each decision is counted once, in the cache line that its thread has for the rule. The counters
//! of a rule take no memory before its first decision, because there may be 100,000 rules; then they
//! take 512 bytes.

mod table;

pub(super) use table::RuleTable;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rlaas_core::algorithm::Algorithm;
use rlaas_core::rules::Mode;
use rlaas_limiter::observer::Source;

use super::labels::OUTCOMES;
use super::sharded::{SHARDS, shard_index};
use super::stats::{DecisionCounts, StatsKey};

/// Sources of decisions, in the order of the counters.
const SOURCES: [Source; 5] =
    [Source::Store, Source::DenyCache, Source::FailOpen, Source::FailClosed, Source::LocalFallback];

/// The outcome of a decision, as metrics count it, in the order of [`OUTCOMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedOutcome {
    Allowed,
    NearLimit,
    Denied,
    ShadowDenied,
}

impl CountedOutcome {
    pub(super) const ALL: [Self; OUTCOMES.len()] =
        [Self::Allowed, Self::NearLimit, Self::Denied, Self::ShadowDenied];

    pub(super) fn allowed(is_near_limit: bool) -> Self {
        if is_near_limit { Self::NearLimit } else { Self::Allowed }
    }

    pub(super) fn denied(mode: Mode) -> Self {
        if mode.is_shadow() { Self::ShadowDenied } else { Self::Denied }
    }

    fn name(self) -> &'static str {
        OUTCOMES[self as usize]
    }
}

/// How the decisions of a rule are shown as metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Label {
    /// Under its name.
    Named,
    /// Together with other rules.
    Other,
    /// Not at all: the rule is one of a project.
    Hidden,
}

/// A rule and the counters of its decisions.
#[derive(Debug)]
pub(super) struct CountedRule {
    /// Number of this rule, which no other has.
    id: u64,
    key: Arc<StatsKey>,
    algorithm: Algorithm,
    label: Label,
    /// Series that are shown although they are 0: a bit for each outcome and source.
    declared: AtomicU32,
    decisions: OnceLock<Box<[DecisionShard; SHARDS]>>,
    /// Decisions by outcome, of each source but the store.
    others: OnceLock<Box<[[AtomicU64; OUTCOMES.len()]; SOURCES.len() - 1]>>,
}

/// Decisions that one thread has counted.
#[derive(Debug, Default)]
#[repr(align(64))]
struct DecisionShard {
    /// Decisions of the store, by outcome.
    of_store: [AtomicU64; OUTCOMES.len()],
    /// Denials from the deny cache.
    of_deny_cache: AtomicU64,
    /// Units taken, less one for each decision of the store that allows. It wraps around.
    more_units: AtomicU64,
    /// Units requested, less one for each decision. It wraps around.
    more_requested: AtomicU64,
    /// Requests on which the rule did not decide.
    not_asked: AtomicU64,
}

/// What a rule has counted so far.
#[derive(Clone, Debug)]
pub struct RuleTotals {
    /// Number of the rule's counters. Those of another rule of the same name have another.
    pub id: u64,
    /// The rule.
    pub key: Arc<StatsKey>,
    /// Decisions by outcome.
    pub counts: DecisionCounts,
    /// Units requested, those of denials too.
    pub requested: u64,
}

impl CountedRule {
    fn new(id: u64, key: StatsKey, algorithm: Algorithm, label: Label) -> Self {
        Self {
            id,
            key: Arc::new(key),
            algorithm,
            label,
            declared: AtomicU32::new(0),
            decisions: OnceLock::new(),
            others: OnceLock::new(),
        }
    }

    /// Counts a decision that has taken this many units.
    #[inline]
    pub(super) fn count(&self, outcome: CountedOutcome, source: Source, taken: u64) {
        let shard = &self.decisions.get_or_init(Box::default)[shard_index()];
        let is_allowed = matches!(outcome, CountedOutcome::Allowed | CountedOutcome::NearLimit);
        let usual = match source {
            Source::Store => {
                shard.of_store[outcome as usize].fetch_add(1, Ordering::Relaxed);
                u64::from(is_allowed)
            }
            Source::DenyCache if outcome == CountedOutcome::Denied => {
                shard.of_deny_cache.fetch_add(1, Ordering::Relaxed);
                0
            }
            _ => {
                self.count_other(outcome, source);
                0
            }
        };
        if taken != usual {
            shard.more_units.fetch_add(taken.wrapping_sub(usual), Ordering::Relaxed);
        }
    }

    /// Counts the units that a decision was asked for.
    #[inline]
    pub(super) fn count_requested(&self, units: u64) {
        if units != 1 {
            let shard = &self.decisions.get_or_init(Box::default)[shard_index()];
            shard.more_requested.fetch_add(units.wrapping_sub(1), Ordering::Relaxed);
        }
    }

    /// Counts a request on which the rule did not decide.
    pub(super) fn count_not_asked(&self) {
        let shard = &self.decisions.get_or_init(Box::default)[shard_index()];
        shard.not_asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts units without a decision.
    pub(super) fn count_units(&self, units: u64) {
        let shard = &self.decisions.get_or_init(Box::default)[shard_index()];
        shard.more_units.fetch_add(units, Ordering::Relaxed);
    }

    #[cold]
    fn count_other(&self, outcome: CountedOutcome, source: Source) {
        if let Some(at) = position(source).checked_sub(1) {
            let others = self.others.get_or_init(Box::default);
            others[at][outcome as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Shows a series before its first decision.
    pub(super) fn declare(&self, outcome: CountedOutcome, source: Source) {
        self.declared.fetch_or(bit(outcome, source), Ordering::Relaxed);
    }

    /// Returns the number of decisions so far.
    fn decisions(&self, outcome: CountedOutcome, source: Source) -> u64 {
        let sum = |count: &dyn Fn(&DecisionShard) -> u64| {
            self.decisions.get().map_or(0, |shards| shards.iter().map(count).sum())
        };
        match position(source).checked_sub(1) {
            None => sum(&|shard| shard.of_store[outcome as usize].load(Ordering::Relaxed)),
            Some(0) if outcome == CountedOutcome::Denied => {
                sum(&|shard| shard.of_deny_cache.load(Ordering::Relaxed))
            }
            Some(at) => self
                .others
                .get()
                .map_or(0, |others| others[at][outcome as usize].load(Ordering::Relaxed)),
        }
    }

    /// Returns the series that are shown, with their numbers of decisions.
    fn series(&self) -> impl Iterator<Item = (CountedOutcome, Source, u64)> {
        let declared = self.declared.load(Ordering::Relaxed);
        let all = CountedOutcome::ALL
            .into_iter()
            .flat_map(|outcome| SOURCES.map(|source| (outcome, source)));
        let counted =
            all.map(|(outcome, source)| (outcome, source, self.decisions(outcome, source)));
        counted.filter(move |(outcome, source, count)| {
            *count > 0 || declared & bit(*outcome, *source) != 0
        })
    }

    /// Adds what the rule has counted so far, unless it is nothing.
    fn add_totals(&self, totals: &mut Vec<RuleTotals>) {
        if let Some(shards) = self.decisions.get() {
            let by_outcome = CountedOutcome::ALL.map(|outcome| {
                SOURCES.iter().map(|source| self.decisions(outcome, *source)).sum::<u64>()
            });
            let of_source = |source| -> u64 {
                CountedOutcome::ALL.iter().map(|outcome| self.decisions(*outcome, source)).sum()
            };
            let [allowed, near_limit, denied, shadow_denied] = by_outcome;
            let fail_open = of_source(Source::FailOpen);
            let units = shards.iter().fold(0_u64, |units, shard| {
                let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
                let [allowed, near_limit, ..] = &shard.of_store;
                let usual = load(allowed).wrapping_add(load(near_limit));
                units.wrapping_add(usual).wrapping_add(load(&shard.more_units))
            });
            let counts = DecisionCounts {
                allowed,
                near_limit,
                denied,
                shadow_denied,
                units,
                degraded: fail_open
                    + of_source(Source::FailClosed)
                    + of_source(Source::LocalFallback),
                fail_open,
                not_asked: shards.iter().map(|shard| shard.not_asked.load(Ordering::Relaxed)).sum(),
            };
            let requested = shards.iter().fold(by_outcome.iter().sum(), |sum: u64, shard| {
                sum.wrapping_add(shard.more_requested.load(Ordering::Relaxed))
            });
            let (id, key) = (self.id, Arc::clone(&self.key));
            totals.push(RuleTotals { id, key, counts, requested });
        }
    }
}

fn position(source: Source) -> usize {
    match source {
        Source::Store | Source::NoRule => 0,
        Source::DenyCache => 1,
        Source::FailOpen => 2,
        Source::FailClosed => 3,
        Source::LocalFallback => 4,
    }
}

fn bit(outcome: CountedOutcome, source: Source) -> u32 {
    1 << (outcome as usize * SOURCES.len() + position(source))
}
