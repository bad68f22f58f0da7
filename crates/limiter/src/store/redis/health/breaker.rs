//! A circuit breaker: after some failures in a row calls fail at once, and now and then one may try.
//!
//! A state machine and nothing else. It is told the time, and knows neither logs nor metrics: see
//! [`super::ServerHealth`].

use std::time::Duration;

use crate::clock::{Micros, Timestamp, jittered};
use crate::observer::BreakerState;

/// Failures in a row that open the breaker.
pub(crate) const MAX_FAILURES: u32 = 5;
/// Time from opening to the first probe; doubles with each probe that fails, up to the maximum.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_millis(400);

/// The breaker of one server: closed at first.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// In a row.
    failures: u32,
    /// How often it has opened.
    openings: u64,
    open: Option<OpenState>,
}

/// Shown when the call that was admitted has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    /// How often the breaker had opened before.
    openings: u64,
}

/// No call passes before `until`; the one that does then moves it.
#[derive(Debug)]
struct OpenState {
    since: Timestamp,
    until: Timestamp,
    backoff: Duration,
    /// Set while a call probes the server.
    probing: bool,
}

impl Breaker {
    /// Lets a call pass, or not: while it is open, one after each pause.
    pub(crate) fn admit(&mut self, now: Timestamp) -> Option<Permit> {
        let permit = Permit { openings: self.openings };
        let Some(open) = &mut self.open else { return Some(permit) };
        if now < open.until {
            return None;
        }
        // If this one is never heard of again, another may probe after as long.
        open.until = now + Micros::from(jittered(open.backoff));
        open.probing = true;
        Some(permit)
    }

    /// Notes that an admitted call was decided. A call that was admitted before the breaker opened
    /// comes late, and closes nothing. Returns how long the breaker was open, if this closes it.
    pub(crate) fn record_success(&mut self, permit: Permit, now: Timestamp) -> Option<Duration> {
        if permit.openings != self.openings {
            return None;
        }
        self.failures = 0;
        self.open.take().map(|open| now.since(open.since).into())
    }

    /// Notes a failure that counts as so many. Returns `true` if it opens the breaker.
    pub(crate) fn record_failure(&mut self, weight: u32, now: Timestamp) -> bool {
        self.failures = self.failures.saturating_add(weight);
        if let Some(open) = &mut self.open {
            if open.probing {
                open.backoff = (open.backoff * 2).min(MAX_BACKOFF);
                open.until = now + Micros::from(jittered(open.backoff));
                open.probing = false;
            }
            return false;
        }
        if self.failures < MAX_FAILURES {
            return false;
        }
        let until = now + Micros::from(jittered(INITIAL_BACKOFF));
        self.openings += 1;
        self.open = Some(OpenState { since: now, until, backoff: INITIAL_BACKOFF, probing: false });
        true
    }

    /// Lets the next call probe the server at once: it is connected again.
    pub(crate) fn probe_now(&mut self, now: Timestamp) {
        if let Some(open) = &mut self.open {
            open.until = open.until.min(now);
        }
    }

    /// What it does with calls.
    pub(crate) fn state(&self) -> BreakerState {
        match &self.open {
            None => BreakerState::Closed,
            Some(open) if open.probing => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn at(millis: u64) -> Timestamp {
        START + Micros::from_millis(millis)
    }

    /// A breaker that has just opened, at [`START`].
    fn open() -> Breaker {
        let mut breaker = Breaker::default();
        for failures in 1..=MAX_FAILURES {
            assert_eq!(breaker.state(), BreakerState::Closed);
            assert_eq!(breaker.record_failure(1, START), failures == MAX_FAILURES);
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not_count() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            for _ in 1..MAX_FAILURES {
                assert!(!breaker.record_failure(1, START));
            }
            let permit = breaker.admit(START).expect("closed");
            assert_eq!(breaker.record_success(permit, START), None);
        }
        assert!(breaker.record_failure(MAX_FAILURES, START), "a fatal one is enough");
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn open_it_admits_one_probe_after_each_pause() {
        let mut breaker = open();
        assert_eq!(breaker.admit(at(49)), None, "the pause is half to all of 100 ms");
        assert!(breaker.admit(at(100)).is_some());
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.admit(at(149)), None, "the others do not wait for it");
        assert!(breaker.admit(at(200)).is_some(), "it was never heard of again");
    }

    #[test]
    fn the_pause_doubles_with_each_probe_that_fails_up_to_the_maximum() {
        let mut breaker = open();
        let mut now = 100;
        for backoff in [200, 400, 400, 400] {
            assert!(breaker.admit(at(now)).is_some());
            assert!(!breaker.record_failure(1, at(now)), "it was open before");
            assert_eq!(breaker.state(), BreakerState::Open);
            assert_eq!(breaker.admit(at(now + backoff / 2 - 1)), None);
            now += backoff;
        }
    }

    #[test]
    fn a_probe_that_succeeds_closes_it_and_an_earlier_call_does_not() {
        let mut breaker = Breaker::default();
        let early = breaker.admit(START).expect("closed");
        breaker.record_failure(MAX_FAILURES, START);
        let probe = breaker.admit(at(100)).expect("a probe");
        assert_eq!(breaker.record_success(early, at(101)), None);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.record_success(probe, at(250)), Some(Duration::from_millis(250)));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_server_that_is_connected_again_is_probed_at_once() {
        let mut breaker = open();
        assert_eq!(breaker.admit(at(1)), None);
        breaker.probe_now(at(1));
        assert!(breaker.admit(at(1)).is_some());
    }
}
