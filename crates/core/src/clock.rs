//! Time: points ([`Timestamp`]), lengths ([`Micros`]) and where they come from ([`Clock`]).
//!
//! Everything inside counts whole microseconds, so that decisions are exact and the same in Rust
//! and in Lua. This is one of the few files that may read the machine's clocks; the rest of the
//! house is handed a [`Timestamp`], and tests move a [`ManualClock`].

mod deadline;
mod high_water_marks;
mod timestamp;

pub use deadline::Deadline;
pub use high_water_marks::HighWaterMarks;
pub use timestamp::{Micros, Timestamp};

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the time comes from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock.
    System(SystemClock),
    /// A clock that tests move.
    Manual(ManualClock),
}

impl Clock {
    /// The time now.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Follows the machine's wall time; see [`SystemClock::follow_wall_time`].
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

/// A counter of the processor's cycles, anchored to wall time. Clones share the anchor.
///
/// Reading the system's own clock takes three times as long, which is a third of a decision in
/// memory. Over hours the counter drifts by milliseconds, and wall time may be set:
/// [`SystemClock::follow_wall_time`] moves the anchor, and so this clock may step back, as wall time
/// does. Where cycles are not comparable between cores, quanta reads the system's clock.
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    counted_from: u64,
    /// Wall time, in microseconds, when nothing was counted.
    anchor: Arc<AtomicU64>,
}

impl SystemClock {
    /// The longest between two looks at the system's clock for what is counted between them to be
    /// of the same moment.
    const MAX_READING_TIME: Micros = Micros::from_micros(5);

    /// Anchors the counter to the wall time of this moment.
    pub fn new() -> Self {
        Self::counting(quanta::Clock::new())
    }

    fn counting(counter: quanta::Clock) -> Self {
        let anchor = Arc::new(AtomicU64::new(wall_time().as_micros()));
        Self { counted_from: counter.raw(), counter, anchor }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.anchor.load(Ordering::Relaxed)) + self.counted()
    }

    /// Sets the count to wall time: by microseconds if this is done every second or so, by more
    /// where somebody has set the machine's clock. Stores hold small steps back and follow large
    /// ones ([`Timestamp::hold`]). To be tried again where the machine was busy with something else
    /// just now.
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

/// A clock that stands still until it is moved. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_micros())))
    }

    /// The time that the clock shows.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    /// Moves the clock, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }
}

/// Returns a random length from half to all of `interval`, so that instances do not act in step.
pub fn jittered(interval: Duration) -> Duration {
    // Keys are random for each thread, and others each time: no generator is needed for this.
    let random = RandomState::new().hash_one(());
    let part = u32::try_from(random % 1024).unwrap_or_default();
    interval / 2 + interval / 2 * part / 1024
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's wall time")]
fn wall_time() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH + Micros::from(since_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_over_half_to_all_of_a_pause() {
        let interval = Duration::from_secs(1);
        let intervals: Vec<Duration> = (0..1000).map(|_| jittered(interval)).collect();
        assert!(intervals.iter().all(|jittered| (interval / 2..=interval).contains(jittered)));
        // A generator that is broken stays in one place, or goes from one to the next.
        for quarter in 4..8 {
            let part = interval * quarter / 8..interval * (quarter + 1) / 8;
            let count = intervals.iter().filter(|jittered| part.contains(jittered)).count();
            assert!((150..350).contains(&count), "{count} of 1,000 in {part:?}");
        }
    }

    #[test]
    fn the_system_clock_goes_forward() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(first > Timestamp::from_millis(1_700_000_000_000));
        assert!(clock.now() >= first);
    }

    #[test]
    fn a_count_that_has_gone_wrong_is_set_right() {
        let (counter, cycles) = quanta::Clock::mock();
        let clock = SystemClock::counting(counter);
        let started = clock.now();
        cycles.increment(Duration::from_hours(1));
        assert_eq!(clock.now().since(started), Micros::from_secs(3600));
        // Tried until nobody else had the processor in between.
        while clock.now().since(started) >= Micros::from_secs(3600) {
            clock.follow_wall_time();
        }
        assert!(clock.now() >= started);
    }
}
