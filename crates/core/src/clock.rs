//! Time: points ([`Timestamp`]), lengths ([`Micros`]) and where they come from ([`Clock`]).
//!
//! Everything inside counts whole microseconds, so that decisions are exact and the same in Rust
//! and in Lua. This is one of the few files that may read the machine's clocks; the rest of the
//! house is handed a [`Timestamp`], and tests move a [`ManualClock`].

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MICROS_PER_MILLI: u64 = 1_000;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// A point in time: whole microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The point `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The point `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the Unix epoch, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / MICROS_PER_MILLI
    }

    /// The time from `earlier` to here; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// The point at which a store whose clock shows `self` decides, given the latest time that it
    /// has `seen`. It is what the store has seen from then on.
    ///
    /// A clock that stepped back by up to `window` is held at what was seen, so that no quota is
    /// minted. One that stepped back further is followed, so that nobody is blocked for longer
    /// than a window: that costs at most one extra refill.
    #[must_use]
    pub fn hold(self, seen: Self, window: Micros) -> Self {
        if seen.since(self) <= window { self.max(seen) } else { self }
    }
}

impl Add<Micros> for Timestamp {
    type Output = Self;

    /// Saturates: the end of time is far away.
    fn add(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// When an answer must be there, by the machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Nobody waits.
    pub const NEVER: Self = Self(None);

    /// `timeout` from now; a point that no clock can show is never.
    #[expect(clippy::disallowed_methods, reason = "how long somebody waits is no decision's time")]
    pub fn within(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// This one, or `timeout` from now if that is sooner.
    #[must_use]
    pub fn or_within(self, timeout: Duration) -> Self {
        self.earlier(Self::within(timeout))
    }

    /// The sooner one.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(another)) => Self(Some(one.min(another))),
            (one, another) => Self(one.or(another)),
        }
    }

    /// Time that is left; zero when it is over.
    #[expect(clippy::disallowed_methods, reason = "how long somebody waits is no decision's time")]
    pub fn remaining(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Is nobody waiting any more?
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}

impl Sub<Micros> for Timestamp {
    type Output = Self;

    /// Saturates at the epoch.
    fn sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// The latest times at which decisions were made, for each length of window: what is a jump to a
/// short window is a step back to a long one.
#[derive(Clone, Debug, Default)]
pub struct HighWaterMarks {
    /// Most limits share one length: it stands here and not behind a pointer. Of no length at first.
    first: (Micros, Timestamp),
    others: Vec<(Micros, Timestamp)>,
}

impl HighWaterMarks {
    /// Windows of more lengths than this share the last place.
    const MAX_LENGTHS: usize = 64;

    /// The latest time of a decision on a limit with this window.
    pub fn latest(&self, window: Micros) -> Timestamp {
        let mut all = std::iter::once(&self.first).chain(&self.others);
        all.find(|(of, _)| *of == window).map_or(Timestamp::EPOCH, |(_, seen)| *seen)
    }

    /// Notes that a decision on a limit with this window is made while the clock shows `time`, and
    /// tells when that is: later where the clock is held.
    #[inline]
    pub fn record(&mut self, window: Micros, time: Timestamp) -> Timestamp {
        let seen = if self.first.0 == window { &mut self.first.1 } else { self.entry(window) };
        *seen = time.hold(*seen, window);
        *seen
    }

    /// Where a length is noted that is not the first, or not yet.
    fn entry(&mut self, window: Micros) -> &mut Timestamp {
        if self.first.0 == Micros::ZERO {
            self.first.0 = window;
            return &mut self.first.1;
        }
        let known = self.others.iter().position(|(of, _)| *of == window);
        let position = known.unwrap_or_else(|| {
            self.others.truncate(Self::MAX_LENGTHS - 2);
            self.others.push((window, Timestamp::EPOCH));
            self.others.len() - 1
        });
        &mut self.others[position].1
    }
}

/// A length of time: whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Micros(u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// `seconds` seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(MICROS_PER_SECOND))
    }

    /// The length in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The length in whole milliseconds, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / MICROS_PER_MILLI
    }

    /// The length in whole seconds, rounded up.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(MICROS_PER_SECOND)
    }
}

impl Add for Micros {
    type Output = Self;

    /// Saturates.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Micros {
    type Output = Self;

    /// Saturates at zero.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Micros {
    /// Whole microseconds; saturates after half a million years.
    fn from(duration: Duration) -> Self {
        Self(micros(duration))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Duration::from_micros(span.0)
    }
}

impl fmt::Display for Micros {
    /// Shows the length in the unit that reads best: `60s`, `250ms`, `1.000001s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from(*self))
    }
}

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
        let anchor = Arc::new(AtomicU64::new(wall_time().0));
        Self { counted_from: counter.raw(), counter, anchor }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.anchor.load(Ordering::Relaxed)) + self.counted()
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
            let anchor = after.0.saturating_sub(counted.0);
            self.anchor.store(anchor, Ordering::Relaxed);
        }
    }

    #[inline]
    fn counted(&self) -> Micros {
        Micros(self.counter.delta_as_nanos(self.counted_from, self.counter.raw()) / 1_000)
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
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// The time that the clock shows.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    /// Moves the clock, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
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
    Timestamp(micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// Whole microseconds of `duration`; saturates after half a million years.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_step_back_is_held_and_a_jump_is_followed() {
        let window = Micros::from_secs(60);
        let seen = Timestamp::from_millis(200_000);
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
        assert_eq!(at(201).hold(seen, window), at(201));
        assert_eq!(at(199).hold(seen, window), seen);
        assert_eq!(at(140).hold(seen, window), seen);
        assert_eq!(at(139).hold(seen, window), at(139));
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(Micros::ZERO.as_secs_ceil(), 0);
        assert_eq!(Micros::from_micros(1).as_secs_ceil(), 1);
        assert_eq!(Micros::from_secs(60).as_secs_ceil(), 60);
        assert_eq!(Micros::from_micros(60_000_001).as_secs_ceil(), 61);
    }

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
