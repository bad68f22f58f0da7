//! Times as logs write them.

use jiff::fmt::strtime;
use rlaas_core::clock::{Micros, Timestamp};

/// Numbers below this are seconds since 1970: until the year 5138.
const MAX_SECONDS: u64 = 100_000_000_000;
/// Numbers below this are milliseconds, others microseconds.
const MAX_MILLIS: u64 = 1_000 * MAX_SECONDS;

/// A time, and the time between two that its form can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) at: Timestamp,
    pub(super) resolution: Micros,
}

/// Reads a time: as in RFC 3339, as in the Common Log Format, or a number of seconds, milliseconds
/// or microseconds since 1970, which its size tells. `None` for others, and for years before 1970.
pub(super) fn read(text: &str) -> Option<Stamp> {
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return read_number(text);
    }
    let (at, fraction) = if text.contains('/') {
        (strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?.to_timestamp().ok()?, "")
    } else {
        let (_, fraction) = text.split_once('.').unwrap_or_default();
        (text.parse::<jiff::Timestamp>().ok()?, fraction)
    };
    let at = u64::try_from(at.as_microsecond()).ok()?;
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
    Some(Stamp { at: Timestamp::from_micros(at), resolution: digit(1_000_000, digits) })
}

fn read_number(text: &str) -> Option<Stamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    let unit_us = match whole {
        0..MAX_SECONDS => 1_000_000,
        MAX_SECONDS..MAX_MILLIS => 1_000,
        _ => 1,
    };
    let mut at = whole.checked_mul(unit_us)?;
    for (position, byte) in fraction.bytes().enumerate() {
        let value = byte.checked_sub(b'0').filter(|value| *value <= 9)?;
        at = at.checked_add(
            unit_us * u64::from(value) / 10_u64.saturating_pow(exponent(position + 1)),
        )?;
    }
    Some(Stamp { at: Timestamp::from_micros(at), resolution: digit(unit_us, fraction.len()) })
}

/// Returns what the last of some decimal digits of a unit is worth: at least a microsecond.
fn digit(unit_us: u64, digits: usize) -> Micros {
    Micros::from_micros((unit_us / 10_u64.saturating_pow(exponent(digits))).max(1))
}

fn exponent(digits: usize) -> u32 {
    u32::try_from(digits).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Option<(u64, u64)> {
        read(text).map(|stamp| (stamp.at.as_micros(), stamp.resolution.as_micros()))
    }

    #[test]
    fn times_of_all_forms_are_read() {
        const SECOND: u64 = 1_000_000;
        let at = 1_779_012_303 * SECOND;
        for (text, expected) in [
            ("17/May/2026:10:05:03 +0000", (at, SECOND)),
            ("17/May/2026:12:05:03 +0200", (at, SECOND)),
            ("2026-05-17T10:05:03Z", (at, SECOND)),
            ("2026-05-17T12:05:03.5+02:00", (at + 500_000, 100_000)),
            ("2026-05-17 10:05:03.123456789Z", (at + 123_456, 1)),
            ("1779012303", (at, SECOND)),
            ("1779012303.25", (at + 250_000, 10_000)),
            ("1779012303250", (at + 250_000, 1_000)),
            ("1779012303250.7", (at + 250_700, 100)),
            ("1779012303250700", (at + 250_700, 1)),
            ("0", (0, SECOND)),
        ] {
            assert_eq!(micros(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            ".",
            "-1",
            "1.2.3",
            "soon",
            "2026-05-17T10:05:03",
            "2026-05-17",
            "17/May/2026",
            "31/Feb/2026:10:05:03 +0000",
            "1969-12-31T23:59:59Z",
            "99999999999999999999",
        ] {
            assert_eq!(micros(text), None, "{text}");
        }
    }
}
