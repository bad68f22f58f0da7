//! What this service knows of the clock of a Redis server.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::clock::{Span, Timestamp};

/// The time that answers told, and an estimate of the time now. An estimate only names keys; the
/// server's clock decides.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// Server time minus local time, in microseconds.
    ahead_micros: AtomicI64,
    /// The latest time of a decision, in microseconds.
    seen_micros: AtomicU64,
}

impl ServerClock {
    /// Notes that an answer that arrives at `local` told the server's `time`.
    pub(super) fn tell(&self, time: Timestamp, local: Timestamp) {
        let ahead = time.as_micros().cast_signed().wrapping_sub(local.as_micros().cast_signed());
        self.ahead_micros.store(ahead, Ordering::Relaxed);
    }

    /// Notes that a decision on a limit with this `window` was made at `time`.
    pub(super) fn see(&self, time: Timestamp, window: Span) {
        let held = |seen| time.hold(Timestamp::from_micros(seen), window).as_micros();
        self.seen_micros.update(Ordering::Relaxed, Ordering::Relaxed, held);
    }

    /// What the server's clock shows when the local one shows `local`: a little less, by the time
    /// that the last answer travelled.
    pub(super) fn estimate(&self, local: Timestamp) -> Timestamp {
        let ahead = self.ahead_micros.load(Ordering::Relaxed);
        Timestamp::from_micros(local.as_micros().saturating_add_signed(ahead))
    }

    /// The latest time of a decision.
    pub(super) fn seen(&self) -> Timestamp {
        Timestamp::from_micros(self.seen_micros.load(Ordering::Relaxed))
    }
}
