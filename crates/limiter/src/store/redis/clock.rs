//! The clock of a Redis server, as far as it is known.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{HighWaterMarks, Micros, SystemClock, Timestamp};
use crate::observer::{Observer, StoreEvent};

/// Keeps the times of replies, and estimates the current time. Estimates only name keys; the clock
/// of the server decides.
#[derive(Debug)]
pub(crate) struct ServerClock {
    local: SystemClock,
    /// Server time minus local time, in microseconds.
    ahead_micros: AtomicI64,
    seen: Mutex<HighWaterMarks>,
    observer: Arc<dyn Observer>,
}

/// Value of `ahead_micros` before the first reply.
const UNKNOWN: i64 = i64::MIN;
/// Drift from one reply to the next that counts as a jump: more than any round trip.
const JUMP: Duration = Duration::from_secs(1);

impl ServerClock {
    /// Creates a clock that is unknown before the first reply. Jumps are reported to `observer`.
    pub(crate) fn new(local: SystemClock, observer: Arc<dyn Observer>) -> Self {
        Self { local, ahead_micros: UNKNOWN.into(), seen: Mutex::default(), observer }
    }

    /// Records the server time in a reply that has just arrived.
    pub(crate) fn observe(&self, time: Timestamp) {
        let local = self.local.now().as_micros().cast_signed();
        let ahead = time.as_micros().cast_signed().wrapping_sub(local);
        let before = self.ahead_micros.swap(ahead, Ordering::Relaxed);
        if before != UNKNOWN && u128::from(before.abs_diff(ahead)) > JUMP.as_micros() {
            self.observer.store(StoreEvent::ClockJumped);
        }
    }

    /// Estimates the server time: late by the time that the last reply took to arrive.
    pub(crate) fn estimate(&self) -> Timestamp {
        let ahead = self.ahead_micros.load(Ordering::Relaxed);
        let ahead = if ahead == UNKNOWN { 0 } else { ahead };
        Timestamp::from_micros(self.local.now().as_micros().saturating_add_signed(ahead))
    }

    /// Records that a limit with this `window` was decided at `time`.
    pub(crate) fn record_decision(&self, time: Timestamp, window: Micros) {
        self.seen().record(window, time);
    }

    /// Returns the latest time of a decision on a limit with this `window`.
    pub(crate) fn latest_decision(&self, window: Micros) -> Timestamp {
        self.seen().latest(window)
    }

    fn seen(&self) -> MutexGuard<'_, HighWaterMarks> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
