//! What this service knows of the clock of a Redis server.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Seen, Span, Timestamp};
use crate::observer::{Observer, StoreEvent};

/// The times that answers told, and an estimate of the time now. An estimate only names keys; the
/// server's clock decides.
#[derive(Debug)]
pub(crate) struct ServerClock {
    /// Server time minus local time, in microseconds.
    ahead_micros: AtomicI64,
    seen: Mutex<Seen>,
    observer: Arc<dyn Observer>,
}

/// What is ahead before any answer has told.
const UNTOLD: i64 = i64::MIN;
/// A clock that has moved against ours by more than this has jumped: answers travel for less.
const JUMP: Duration = Duration::from_secs(1);

impl ServerClock {
    /// A clock that has not told yet; its jumps are reported to `observer`.
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { ahead_micros: UNTOLD.into(), seen: Mutex::default(), observer }
    }

    /// Notes that an answer that arrives at `local` told the server's `time`.
    pub(crate) fn tell(&self, time: Timestamp, local: Timestamp) {
        let ahead = time.as_micros().cast_signed().wrapping_sub(local.as_micros().cast_signed());
        let before = self.ahead_micros.swap(ahead, Ordering::Relaxed);
        if before != UNTOLD && u128::from(before.abs_diff(ahead)) > JUMP.as_micros() {
            self.observer.store(StoreEvent::ClockJumped);
        }
    }

    /// Notes that a decision on a limit with this `window` was made at `time`.
    pub(crate) fn see(&self, time: Timestamp, window: Span) {
        self.lock().note(window, time);
    }

    /// What the server's clock shows when the local one shows `local`: a little less, by the time
    /// that the last answer travelled.
    pub(crate) fn estimate(&self, local: Timestamp) -> Timestamp {
        let ahead = self.ahead_micros.load(Ordering::Relaxed);
        let ahead = if ahead == UNTOLD { 0 } else { ahead };
        Timestamp::from_micros(local.as_micros().saturating_add_signed(ahead))
    }

    /// The latest time of a decision on a limit with this `window`.
    pub(crate) fn seen(&self, window: Span) -> Timestamp {
        self.lock().at(window)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
