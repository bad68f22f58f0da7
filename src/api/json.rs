//! `CheckResponse` in the JSON mapping of protobuf, for HTTP.
//!
//! Members with default values are included, durations only if they are set. 64-bit integers are
//! strings, enums are written by name. Members are written as text: serde looks for characters to
//! escape in every name, and numbers in strings would take the way through `Display`.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use prost_types::Duration;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, CheckResponse, RuleDecision};
use serde::Serialize;

/// Bytes that are reserved for the members of a response or of a decision: enough unless the rule has a long name.
const MEMBERS: usize = 320;

/// Adds the members of a response to the text of an object.
pub(crate) fn add_members(json: &mut Vec<u8>, response: CheckResponse) {
    let CheckResponse { source, decisions, replayed, taken, .. } = response;
    let deciding = RuleDecision {
        allowed: response.allowed,
        current_count: response.current_count,
        ttl: response.ttl,
        limit: response.limit,
        remaining: response.remaining,
        retry_after: response.retry_after,
        reset_after: response.reset_after,
        reset_at: response.reset_at,
        rule: response.rule,
        algorithm: response.algorithm,
        delay: response.delay,
        reason: response.reason,
        near_limit: response.near_limit,
        ..RuleDecision::default()
    };
    json.reserve(MEMBERS * (1 + decisions.len()));
    json.pop();
    add_text(json, if json.len() > 1 { "," } else { "" });
    add_common(json, &deciding);
    add_enum(json, r#","source":"#, source, Source::as_str_name);
    add_text(json, r#","decisions":["#);
    for (position, decision) in decisions.iter().enumerate() {
        add_text(json, if position == 0 { "{" } else { ",{" });
        add_common(json, decision);
        add(json, r#","shadow":"#, decision.shadow);
        add_duration(json, r#","window":"#, decision.window);
        add_integer(json, r#","held":"#, decision.held.cast_signed());
        add_text(json, "}");
    }
    add(json, r#"],"replayed":"#, replayed);
    if let Some(taken) = taken {
        add_integer(json, r#","taken":"#, taken.cast_signed());
    }
    add_text(json, "}");
}

/// Adds the members that responses and decisions share.
fn add_common(json: &mut Vec<u8>, decision: &RuleDecision) {
    add(json, r#""allowed":"#, decision.allowed);
    add_integer(json, r#","currentCount":"#, decision.current_count);
    add_integer(json, r#","ttl":"#, decision.ttl);
    add_integer(json, r#","limit":"#, decision.limit);
    add_integer(json, r#","remaining":"#, decision.remaining);
    add_duration(json, r#","retryAfter":"#, decision.retry_after);
    add_duration(json, r#","resetAfter":"#, decision.reset_after);
    if let Some(time) = decision.reset_at {
        add(json, r#","resetAt":"#, time.to_string());
    }
    add(json, r#","rule":"#, &decision.rule);
    add_enum(json, r#","algorithm":"#, decision.algorithm, Algorithm::as_str_name);
    add_duration(json, r#","delay":"#, decision.delay);
    add_enum(json, r#","reason":"#, decision.reason, Reason::as_str_name);
    add(json, r#","nearLimit":"#, decision.near_limit);
}

/// Adds a member. `name` is its name in quotation marks, between the punctuation that it needs.
fn add(json: &mut Vec<u8>, name: &str, value: impl Serialize) {
    add_text(json, name);
    serde_json::to_writer(json, &value).expect("numbers and strings are JSON");
}

fn add_text(json: &mut Vec<u8>, text: &str) {
    json.extend_from_slice(text.as_bytes());
}

/// Adds an integer of 64 bits.
fn add_integer(json: &mut Vec<u8>, name: &str, number: i64) {
    add_text(json, name);
    add(json, "\"", number);
    add_text(json, "\"");
}

/// Adds the name of an enum value, or its number if only a newer server knows the name.
fn add_enum<T>(json: &mut Vec<u8>, name: &str, number: i32, text: fn(&T) -> &'static str)
where
    T: TryFrom<i32>,
{
    match T::try_from(number) {
        Ok(value) => {
            for text in [name, "\"", text(&value), "\""] {
                add_text(json, text);
            }
        }
        Err(_) => add(json, name, number),
    }
}

/// Adds a duration if it is set, with 0, 3, 6 or 9 decimals.
fn add_duration(json: &mut Vec<u8>, name: &str, duration: Option<Duration>) {
    let Some(Duration { seconds, nanos }) = duration else { return };
    add_text(json, name);
    add(json, if seconds < 0 || nanos < 0 { "\"-" } else { "\"" }, seconds.unsigned_abs());
    if nanos != 0 {
        // Ten digits, the first of which is replaced by the point.
        let point = json.len();
        add(json, "", 1_000_000_000 + nanos.unsigned_abs());
        json[point] = b'.';
        let zeros = [(1_000_000, 6), (1_000, 3)].into_iter().find(|(unit, _)| nanos % unit == 0);
        json.truncate(json.len() - zeros.map_or(0, |(_, digits)| digits));
    }
    add_text(json, "s\"");
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
            let mut json = Vec::new();
            add_duration(&mut json, "", Some(Duration { seconds, nanos }));
            assert_eq!(String::from_utf8_lossy(&json), format!("\"{expected}\""));
        }
    }

    #[test]
    fn values_of_a_newer_server_are_shown() {
        let response = CheckResponse { reason: 77, ..CheckResponse::default() };
        let mut json = b"{}".to_vec();
        add_members(&mut json, response);
        let json = String::from_utf8_lossy(&json);
        assert!(json.contains("\"reason\":77"), "{json}");
    }
}
