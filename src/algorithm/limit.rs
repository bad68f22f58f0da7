//! How many, per how long; and what one request takes of it.

use thiserror::Error;

use crate::clock::Span;

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

/// How many units per window. Always valid: at least one unit, at least one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    units: u64,
    window: Span,
}

impl Limit {
    /// The most units per window.
    pub const MAX_UNITS: u64 = 1_000_000_000;
    /// The shortest window.
    pub const MIN_WINDOW: Span = Span::from_millis(1);
    /// The longest window: 366 days.
    pub const MAX_WINDOW: Span = Span::from_secs(366 * 24 * 60 * 60);

    /// Allows `units` per `window`.
    ///
    /// # Errors
    ///
    /// - [`LimitError::Units`] unless `units` is from 1 to 10⁹;
    /// - [`LimitError::Window`] unless `window` is whole milliseconds, from 1 ms to 366 days.
    pub fn new(units: u64, window: Span) -> Result<Self, LimitError> {
        if !(1..=Self::MAX_UNITS).contains(&units) {
            return Err(LimitError::Units);
        }
        let whole = window.as_micros().is_multiple_of(Self::MIN_WINDOW.as_micros());
        if !whole || window < Self::MIN_WINDOW || window > Self::MAX_WINDOW {
            return Err(LimitError::Window);
        }
        Ok(Self { units, window })
    }

    /// Units per window: 1 to 10⁹.
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// The window: 1 ms to 366 days, in whole milliseconds.
    pub const fn window(&self) -> Span {
        self.window
    }
}

/// Why a limit is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// Too few or too many units.
    #[error("valid is a whole number from 1 to 1000000000")]
    Units,
    /// Too short, too long, or not whole milliseconds.
    #[error("valid is a window from 1ms to 366d in whole milliseconds")]
    Window,
    /// More units than this algorithm can keep for one id.
    #[error(
        "valid is a whole number from 1 to {max} for {algorithm}, which keeps one entry a unit"
    )]
    TooManyEntries {
        /// Canonical name of the algorithm.
        algorithm: &'static str,
        /// The most units that it takes.
        max: u64,
    },
}
