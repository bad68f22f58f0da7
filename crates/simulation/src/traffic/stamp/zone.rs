//! From the time on a wall clock to a point in time.

use jiff::fmt::strtime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

use super::StampError;
use super::civil::CivilStamp;

/// How often a clock shows a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalTime {
    /// Once.
    Unique,
    /// Twice, because the clock was set back.
    Repeated,
    /// Never, because the clock was set forward.
    Skipped,
}

/// A time zone.
#[derive(Clone, Debug)]
pub(super) struct Zone(TimeZone);

impl Zone {
    /// Reads the name of a zone or an offset.
    ///
    /// # Errors
    ///
    /// [`StampError::Zone`] if it is neither.
    pub(super) fn parse(text: &str) -> Result<Self, StampError> {
        let offset = |pattern| strtime::parse(pattern, text).ok()?.offset();
        if let Some(offset) = offset("%:z").or_else(|| offset("%z")) {
            return Ok(Self(TimeZone::fixed(offset)));
        }
        let zone = TimeZone::get(text).map_err(|error| StampError::Zone(error.to_string()))?;
        Ok(Self(zone))
    }

    /// Returns the microseconds since the epoch. Of two points in time the earlier one is taken. A
    /// time that no clock showed is read with the offset before the clock was set.
    ///
    /// # Errors
    ///
    /// [`StampError::Range`] far outside of the years that stamps may have.
    pub(super) fn micros(&self, stamp: CivilStamp) -> Result<(i64, LocalTime), StampError> {
        let (offset, local) = match self.0.to_fixed_offset() {
            Ok(offset) => (offset, LocalTime::Unique),
            Err(_) => self.offset(stamp)?,
        };
        Ok((stamp.micros - i64::from(offset.seconds()) * 1_000_000, local))
    }

    fn offset(&self, stamp: CivilStamp) -> Result<(Offset, LocalTime), StampError> {
        let as_utc =
            jiff::Timestamp::from_microsecond(stamp.micros).map_err(|_| StampError::Range)?;
        let civil = Offset::UTC.to_datetime(as_utc);
        Ok(match self.0.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => (offset, LocalTime::Unique),
            AmbiguousOffset::Fold { before, .. } => (before, LocalTime::Repeated),
            AmbiguousOffset::Gap { before, .. } => (before, LocalTime::Skipped),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::civil::rfc3339;
    use super::*;

    fn time(zone: &str, text: &str) -> (String, LocalTime) {
        let zone = Zone::parse(zone).expect("a zone");
        let stamp = rfc3339(text.as_bytes()).expect("a stamp");
        let (micros, local) = zone.micros(stamp).expect("a time");
        (jiff::Timestamp::from_microsecond(micros).expect("a time").to_string(), local)
    }

    #[test]
    fn a_repeated_hour_is_its_first_one() {
        let utc = |text: &str, local| (text.to_owned(), local);
        let berlin = |text| time("Europe/Berlin", text);
        assert_eq!(berlin("2026-10-25 01:59:59"), utc("2026-10-24T23:59:59Z", LocalTime::Unique));
        assert_eq!(berlin("2026-10-25 02:30:00"), utc("2026-10-25T00:30:00Z", LocalTime::Repeated));
        assert_eq!(berlin("2026-10-25 03:00:00"), utc("2026-10-25T02:00:00Z", LocalTime::Unique));
    }

    #[test]
    fn a_skipped_hour_is_read_with_the_offset_before() {
        let utc = |text: &str, local| (text.to_owned(), local);
        let berlin = |text| time("Europe/Berlin", text);
        assert_eq!(berlin("2026-03-29 01:59:59"), utc("2026-03-29T00:59:59Z", LocalTime::Unique));
        assert_eq!(berlin("2026-03-29 02:30:00"), utc("2026-03-29T01:30:00Z", LocalTime::Skipped));
        assert_eq!(berlin("2026-03-29 03:30:00"), utc("2026-03-29T01:30:00Z", LocalTime::Unique));
    }

    #[test]
    fn offsets_are_zones() {
        for (zone, hour) in [("+02:00", "10"), ("-0330", "15"), ("UTC", "12"), ("utc", "12")] {
            let (found, local) = time(zone, "2026-01-01 12:00:00");
            assert!(found.starts_with(&format!("2026-01-01T{hour}")), "{zone}: {found}");
            assert_eq!(local, LocalTime::Unique);
        }
        for zone in ["", "Europe/Nowhere", "+99:00", "2"] {
            assert!(matches!(Zone::parse(zone), Err(StampError::Zone(_))), "{zone}");
        }
    }
}
