//! Numbers and times as people read them.

use rlaas_core::clock::{Micros, Timestamp};

/// Returns a count with separators of thousands: `12,345`.
pub fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a part of a whole as a percentage with three significant digits: `0.123 %`. A part that
/// is not 0 is never shown as 0, and one that is not the whole never as 100.
pub fn share_text(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    if part >= whole {
        return "100 %".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let percent = part as f64 * 100.0 / whole as f64;
    match percent {
        percent if percent < 0.001 => "< 0.001 %".to_owned(),
        percent if percent > 99.9 => "> 99.9 %".to_owned(),
        percent if percent < 1.0 => format!("{percent:.3} %"),
        percent if percent < 10.0 => format!("{percent:.2} %"),
        percent => format!("{percent:.1} %"),
    }
}

/// Returns a length of time for people, in at most two units: `1h 2m`, `1.5s`, `250ms`.
pub fn length_text(length: Micros) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let micros = length.as_micros();
    if micros < 1_000 {
        return format!("{micros}µs");
    }
    if micros < 1_000_000 {
        return with_decimals(micros, 1_000, "ms");
    }
    if micros < 60_000_000 {
        return with_decimals(micros, 1_000_000, "s");
    }
    let seconds = micros / 1_000_000;
    let first = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[first];
    let rest = seconds % unit;
    let text = format!("{}{name}", seconds / unit);
    match UNITS.get(first + 1) {
        Some((next, name)) if rest >= *next => format!("{text} {}{name}", rest / next),
        _ => text,
    }
}

/// Returns a number with up to two decimals.
fn with_decimals(micros: u64, unit: u64, name: &str) -> String {
    let hundredths = micros * 100 / unit;
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Returns a time as a text of RFC 3339 in UTC. Times beyond the year 9999 are microseconds.
pub fn time_text(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).ok();
    let time = micros.and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok());
    time.map_or_else(|| format!("{} µs", at.as_micros()), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_separators() {
        for (count, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count_text(count), text);
        }
    }

    #[test]
    fn shares_are_never_rounded_to_none_or_all() {
        for (part, whole, text) in [
            (0, 5, "0 %"),
            (0, 0, "0 %"),
            (5, 5, "100 %"),
            (1, 1_000_000_000, "< 0.001 %"),
            (999_999, 1_000_000, "> 99.9 %"),
            (1, 1_000, "0.100 %"),
            (1, 30, "3.33 %"),
            (1, 3, "33.3 %"),
        ] {
            assert_eq!(share_text(part, whole), text);
        }
    }

    #[test]
    fn lengths_have_at_most_two_units() {
        for (micros, text) in [
            (0, "0µs"),
            (999, "999µs"),
            (1_000, "1ms"),
            (1_500, "1.5ms"),
            (250_000, "250ms"),
            (1_000_000, "1s"),
            (58_504_000, "58.5s"),
            (60_000_000, "1m"),
            (3_725_000_000, "1h 2m"),
            (3_600_000_000, "1h"),
            (90_061_000_000, "1d 1h"),
        ] {
            assert_eq!(length_text(Micros::from_micros(micros)), text);
        }
    }
}
