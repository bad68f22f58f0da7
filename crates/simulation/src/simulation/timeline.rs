//! Counts over time, in at most [`MAX_BUCKETS`] buckets of equal width.
//!
//! The length of the traffic is not known before its end. The buckets begin narrow. When the time
//! goes on beyond the last one, they are merged into wider ones. Each width divides the next one,
//! and buckets begin at multiples of their width, so no count is ever split.

use rlaas_core::clock::{Micros, Timestamp};

/// Most buckets.
pub const MAX_BUCKETS: usize = 240;

/// Widths in microseconds. Beyond the last one the width doubles.
const WIDTHS: [u64; 17] = [
    1_000,
    10_000,
    100_000,
    500_000,
    1_000_000,
    2_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    600_000_000,
    1_800_000_000,
    3_600_000_000,
    7_200_000_000,
    21_600_000_000,
    43_200_000_000,
    86_400_000_000,
];

/// Counts of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketCounts {
    /// Requests: those that the rule matched, or all.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that the rules in force refused.
    pub refused_before: u64,
    /// Requests that a shadow rule denied.
    pub shadow_denied: u64,
}

/// Counts over time of several series.
#[derive(Debug)]
pub(super) struct Timeline {
    width: u64,
    /// Begin of the first bucket, in microseconds since the Unix epoch; `None` before the first
    /// arrival.
    first: Option<u64>,
    /// Begin and index of the bucket of the last arrival.
    current: (u64, usize),
    series: Vec<Vec<BucketCounts>>,
}

impl Timeline {
    pub(super) fn new(series: usize) -> Self {
        Self { width: WIDTHS[0], first: None, current: (0, 0), series: vec![Vec::new(); series] }
    }

    /// Goes on to a time. The counts that follow are of its bucket. A time before the first bucket
    /// counts there.
    #[inline]
    pub(super) fn advance(&mut self, at: Timestamp) {
        let at = at.as_micros();
        if self.first.is_none() || at.wrapping_sub(self.current.0) >= self.width {
            self.change_bucket(at);
        }
    }

    /// Returns the counts of a series in the bucket of the current time.
    #[inline]
    pub(super) fn counts(&mut self, series: usize) -> &mut BucketCounts {
        let buckets = &mut self.series[series];
        if self.current.1 >= buckets.len() {
            buckets.resize(self.current.1 + 1, BucketCounts::default());
        }
        &mut buckets[self.current.1]
    }

    #[cold]
    fn change_bucket(&mut self, at: u64) {
        let first = *self.first.get_or_insert(at - at % self.width);
        let at = at.max(first);
        while self.index(at) >= MAX_BUCKETS {
            self.widen();
        }
        self.current = (at - at % self.width, self.index(at));
    }

    fn index(&self, at: u64) -> usize {
        let first = self.first.unwrap_or_default();
        usize::try_from((at - first) / self.width).unwrap_or(usize::MAX)
    }

    /// Merges the buckets into those of the next width.
    fn widen(&mut self) {
        let next = WIDTHS.into_iter().find(|width| *width > self.width);
        let (old, width) = (self.width, next.unwrap_or(self.width.saturating_mul(2)));
        let first = self.first.unwrap_or_default();
        let new_first = first - first % width;
        for series in &mut self.series {
            let mut merged: Vec<BucketCounts> = Vec::new();
            for (index, counts) in series.iter().enumerate() {
                let index = (first - new_first + index as u64 * old) / width;
                let index = usize::try_from(index).expect("fewer than before");
                if merged.len() <= index {
                    merged.resize(index + 1, BucketCounts::default());
                }
                merged[index].add(counts);
            }
            *series = merged;
        }
        (self.width, self.first) = (width, Some(new_first));
    }

    /// Returns the begin of the first bucket, the width, and the series, all of one length.
    pub(super) fn finish(mut self) -> (Timestamp, Micros, Vec<Vec<BucketCounts>>) {
        let len = self.series.iter().map(Vec::len).max().unwrap_or_default();
        for series in &mut self.series {
            if !series.is_empty() {
                series.resize(len, BucketCounts::default());
            }
        }
        let first = Timestamp::from_micros(self.first.unwrap_or_default());
        (first, Micros::from_micros(self.width), self.series)
    }
}

impl BucketCounts {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.refused_before += other.refused_before;
        self.shadow_denied += other.shadow_denied;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_width_divides_the_next() {
        assert!(WIDTHS.windows(2).all(|pair| pair[1].is_multiple_of(pair[0])));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn every_arrival_is_in_the_bucket_of_its_time(
            start in 0..2_000_000_000_000_000_u64,
            steps in prop::collection::vec(0..1_u64 << 44, 1..60),
            narrow in 0..44_u32,
        ) {
            let mut timeline = Timeline::new(2);
            let mut at = start;
            let mut times = Vec::new();
            for (number, step) in steps.iter().enumerate() {
                at += step >> narrow;
                times.push((at, number % 2));
                timeline.advance(Timestamp::from_micros(at));
                timeline.counts(number % 2).requests += 1;
            }
            let (first, width, series) = timeline.finish();
            prop_assert!(series.iter().all(|series| series.len() <= MAX_BUCKETS));
            prop_assert_eq!(first.as_micros() % width.as_micros(), 0);
            for (number, series) in series.iter().enumerate() {
                for (index, counts) in series.iter().enumerate() {
                    let from = first.as_micros() + index as u64 * width.as_micros();
                    let within = |(at, of): &&(u64, usize)| {
                        *of == number && (from..from + width.as_micros()).contains(at)
                    };
                    let expected = times.iter().filter(within).count() as u64;
                    prop_assert_eq!(counts.requests, expected);
                }
            }
        }
    }

    #[test]
    fn a_time_before_the_first_bucket_counts_there() {
        let mut timeline = Timeline::new(1);
        for micros in [5_000_000, 1_000, 5_000_500] {
            timeline.advance(Timestamp::from_micros(micros));
            timeline.counts(0).requests += 1;
        }
        let (first, _, series) = timeline.finish();
        assert_eq!(first, Timestamp::from_micros(5_000_000));
        assert_eq!(series[0].iter().map(|counts| counts.requests).collect::<Vec<_>>(), [3]);
    }
}
