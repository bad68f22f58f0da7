//! What was answered, and how late.
//!
//! Each thread of the load has a stats of its own. The command takes it once a second, which is the
//! only time that its lock is ever waited for, and adds up what it took.

use std::error::Error;
use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;
use tonic::{Code, Status};

use super::schedule::ScheduledCall;

/// Status codes of gRPC, by their numbers.
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

/// Calls, and the answers to their requests: allowed + denied + errors is as many as requests.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Calls with an answer, be it an error.
    pub calls: u64,
    /// Calls that got an error for an answer. An error of one request in a batch is none.
    pub failed_calls: u64,
    /// Requests that may pass.
    pub allowed: u64,
    /// Requests that are refused.
    pub denied: u64,
    errors: [u64; CODES.len()],
    /// What the first error says.
    pub first_error: Option<String>,
}

impl Counts {
    /// A call with an answer; its decisions are still to be added.
    pub(super) fn answered() -> Self {
        Self { calls: 1, ..Self::default() }
    }

    /// A call that failed, with all its requests.
    pub(super) fn failed(status: &Status, requests: u64) -> Self {
        let mut counts = Self { calls: 1, failed_calls: 1, ..Self::default() };
        // tonic says "transport error"; what lies behind says which.
        let mut root: &dyn Error = status;
        while let Some(source) = root.source() {
            root = source;
        }
        match status.source() {
            None => counts.add_errors(status.code(), requests, status.message()),
            Some(_) => counts.add_errors(status.code(), requests, &root.to_string()),
        }
        counts
    }

    pub(super) fn add_decision(&mut self, is_allowed: bool) {
        *(if is_allowed { &mut self.allowed } else { &mut self.denied }) += 1;
    }

    pub(super) fn add_errors(&mut self, code: Code, requests: u64, message: &str) {
        self.errors[code as usize] += requests;
        let name = CODES[code as usize];
        self.first_error.get_or_insert_with(|| format!("{name}: {}", message.escape_debug()));
    }

    /// Requests with a decision.
    pub fn decisions(&self) -> u64 {
        self.allowed + self.denied
    }

    /// Requests that got an error, by the name of its code.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let by_code = CODES.into_iter().zip(self.errors);
        by_code.filter(|(_, requests)| *requests > 0)
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failed_calls += other.failed_calls;
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

/// Counts and times. Histograms are in nanoseconds and tell the measured calls alone.
#[derive(Debug)]
pub struct LoadStats {
    /// Calls of the warm-up.
    pub warm_up: Counts,
    /// Calls that are measured.
    pub measured: Counts,
    /// From the intended start to the answer.
    pub answered: Histogram<u64>,
    /// From the intended start to the error.
    pub failed: Histogram<u64>,
    /// From the intended start to the real one.
    pub start_delay: Histogram<u64>,
    /// When the last measured call was meant to start, did, and was answered: since the beginning.
    pub(super) last: Times,
}

/// Points in the life of a call, since the beginning of the load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) intended: Duration,
    pub(super) started: Duration,
    pub(super) answered: Duration,
}

impl Default for LoadStats {
    /// Nothing counted.
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
    /// Counts a call.
    pub(super) fn record(&mut self, call: &ScheduledCall, times: Times, counts: &Counts) {
        if !call.is_measured {
            self.warm_up += counts;
            return;
        }
        self.measured += counts;
        let Times { intended, started, answered } = times;
        let latency = nanos(answered.saturating_sub(intended));
        let has_failed = counts.failed_calls > 0;
        let latencies = if has_failed { &mut self.failed } else { &mut self.answered };
        latencies.saturating_record(latency);
        self.start_delay.saturating_record(nanos(started.saturating_sub(intended)));
        self.last = self.last.or_later(times);
    }

    /// Adds what another one has counted.
    ///
    /// # Panics
    ///
    /// If a histogram was replaced by one of other bounds.
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

/// Up to an hour with three digits, in a quarter of a megabyte.
fn histogram() -> Histogram<u64> {
    const HOUR: u64 = 3_600_000_000_000;
    Histogram::new_with_bounds(1, HOUR, 3).expect("the bounds are valid")
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_name() {
        for (number, name) in (0..).zip(CODES) {
            let code = format!("{:?}", Code::from(number)).to_uppercase();
            assert_eq!(code, name.replace('_', ""));
        }
    }
}
