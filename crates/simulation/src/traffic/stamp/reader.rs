//! Reads the stamps of one input.

use jiff::fmt::strtime;
use jiff::fmt::temporal::Pieces;
use rlaas_core::clock::{Micros, Timestamp};

use super::civil::{self, CivilStamp};
use super::zone::Zone;
use super::{LocalTime, StampError, TIME_LIMIT, Unit};

/// How stamps are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StampFormat {
    /// As [`Self::CommonLog`] or [`Self::Rfc3339`], whichever it is.
    Date,
    /// `10/Oct/2000:13:55:36 -0700`.
    CommonLog,
    /// `2000-10-10T13:55:36.123Z`.
    Rfc3339,
    /// By a pattern of `strptime`.
    Pattern(Box<str>),
    /// A number of this unit since the epoch.
    Epoch(Unit),
}

/// A point in time as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The point in time.
    pub(crate) at: Timestamp,
    /// How often the clock showed what was written.
    pub(crate) local: LocalTime,
}

/// Reads the stamps of one input.
#[derive(Clone, Debug)]
pub(crate) struct StampReader {
    format: StampFormat,
    zone: Option<Zone>,
    /// The last stamp: mostly that of the next line too.
    last: Option<(Vec<u8>, Stamp)>,
    resolution: Option<Micros>,
}

const COMMON_LOG: &str = "%d/%b/%Y:%H:%M:%S %z";

impl StampReader {
    /// Creates a reader. A zone, by name or offset, is needed if stamps do not have their own.
    ///
    /// # Errors
    ///
    /// [`StampError`] if the zone or the pattern can't be used.
    pub(crate) fn new(format: StampFormat, zone: Option<&str>) -> Result<Self, StampError> {
        let zone = zone.map(Zone::parse).transpose()?;
        let format = match format {
            StampFormat::Pattern(pattern) if *pattern == *COMMON_LOG => StampFormat::CommonLog,
            format => format,
        };
        let reader = Self { format, zone, last: None, resolution: None };
        reader.check_pattern()?;
        Ok(reader)
    }

    /// Checks that a pattern says when: reads what it writes.
    fn check_pattern(&self) -> Result<(), StampError> {
        let StampFormat::Pattern(pattern) = &self.format else { return Ok(()) };
        let sample = jiff::Timestamp::UNIX_EPOCH.to_zoned(jiff::tz::TimeZone::UTC);
        let written = strtime::format(pattern.as_bytes(), &sample);
        let written = written.map_err(|error| StampError::Pattern(error.to_string()))?;
        match by_pattern(pattern, written.as_bytes()) {
            Ok(stamp) if stamp.offset.is_none() && self.zone.is_none() => Err(StampError::NoZone),
            Ok(_) => Ok(()),
            Err(StampError::Format { reason, .. }) => Err(StampError::Pattern(reason)),
            Err(error) => Err(error),
        }
    }

    /// Reads a stamp.
    ///
    /// # Errors
    ///
    /// [`StampError`] if it is not written as the format says, or is out of range.
    pub(crate) fn read(&mut self, text: &[u8]) -> Result<Stamp, StampError> {
        if let Some((last, stamp)) = &self.last
            && last == text
        {
            return Ok(*stamp);
        }
        let (micros, local) = match self.format {
            StampFormat::Epoch(unit) => (number(unit, text)?, LocalTime::Unique),
            _ => self.date(text)?,
        };
        let at = u64::try_from(micros).map_err(|_| StampError::Range)?;
        let stamp = Stamp { at: Timestamp::from_micros(at), local };
        if stamp.at >= TIME_LIMIT {
            return Err(StampError::Range);
        }
        self.note_resolution(at);
        let (last, of_last) = self.last.get_or_insert_with(|| (Vec::new(), stamp));
        last.clear();
        last.extend_from_slice(text);
        *of_last = stamp;
        Ok(stamp)
    }

    /// Returns the time between two stamps that can be told apart, as far as they were read: a
    /// second, a millisecond or a microsecond; a minute if the pattern has no seconds.
    pub(crate) fn resolution(&self) -> Option<Micros> {
        let has_no_seconds = |pattern: &str| {
            !["%S", "%T", "%s", "%c", "%r", "%X", "%f", "%N", "%-S", "%_S"]
                .iter()
                .any(|part| pattern.contains(part))
        };
        match &self.format {
            StampFormat::Pattern(pattern) if has_no_seconds(pattern) => {
                self.resolution.map(|_| Micros::from_secs(60))
            }
            _ => self.resolution,
        }
    }

    fn note_resolution(&mut self, micros: u64) {
        let finest = Micros::from_micros(1);
        if self.resolution != Some(finest) {
            let step = civil::finest_step(micros);
            self.resolution = Some(self.resolution.map_or(step, |known| known.min(step)));
        }
    }

    fn date(&self, text: &[u8]) -> Result<(i64, LocalTime), StampError> {
        let stamp = match &self.format {
            StampFormat::CommonLog => {
                civil::common_log(text).map_or_else(|| by_pattern(COMMON_LOG, text), Ok)?
            }
            StampFormat::Pattern(pattern) => by_pattern(pattern, text)?,
            StampFormat::Rfc3339 => civil::rfc3339(text).map_or_else(|| by_jiff(text), Ok)?,
            _ => {
                let by_hand = civil::common_log(text).or_else(|| civil::rfc3339(text));
                by_hand.map_or_else(|| by_jiff(text), Ok)?
            }
        };
        match stamp.offset {
            Some(offset) => Ok((stamp.micros - i64::from(offset) * 1_000_000, LocalTime::Unique)),
            None => self.zone.as_ref().ok_or(StampError::NoZone)?.micros(stamp),
        }
    }
}

fn by_pattern(pattern: &str, text: &[u8]) -> Result<CivilStamp, StampError> {
    let expected = if pattern == COMMON_LOG {
        "written like 10/Oct/2000:13:55:36 -0700"
    } else {
        "as strptime() says"
    };
    let error = |error: &jiff::Error| StampError::Format { expected, reason: error.to_string() };
    let parsed = strtime::parse(pattern, text).map_err(|reason| error(&reason))?;
    if parsed.hour().is_none() && parsed.timestamp().is_none() {
        let reason = "there is no time of day".to_owned();
        return Err(StampError::Format { expected, reason });
    }
    if parsed.iana_time_zone().is_some() {
        let zoned = parsed.to_zoned().map_err(|reason| error(&reason))?;
        return Ok(CivilStamp { micros: zoned.timestamp().as_microsecond(), offset: Some(0) });
    }
    if let Ok(time) = parsed.to_timestamp() {
        return Ok(CivilStamp { micros: time.as_microsecond(), offset: Some(0) });
    }
    let civil = parsed.to_datetime().map_err(|reason| error(&reason))?;
    Ok(CivilStamp { micros: micros_as_utc(civil)?, offset: None })
}

fn number(unit: Unit, text: &[u8]) -> Result<i64, StampError> {
    let micros = unit.micros(text).ok_or_else(|| StampError::Format {
        expected: "a number since 1970",
        reason: String::from_utf8_lossy(text).chars().take(40).collect(),
    })?;
    i64::try_from(micros).map_err(|_| StampError::Range)
}

/// Reads a date as RFC 3339 and ISO 8601 have it.
fn by_jiff(text: &[u8]) -> Result<CivilStamp, StampError> {
    let expected = "a date; a number must be in epoch_s(), epoch_ms(), epoch_us() or epoch_ns()";
    let error = |reason: String| StampError::Format { expected, reason };
    let pieces = Pieces::parse(text).map_err(|reason| error(reason.to_string()))?;
    let time = pieces.time().ok_or_else(|| error("there is no time of day".to_owned()))?;
    let micros = micros_as_utc(pieces.date().to_datetime(time))?;
    Ok(CivilStamp { micros, offset: pieces.to_numeric_offset().map(jiff::tz::Offset::seconds) })
}

fn micros_as_utc(civil: jiff::civil::DateTime) -> Result<i64, StampError> {
    let time = jiff::tz::Offset::UTC.to_timestamp(civil).map_err(|_| StampError::Range)?;
    Ok(time.as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(pattern: &str) -> StampFormat {
        StampFormat::Pattern(pattern.into())
    }

    fn read(format: StampFormat, zone: Option<&str>, text: &str) -> Result<u64, StampError> {
        let mut reader = StampReader::new(format, zone)?;
        let stamp = reader.read(text.as_bytes())?;
        assert_eq!(reader.read(text.as_bytes()), Ok(stamp), "the same stamp again");
        Ok(stamp.at.as_micros())
    }

    #[test]
    fn stamps_of_all_formats_are_read() {
        const TIME: u64 = 971_211_336_000_000;
        for (format, zone, text) in [
            (StampFormat::Date, None, "10/Oct/2000:13:55:36 -0700"),
            (StampFormat::Date, None, "2000-10-10T20:55:36Z"),
            (StampFormat::CommonLog, None, "10/Oct/2000:13:55:36 -0700"),
            (StampFormat::Rfc3339, None, "2000-10-10t20:55:36z"),
            (StampFormat::Rfc3339, None, "20001010T205536Z"),
            (StampFormat::Rfc3339, Some("-07:00"), "2000-10-10 13:55:36"),
            (StampFormat::Rfc3339, Some("-07:00"), "2000-10-10 13:55:36,000"),
            (StampFormat::Rfc3339, Some("Asia/Tokyo"), "2000-10-10T20:55:36Z"),
            (pattern(COMMON_LOG), None, "10/Oct/2000:13:55:36 -0700"),
            (pattern("%Y%m%d %H%M%S"), Some("UTC"), "20001010 205536"),
            (pattern("%d.%m.%Y %I:%M:%S %p %z"), None, "10.10.2000 08:55:36 PM +0000"),
            (pattern("%F %T %Q"), None, "2000-10-10 13:55:36 America/Los_Angeles"),
            (pattern("at %s"), None, "at 971211336"),
            (StampFormat::Epoch(Unit::Seconds), None, "971211336"),
            (StampFormat::Epoch(Unit::Millis), None, "971211336000"),
            (StampFormat::Epoch(Unit::Micros), None, "971211336000000.4"),
            (StampFormat::Epoch(Unit::Nanos), None, "971211336000000004"),
        ] {
            assert_eq!(read(format.clone(), zone, text), Ok(TIME), "{format:?} {text}");
        }
    }

    #[test]
    fn other_stamps_are_refused_with_the_reason() {
        for (format, text, reason) in [
            (StampFormat::Date, "971211336", "epoch_s()"),
            (StampFormat::Date, "", "time must be a date"),
            (StampFormat::Date, "2000-10-10", "no time of day"),
            (StampFormat::Date, "2000-10-10 20:55:36", "--zone"),
            (StampFormat::Rfc3339, "2000-10-10T20:55:36+99:00", "time must be a date"),
            (StampFormat::CommonLog, "10/Okt/2000:13:55:36 -0700", "10/Oct/2000"),
            (StampFormat::Rfc3339, "1969-12-31T23:59:59Z", "1970"),
            (StampFormat::Rfc3339, "-002000-12-31T23:59:59Z", "1970"),
            (StampFormat::Epoch(Unit::Seconds), "253402300800", "9999"),
            (StampFormat::Epoch(Unit::Seconds), "18446744073709", "9999"),
            (StampFormat::Epoch(Unit::Seconds), "today", "number since 1970: today"),
        ] {
            let error = read(format, None, text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn patterns_and_zones_are_checked_before_the_first_line() {
        let new = |format, zone| StampReader::new(format, zone).map(|_| ());
        assert_eq!(new(pattern("%F %T"), None), Err(StampError::NoZone));
        assert_eq!(new(pattern("%F %T"), Some("UTC")), Ok(()));
        for bad in ["%F", "%T %z", "%!", "%", ""] {
            assert!(matches!(new(pattern(bad), Some("UTC")), Err(StampError::Pattern(_))), "{bad}");
        }
        assert!(matches!(new(StampFormat::Date, Some("Mars")), Err(StampError::Zone(_))));
    }

    #[test]
    fn the_resolution_is_that_of_the_finest_stamp() {
        let mut reader = StampReader::new(StampFormat::Date, None).expect("a format");
        assert_eq!(reader.resolution(), None);
        for (fraction, micros) in [("", 1_000_000), (".25", 1_000), ("", 1_000), (".000001", 1)] {
            let text = format!("2000-10-10T20:55:36{fraction}Z");
            reader.read(text.as_bytes()).expect("a stamp");
            assert_eq!(reader.resolution(), Some(Micros::from_micros(micros)), "{fraction}");
        }
        let mut minutes = StampReader::new(pattern("%F %H:%M"), Some("UTC")).expect("a pattern");
        minutes.read(b"2000-10-10 20:55").expect("a stamp");
        assert_eq!(minutes.resolution(), Some(Micros::from_secs(60)));
    }
}
