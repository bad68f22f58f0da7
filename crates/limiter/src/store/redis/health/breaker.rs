//! A circuit breaker: after several failures in a row it rejects calls, except for a probe now and
//! then.
//!
//! [`Breaker`] is a state machine without side effects. It gets the time as an argument, and neither logs
//! nor reports: see [`super::ServerHealth`]. [`BreakerGauge`] reports the worst state of all servers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Micros, Timestamp, jittered};
use crate::observer::{BreakerState, Observer, StoreEvent};
use crate::store::Undecided;
use crate::store::redis::connection::server_info::ServerInfo;

/// Failures in a row that open the breaker.
pub(crate) const MAX_FAILURES: u32 = 5;
/// Time from opening to the first probe. It doubles with each failed probe, up to the maximum.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_millis(400);

/// The breaker of one server, initially closed.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// Number of times that the breaker has opened.
    openings: u64,
    open: Option<OpenState>,
}

/// Admission of a call, to be presented when the call has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    /// Number of times that the breaker had opened when it admitted the call.
    openings: u64,
}

/// State of an open breaker: it admits no call before `until`, then one probe.
#[derive(Debug)]
struct OpenState {
    since: Timestamp,
    until: Timestamp,
    backoff: Duration,
    /// Set while a call probes the server.
    probing: bool,
}

impl Breaker {
    /// Admits a call, or rejects it. An open breaker admits one probe after each backoff. The time
    /// is read only if the breaker is open.
    pub(crate) fn admit(&mut self, now: impl FnOnce() -> Timestamp) -> Option<Permit> {
        let permit = Permit { openings: self.openings };
        let Some(open) = &mut self.open else { return Some(permit) };
        let now = now();
        if now < open.until {
            return None;
        }
        // If the outcome of this probe is never recorded, another may follow after the backoff.
        open.until = now + Micros::from(jittered(open.backoff));
        open.probing = true;
        Some(permit)
    }

    /// Records that an admitted call was decided. If this closes the breaker, returns the time when
    /// it had opened. A call that was admitted before the breaker opened does not close it.
    pub(crate) fn record_success(&mut self, permit: Permit) -> Option<Timestamp> {
        if permit.openings != self.openings {
            return None;
        }
        self.failures = 0;
        self.open.take().map(|open| open.since)
    }

    /// Records a failure that counts as `weight` failures. Returns `true` if it opens the breaker.
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

    /// Lets the next call probe the server at once, because it is connected again.
    pub(crate) fn probe_now(&mut self, now: Timestamp) {
        if let Some(open) = &mut self.open {
            open.until = open.until.min(now);
        }
    }

    /// Returns the state.
    pub(crate) fn state(&self) -> BreakerState {
        match &self.open {
            None => BreakerState::Closed,
            Some(open) if open.probing => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        }
    }
}

/// Reports the worst state to an observer whenever a breaker has changed, and has the counts of all servers
/// together.
#[derive(Debug)]
pub(crate) struct BreakerGauge {
    /// Number of open and of half-open breakers.
    counts: Mutex<[usize; 2]>,
    /// Number of servers that may evict keys.
    evicting: AtomicUsize,
    /// Number of servers whose restart loses everything.
    not_persistent: AtomicUsize,
    /// Requests that the store has not decided, by [`Undecided`].
    undecided: [AtomicU64; 2],
    observer: Arc<dyn Observer>,
}

/// States that are counted, the worst first.
const COUNTED: [BreakerState; 2] = [BreakerState::Open, BreakerState::HalfOpen];

impl BreakerGauge {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        let (evicting, not_persistent, undecided) = Default::default();
        Self { counts: Mutex::default(), evicting, not_persistent, undecided, observer }
    }

    /// Returns `true` if a server may evict keys.
    pub(crate) fn may_evict(&self) -> bool {
        self.evicting.load(Ordering::Relaxed) > 0
    }

    /// Returns `true` if the restart of a server loses everything.
    pub(crate) fn is_not_persistent(&self) -> bool {
        self.not_persistent.load(Ordering::Relaxed) > 0
    }

    /// Counts a request that the store has not decided.
    pub(crate) fn count_undecided(&self, request: Undecided) {
        self.undecided[request as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the requests that the store has not decided since this process started, by [`Undecided`].
    pub(crate) fn undecided(&self) -> [u64; 2] {
        self.undecided.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Records the description of one server in place of the one before.
    pub(crate) fn record_info(&self, from: Option<&ServerInfo>, to: Option<&ServerInfo>) {
        let move_count = |count: &AtomicUsize, is_counted: fn(&ServerInfo) -> bool| {
            let (from, to) = (from.is_some_and(is_counted), to.is_some_and(is_counted));
            match (from, to) {
                (false, true) => _ = count.fetch_add(1, Ordering::Relaxed),
                (true, false) => _ = count.fetch_sub(1, Ordering::Relaxed),
                _ => {}
            }
            from != to
        };
        move_count(&self.not_persistent, |info| info.is_not_persistent);
        if move_count(&self.evicting, |info| info.eviction_policy().is_some()) {
            self.observer.store(StoreEvent::MayEvict(self.may_evict()));
        }
    }

    /// Records that one breaker has changed its state.
    pub(crate) fn record_change(&self, from: BreakerState, to: BreakerState) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut worst = BreakerState::Closed;
        for (state, count) in COUNTED.into_iter().zip(&mut *counts).rev() {
            *count = (*count + usize::from(state == to)).saturating_sub(usize::from(state == from));
            if *count > 0 {
                worst = state;
            }
        }
        self.observer.store(StoreEvent::Breakers(worst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn at(millis: u64) -> Timestamp {
        START + Micros::from_millis(millis)
    }

    /// Returns a breaker that has opened at [`START`].
    fn open() -> Breaker {
        let mut breaker = Breaker::default();
        for failures in 1..=MAX_FAILURES {
            assert_eq!(breaker.state(), BreakerState::Closed);
            assert_eq!(breaker.record_failure(1, START), failures == MAX_FAILURES);
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_the_breaker_and_a_success_resets_them() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            for _ in 1..MAX_FAILURES {
                assert!(!breaker.record_failure(1, START));
            }
            let permit = breaker.admit(|| START).expect("closed");
            assert_eq!(breaker.record_success(permit), None);
        }
        assert!(
            breaker.record_failure(MAX_FAILURES, START),
            "one failure of the maximum weight opens the breaker"
        );
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    #[test]
    fn an_open_breaker_admits_one_probe_after_each_backoff() {
        let mut breaker = open();
        assert_eq!(breaker.admit(|| at(49)), None, "the backoff is 50 to 100 ms");
        assert!(breaker.admit(|| at(100)).is_some());
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.admit(|| at(149)), None, "other calls are rejected during the probe");
        assert!(
            breaker.admit(|| at(200)).is_some(),
            "the outcome of the first probe was never recorded"
        );
    }

    #[test]
    fn the_backoff_doubles_with_each_failed_probe_up_to_the_maximum() {
        let mut breaker = open();
        let mut now = 100;
        for backoff in [200, 400, 400, 400] {
            assert!(breaker.admit(|| at(now)).is_some());
            assert!(!breaker.record_failure(1, at(now)), "the breaker was open before");
            assert_eq!(breaker.state(), BreakerState::Open);
            assert_eq!(breaker.admit(|| at(now + backoff / 2 - 1)), None);
            now += backoff;
        }
    }

    #[test]
    fn a_successful_probe_closes_the_breaker_and_an_earlier_call_does_not() {
        let mut breaker = Breaker::default();
        let early = breaker.admit(|| START).expect("closed");
        breaker.record_failure(MAX_FAILURES, START);
        let probe = breaker.admit(|| at(100)).expect("a probe");
        assert_eq!(breaker.record_success(early), None);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.record_success(probe), Some(START), "it had opened at the start");
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_reconnected_server_is_probed_at_once() {
        let mut breaker = open();
        assert_eq!(breaker.admit(|| at(1)), None);
        breaker.probe_now(at(1));
        assert!(breaker.admit(|| at(1)).is_some());
    }
}
