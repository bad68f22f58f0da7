//! Limits: units per window. Costs: units of one request.

use std::num::{NonZeroU32, NonZeroU64};

use thiserror::Error;

use crate::calendar::{Calendar, CalendarWindow};
use crate::clock::{Micros, Timestamp};

/// The units that one request takes: 0 to 2^32 − 1. A cost of 0 reads the state and takes nothing.
///
/// A sum of costs may be larger: that of several hits of one key, and that of a hold which was extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(u64);

impl Cost {
    /// No units.
    pub const NONE: Self = Self(0);
    /// One unit, the default of requests.
    pub const ONE: Self = Self(1);

    /// Creates a cost of `units`.
    pub const fn new(units: u32) -> Self {
        Self(units as u64)
    }

    /// Creates a sum of costs, of at most 2^53 units.
    pub const fn total(units: u64) -> Self {
        Self(units)
    }

    /// Returns the units.
    pub const fn units(self) -> u64 {
        self.0
    }
}

/// The windows of a limit: of one length, aligned to the Unix epoch or from the first use, or those of a
/// calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    length: Micros,
    begins: WindowBegins,
}

/// Where windows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WindowBegins {
    /// At multiples of their length since the Unix epoch.
    #[default]
    Epoch,
    /// With the first use of a key after the window before.
    FirstUse,
    /// On days of a calendar.
    Calendar(&'static Calendar),
}

/// Where windows of one length begin, as rules say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowFrom {
    /// At multiples of their length since the Unix epoch.
    Epoch,
    /// With the first use of a key after the window before.
    FirstUse,
}

impl WindowFrom {
    /// Every value.
    pub const ALL: [Self; 2] = [Self::Epoch, Self::FirstUse];

    /// Returns the name in rules files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::FirstUse => "first-use",
        }
    }
}

impl Window {
    /// No window.
    pub const ZERO: Self = Self { length: Micros::ZERO, begins: WindowBegins::Epoch };

    /// Returns the length, of a calendar the longest.
    pub const fn length(self) -> Micros {
        self.length
    }

    /// Returns the calendar; `None` if all windows have one length.
    pub const fn calendar(self) -> Option<&'static Calendar> {
        match self.begins {
            WindowBegins::Calendar(calendar) => Some(calendar),
            WindowBegins::Epoch | WindowBegins::FirstUse => None,
        }
    }

    /// Returns windows of this length that begin with the first use.
    #[must_use]
    pub const fn at_first_use(self) -> Self {
        Self { begins: WindowBegins::FirstUse, ..self }
    }

    /// Returns `true` if a window begins with the first use of a key.
    pub const fn is_from_first_use(self) -> bool {
        matches!(self.begins, WindowBegins::FirstUse)
    }

    /// Returns windows of another length that begin as these do.
    pub(crate) const fn with_length(self, length: Micros) -> Self {
        Self { length, ..self }
    }

    /// Returns the windows from an anchor, if they are those of a calendar and it has such an anchor.
    #[must_use]
    pub fn with_anchor(self, anchor: &str) -> Self {
        self.calendar().map_or(self, |calendar| calendar.with_anchor(anchor).into())
    }

    /// Returns the time from `now` to the end of its window; of one from the first use, if it begins now.
    #[inline]
    pub fn left_at(self, now: Timestamp) -> Micros {
        let length = self.length.as_micros();
        match self.begins {
            WindowBegins::Epoch => Micros::from_micros(length - now.as_micros() % length),
            WindowBegins::FirstUse => self.length,
            WindowBegins::Calendar(calendar) => calendar.window_at(now).end.since(now),
        }
    }

    /// Returns the length of the window at a time.
    pub fn length_at(self, time: Timestamp) -> Micros {
        // A decision without the store has no time.
        let calendar = self.calendar().filter(|_| time != Timestamp::EPOCH);
        calendar.map_or(self.length, |calendar| calendar.window_at(time).length())
    }
}

impl From<Micros> for Window {
    fn from(length: Micros) -> Self {
        Self { length, begins: WindowBegins::Epoch }
    }
}

impl From<&'static Calendar> for Window {
    fn from(calendar: &'static Calendar) -> Self {
        Self { length: calendar.unit().longest(), begins: WindowBegins::Calendar(calendar) }
    }
}

/// A valid limit: units per window, and units at once.
///
/// Limits are equal if they grant as much, whether other limits decide on the same state or not.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Limit {
    window: Window,
    units: NonZeroU64,
    burst: NonZeroU64,
    /// `None`: the limit decides alone on its state.
    shared: Option<SharedMost>,
    /// Most units of debt, and one more, so that it takes 8 bytes. `None`: the limit keeps no debt.
    debt_end: Option<NonZeroU64>,
    /// Derived from the fields above, so that a decision needs no division.
    times: Times,
}

/// The most of the limits that decide on one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedMost {
    burst: NonZeroU32,
    units: NonZeroU32,
}

/// The times in which one unit and a whole burst become available: whole microseconds, and the
/// fraction in 1 / units of a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    unit: Micros,
    unit_part: u32,
    burst_part: u32,
    burst: Micros,
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        let grant = |limit: &Self| (limit.window, limit.units, limit.burst, limit.debt_end);
        grant(self) == grant(other)
    }
}

impl Limit {
    /// The most units per window of an algorithm that works with their rate, and the most at once.
    pub const MAX_UNITS: u64 = 1_000_000_000;
    /// The most units of any limit, which a fixed window counts: a billion in millionths. Integers of
    /// structured fields have 15 digits.
    pub const MAX_COUNTED: u64 = 999_999_999_999_999;
    /// The shortest window.
    pub const MIN_WINDOW: Micros = Micros::from_millis(1);
    /// The longest window: 366 days.
    pub const MAX_WINDOW: Micros = Micros::from_secs(366 * 24 * 60 * 60);

    /// The most debt that any algorithm keeps: that of a fixed window, beside the least limit.
    pub const MAX_DEBT: u64 = super::MAX_WINDOW_COUNT - 1;

    /// The longest time in which a burst may become available again: 100 years. Keeps all points in
    /// time far below 2^53 µs, up to which Lua's numbers are exact.
    pub const MAX_FILL: Micros = Micros::from_secs(100 * 366 * 24 * 60 * 60);

    /// Creates a limit of `units` per `window`, and as many at once.
    ///
    /// # Errors
    ///
    /// - [`LimitError::Units`] unless `units` is from 1 to [`Limit::MAX_COUNTED`];
    /// - [`LimitError::Window`] unless `window` is whole milliseconds, from 1 ms to 366 days.
    pub fn new(units: u64, window: impl Into<Window>) -> Result<Self, LimitError> {
        let (units, window) = (Self::count(units).ok_or(LimitError::Units)?, window.into());
        let whole = window.length.as_micros().is_multiple_of(Self::MIN_WINDOW.as_micros());
        if !whole || window.length < Self::MIN_WINDOW || window.length > Self::MAX_WINDOW {
            return Err(LimitError::Window);
        }
        Ok(Self::from_parts(window, units, units))
    }

    /// Creates a limit from parts that are valid.
    fn from_parts(window: Window, units: NonZeroU64, burst: NonZeroU64) -> Self {
        let times = |count: u64| {
            let (whole, part) = divide(count, window.length.as_micros(), 0, units.get());
            // Only that of a larger limit than buckets have is cut, and is not used.
            (Micros::from_micros(whole), u32::try_from(part).unwrap_or(u32::MAX))
        };
        let ((unit, unit_part), (whole_burst, burst_part)) = (times(1), times(burst.get()));
        let times = Times { unit, unit_part, burst: whole_burst, burst_part };
        Self { window, units, burst, shared: None, debt_end: None, times }
    }

    /// Returns `units` if a limit may have as many.
    fn count(units: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(units).filter(|_| units <= Self::MAX_COUNTED)
    }

    /// Returns the same limit with `burst` units at once.
    ///
    /// # Errors
    ///
    /// [`LimitError::Burst`] unless `burst` is from 1 to 10⁹ and becomes available again within
    /// [`Limit::MAX_FILL`].
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitError> {
        let most = self.most_burst();
        let burst = Self::count(burst).filter(|_| burst <= most);
        let burst = burst.ok_or(LimitError::Burst { most })?;
        Ok(Self { debt_end: self.debt_end, ..Self::from_parts(self.window, self.units, burst) })
    }

    /// Returns the same limit, to decide on a state on which other limits with the same window decide
    /// too: `burst` and `units` are the most of them all. Together they let no more pass than the
    /// largest burst and the largest rate: leaky bucket and GCRA keep in use what was taken by a
    /// larger burst, and a token bucket is forgotten once the largest burst is full. Makes no
    /// difference to algorithms without a burst.
    ///
    /// ```
    /// use rlaas_core::algorithm::{Algorithm, Cost, Limit, Outcome, State};
    /// use rlaas_core::clock::{Micros, Timestamp};
    ///
    /// let minute = Micros::from_secs(60);
    /// let wide = Limit::new(20, minute)?.sharing_state(20, 20);
    /// let narrow = Limit::new(5, minute)?.sharing_state(20, 20);
    /// let (mut state, now) = (State::default(), Timestamp::from_millis(1_000));
    /// assert!(Algorithm::Gcra.take(&mut state, &wide, now, Cost::new(20)).is_allowed());
    /// // 16 of the 20 units must drain first, by this limit one in 12 s.
    /// let denied = Algorithm::Gcra.decide(&state, &narrow, now, Cost::ONE);
    /// let retry_after = Micros::from_secs(16 * 12);
    /// assert_eq!(denied.outcome, Outcome::Denied { retry_after });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sharing_state(self, burst: u64, units: u64) -> Self {
        // Only limits with a burst share states: those of buckets.
        let count = |units: u64| u32::try_from(units).ok().and_then(NonZeroU32::new);
        let burst = count(burst.clamp(self.burst(), self.most_burst()));
        let units = count(units.clamp(self.units(), Self::MAX_UNITS.max(self.units())));
        let shared = burst.zip(units).map(|(burst, units)| SharedMost { burst, units });
        let most = burst.map_or(u64::MAX, |burst| super::MAX_IN_USE - u64::from(burst.get()));
        let debt = self.max_debt().map(|debt| debt.min(most));
        Self { shared, ..self }.keeping(debt)
    }

    /// Returns the same limit, to decide alone on its state.
    #[must_use]
    pub(crate) const fn deciding_alone(self) -> Self {
        Self { shared: None, ..self }
    }

    /// Returns `true` if other limits decide on the same state.
    pub const fn shares_state(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns the largest burst of the limits that decide on the same state.
    pub const fn shared_burst(&self) -> u64 {
        match self.shared {
            Some(most) => most.burst.get() as u64,
            None => self.burst(),
        }
    }

    /// Returns the most units per window of the limits that decide on the same state; `None` if the
    /// limit decides alone.
    pub const fn shared_units(&self) -> Option<u64> {
        match self.shared {
            Some(most) => Some(most.units.get() as u64),
            None => None,
        }
    }

    /// Returns the most units at once: as many as become available within [`Limit::MAX_FILL`].
    pub(crate) fn most_burst(&self) -> u64 {
        self.units_in(Self::MAX_FILL, 0).0.min(Self::MAX_UNITS.max(self.units()))
    }

    /// Returns the same limit with up to `units` of debt.
    ///
    /// Costs that are reported after the fact are then counted above the limit, as debt. A fixed
    /// window with debt does not count denied requests, because these would look like debt.
    ///
    /// # Errors
    ///
    /// [`LimitError::Debt`] unless `units` is from 0 to [`Limit::MAX_DEBT`]. An algorithm may keep
    /// less: [`Algorithm::max_debt`](super::Algorithm::max_debt).
    pub fn with_max_debt(self, units: u64) -> Result<Self, LimitError> {
        if units > Self::MAX_DEBT {
            return Err(LimitError::Debt { most: Self::MAX_DEBT });
        }
        Ok(self.keeping(Some(units)))
    }

    fn keeping(self, max_debt: Option<u64>) -> Self {
        Self { debt_end: max_debt.and_then(|debt| NonZeroU64::new(debt + 1)), ..self }
    }

    /// Returns the most debt that is paid back at the rate of the limit, within
    /// [`Limit::MAX_WINDOW`]: fewer than 2^36 units are then in use, up to which Lua's numbers are
    /// exact in every product with a time.
    pub(super) fn most_paid_back(&self) -> u64 {
        let (paid_back, _) = self.units_in(Self::MAX_WINDOW, 0);
        paid_back.min(super::MAX_IN_USE - self.shared_burst())
    }

    /// Returns a part of the limit, in millionths: at least one unit. Used by an instance that
    /// decides alone while the store fails.
    #[must_use]
    pub fn share(&self, millionths: u32) -> Self {
        let scaled = |units: u64| divide(units, millionths.into(), 0, 1_000_000).0.max(1);
        let units = Self::count(scaled(self.units())).unwrap_or(self.units);
        let debt = self.max_debt().map(|debt| divide(debt, millionths.into(), 0, 1_000_000).0);
        let share = Self::from_parts(self.window, units, units).keeping(debt);
        // A burst that would take too long to become available is cut to the largest valid one.
        let share = share.with_burst(scaled(self.burst())).unwrap_or_else(|error| match error {
            LimitError::Burst { most } => share.with_burst(most.max(1)).unwrap_or(share),
            _ => share,
        });
        match self.shared_units() {
            Some(units) => share.sharing_state(scaled(self.shared_burst()), scaled(units)),
            None => share,
        }
    }

    /// Returns the units per window: 1 to [`Limit::MAX_COUNTED`].
    pub const fn units(&self) -> u64 {
        self.units.get()
    }

    /// Returns the length of the windows: 1 ms to 366 days, in whole milliseconds; of a calendar the
    /// longest.
    pub const fn window(&self) -> Micros {
        self.window.length
    }

    /// Returns the windows.
    pub const fn windows(&self) -> Window {
        self.window
    }

    /// Returns the window of a calendar that contains a time; `None` if all have one length.
    #[inline]
    pub(crate) fn calendar_window(&self, time: Timestamp) -> Option<CalendarWindow> {
        self.window.calendar().map(|calendar| calendar.window_at(time))
    }

    /// Returns the same limit, with the anchor of these windows if both are of a calendar.
    #[must_use]
    pub fn anchored_as(self, window: Window) -> Self {
        let are_of_calendars = self.window.calendar().is_some() && window.calendar().is_some();
        if are_of_calendars { Self { window, ..self } } else { self }
    }

    /// Returns the units at once: 1 to 10⁹ where they differ from the units per window. By default the units per window.
    pub const fn burst(&self) -> u64 {
        self.burst.get()
    }

    /// Returns the most units of debt. `None`: the limit keeps no debt.
    pub const fn max_debt(&self) -> Option<u64> {
        match self.debt_end {
            Some(end) => Some(end.get() - 1),
            None => None,
        }
    }

    /// Returns the most units of debt; 0 if the limit keeps none.
    pub(super) const fn debt(&self) -> u64 {
        match self.debt_end {
            Some(end) => end.get() - 1,
            None => 0,
        }
    }

    /// Returns the most units that can be in use: the largest burst and the debt.
    pub(super) const fn max_in_use(&self) -> u64 {
        self.shared_burst() + self.debt()
    }

    /// Returns `whole` minus `used`, but no less than the negative debt.
    pub(super) const fn remaining_of(&self, whole: u64, used: u64) -> i64 {
        let (left, least) = (whole.cast_signed() - used.cast_signed(), -self.debt().cast_signed());
        if left < least { least } else { left }
    }

    /// Returns the time from the largest debt to the largest burst. More than a bucket may have in use
    /// is the count of a window, which ends with it.
    pub fn fill_time(&self) -> Micros {
        match self.max_in_use() {
            units if units > super::MAX_IN_USE => self.window.length,
            units => self.time_for(units, 0),
        }
    }

    /// Returns the time of [`Limit::max_in_use`] units; see [`Limit::time_of`].
    #[inline]
    pub(super) fn time_of_max_in_use(&self) -> (Micros, u64) {
        self.time_of(self.max_in_use())
    }

    /// Returns the time in which `units` become available: whole microseconds, and the fraction in
    /// 1 / units per window of a microsecond.
    #[inline]
    pub(super) fn time_of(&self, units: u64) -> (Micros, u64) {
        if units == 1 {
            (self.times.unit, self.times.unit_part.into())
        } else if units == self.burst() {
            (self.times.burst, self.times.burst_part.into())
        } else {
            let (whole, part) = divide(units, self.window.length.as_micros(), 0, self.units());
            (Micros::from_micros(whole), part)
        }
    }

    /// Returns the whole units that become available in `span`, and the fraction of the next one.
    ///
    /// `part` is the fraction to start from. Fractions are in 1 / window microseconds of a unit.
    /// Exact as long as the units fit into 64 bits.
    #[inline]
    pub(super) fn units_in(&self, span: Micros, part: u64) -> (u64, u64) {
        divide(span.as_micros(), self.units(), part, self.window.length.as_micros())
    }

    /// Returns the shortest time in which `units` minus the fraction `part` become available.
    pub(super) fn time_for(&self, units: u64, part: u64) -> Micros {
        let (whole, rest) = self.time_of(units);
        // whole + ⌈(rest - part) / units⌉
        if rest >= part {
            // The difference of the fractions is less than a microsecond.
            whole + Micros::from_micros(u64::from(rest > part))
        } else {
            whole - Micros::from_micros((part - rest) / self.units())
        }
    }
}

/// Returns quotient and remainder of `(left × right + more) / by`.
#[inline]
pub(super) fn divide(left: u64, right: u64, more: u64, by: u64) -> (u64, u64) {
    match left.checked_mul(right).and_then(|product| product.checked_add(more)) {
        Some(sum) => (sum / by, sum % by),
        None => divide_wide(left, right, more, by),
    }
}

/// Divides in 128 bits. Saturates if the quotient does not fit 64, which the callers rule out.
#[cold]
fn divide_wide(left: u64, right: u64, more: u64, by: u64) -> (u64, u64) {
    let sum = u128::from(left) * u128::from(right) + u128::from(more);
    let rest = u64::try_from(sum % u128::from(by)).expect("a remainder is below the divisor");
    (u64::try_from(sum / u128::from(by)).unwrap_or(u64::MAX), rest)
}

/// The reason why a limit is not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// Too few or too many units.
    #[error("must be a whole number from 1 to 999999999999999")]
    Units,
    /// Too short, too long, or not whole milliseconds.
    #[error("must be a window from 1ms to 366d in whole milliseconds")]
    Window,
    /// Too small, too large, or available again too late.
    #[error("must be a whole number from 1 to {most} for this limit and window")]
    Burst {
        /// The largest burst that is available again within [`Limit::MAX_FILL`].
        most: u64,
    },
    /// More debt than can be kept.
    #[error("must be a whole number from 0 to {most}")]
    Debt {
        /// The most units of debt.
        most: u64,
    },
    /// A burst for an algorithm that has none.
    #[error("{algorithm} has no burst; token-bucket, leaky-bucket and gcra have")]
    NoBurst {
        /// Canonical name of the algorithm.
        algorithm: &'static str,
    },
    /// More units than the algorithm can keep for one key.
    #[error("must be a whole number from 1 to {max} for {algorithm}")]
    TooMany {
        /// Canonical name of the algorithm.
        algorithm: &'static str,
        /// The most units of the algorithm.
        max: u64,
    },
}
