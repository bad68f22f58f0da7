//! Times, durations and numbers of a test file. Durations are exact to the microsecond, and are read
//! as they are shown.

use std::time::UNIX_EPOCH;

use crate::clock::{Micros, Timestamp};

/// The longest time from the start of a case: a hundred years.
pub(super) const MAX_TIME: Micros = Micros::from_secs(100 * 365 * 86_400);

const UNITS: [(&str, u64); 8] = [
    ("us", 1),
    ("µs", 1),
    ("μs", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];
const VALID_DURATION: &str = "must be a duration of whole microseconds, up to 36500d, such as 1m30s or 1.5s; a number without a unit is in seconds";
const VALID_START: &str =
    "must be a time such as 2026-01-31T12:00:00Z, or seconds since 1970, up to the year 9999";
/// The first second of the year 10000.
const END_OF_TIME: u64 = 253_402_300_800;

/// Parses a duration such as `12s`, `1m30s`, `2h 5m` or `0.25s`; a number without a unit is in
/// seconds.
pub(super) fn duration(text: &str) -> Result<Micros, &'static str> {
    let parsed = match decimal(text, 1_000_000) {
        Some(seconds) => Some(seconds),
        None => parts(text),
    };
    parsed.map(Micros::from_micros).filter(|time| *time <= MAX_TIME).ok_or(VALID_DURATION)
}

/// Shows a duration as it can be written: `48s`, `1.5ms`.
pub(super) fn shown(duration: Micros) -> String {
    if duration == Micros::ZERO { "0s".to_owned() } else { duration.to_string() }
}

/// Parses the start of a case.
pub(super) fn start(text: &str) -> Result<Timestamp, &'static str> {
    let micros = decimal(text, 1_000_000).or_else(|| rfc3339(text));
    let micros = micros.filter(|micros| *micros < END_OF_TIME * 1_000_000);
    micros.map(Timestamp::from_micros).ok_or(VALID_START)
}

/// Parses `true` or `false`.
pub(super) fn flag(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "must be true or false")
}

/// Returns the microseconds of numbers with units.
fn parts(text: &str) -> Option<u64> {
    let (mut rest, mut sum) = (text.trim(), 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let unit = &rest[number..];
        let end = unit.find(|char: char| char.is_ascii_digit() || char == ' ');
        let (unit, after) = unit.split_at(end.unwrap_or(unit.len()));
        let (_, micros) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(decimal(&rest[..number], *micros)?)?;
        rest = after.trim_start();
    }
    Some(sum)
}

/// Returns `number` times `unit`; `None` if that is not a whole number.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.len() > 18 || fraction.len() > 18 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().ok()? * u128::from(unit);
    if !part.is_multiple_of(scale) {
        return None;
    }
    u64::try_from(whole.parse::<u128>().ok()? * u128::from(unit) + part / scale).ok()
}

/// Parses a time with `Z` or an offset such as `+02:00`.
fn rfc3339(text: &str) -> Option<u64> {
    let (local, offset) = if let Some(local) = text.strip_suffix(['Z', 'z']) {
        (local, 0)
    } else {
        let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
        (local, offset_seconds(offset)?)
    };
    let time = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    let exact = since.subsec_nanos().is_multiple_of(1_000);
    let micros = i128::try_from(since.as_micros()).ok()? - i128::from(offset) * 1_000_000;
    u64::try_from(micros).ok().filter(|_| exact)
}

fn offset_seconds(offset: &str) -> Option<i64> {
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = offset.strip_prefix(['+', '-'])?.split_once(':')?;
    let part = |text: &str, max: i64| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|part| is_number && *part <= max)
    };
    Some(sign * (part(hours, 23)? * 3_600 + part(minutes, 59)? * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact_and_read_as_shown() {
        for (text, micros) in [
            ("0", 0),
            ("12", 12_000_000),
            ("0.25", 250_000),
            ("48s", 48_000_000),
            ("1.000001s", 1_000_001),
            ("1m30s", 90_000_000),
            ("2h 5m", 7_500_000_000),
            ("1.5d", 129_600_000_000),
            ("250µs", 250),
            ("3us", 3),
        ] {
            let parsed = duration(text).expect(text);
            assert_eq!(parsed.as_micros(), micros, "{text}");
            assert_eq!(duration(&shown(parsed)), Ok(parsed), "{parsed}");
        }
        for text in [
            "",
            "s",
            "1x",
            "-1s",
            "1.5us",
            "0.0000001",
            "1..5s",
            "1e3",
            "36501d",
            " ",
            "1s-2s",
            "1ns",
            "99999999999999999999s",
            "é",
        ] {
            assert_eq!(duration(text), Err(VALID_DURATION), "{text}");
        }
    }

    #[test]
    fn starts_are_times_or_seconds() {
        for (text, micros) in [
            ("0", 0),
            ("1700000000.5", 1_700_000_000_500_000),
            ("1970-01-01T00:00:00Z", 0),
            ("2026-01-31T12:00:00Z", 1_769_860_800_000_000),
            ("2026-01-31T14:30:00.250+02:30", 1_769_860_800_250_000),
            ("2026-01-31T10:00:00-02:00", 1_769_860_800_000_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
        ] {
            assert_eq!(start(text).map(Timestamp::as_micros), Ok(micros), "{text}");
        }
        for text in [
            "",
            "now",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-02-31T12:00:00Z",
            "-1",
            "1e9",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "2026-01-31T12:00:00+2:00",
            "2026-01-31T12:00:00.0000001Z",
            "253402300800",
            "éééé+é",
        ] {
            assert_eq!(start(text), Err(VALID_START), "{text}");
        }
    }
}
