//! How many, per how long; and what one request takes of it.

use std::num::NonZeroU32;

use thiserror::Error;

use crate::clock::Micros;

/// Units that one request takes: 0 to 2^32 − 1. 0 looks without taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(u32);

impl Cost {
    /// Looks without taking.
    pub const NONE: Self = Self(0);
    /// What a request takes that says nothing else.
    pub const ONE: Self = Self(1);

    /// A cost of `units`.
    pub const fn new(units: u32) -> Self {
        Self(units)
    }

    /// The units.
    pub const fn units(self) -> u64 {
        self.0 as u64
    }
}

/// How many units per window, and how many at once. Always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    window: Micros,
    units: NonZeroU32,
    burst: NonZeroU32,
    /// Units that may be owed; none: what is above the limit is no debt.
    max_debt: Option<u32>,
    /// What follows from them, so that no decision divides for it.
    times: Times,
}

/// How long a unit and a whole burst take: whole microseconds, and the part below in microseconds
/// divided by the units per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    unit: Micros,
    unit_part: u32,
    burst_part: u32,
    burst: Micros,
}

impl Limit {
    /// The most units per window.
    pub const MAX_UNITS: u64 = 1_000_000_000;
    /// The shortest window.
    pub const MIN_WINDOW: Micros = Micros::from_millis(1);
    /// The longest window: 366 days.
    pub const MAX_WINDOW: Micros = Micros::from_secs(366 * 24 * 60 * 60);

    /// The longest time that a burst may take to come back: 100 years, so that every point in
    /// time stays far below 2^53 µs.
    pub const MAX_FILL: Micros = Micros::from_secs(100 * 366 * 24 * 60 * 60);

    /// Allows `units` per `window`, and as many at once.
    ///
    /// # Errors
    ///
    /// - [`LimitError::Units`] unless `units` is from 1 to 10⁹;
    /// - [`LimitError::Window`] unless `window` is whole milliseconds, from 1 ms to 366 days.
    pub fn new(units: u64, window: Micros) -> Result<Self, LimitError> {
        let units = Self::count(units).ok_or(LimitError::Units)?;
        let whole = window.as_micros().is_multiple_of(Self::MIN_WINDOW.as_micros());
        if !whole || window < Self::MIN_WINDOW || window > Self::MAX_WINDOW {
            return Err(LimitError::Window);
        }
        Ok(Self::from_parts(window, units, units))
    }

    /// What follows from a window, units per window and a burst that are valid.
    fn from_parts(window: Micros, units: NonZeroU32, burst: NonZeroU32) -> Self {
        let times = |count: u32| {
            let (whole, part) = divide(count.into(), window.as_micros(), 0, units.get().into());
            let part = u32::try_from(part).expect("a remainder is below the divisor");
            (Micros::from_micros(whole), part)
        };
        let ((unit, unit_part), (whole_burst, burst_part)) = (times(1), times(burst.get()));
        let times = Times { unit, unit_part, burst: whole_burst, burst_part };
        Self { window, units, burst, max_debt: None, times }
    }

    /// A number of units that a limit may have.
    fn count(units: u64) -> Option<NonZeroU32> {
        let count = u32::try_from(units).ok().filter(|_| units <= Self::MAX_UNITS);
        count.and_then(NonZeroU32::new)
    }

    /// Allows `burst` units at once.
    ///
    /// # Errors
    ///
    /// [`LimitError::Burst`] unless `burst` is from 1 to 10⁹ and comes back within 100 years.
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitError> {
        let most = self.units_in(Self::MAX_FILL, 0).0.min(Self::MAX_UNITS);
        let burst = Self::count(burst).filter(|_| burst <= most);
        let burst = burst.ok_or(LimitError::Burst { most })?;
        Ok(Self { max_debt: self.max_debt, ..Self::from_parts(self.window, self.units, burst) })
    }

    /// Keeps up to `units` above the limit as debt: costs that are reported after the fact count
    /// although nothing is left. A full fixed window then counts no refused attempts, which would
    /// look the same.
    ///
    /// # Errors
    ///
    /// [`LimitError::Debt`] unless `units` is from 0 to the units per window.
    pub fn with_max_debt(self, units: u64) -> Result<Self, LimitError> {
        let most = self.units();
        let max_debt = u32::try_from(units).ok().filter(|_| units <= most);
        let max_debt = max_debt.ok_or(LimitError::Debt { most })?;
        Ok(Self { max_debt: Some(max_debt), ..self })
    }

    /// A part of it, in millionths, of at least one unit: what one of several instances grants when
    /// they can't count together.
    #[must_use]
    pub fn share(&self, millionths: u32) -> Self {
        let of = |units: u64| (units * u64::from(millionths) / 1_000_000).max(1);
        let units = Self::count(of(self.units())).unwrap_or(self.units);
        let debt = |debt: u32| u64::from(debt) * u64::from(millionths) / 1_000_000;
        let max_debt = self.max_debt.and_then(|owed| u32::try_from(debt(owed)).ok());
        let share = Self { max_debt, ..Self::from_parts(self.window, units, units) };
        // A burst that would take too long to come back is as long as it may be.
        share.with_burst(of(self.burst())).unwrap_or_else(|error| match error {
            LimitError::Burst { most } => share.with_burst(most.max(1)).unwrap_or(share),
            _ => share,
        })
    }

    /// Units per window: 1 to 10⁹.
    pub const fn units(&self) -> u64 {
        self.units.get() as u64
    }

    /// The window: 1 ms to 366 days, in whole milliseconds.
    pub const fn window(&self) -> Micros {
        self.window
    }

    /// Units at once: 1 to 10⁹; those per window unless it was said otherwise.
    pub const fn burst(&self) -> u64 {
        self.burst.get() as u64
    }

    /// Units that may be owed: 0 to those per window. `None`: what is above the limit is no debt.
    pub const fn max_debt(&self) -> Option<u64> {
        match self.max_debt {
            Some(units) => Some(units as u64),
            None => None,
        }
    }

    /// Units that may be owed; none by default.
    pub(super) const fn debt(&self) -> u64 {
        match self.max_debt {
            Some(units) => units as u64,
            None => 0,
        }
    }

    /// The most units that can be in use of a burst: all of it, and the debt.
    pub(super) const fn max_in_use(&self) -> u64 {
        self.burst() + self.debt()
    }

    /// What is left of `whole` with `used` units in use: below 0 by the debt, never more.
    pub(super) const fn remaining_of(&self, whole: u64, used: u64) -> i64 {
        let (left, least) = (whole.cast_signed() - used.cast_signed(), -self.debt().cast_signed());
        if left < least { least } else { left }
    }

    /// The time from the deepest debt to a whole burst.
    pub fn fill_time(&self) -> Micros {
        self.time_for(self.max_in_use(), 0)
    }

    /// The time that all units take that can be in use, as [`Limit::time_of`] returns it.
    #[inline]
    pub(super) fn time_of_max_in_use(&self) -> (Micros, u64) {
        self.time_of(self.max_in_use())
    }

    /// The time that `units` take: whole microseconds, and the part below in microseconds divided
    /// by the units per window.
    #[inline]
    pub(super) fn time_of(&self, units: u64) -> (Micros, u64) {
        if units == 1 {
            (self.times.unit, self.times.unit_part.into())
        } else if units == self.burst() {
            (self.times.burst, self.times.burst_part.into())
        } else {
            let (whole, part) = divide(units, self.window.as_micros(), 0, self.units());
            (Micros::from_micros(whole), part)
        }
    }

    /// The whole units that come in `span`, and the part of the next one.
    ///
    /// Parts are counted in units divided by the window's microseconds; `part` is what was left
    /// from before. Exact as long as the units fit into 64 bits.
    #[inline]
    pub(super) fn units_in(&self, span: Micros, part: u64) -> (u64, u64) {
        divide(span.as_micros(), self.units(), part, self.window.as_micros())
    }

    /// The shortest time in which `units` less `part` of one come.
    pub(super) fn time_for(&self, units: u64, part: u64) -> Micros {
        let (whole, rest) = self.time_of(units);
        // whole + ⌈(rest - part) / units⌉
        if rest >= part {
            // What is left of a part is less than a microsecond.
            whole + Micros::from_micros(u64::from(rest > part))
        } else {
            whole - Micros::from_micros((part - rest) / self.units())
        }
    }
}

/// `(one × other + more) / by`: quotient and remainder.
#[inline]
pub(super) fn divide(one: u64, other: u64, more: u64, by: u64) -> (u64, u64) {
    match one.checked_mul(other).and_then(|product| product.checked_add(more)) {
        Some(sum) => (sum / by, sum % by),
        None => divide_wide(one, other, more, by),
    }
}

/// Saturates where the quotient does not fit: callers bound what they ask for.
#[cold]
fn divide_wide(one: u64, other: u64, more: u64, by: u64) -> (u64, u64) {
    let sum = u128::from(one) * u128::from(other) + u128::from(more);
    let rest = u64::try_from(sum % u128::from(by)).expect("a remainder is below the divisor");
    (u64::try_from(sum / u128::from(by)).unwrap_or(u64::MAX), rest)
}

/// Why a limit is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// Too few or too many units.
    #[error("must be a whole number from 1 to 1000000000")]
    Units,
    /// Too short, too long, or not whole milliseconds.
    #[error("must be a window from 1ms to 366d in whole milliseconds")]
    Window,
    /// Too small, too large, or too slow to come back.
    #[error("must be a whole number from 1 to {most} for this limit and window")]
    Burst {
        /// The most that comes back within 100 years.
        most: u64,
    },
    /// More debt than one limit.
    #[error("must be a whole number from 0 to {most}")]
    Debt {
        /// The units per window.
        most: u64,
    },
    /// A burst where the algorithm has none.
    #[error("{algorithm} has no burst; token-bucket, leaky-bucket and gcra have")]
    NoBurst {
        /// Canonical name of the algorithm.
        algorithm: &'static str,
    },
    /// More units than this algorithm can keep for one id.
    #[error("must be a whole number from 1 to {max} for {algorithm}")]
    TooMany {
        /// Canonical name of the algorithm.
        algorithm: &'static str,
        /// The most units that it takes.
        max: u64,
    },
}
