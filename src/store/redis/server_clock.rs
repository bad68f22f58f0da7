//! What this service knows of the clock of a Redis server.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::{Seen, Span, Timestamp};

/// The times that answers told, and an estimate of the time now. An estimate only names keys; the
/// server's clock decides.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// Server time minus local time, in microseconds.
    ahead_micros: AtomicI64,
    seen: Mutex<Seen>,
}

impl ServerClock {
    /// Notes that an answer that arrives at `local` told the server's `time`.
    pub(super) fn tell(&self, time: Timestamp, local: Timestamp) {
        let ahead = time.as_micros().cast_signed().wrapping_sub(local.as_micros().cast_signed());
        self.ahead_micros.store(ahead, Ordering::Relaxed);
    }

    /// Notes that a decision on a limit with this `window` was made at `time`.
    pub(super) fn see(&self, time: Timestamp, window: Span) {
        self.lock().note(window, time);
    }

    /// What the server's clock shows when the local one shows `local`: a little less, by the time
    /// that the last answer travelled.
    pub(super) fn estimate(&self, local: Timestamp) -> Timestamp {
        let ahead = self.ahead_micros.load(Ordering::Relaxed);
        Timestamp::from_micros(local.as_micros().saturating_add_signed(ahead))
    }

    /// The latest time of a decision on a limit with this `window`.
    pub(super) fn seen(&self, window: Span) -> Timestamp {
        self.lock().at(window)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
