//! UTC days.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use rlaas_core::clock::{Micros, Timestamp};
use thiserror::Error;

const SECONDS: u64 = 86_400;
/// Length of the date in a time of RFC 3339.
const DATE_LEN: usize = 10;
/// 9999-12-31.
const LAST: u32 = 2_932_896;

/// A UTC day from 1970-01-01 to 9999-12-31, such as `2026-11-22`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(u32);

/// The text is not a day.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be a UTC day from 1970-01-01 to 9999-12-31, such as 2026-11-22")]
pub struct InvalidDay;

impl Day {
    /// Returns the day of a time.
    pub fn at(time: Timestamp) -> Self {
        let days = time.as_micros() / 1_000_000 / SECONDS;
        Self(u32::try_from(days).unwrap_or(LAST).min(LAST))
    }

    /// Returns the time at which the day begins.
    pub fn start(self) -> Timestamp {
        Timestamp::EPOCH + Micros::from_secs(u64::from(self.0) * SECONDS)
    }

    /// Returns the day that is this number of days later, or the last one.
    #[must_use]
    pub fn plus(self, days: u32) -> Self {
        Self(self.0.saturating_add(days).min(LAST))
    }

    /// Returns the day that is this number of days earlier, or the first one.
    #[must_use]
    pub const fn minus(self, days: u32) -> Self {
        Self(self.0.saturating_sub(days))
    }

    /// Returns the days from this one to `last`, both included.
    pub fn up_to(self, last: Self) -> impl DoubleEndedIterator<Item = Self> {
        (self.0..=last.0).map(Self)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = UNIX_EPOCH + Duration::from_secs(u64::from(self.0) * SECONDS);
        let text = humantime::format_rfc3339_seconds(start).to_string();
        f.write_str(&text[..DATE_LEN])
    }
}

impl FromStr for Day {
    type Err = InvalidDay;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let start = humantime::parse_rfc3339(&format!("{text}T00:00:00Z"));
        let start = start.map_err(|_| InvalidDay)?;
        let since_epoch = start.duration_since(UNIX_EPOCH).map_err(|_| InvalidDay)?;
        let day = u32::try_from(since_epoch.as_secs() / SECONDS).map_err(|_| InvalidDay)?;
        // Nothing but the text of the day is one.
        Some(Self(day)).filter(|day| day.to_string() == text).ok_or(InvalidDay)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_days() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("2024-02-29", 19_782),
            ("2026-11-22", 20_779),
            ("9999-12-31", LAST),
        ] {
            assert_eq!(text.parse(), Ok(Day(days)), "{text}");
            assert_eq!(Day(days).to_string(), text);
        }
        for text in [
            "",
            "today",
            "2023-02-29",
            "2026-11-31",
            "2026-1-2",
            "1969-12-31",
            "2026-11-22T",
            " 2026-11-22",
        ] {
            assert_eq!(text.parse::<Day>(), Err(InvalidDay), "{text}");
        }
    }

    #[test]
    fn a_day_ends_at_midnight() {
        let midnight = "2026-11-23".parse::<Day>().expect("a day").start();
        let before = Day::at(midnight - Micros::from_micros(1));
        assert_eq!(
            (before.to_string().as_str(), before.plus(1)),
            ("2026-11-22", Day::at(midnight))
        );
        assert_eq!(Day::at(Timestamp::from_micros(u64::MAX)), Day(LAST));
        assert_eq!(before.up_to(Day::at(midnight)).count(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn every_day_is_read_as_it_is_written(day in 0..=LAST) {
            prop_assert_eq!(Day(day).to_string().parse(), Ok(Day(day)));
            prop_assert_eq!(Day::at(Day(day).start()), Day(day));
        }

        #[test]
        fn no_text_is_a_day_in_disguise(text in "[0-9+T:Z. -]{0,12}") {
            if let Ok(day) = text.parse::<Day>() {
                prop_assert_eq!(day.to_string(), text);
            }
        }
    }
}
