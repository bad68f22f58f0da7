//! `CheckResponse` in the JSON mapping of protobuf, for HTTP and the command line.
//!
//! Members with default values are included, durations only if they are set. 64-bit integers are
//! strings, enums are written by name.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use std::fmt::{self, Display};

use prost_types::Duration;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, CheckResponse, RuleDecision};
use serde::{Serialize, Serializer};

/// A `CheckResponse`.
#[derive(Debug, Serialize)]
pub(crate) struct ResponseView<'a> {
    #[serde(flatten)]
    common: CommonFields<'a>,
    source: EnumName,
    decisions: Vec<DecisionView<'a>>,
    replayed: bool,
}

/// A `RuleDecision`.
#[derive(Debug, Serialize)]
struct DecisionView<'a> {
    #[serde(flatten)]
    common: CommonFields<'a>,
    shadow: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<JsonString<Seconds>>,
}

/// The members that responses and decisions share.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CommonFields<'a> {
    allowed: bool,
    current_count: JsonString<i64>,
    ttl: JsonString<i64>,
    limit: JsonString<i64>,
    remaining: JsonString<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<JsonString<Seconds>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_after: Option<JsonString<Seconds>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_at: Option<JsonString<prost_types::Timestamp>>,
    rule: &'a str,
    algorithm: EnumName,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<JsonString<Seconds>>,
    reason: EnumName,
    near_limit: bool,
}

/// The name of an enum value, or its number if only a newer server knows the name.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum EnumName {
    Known(&'static str),
    Unknown(i32),
}

impl<'a> From<&'a CheckResponse> for ResponseView<'a> {
    fn from(response: &'a CheckResponse) -> Self {
        Self {
            common: CommonFields {
                allowed: response.allowed,
                current_count: JsonString(response.current_count),
                ttl: JsonString(response.ttl),
                limit: JsonString(response.limit),
                remaining: JsonString(response.remaining),
                retry_after: response.retry_after.map(Seconds).map(JsonString),
                reset_after: response.reset_after.map(Seconds).map(JsonString),
                reset_at: response.reset_at.map(JsonString),
                rule: &response.rule,
                algorithm: algorithm(response.algorithm),
                delay: response.delay.map(Seconds).map(JsonString),
                reason: reason(response.reason),
                near_limit: response.near_limit,
            },
            source: EnumName::new(response.source, |source: Source| source.as_str_name()),
            decisions: response.decisions.iter().map(DecisionView::from).collect(),
            replayed: response.replayed,
        }
    }
}

impl<'a> From<&'a RuleDecision> for DecisionView<'a> {
    fn from(decision: &'a RuleDecision) -> Self {
        Self {
            common: CommonFields {
                allowed: decision.allowed,
                current_count: JsonString(decision.current_count),
                ttl: JsonString(decision.ttl),
                limit: JsonString(decision.limit),
                remaining: JsonString(decision.remaining),
                retry_after: decision.retry_after.map(Seconds).map(JsonString),
                reset_after: decision.reset_after.map(Seconds).map(JsonString),
                reset_at: decision.reset_at.map(JsonString),
                rule: &decision.rule,
                algorithm: algorithm(decision.algorithm),
                delay: decision.delay.map(Seconds).map(JsonString),
                reason: reason(decision.reason),
                near_limit: decision.near_limit,
            },
            shadow: decision.shadow,
            window: decision.window.map(Seconds).map(JsonString),
        }
    }
}

impl EnumName {
    fn new<T: TryFrom<i32>>(value: i32, name: impl FnOnce(T) -> &'static str) -> Self {
        T::try_from(value).map_or(Self::Unknown(value), |known| Self::Known(name(known)))
    }
}

fn algorithm(value: i32) -> EnumName {
    EnumName::new(value, |algorithm: Algorithm| algorithm.as_str_name())
}

fn reason(value: i32) -> EnumName {
    EnumName::new(value, |reason: Reason| reason.as_str_name())
}

/// A value that is serialized as a string.
#[derive(Debug)]
struct JsonString<T>(T);

impl<T: Display> Serialize for JsonString<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Debug)]
struct Seconds(Duration);

impl Display for Seconds {
    /// Writes 0, 3, 6 or 9 decimals, as protobuf's JSON mapping does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Duration { seconds, nanos } = self.0;
        let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
        let (seconds, nanos) = (seconds.unsigned_abs(), nanos.unsigned_abs());
        match nanos {
            0 => write!(f, "{sign}{seconds}s"),
            nanos if nanos % 1_000_000 == 0 => {
                write!(f, "{sign}{seconds}.{:03}s", nanos / 1_000_000)
            }
            nanos if nanos % 1_000 == 0 => write!(f, "{sign}{seconds}.{:06}s", nanos / 1_000),
            nanos => write!(f, "{sign}{seconds}.{nanos:09}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_0_3_6_or_9_decimals() {
        for (seconds, nanos, expected) in [
            (60, 0, "60s"),
            (59, 900_000_000, "59.900s"),
            (1, 1_000, "1.000001s"),
            (0, 1, "0.000000001s"),
            (-1, -500_000_000, "-1.500s"),
        ] {
            assert_eq!(Seconds(Duration { seconds, nanos }).to_string(), expected);
        }
    }

    #[test]
    fn values_of_a_newer_server_are_shown() {
        let response = CheckResponse { reason: 77, ..CheckResponse::default() };
        let json = serde_json::to_string(&ResponseView::from(&response)).expect("JSON");
        assert!(json.contains("\"reason\":77"), "{json}");
    }
}
