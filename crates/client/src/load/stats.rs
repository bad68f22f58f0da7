//! Counts and latencies of calls.
//!
//! `rlaas bench` takes and adds them once a second.

use std::error::Error;
use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;
use tonic::Status;

use super::schedule::ScheduledCall;

/// Names of the status codes of gRPC, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Numbers of calls and of their results. Each one is allowed, denied or an error.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Calls that returned a response or an error.
    pub calls: u64,
    /// Calls that were allowed.
    pub allowed: u64,
    /// Calls that were denied.
    pub denied: u64,
    errors: [u64; CODES.len()],
    /// Code and message of the first error.
    pub first_error: Option<String>,
}

impl Counts {
    /// Counts a call that returned a decision.
    pub(super) fn answered(is_allowed: bool) -> Self {
        let (allowed, denied) = (is_allowed.into(), (!is_allowed).into());
        Self { calls: 1, allowed, denied, ..Self::default() }
    }

    /// Counts a call that returned an error.
    pub(super) fn failed(status: &Status) -> Self {
        let mut counts = Self { calls: 1, ..Self::default() };
        // The text of tonic is only "transport error". Its root cause has the details.
        let mut root: &dyn Error = status;
        while let Some(source) = root.source() {
            root = source;
        }
        let message = match status.source() {
            None => status.message().to_owned(),
            Some(_) => root.to_string(),
        };
        counts.errors[status.code() as usize] = 1;
        let name = CODES[status.code() as usize];
        counts.first_error = Some(format!("{name}: {}", message.escape_debug()));
        counts
    }

    /// Returns the number of calls with a decision.
    pub fn decisions(&self) -> u64 {
        self.allowed + self.denied
    }

    /// Returns the numbers of calls with an error, by the name of the code.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let by_code = CODES.into_iter().zip(self.errors);
        by_code.filter(|(_, requests)| *requests > 0)
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.calls += other.calls;
        self.allowed += other.allowed;
        self.denied += other.denied;
        for (requests, other) in self.errors.iter_mut().zip(other.errors) {
            *requests += other;
        }
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }
}

/// Counts and latencies. Histograms are in nanoseconds and have the measured calls only.
#[derive(Debug)]
pub struct LoadStats {
    /// Calls of the warm-up.
    pub warm_up: Counts,
    /// Measured calls.
    pub measured: Counts,
    /// Latency of calls that returned a response: from the intended start.
    pub answered: Histogram<u64>,
    /// Latency of calls that returned an error: from the intended start.
    pub failed: Histogram<u64>,
    /// Delay of the start of calls: from the intended to the actual start.
    pub start_delay: Histogram<u64>,
    /// Times of the last measured call.
    pub(super) last: Times,
}

/// Times of a call, since the start of the load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) intended: Duration,
    pub(super) started: Duration,
    pub(super) answered: Duration,
}

impl Default for LoadStats {
    /// Returns statistics without any call.
    fn default() -> Self {
        Self {
            warm_up: Counts::default(),
            measured: Counts::default(),
            answered: histogram(),
            failed: histogram(),
            start_delay: histogram(),
            last: Times::default(),
        }
    }
}

impl LoadStats {
    /// Adds a call.
    pub(super) fn record(&mut self, call: &ScheduledCall, times: Times, counts: &Counts) {
        if !call.is_measured {
            self.warm_up += counts;
            return;
        }
        self.measured += counts;
        let Times { intended, started, answered } = times;
        let latency = nanos(answered.saturating_sub(intended));
        let has_failed = counts.decisions() == 0;
        let latencies = if has_failed { &mut self.failed } else { &mut self.answered };
        latencies.saturating_record(latency);
        self.start_delay.saturating_record(nanos(started.saturating_sub(intended)));
        self.last = self.last.or_later(times);
    }

    /// Adds other statistics.
    ///
    /// # Panics
    ///
    /// If a histogram was replaced by one with other bounds.
    pub fn add(&mut self, other: &Self) {
        self.warm_up += &other.warm_up;
        self.measured += &other.measured;
        let histograms = [
            (&mut self.answered, &other.answered),
            (&mut self.failed, &other.failed),
            (&mut self.start_delay, &other.start_delay),
        ];
        for (sum, other) in histograms {
            sum.add(other).expect("all have the same bounds");
        }
        self.last = self.last.or_later(other.last);
    }
}

impl Times {
    fn or_later(self, other: Self) -> Self {
        Self {
            intended: self.intended.max(other.intended),
            started: self.started.max(other.started),
            answered: self.answered.max(other.answered),
        }
    }
}

/// Creates a histogram of up to an hour with three significant digits. It takes 250 kB.
fn histogram() -> Histogram<u64> {
    const HOUR: u64 = 3_600_000_000_000;
    Histogram::new_with_bounds(1, HOUR, 3).expect("the bounds are valid")
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn codes_have_the_names_of_tonic() {
        for (number, name) in (0..).zip(CODES) {
            let code = format!("{:?}", Code::from(number)).to_uppercase();
            assert_eq!(code, name.replace('_', ""));
        }
    }
}
