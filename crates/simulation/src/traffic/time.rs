//! Times as logs write them.

use jiff::fmt::strtime;
use rlaas_core::clock::Timestamp;

/// Numbers below this are seconds since 1970: until the year 5138.
const MAX_SECONDS: u64 = 100_000_000_000;
/// Numbers below this are milliseconds, others microseconds.
const MAX_MILLIS: u64 = 1_000 * MAX_SECONDS;

/// Reads a time: as in RFC 3339, as in the Common Log Format, or a number of seconds, milliseconds
/// or microseconds since 1970, which its size tells. `None` for others, and for years before 1970.
pub(super) fn read(text: &str) -> Option<Timestamp> {
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return read_number(text);
    }
    let at = if text.contains('/') {
        strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?.to_timestamp().ok()?
    } else {
        text.parse::<jiff::Timestamp>().ok()?
    };
    u64::try_from(at.as_microsecond()).ok().map(Timestamp::from_micros)
}

fn read_number(text: &str) -> Option<Timestamp> {
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
    Some(Timestamp::from_micros(at))
}

fn exponent(digits: usize) -> u32 {
    u32::try_from(digits).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Option<u64> {
        read(text).map(Timestamp::as_micros)
    }

    #[test]
    fn times_of_all_forms_are_read() {
        const SECOND: u64 = 1_000_000;
        let at = 1_779_012_303 * SECOND;
        for (text, expected) in [
            ("17/May/2026:10:05:03 +0000", at),
            ("17/May/2026:12:05:03 +0200", at),
            ("2026-05-17T10:05:03Z", at),
            ("2026-05-17T12:05:03.5+02:00", at + 500_000),
            ("2026-05-17 10:05:03.123456789Z", at + 123_456),
            ("1779012303", at),
            ("1779012303.25", at + 250_000),
            ("1779012303250", at + 250_000),
            ("1779012303250.7", at + 250_700),
            ("1779012303250700", at + 250_700),
            ("0", 0),
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
