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

impl Sub<Micros> for Timestamp {
    type Output = Self;

    /// Saturates at the epoch.
    fn sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span.0))
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
}
