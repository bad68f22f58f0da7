//! Counts and latencies of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use tonic::Status;

use super::schedule::ScheduledCall;

/// Counts and latencies of the measured calls.
#[derive(Clone, Debug)]
pub(super) struct LoadStats {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Calls with an error, by its code.
    pub(super) errors: BTreeMap<String, u64>,
    /// Latency of calls that were answered, in nanoseconds from the intended start.
    pub(super) answered: Histogram<u64>,
    /// Start of the last call, since the start of the load.
    pub(super) last_start: Duration,
}

impl Default for LoadStats {
    fn default() -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        Self {
            allowed: 0,
            denied: 0,
            errors: BTreeMap::new(),
            answered: Histogram::new_with_bounds(1, HOUR, 3).expect("the bounds are valid"),
            last_start: Duration::ZERO,
        }
    }
}

impl LoadStats {
    /// Adds a call, unless it is one of the warm-up.
    pub(super) fn record(
        &mut self,
        call: ScheduledCall,
        started: Duration,
        answered: Duration,
        result: &Result<bool, Status>,
    ) {
        if !call.is_measured {
            return;
        }
        self.last_start = self.last_start.max(started);
        match result {
            Ok(true) => self.allowed += 1,
            Ok(false) => self.denied += 1,
            Err(status) => {
                *self.errors.entry(format!("{:?}", status.code())).or_default() += 1;
                return;
            }
        }
        let latency = answered.saturating_sub(call.intended).as_nanos();
        self.answered.saturating_record(u64::try_from(latency).unwrap_or(u64::MAX));
    }
}
