//! Time: points ([`Timestamp`]), lengths ([`Micros`]) and clocks ([`Clock`]).
//!
//! All times are whole microseconds, so that decisions are exact and equal in Rust and Lua. This
//! module is one of the few that may read the system clock. All other code is given a
//! [`Timestamp`], and tests set a [`ManualClock`].

mod high_water_marks;
mod timestamp;

pub use high_water_marks::HighWaterMarks;
pub use timestamp::{Micros, Timestamp};

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of the current time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Wall time.
    System(SystemClock),
    /// A clock that tests set.
    Manual(ManualClock),
}

impl Clock {
    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Adjusts a system clock to wall time; see [`SystemClock::follow_wall_time`].
    pub fn follow_wall_time(&self) {
        if let Self::System(clock) = self {
            clock.follow_wall_time();
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::System(SystemClock::new())
    }
}

/// Wall time, read from the processor's cycle counter. Clones share the anchor.
///
/// The system clock would take three times as long to read, which is a third of a decision in
/// memory. Over hours the counter drifts from wall time by milliseconds, and wall time itself can
/// be set. [`SystemClock::follow_wall_time`] corrects both by moving the anchor. This clock is
/// therefore not monotonic: it can step back, as wall time can. Where cycle counters differ between
/// cores, quanta reads the system clock instead.
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    counted_from: u64,
    /// Wall time at the counter value `counted_from`, in microseconds since the Unix epoch.
    anchor: Arc<AtomicU64>,
}

impl SystemClock {
    /// Most time between two readings of the system clock for a counter value that is read between
    /// them to count as simultaneous.
    const MAX_READING_TIME: Micros = Micros::from_micros(5);

    /// Creates a clock that shows the current wall time.
    pub fn new() -> Self {
        Self::counting(quanta::Clock::new())
    }

    fn counting(counter: quanta::Clock) -> Self {
        let anchor = Arc::new(AtomicU64::new(wall_time().as_micros()));
        Self { counted_from: counter.raw(), counter, anchor }
    }

    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.anchor.load(Ordering::Relaxed)) + self.counted()
    }

    /// Adjusts this clock to wall time.
    ///
    /// Called about once a second, this moves the clock by microseconds, or by more after the
    /// system clock was set. Stores freeze at small steps back and follow large ones
    /// ([`Timestamp::freeze`]). Does nothing if the thread was interrupted between the readings; call
    /// it again later.
    pub fn follow_wall_time(&self) {
        let before = wall_time();
        let counted = self.counted();
        let after = wall_time();
        if after >= before && after.since(before) < Self::MAX_READING_TIME {
            let anchor = after.as_micros().saturating_sub(counted.as_micros());
            self.anchor.store(anchor, Ordering::Relaxed);
        }
    }

    #[inline]
    fn counted(&self) -> Micros {
        let nanos = self.counter.delta_as_nanos(self.counted_from, self.counter.raw());
        Micros::from_micros(nanos / 1_000)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

/// A clock that shows the time that it was set to. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_micros())))
    }

    /// Returns the time that was set.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    /// Sets the time, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }
}

/// Returns a random duration from half of `interval` to all of it, so that instances do not act at
/// the same moment.
pub fn jittered(interval: Duration) -> Duration {
    // `RandomState` has new random keys each time, so no random number generator is needed.
    let random = RandomState::new().hash_one(());
    let part = u32::try_from(random % 1024).unwrap_or_default();
    interval / 2 + interval / 2 * part / 1024
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads wall time")]
fn wall_time() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH + Micros::from(since_epoch)
}

/// The latest time for an answer, by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline.
    pub const NEVER: Self = Self(None);

    /// Creates a deadline `timeout` from now, or none if that time cannot be represented.
    #[expect(clippy::disallowed_methods, reason = "a timeout does not affect decisions")]
    pub fn within(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// Returns `self`, or a deadline `timeout` from now if that is earlier.
    #[must_use]
    pub fn or_within(self, timeout: Duration) -> Self {
        self.earlier(Self::within(timeout))
    }

    /// Returns the earlier one of two deadlines.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(own), Some(other)) => Self(Some(own.min(other))),
            (own, other) => Self(own.or(other)),
        }
    }

    /// Returns the time until the deadline: zero if it has passed, [`Duration::MAX`] if there is
    /// none.
    #[expect(clippy::disallowed_methods, reason = "a timeout does not affect decisions")]
    pub fn remaining(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns `true` if the deadline has passed.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_over_half_to_all_of_the_interval() {
        let interval = Duration::from_secs(1);
        let intervals: Vec<Duration> = (0..1000).map(|_| jittered(interval)).collect();
        assert!(intervals.iter().all(|jittered| (interval / 2..=interval).contains(jittered)));
        // Each quarter of the range must have about 250: a broken generator would repeat values or
        // step through them in order.
        for quarter in 4..8 {
            let part = interval * quarter / 8..interval * (quarter + 1) / 8;
            let count = intervals.iter().filter(|jittered| part.contains(jittered)).count();
            assert!((150..350).contains(&count), "{count} of 1,000 in {part:?}");
        }
    }

    #[test]
    fn system_clock_goes_forward() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(first > Timestamp::from_millis(1_700_000_000_000));
        assert!(clock.now() >= first);
    }

    #[test]
    fn system_clock_is_corrected_to_wall_time() {
        let (counter, cycles) = quanta::Clock::mock();
        let clock = SystemClock::counting(counter);
        let started = clock.now();
        cycles.increment(Duration::from_secs(3600));
        assert_eq!(clock.now().since(started), Micros::from_secs(3600));
        // Repeated until the thread is not interrupted between the readings.
        while clock.now().since(started) >= Micros::from_secs(3600) {
            clock.follow_wall_time();
        }
        assert!(clock.now() >= started);
    }
}
