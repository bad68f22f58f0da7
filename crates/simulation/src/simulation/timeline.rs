//! Counts over time, in at most [`MAX_BUCKETS`] buckets of equal width.
//!
//! The length of the traffic is not known before its end. The buckets begin narrow. When the time
//! goes on beyond the last one, they are merged into wider ones. Each width divides the next one,
//! and buckets begin at multiples of their width, so no count is ever split.

use rlaas_core::clock::{Micros, Timestamp};

use super::report::{CountsReport, TimeReport};

/// Most buckets.
const MAX_BUCKETS: usize = 240;

const SECOND: u64 = 1_000_000;
/// Widths in seconds. Beyond the last one the width doubles.
const WIDTHS: [u64; 13] = [1, 2, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400];

/// Counts over time.
#[derive(Debug)]
pub(super) struct Timeline {
    /// Width of a bucket, in microseconds.
    width: u64,
    /// Begin of the first bucket, in microseconds since the Unix epoch; `None` before the first
    /// arrival.
    first: Option<u64>,
    buckets: Vec<CountsReport>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width: WIDTHS[0] * SECOND, first: None, buckets: Vec::new() }
    }
}

impl Timeline {
    /// Returns the counts of the bucket of a time. A time before the first bucket counts there.
    #[inline]
    pub(super) fn counts_at(&mut self, at: Timestamp) -> &mut CountsReport {
        let at = at.as_micros();
        let first = *self.first.get_or_insert(at - at % self.width);
        let at = at.max(first);
        while self.index(at) >= MAX_BUCKETS {
            self.widen();
        }
        let index = self.index(at);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, CountsReport::default());
        }
        &mut self.buckets[index]
    }

    fn index(&self, at: u64) -> usize {
        let first = self.first.unwrap_or_default();
        usize::try_from((at - first) / self.width).unwrap_or(usize::MAX)
    }

    /// Merges the buckets into those of the next width.
    #[cold]
    fn widen(&mut self) {
        let (old, first) = (self.width, self.first.unwrap_or_default());
        let next = WIDTHS.into_iter().map(|width| width * SECOND).find(|width| *width > old);
        self.width = next.unwrap_or(old.saturating_mul(2));
        self.first = Some(first - first % self.width);
        for (number, counts) in (0..).zip(std::mem::take(&mut self.buckets)) {
            let index = self.index(first + number * old);
            self.buckets.resize(index + 1, CountsReport::default());
            self.buckets[index].add(&counts);
        }
    }

    /// Returns the counts of all buckets.
    pub(super) fn report(self) -> TimeReport {
        TimeReport {
            from: Timestamp::from_micros(self.first.unwrap_or_default()),
            bucket: Micros::from_micros(self.width),
            buckets: self.buckets,
        }
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
            let mut timeline = Timeline::default();
            let mut at = start;
            let mut times = Vec::new();
            for step in steps {
                at += step >> narrow;
                times.push(at);
                timeline.counts_at(Timestamp::from_micros(at)).requests += 1;
            }
            let report = timeline.report();
            let (first, width) = (report.from.as_micros(), report.bucket.as_micros());
            prop_assert!(report.buckets.len() <= MAX_BUCKETS);
            prop_assert_eq!(first % width, 0);
            for (index, counts) in (0..).zip(&report.buckets) {
                let from = first + index * width;
                let within = |at: &&u64| (from..from + width).contains(*at);
                prop_assert_eq!(counts.requests, times.iter().filter(within).count() as u64);
            }
        }
    }

    #[test]
    fn a_time_before_the_first_bucket_counts_there() {
        let mut timeline = Timeline::default();
        for micros in [5_000_000, 1_000, 5_000_500] {
            timeline.counts_at(Timestamp::from_micros(micros)).requests += 1;
        }
        let report = timeline.report();
        assert_eq!(report.from, Timestamp::from_micros(5_000_000));
        assert_eq!(report.buckets.iter().map(|counts| counts.requests).collect::<Vec<_>>(), [3]);
    }
}
