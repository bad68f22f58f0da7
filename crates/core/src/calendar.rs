//! Windows of a calendar: days, weeks, months, quarters and years of a time zone.
//!
//! A window begins at the first moment of its first day, and ends where the next one begins. A day of 23
//! or 25 hours is what it is. Time zones are those that are built into jiff, whatever the system has.

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError, RwLock};

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp as Instant, ToSpan};
use thiserror::Error;

use crate::clock::{Micros, Timestamp};

/// All calendars of the process, which live as long as it: a few bytes for each combination of unit, zone
/// and anchor that a rule or a request has named.
static CALENDARS: LazyLock<Mutex<HashMap<CalendarKey, &'static Calendar>>> =
    LazyLock::new(Mutex::default);

/// Unit, zone and anchor.
type CalendarKey = (CalendarUnit, String, u8);

/// The windows of a calendar.
///
/// ```
/// use rlaas_core::calendar::{Calendar, CalendarUnit};
/// use rlaas_core::clock::Timestamp;
///
/// let calendar = Calendar::new(CalendarUnit::Month, "Europe/Berlin", Some(15))?;
/// let window = calendar.window_at(Timestamp::from_millis(1_794_000_000_000));
/// assert_eq!(window.to_string(), "month:2026-10-15");
/// // Midnight in Berlin, in summer and in winter.
/// assert_eq!(window.start, Timestamp::from_millis(1_792_015_200_000));
/// assert_eq!(window.end, Timestamp::from_millis(1_794_697_200_000));
/// # Ok::<(), rlaas_core::calendar::CalendarError>(())
/// ```
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    zone_name: String,
    anchor: u8,
    /// The window that was asked for last: mostly the current one.
    last: RwLock<CalendarWindow>,
    /// Those with other anchors, once they are asked for.
    others: [OnceLock<&'static Self>; 32],
}

/// The length of the windows of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// A day.
    Day,
    /// A week, which begins on Monday unless an anchor from 1 to 7 says otherwise.
    Week,
    /// A month, from its first day or an anchor from 1 to 31.
    Month,
    /// A quarter of a year, from a day of its first month.
    Quarter,
    /// A year, from a day of January.
    Year,
}

/// One window of a calendar. As text, the unit and the first day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    unit: CalendarUnit,
    first_day: Date,
    /// The first moment.
    pub start: Timestamp,
    /// The first moment after it.
    pub end: Timestamp,
}

/// Error of a calendar that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CalendarError {
    /// There is no time zone of this name.
    #[error("must be the name of a time zone, such as Europe/Berlin or UTC")]
    Zone,
    /// The unit has no such anchor.
    #[error("must be {}", .0.anchors())]
    Anchor(CalendarUnit),
}

impl CalendarUnit {
    /// Every unit.
    pub const ALL: [Self; 5] = [Self::Day, Self::Week, Self::Month, Self::Quarter, Self::Year];

    /// Returns the name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        }
    }

    /// Returns the longest window, in days of 24 hours.
    pub const fn longest(self) -> Micros {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 31,
            Self::Quarter => 92,
            Self::Year => 366,
        };
        Micros::from_secs(days * 86_400)
    }

    const fn months(self) -> i32 {
        match self {
            Self::Day | Self::Week => 0,
            Self::Month => 1,
            Self::Quarter => 3,
            Self::Year => 12,
        }
    }

    /// Returns a day on which windows may begin; `None` for any other number.
    fn anchor(self, day: u64) -> Option<u8> {
        let last = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month | Self::Quarter | Self::Year => 31,
        };
        u8::try_from(day).ok().filter(|day| (1..=last).contains(day))
    }

    const fn anchors(self) -> &'static str {
        match self {
            Self::Day => "left out with day",
            Self::Week => "a whole number from 1 (Monday) to 7 with week",
            Self::Month | Self::Quarter | Self::Year => "a whole number from 1 to 31",
        }
    }
}

impl Calendar {
    /// Time for which a count outlives its window. The window may end later in another zone, by up to 26
    /// hours, and a clock that steps back must find the count.
    pub const GRACE: Micros = Micros::from_secs(26 * 3_600);

    /// The time zone of a calendar that names none.
    pub const DEFAULT_ZONE: &str = "UTC";

    /// Returns the calendar of windows that begin at an anchor: the first day unless it is set. A month
    /// without that day begins on its last one.
    ///
    /// # Errors
    ///
    /// [`CalendarError`].
    pub fn new(
        unit: CalendarUnit,
        zone: &str,
        anchor: Option<u64>,
    ) -> Result<&'static Self, CalendarError> {
        let anchor = match anchor {
            Some(_) if unit == CalendarUnit::Day => None,
            Some(day) => unit.anchor(day),
            None => Some(1),
        };
        let anchor = anchor.ok_or(CalendarError::Anchor(unit))?;
        let zone = TimeZoneDatabase::bundled().get(zone).map_err(|_| CalendarError::Zone)?;
        let zone_name = zone.iana_name().unwrap_or(Self::DEFAULT_ZONE).to_owned();
        Ok(Self::of_zone(unit, zone, zone_name, anchor))
    }

    /// Returns the calendar with another anchor, or this one if the text is no anchor.
    pub fn with_anchor(&'static self, anchor: &str) -> &'static Self {
        let day = anchor.parse().ok().and_then(|day| self.unit.anchor(day));
        let Some(anchor) = day else { return self };
        self.others[usize::from(anchor)].get_or_init(|| {
            Self::of_zone(self.unit, self.zone.clone(), self.zone_name.clone(), anchor)
        })
    }

    fn of_zone(unit: CalendarUnit, zone: TimeZone, zone_name: String, anchor: u8) -> &'static Self {
        let mut calendars = CALENDARS.lock().unwrap_or_else(PoisonError::into_inner);
        calendars.entry((unit, zone_name.clone(), anchor)).or_insert_with(|| {
            let none = CalendarWindow {
                unit,
                first_day: Date::MIN,
                start: Timestamp::EPOCH,
                end: Timestamp::EPOCH,
            };
            let (last, others) = (RwLock::new(none), [const { OnceLock::new() }; 32]);
            Box::leak(Box::new(Self { unit, zone, zone_name, anchor, last, others }))
        })
    }

    /// Returns the unit.
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// Returns the name of the time zone.
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// Returns the day on which windows begin.
    pub const fn anchor(&self) -> u8 {
        self.anchor
    }

    /// Returns the window that contains a time.
    pub fn window_at(&self, time: Timestamp) -> CalendarWindow {
        let last = *self.last.read().unwrap_or_else(PoisonError::into_inner);
        if (last.start..last.end).contains(&time) {
            return last;
        }
        let window = self.find(time);
        *self.last.write().unwrap_or_else(PoisonError::into_inner) = window;
        window
    }

    fn find(&self, time: Timestamp) -> CalendarWindow {
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let instant = Instant::from_microsecond(micros).unwrap_or(Instant::MAX);
        let mut first_day = self.first_day(instant.to_zoned(self.zone.clone()).date());
        loop {
            let next = self.next(first_day);
            let [start, end] = [first_day, next].map(|day| self.start_of(day));
            // Around a midnight that a clock shows twice, a day may have begun already.
            if time < end || next == first_day {
                return CalendarWindow { unit: self.unit, first_day, start, end };
            }
            first_day = next;
        }
    }

    /// Returns the first day of the window of a day.
    fn first_day(&self, day: Date) -> Date {
        match self.unit {
            CalendarUnit::Day => day,
            CalendarUnit::Week => {
                let weekday = i64::from(day.weekday().to_monday_one_offset());
                let since = (weekday - i64::from(self.anchor)).rem_euclid(7);
                day.saturating_sub(since.days())
            }
            CalendarUnit::Month | CalendarUnit::Quarter | CalendarUnit::Year => {
                let months = self.unit.months();
                let month = i32::from(day.year()) * 12 + i32::from(day.month()) - 1;
                let month = month - month.rem_euclid(months);
                let first = self.anchored(month);
                if day < first { self.anchored(month - months) } else { first }
            }
        }
    }

    /// Returns the first day of the next window.
    fn next(&self, first_day: Date) -> Date {
        match self.unit {
            CalendarUnit::Day => first_day.saturating_add(1.day()),
            CalendarUnit::Week => first_day.saturating_add(7.days()),
            CalendarUnit::Month | CalendarUnit::Quarter | CalendarUnit::Year => {
                let month = i32::from(first_day.year()) * 12 + i32::from(first_day.month()) - 1;
                self.anchored(month + self.unit.months())
            }
        }
    }

    /// Returns the day of the anchor in a month, counted from year 0, or the last one.
    fn anchored(&self, month: i32) -> Date {
        let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
        let (year, month) = (i16::try_from(year), i8::try_from(month));
        let first = Date::new(year.unwrap_or(i16::MAX), month.unwrap_or(1), 1);
        let first = first.unwrap_or(Date::MAX);
        let day = i8::try_from(self.anchor).unwrap_or(1).min(first.days_in_month());
        first.with().day(day).build().unwrap_or(first)
    }

    /// Returns the first moment of a day.
    fn start_of(&self, day: Date) -> Timestamp {
        let start = day.to_zoned(self.zone.clone()).map(|start| start.timestamp());
        let micros = start.unwrap_or(Instant::MAX).as_microsecond();
        Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

impl CalendarWindow {
    /// Returns a number that no other window has, of any calendar of its unit, and no index of a window
    /// of one length.
    pub(crate) fn number(&self) -> u64 {
        let day = self.first_day;
        let number =
            (i32::from(day.year()) * 16 + i32::from(day.month())) * 32 + i32::from(day.day());
        (self.unit as u64 + 1) << 48 | u64::from(number.unsigned_abs())
    }

    /// Returns the length, which differs from window to window.
    pub fn length(&self) -> Micros {
        self.end.since(self.start)
    }
}

impl fmt::Display for CalendarWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.unit.name(), self.first_day)
    }
}

/// As in texts for people: `month from day 15 (Europe/Berlin)`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, zone_name, anchor, .. } = self;
        match (unit, anchor) {
            (_, 1) => write!(f, "{} ({zone_name})", unit.name()),
            (_, day) => write!(f, "{} from day {day} ({zone_name})", unit.name()),
        }
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

/// There is one for each combination of unit, zone and anchor.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Calendar {}
