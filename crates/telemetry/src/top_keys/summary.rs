//! Counts of keys in at most 128 counters, which can be added up: over slices of time, and over
//! instances.
//!
//! Pure: no clock and no lock. The live counts of a stream are those of a sketch (`sketch.rs`); a
//! summary is what remains of it.
//!
//! # Guarantee
//!
//! A summary has a least count for each of its keys, and one `error` for all keys. The count of a
//! key is at least its least count and at most that plus `error`; a key without a counter has a
//! least count of 0. With `K` counters, `K × error` plus all least counts is at most the total, so
//! `error` is at most the total / `K`.
//!
//! This holds for a new summary, which is exact. It holds for a sketch: each time that its
//! counters are decremented by a number, at least `K` of them have as much. Addition adds up both
//! sides. If there are more than `K` keys then, the least count of the key in place `K + 1` is
//! subtracted from all and added to `error`: at least `K + 1` of them lose as much, so the sum does
//! not grow.
//!
//! **Source:** Agarwal et al., "Mergeable Summaries", PODS 2012, section 3 (Misra-Gries).

use std::collections::HashMap;

/// Most counters of a summary.
pub const MAX_COUNTERS: usize = 128;
/// Bytes of a counter beside those of its key: the struct, and the allocation.
const COUNTER_BYTES: usize = size_of::<Counter>() + 16;

/// Counts of keys, with one error for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    total: u64,
    error: u64,
    /// Highest first, equal ones by key. At most [`MAX_COUNTERS`], none of them 0.
    counters: Vec<Counter>,
}

/// A key and its least count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The key.
    pub key: Box<str>,
    /// The count is at least as high, and at most by the error of the summary higher.
    pub least: u64,
}

impl Summary {
    /// Creates a summary of `total` from least counts, each of another key, which are too low by at
    /// most `error`. Cuts it to [`MAX_COUNTERS`].
    pub fn new(total: u64, error: u64, counters: Vec<Counter>) -> Self {
        let mut summary = Self { total, error, counters };
        summary.reduce();
        summary
    }

    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the most by which a count may be above its least count: at most the total /
    /// [`MAX_COUNTERS`].
    pub fn error(&self) -> u64 {
        self.error
    }

    /// Returns the counters, highest first.
    pub fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// Returns `true` if nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the bytes that the summary takes.
    pub fn bytes(&self) -> usize {
        self.counters.iter().map(|counter| COUNTER_BYTES + counter.key.len()).sum()
    }

    /// Returns the sum of summaries.
    pub fn sum<'a>(summaries: impl IntoIterator<Item = &'a Self>) -> Self {
        let (mut total, mut error, mut least) = (0_u64, 0_u64, HashMap::<&str, u64>::new());
        for summary in summaries {
            total = total.saturating_add(summary.total);
            error = error.saturating_add(summary.error);
            for counter in &summary.counters {
                let count = least.entry(&*counter.key).or_default();
                *count = count.saturating_add(counter.least);
            }
        }
        let counters = least.into_iter().map(|(key, least)| Counter { key: key.into(), least });
        Self::new(total, error, counters.collect())
    }

    /// Adds the counts of another summary.
    pub fn add(&mut self, other: &Self) {
        *self = Self::sum([&*self, other]);
    }

    /// Adds the counts of another summary under other keys. Keys without one are left out of the
    /// counters; then they count in the total alone. Different keys must stay different.
    pub fn add_mapped(&mut self, other: &Self, rename: impl Fn(&str) -> Option<Box<str>>) {
        let own = std::mem::take(&mut self.counters);
        let mut least: HashMap<Box<str>, u64> =
            own.into_iter().map(|counter| (counter.key, counter.least)).collect();
        for counter in &other.counters {
            if let Some(key) = rename(&counter.key) {
                let count = least.entry(key).or_default();
                *count = count.saturating_add(counter.least);
            }
        }
        self.total = self.total.saturating_add(other.total);
        self.error = self.error.saturating_add(other.error);
        self.counters = least.into_iter().map(|(key, least)| Counter { key, least }).collect();
        self.reduce();
    }

    /// Sorts the counters, and cuts them to the most.
    fn reduce(&mut self) {
        self.counters.sort_unstable_by(|left, right| {
            right.least.cmp(&left.least).then_with(|| left.key.cmp(&right.key))
        });
        if let Some(first_left_out) = self.counters.get(MAX_COUNTERS) {
            let cut = first_left_out.least;
            self.error = self.error.saturating_add(cut);
            for counter in &mut self.counters {
                counter.least = counter.least.saturating_sub(cut);
            }
        }
        self.counters.retain(|counter| counter.least > 0);
        self.counters.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Exact counts of streams over few or many keys.
    fn counts() -> impl Strategy<Value = HashMap<Box<str>, u64>> {
        let key = prop_oneof![(0..50_u32), (0..2_000_u32)];
        let key = key.prop_map(|number| number.to_string().into_boxed_str());
        prop::collection::hash_map(key, prop_oneof![4 => 1..20_u64, 1 => 1..10_000_u64], 0..400)
    }

    fn exact(counts: &HashMap<Box<str>, u64>) -> Summary {
        let counters =
            counts.iter().map(|(key, least)| Counter { key: key.clone(), least: *least });
        Summary::new(counts.values().sum(), 0, counters.collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(super::super::cases()))]

        #[test]
        fn sum_of_summaries_is_within_the_error(streams in prop::collection::vec(counts(), 1..12)) {
            let mut sum = Summary::default();
            let mut all = HashMap::<&str, u64>::new();
            for counts in &streams {
                sum.add(&exact(counts));
                for (key, count) in counts {
                    *all.entry(key).or_default() += count;
                }
            }
            let exact: Vec<Summary> = streams.iter().map(exact).collect();
            for sum in [sum, Summary::sum(&exact)] {
                prop_assert_eq!(sum.total(), all.values().sum::<u64>());
                prop_assert!(sum.counters().len() <= MAX_COUNTERS);
                prop_assert!(sum.error() <= sum.total() / MAX_COUNTERS as u64);
                for (key, count) in &all {
                    let counter = sum.counters().iter().find(|counter| &*counter.key == *key);
                    let least = counter.map_or(0, |counter| counter.least);
                    prop_assert!(least <= *count && *count <= least + sum.error(), "{}", key);
                }
            }
        }
    }

    #[test]
    fn summary_of_few_keys_is_exact() {
        let counts = (1..=MAX_COUNTERS as u64).map(|n| (n.to_string().into_boxed_str(), n));
        let summary = exact(&counts.collect());
        assert_eq!((summary.error(), summary.counters().len()), (0, MAX_COUNTERS));
        assert_eq!((&*summary.counters()[0].key, summary.counters()[0].least), ("128", 128));
        assert!(summary.bytes() > MAX_COUNTERS * COUNTER_BYTES);
    }
}
