//! Points in time and lengths of time, in whole microseconds.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

const MICROS_PER_MILLI: u64 = 1_000;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// A point in time: whole microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// Creates the point `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Creates the point `millis` milliseconds after the Unix epoch. Saturates.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since the Unix epoch, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / MICROS_PER_MILLI
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is the later one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time of a decision when the clock shows `self` and the latest decision was at
    /// `seen`.
    ///
    /// A clock that stepped back by up to `window` is frozen at `seen`, so that the step grants no
    /// units twice. A clock that stepped back further is followed, so that nobody is blocked for
    /// longer than a window. That grants at most one extra refill.
    #[must_use]
    pub fn freeze(self, seen: Self, window: Micros) -> Self {
        if seen.since(self) <= window { self.max(seen) } else { self }
    }
}

impl Add<Micros> for Timestamp {
    type Output = Self;

    /// Saturates at the largest timestamp.
    fn add(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Micros> for Timestamp {
    type Output = Self;

    /// Saturates at the Unix epoch.
    fn sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A length of time in whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Micros(u64);

impl Micros {
    /// Zero microseconds.
    pub const ZERO: Self = Self(0);

    /// Creates a length of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Creates a length of `millis` milliseconds. Saturates.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// Creates a length of `seconds` seconds. Saturates.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(MICROS_PER_SECOND))
    }

    /// Returns the length in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the length in whole milliseconds, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / MICROS_PER_MILLI
    }

    /// Returns the length in whole seconds, rounded up.
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
    /// Rounds down to whole microseconds. Saturates after half a million years.
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

/// Returns the whole microseconds of `duration`. Saturates.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_keeps_a_small_step_back_and_follows_a_large_one() {
        let window = Micros::from_secs(60);
        let seen = Timestamp::from_millis(200_000);
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
        assert_eq!(at(201).freeze(seen, window), at(201));
        assert_eq!(at(199).freeze(seen, window), seen);
        assert_eq!(at(140).freeze(seen, window), seen);
        assert_eq!(at(139).freeze(seen, window), at(139));
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(Micros::ZERO.as_secs_ceil(), 0);
        assert_eq!(Micros::from_micros(1).as_secs_ceil(), 1);
        assert_eq!(Micros::from_secs(60).as_secs_ceil(), 60);
        assert_eq!(Micros::from_micros(60_000_001).as_secs_ceil(), 61);
    }
}
