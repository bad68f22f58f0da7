//! Counters and histograms in shards, one for each thread.
//!
//! Every decision updates several of them. The cache line of a shared number would move between
//! cores with each update. So each thread updates a shard of its own, and a reader adds up the
//! shards.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::{Atomic, Counter};
use prometheus_client::metrics::{MetricType, TypedMetric};
use quanta::Instant;
use rlaas_limiter::observer::{DecidedRequest, ProjectObserver};

/// Number of shards. With more threads, several share a shard.
pub(super) const SHARDS: usize = 8;

/// Upper bounds of the buckets in nanoseconds: from 10 µs, enough for a decision in memory, to 1 s.
const BOUNDS: [u64; 16] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];

const NANOS_PER_SECOND: f64 = 1e9;

/// A counter in shards.
pub type ShardedCounter = Counter<u64, CounterShards>;

/// The shards of a counter.
#[derive(Debug, Default)]
pub struct CounterShards([CounterShard; SHARDS]);

/// A number on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterShard(AtomicU64);

impl Atomic<u64> for CounterShards {
    fn inc(&self) -> u64 {
        self.inc_by(1)
    }

    fn inc_by(&self, more: u64) -> u64 {
        self.0[shard_index()].0.fetch_add(more, Ordering::Relaxed)
    }

    fn get(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}

/// Counts of whole requests, in shards. A request changes one cache line, as a counter does.
#[derive(Debug, Default)]
pub struct RequestCounters([RequestShard; SHARDS]);

/// Counts of one thread, each of which only grows.
#[derive(Debug, Default)]
#[repr(align(64))]
struct RequestShard {
    /// Allowed requests of one unit, the usual ones.
    allowed_units: AtomicU64,
    /// Other allowed requests.
    allowed_others: AtomicU64,
    /// Of the allowed ones: those that passed because the store failed.
    fail_open: AtomicU64,
    /// Requests that a rule denied.
    denied: AtomicU64,
    /// Requests that were denied because no rule matches.
    no_rule: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    /// Units but those of `allowed_units`.
    units: AtomicU64,
}

/// Numbers of requests, and their units. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Allowed requests.
    pub allowed: u64,
    /// Of these: passed because the store failed.
    pub fail_open: u64,
    /// Denied requests.
    pub denied: u64,
    /// Of these: no rule matches.
    pub no_rule: u64,
    /// Requests that the service could not decide.
    pub failed: u64,
    /// Requests that are not valid.
    pub rejected: u64,
    /// Units taken.
    pub units: u64,
}

impl RequestCounts {
    /// Returns the number of requests that are valid.
    pub fn requests(&self) -> u64 {
        self.allowed.wrapping_add(self.denied).wrapping_add(self.failed)
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combined(other, u64::wrapping_add)
    }

    /// Returns what was counted since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combined(earlier, u64::wrapping_sub)
    }

    fn combined(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            allowed: with(self.allowed, other.allowed),
            fail_open: with(self.fail_open, other.fail_open),
            denied: with(self.denied, other.denied),
            no_rule: with(self.no_rule, other.no_rule),
            failed: with(self.failed, other.failed),
            rejected: with(self.rejected, other.rejected),
            units: with(self.units, other.units),
        }
    }
}

impl RequestCounters {
    /// Returns the numbers so far.
    pub fn counts(&self) -> RequestCounts {
        self.0.iter().fold(RequestCounts::default(), |counts, shard| {
            let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let (ones, no_rule) = (load(&shard.allowed_units), load(&shard.no_rule));
            counts.plus(&RequestCounts {
                allowed: ones.wrapping_add(load(&shard.allowed_others)),
                fail_open: load(&shard.fail_open),
                denied: no_rule.wrapping_add(load(&shard.denied)),
                no_rule,
                failed: load(&shard.failed),
                rejected: load(&shard.rejected),
                units: ones.wrapping_add(load(&shard.units)),
            })
        })
    }
}

impl ProjectObserver for RequestCounters {
    fn decided(&self, request: DecidedRequest) {
        let shard = &self.0[shard_index()];
        let count = match request {
            DecidedRequest::Allowed { units: 1 } => &shard.allowed_units,
            DecidedRequest::Allowed { units } => {
                shard.units.fetch_add(units, Ordering::Relaxed);
                &shard.allowed_others
            }
            DecidedRequest::FailOpen { units } => {
                shard.units.fetch_add(units, Ordering::Relaxed);
                shard.fail_open.fetch_add(1, Ordering::Relaxed);
                &shard.allowed_others
            }
            DecidedRequest::Denied => &shard.denied,
            DecidedRequest::NoRule => &shard.no_rule,
            DecidedRequest::Failed => &shard.failed,
            DecidedRequest::Rejected => &shard.rejected,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn reported(&self, units: u64) {
        self.0[shard_index()].units.fetch_add(units, Ordering::Relaxed);
    }
}

/// Returns the shard of this thread.
pub(super) fn shard_index() -> usize {
    thread_local! {
        static SHARD: Cell<usize> = {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS)
        };
    }
    SHARD.get()
}

/// A histogram of durations in seconds, in shards.
#[derive(Clone, Debug, Default)]
pub struct ShardedHistogram(Arc<[HistogramShard; SHARDS]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct HistogramShard {
    /// The last bucket counts durations above every bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// Measures a duration for a histogram.
#[must_use = "a timer records nothing before it stops"]
pub struct HistogramTimer<'a> {
    started: Instant,
    histogram: &'a ShardedHistogram,
}

impl ShardedHistogram {
    /// Starts a timer.
    pub fn start(&self) -> HistogramTimer<'_> {
        HistogramTimer { started: Instant::now(), histogram: self }
    }

    pub(super) fn observe(&self, nanos: u64) {
        let shard = &self.0[shard_index()];
        let bucket = BOUNDS.partition_point(|bound| nanos > *bound);
        shard.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        shard.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl ShardedHistogram {
    /// Returns the counts of all shards.
    pub(super) fn counts(&self) -> DurationCounts {
        let count = |bucket: usize| {
            self.0.iter().map(|shard| shard.buckets[bucket].load(Ordering::Relaxed)).sum()
        };
        DurationCounts(std::array::from_fn(count))
    }
}

/// Numbers of durations by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationCounts([u64; BOUNDS.len() + 1]);

impl DurationCounts {
    /// Returns the counts of both.
    #[must_use]
    pub(super) fn with(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|bucket| self.0[bucket] + other.0[bucket]))
    }

    /// Returns the counts since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|bucket| self.0[bucket].saturating_sub(earlier.0[bucket])))
    }

    /// Returns the number of durations.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Estimates a duration that `percent` (1 to 100) of all do not exceed: it is exact to a bucket,
    /// and within it as if durations were spread evenly. `None` if there are no durations.
    pub fn quantile(&self, percent: u64) -> Option<Duration> {
        let rank = self.total().checked_mul(percent)?.div_ceil(100);
        let mut below = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            if *count > 0 && below + count >= rank {
                let lower = bucket.checked_sub(1).map_or(0, |bucket| BOUNDS[bucket]);
                // Nothing is known of durations above the last bound.
                let upper = BOUNDS.get(bucket).copied().unwrap_or(lower);
                let share = (upper - lower) / count * (rank - below);
                return Some(Duration::from_nanos(lower + share));
            }
            below += count;
        }
        None
    }
}

impl HistogramTimer<'_> {
    /// Records the duration since the start, and restarts the timer: consecutive measurements read
    /// the clock once each. A timer that is dropped records nothing more.
    pub fn lap(&mut self) {
        let now = Instant::now();
        let nanos = now.duration_since(self.started).as_nanos();
        self.histogram.observe(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.started = now;
    }

    /// Records the duration since the start.
    pub fn stop(mut self) {
        self.lap();
    }
}

impl fmt::Debug for HistogramTimer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HistogramTimer({:?})", self.started)
    }
}

impl TypedMetric for ShardedHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for ShardedHistogram {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds are shown as seconds")]
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let count = |bucket: usize| -> u64 {
            self.0.iter().map(|shard| shard.buckets[bucket].load(Ordering::Relaxed)).sum()
        };
        let bounds = BOUNDS.iter().map(|bound| *bound as f64 / NANOS_PER_SECOND);
        let buckets: Vec<(f64, u64)> =
            bounds.chain([f64::INFINITY]).enumerate().map(|(i, bound)| (bound, count(i))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let nanos: u64 = self.0.iter().map(|shard| shard.sum_nanos.load(Ordering::Relaxed)).sum();
        let sum = nanos as f64 / NANOS_PER_SECOND;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    #[test]
    fn counter_adds_up_all_threads() {
        let counter = ShardedCounter::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| (0..1000).for_each(|_| _ = counter.inc()));
            }
        });
        assert_eq!(counter.get(), 16_000);
    }

    #[test]
    fn quantiles_are_those_of_the_interval() {
        let histogram = ShardedHistogram::default();
        assert_eq!(histogram.counts().quantile(50), None);
        (0..1000).for_each(|_| histogram.observe(900_000_000));
        let before = histogram.counts();
        (0..98).for_each(|_| histogram.observe(20_000));
        histogram.observe(40_000);
        histogram.observe(5_000_000_000);
        let since = histogram.counts().since(&before);
        assert_eq!(since.total(), 100);
        let of_bucket = |percent| since.quantile(percent).expect("a duration").as_nanos();
        assert!((10_001..=25_000).contains(&of_bucket(1)), "{}", of_bucket(1));
        assert!((10_001..=25_000).contains(&of_bucket(98)), "{}", of_bucket(98));
        assert!(of_bucket(1) < of_bucket(50) && of_bucket(50) < of_bucket(98));
        assert!((25_001..=50_000).contains(&of_bucket(99)), "{}", of_bucket(99));
        assert_eq!(of_bucket(100), 1_000_000_000);
        assert_eq!(histogram.counts().with(&before).total(), 2100);
    }

    #[test]
    fn buckets_are_cumulative_seconds() {
        let histogram = ShardedHistogram::default();
        for nanos in [0, 10_000, 10_001, 1_000_000_001] {
            histogram.observe(nanos);
        }
        let mut registry = Registry::default();
        registry.register("t", "T", histogram);
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing to a string does not fail");
        for line in [
            "t_sum 1.000020002",
            "t_count 4",
            "t_bucket{le=\"0.00001\"} 2",
            "t_bucket{le=\"0.000025\"} 3",
            "t_bucket{le=\"1.0\"} 3",
            "t_bucket{le=\"+Inf\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
    }
}
