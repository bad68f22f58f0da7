//! Single values of a test file: times, and the fields of an answer, by the names of
//! `CheckResponse`.

use std::fmt;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use rlaas_proto::ratelimit::v1::RuleDecision as DecisionMessage;
use rlaas_proto::values::micros;
use serde::Deserialize;

use crate::clock::{Micros, Timestamp};
use rlaas_cli::text::value as shown_value;

/// Stands for a wait, a rule or a decision that there is not.
pub(super) const NONE: &str = "none";
const UNLIMITED: &str = "unlimited";
const VALID_TIME: &str = "must be a duration of whole microseconds, up to 36500d, such as 1m30s or 1.5s; a number without a unit is in seconds";
/// Reasons that a decision without a server can have.
const REASONS: [&str; 6] =
    ["WITHIN_LIMIT", "OVER_LIMIT", "COST_ABOVE_LIMIT", "BANNED", "UNLIMITED", "NO_RULE"];

/// A length of time, exact to the microsecond.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Time(pub(super) Micros);

/// The time at which a case starts.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct StartTime(pub(super) Timestamp);

/// How far an observed value may be from the expected one.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tolerance {
    duration: Time,
    count: u64,
}

/// The value of a field: expected or observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// `true` or `false`.
    Flag(bool),
    /// Units, negative in debt; or requests of a loop.
    Units(i64),
    /// A length of time.
    Time(Micros),
    /// A name or another word.
    Word(String),
    /// Names in order.
    Names(Vec<String>),
}

impl Time {
    /// The longest time from the start of a case: a hundred years.
    pub(super) const MAX: Micros = Micros::from_secs(100 * 365 * 86_400);
}

/// Parses a duration such as `12s`, `1m30s`, `2h 5m` or `0.25s`; a number without a unit is in
/// seconds.
impl TryFrom<String> for Time {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let has_unit = text.ends_with(|last: char| !last.is_ascii_digit());
        let text = if has_unit { text } else { text + "s" };
        let span = text.parse::<Span>().ok();
        let time = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
        let time = time.and_then(|time| Duration::try_from(time).ok());
        let time = time.filter(|time| time.subsec_nanos().is_multiple_of(1_000));
        time.map(Micros::from).filter(|time| *time <= Self::MAX).map(Self).ok_or(VALID_TIME)
    }
}

/// Parses a time such as `2026-01-31T12:00:00Z`, or seconds since 1970.
impl TryFrom<String> for StartTime {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let time = match text.parse::<jiff::Timestamp>() {
            Ok(time) => u64::try_from(time.as_microsecond()).ok().map(Timestamp::from_micros),
            Err(_) => Time::try_from(text).ok().map(|Time(since)| Timestamp::EPOCH + since),
        };
        time.map(Self).ok_or("must be a time such as 2026-01-31T12:00:00Z, or seconds since 1970")
    }
}

impl Tolerance {
    /// Parses a number of units, or a duration.
    pub(super) fn parse(text: String) -> Result<Self, &'static str> {
        if let Ok(count) = text.parse() {
            return Ok(Self { count, ..Self::default() });
        }
        let duration =
            text.try_into().map_err(|_| "must be a duration, a count, or both by name")?;
        Ok(Self { duration, ..Self::default() })
    }

    /// Returns `true` if an observed value is as expected, or near enough.
    pub(super) fn accepts(self, expected: &Value, observed: &Value) -> bool {
        match (expected, observed) {
            (Value::Units(expected), Value::Units(observed)) => {
                expected.abs_diff(*observed) <= self.count
            }
            (Value::Time(expected), Value::Time(observed)) => {
                expected.as_micros().abs_diff(observed.as_micros()) <= self.duration.0.as_micros()
            }
            (expected, observed) => expected == observed,
        }
    }
}

impl Value {
    pub(super) fn word(word: &str) -> Self {
        Self::Word(word.to_owned())
    }

    /// Parses the expected value of a field of a decision.
    pub(super) fn parse(field: &str, text: String) -> Result<Self, String> {
        match field {
            "rule" => Ok(Self::Word(text)),
            "code" => match text.to_uppercase() {
                code if code == "OK" || code == "OVER_LIMIT" => Ok(Self::Word(code)),
                _ => Err("must be ok, over_limit, none (no limit matches), or fields".to_owned()),
            },
            "allowed" | "near_limit" | "shadow" | "replayed" => {
                text.parse().map(Self::Flag).map_err(|_| "must be true or false".to_owned())
            }
            "remaining" | "limit" | "current_count" | "taken" => match text.parse() {
                Ok(units) => Ok(Self::Units(units)),
                Err(_) if text == UNLIMITED => Ok(Self::Word(text)),
                Err(_) => Err("must be a whole number or unlimited".to_owned()),
            },
            "retry_after" | "reset_after" | "delay" if text == NONE => Ok(Self::Word(text)),
            "retry_after" | "reset_after" | "delay" => {
                let time = Time::try_from(text).map(|Time(time)| Self::Time(time));
                time.map_err(|error| format!("{error}; or none"))
            }
            "reason" if REASONS.contains(&text.as_str()) => Ok(Self::Word(text)),
            "reason" => Err(format!("must be one of {}", REASONS.join(", "))),
            _ => Err("unknown field".to_owned()),
        }
    }

    /// Returns a field of a decision.
    pub(super) fn observe(field: &str, decided: &DecisionMessage) -> Self {
        let units =
            |units| if units == i64::MAX { Self::word(UNLIMITED) } else { Self::Units(units) };
        let time = |time: Option<prost_types::Duration>| {
            time.as_ref().and_then(micros).map_or(Self::word(NONE), Self::Time)
        };
        match field {
            "rule" => Self::word(&decided.rule),
            "allowed" => Self::Flag(decided.allowed),
            "near_limit" => Self::Flag(decided.near_limit),
            "shadow" => Self::Flag(decided.shadow),
            "remaining" => units(decided.remaining),
            "limit" => units(decided.limit),
            "current_count" => Self::Units(decided.current_count),
            "retry_after" => time(decided.retry_after),
            "reset_after" => time(decided.reset_after),
            "delay" => time(decided.delay),
            _reason => Self::word(decided.reason().as_str_name()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Units(units) => units.fmt(f),
            Self::Time(time) => f.write_str(&shown(*time)),
            Self::Word(word) => f.write_str(&shown_value(word)),
            Self::Names(names) => {
                let names: Vec<_> = names.iter().map(|name| shown_value(name)).collect();
                write!(f, "[{}]", names.join(", "))
            }
        }
    }
}

/// Shows a duration as it can be written: `48s`, `1.5ms`.
pub(super) fn shown(duration: Micros) -> String {
    if duration == Micros::ZERO { "0s".to_owned() } else { duration.to_string() }
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
            ("36d", 3_110_400_000_000),
            ("250µs", 250),
            ("3us", 3),
        ] {
            let Time(parsed) = Time::try_from(text.to_owned()).expect(text);
            assert_eq!(parsed.as_micros(), micros, "{text}");
            let Time(again) = Time::try_from(shown(parsed)).expect("a duration");
            assert_eq!(again, parsed, "{text}");
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
            assert!(Time::try_from(text.to_owned()).is_err(), "{text}");
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
            ("9999-12-30T21:59:59Z", 253_402_207_199_000_000),
        ] {
            let StartTime(start) = StartTime::try_from(text.to_owned()).expect(text);
            assert_eq!(start.as_micros(), micros, "{text}");
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
            "253402300800",
            "éééé+é",
        ] {
            assert!(StartTime::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
