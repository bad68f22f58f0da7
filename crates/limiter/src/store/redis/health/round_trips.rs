//! Times of the latest round trips to one server: of batches of calls, and of the probes of the monitor,
//! without which a server that is not called would show times of long ago.

use std::array::from_fn;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Round trips that are kept: of 500 ms each, if only probes are sent, those of 4 minutes.
const KEPT: usize = 512;

/// The latest round trips, in microseconds; 0 stands for none yet.
#[derive(Debug)]
pub(crate) struct RoundTrips {
    recorded: AtomicUsize,
    micros: [AtomicU32; KEPT],
}

impl Default for RoundTrips {
    fn default() -> Self {
        Self { recorded: AtomicUsize::new(0), micros: from_fn(|_| AtomicU32::new(0)) }
    }
}

impl RoundTrips {
    /// Records a round trip in place of the oldest.
    pub(crate) fn record(&self, took: Duration) {
        let oldest = self.recorded.fetch_add(1, Ordering::Relaxed) % KEPT;
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        self.micros[oldest].store(micros, Ordering::Relaxed);
    }

    /// Returns a percentile of the latest round trips; `None` before the first.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let micros = self.micros.iter().map(|micros| micros.load(Ordering::Relaxed));
        let mut micros: Vec<u32> = micros.filter(|micros| *micros > 0).collect();
        micros.sort_unstable();
        let rank = (micros.len() * percent).div_ceil(100);
        micros.get(rank.checked_sub(1)?).map(|micros| Duration::from_micros((*micros).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_latest_round_trips() {
        let trips = RoundTrips::default();
        assert_eq!(trips.percentile(50), None);
        (0..1_000).for_each(|_| trips.record(Duration::from_secs(9_999)));
        (1..=KEPT as u64).rev().for_each(|micros| trips.record(Duration::from_micros(micros)));
        let percentiles = |trips: &RoundTrips| [50, 99].map(|percent| trips.percentile(percent));
        assert_eq!(
            percentiles(&trips),
            [256, 507].map(|micros| Some(Duration::from_micros(micros)))
        );
        let first = RoundTrips::default();
        first.record(Duration::ZERO);
        assert_eq!(percentiles(&first), [Some(Duration::from_micros(1)); 2]);
    }
}
