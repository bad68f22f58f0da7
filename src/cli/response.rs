//! A `CheckResponse` for people, and in the JSON mapping of protobuf.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use serde::Serialize;
use serde_json::Value;

use crate::api::proto::check_response::{Reason, Source};
use crate::api::proto::{Algorithm, CheckResponse, RuleDecision};

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Returns the response on one line for people. `cost` is what the request asked for.
pub(super) fn to_text(response: &CheckResponse, user: &str, cost: u64) -> String {
    let (verb, told) = if response.allowed {
        ("allowed ", allowed(response))
    } else {
        ("denied  ", denied(response, cost))
    };
    let user = user.escape_debug();
    match response.rule.as_str() {
        "" => format!("{verb} {user}: no rule matches (NO_RULE)"),
        rule => format!("{verb} {user}: {told} ({})", rule.escape_debug()),
    }
}

/// Returns all members, also those that are 0, empty or false; durations where they are set.
pub(super) fn to_json(response: &CheckResponse) -> String {
    serde_json::to_string(&Response::from(response)).expect("texts and booleans are JSON")
}

fn allowed(response: &CheckResponse) -> String {
    if response.source() == Source::FailOpen {
        return "store unavailable, the rule fails open".to_owned();
    }
    if response.reason() == Reason::Unlimited {
        return "no limit".to_owned();
    }
    let left = match burst(response) {
        Some(burst) => format!("{} of a burst of {burst} left", response.remaining),
        None => format!("{} of {} left", response.remaining, response.limit),
    };
    let all = match response.reset_after {
        Some(reset) if nanos(&reset) > 0 => format!(", all in {}", for_people(&reset)),
        _ => String::new(),
    };
    match response.source() {
        Source::LocalFallback => format!("{left}{all}, store unavailable, decided locally"),
        _ => format!("{left}{all}"),
    }
}

fn denied(response: &CheckResponse, cost: u64) -> String {
    let why = match response.reason() {
        Reason::Banned => "banned, the limit is 0".to_owned(),
        Reason::CostAboveLimit => match burst(response) {
            Some(burst) => format!("a cost of {cost} is above the burst of {burst}"),
            None => format!("a cost of {cost} is above the limit of {}", response.limit),
        },
        Reason::StoreUnavailable => "store unavailable".to_owned(),
        Reason::OverLimit if response.retry_after.is_none() => {
            format!("over the limit of {}", response.limit)
        }
        _ if response.source() == Source::LocalFallback => {
            "store unavailable, decided locally".to_owned()
        }
        _ => String::new(),
    };
    let wait = response.retry_after.as_ref();
    let wait = wait.map(|wait| format!("try again in {}", for_people(wait)));
    let told = [wait.unwrap_or_default(), why].into_iter().filter(|text| !text.is_empty());
    told.collect::<Vec<_>>().join(", ")
}

/// Returns the burst of the rule where it is not its limit. The units in use and those left make up
/// the burst for the algorithms that have one.
fn burst(response: &CheckResponse) -> Option<i64> {
    let has_burst = matches!(
        response.algorithm(),
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra
    );
    // Of a local fallback it would be the burst of a share.
    let is_whole = response.source() == Source::Store;
    let burst = response.current_count.saturating_add(response.remaining);
    (has_burst && is_whole && burst != response.limit).then_some(burst)
}

/// Returns a duration of up to two units, rounded up: `57.216s`, `2m 5s`, `3h 20m`, `2d 1h`.
fn for_people(duration: &prost_types::Duration) -> String {
    let up_to = |nanos: i128| (self::nanos(duration) + nanos - 1) / nanos;
    let two = |count: i128, of: i128, large: &str, small: &str| match (count / of, count % of) {
        (large_units, 0) => format!("{large_units}{large}"),
        (large_units, small_units) => format!("{large_units}{large} {small_units}{small}"),
    };
    let (millis, seconds) = (up_to(1_000_000), up_to(NANOS_PER_SECOND));
    let (minutes, hours) = (up_to(60 * NANOS_PER_SECOND), up_to(3600 * NANOS_PER_SECOND));
    if millis <= 120_000 {
        let text = format!("{}.{:03}", millis / 1000, millis % 1000);
        format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
    } else if seconds <= 7_200 {
        two(seconds, 60, "m", "s")
    } else if minutes <= 2 * 24 * 60 {
        two(minutes, 60, "h", "m")
    } else {
        two(hours, 24, "d", "h")
    }
}

fn nanos(duration: &prost_types::Duration) -> i128 {
    i128::from(duration.seconds) * NANOS_PER_SECOND + i128::from(duration.nanos)
}

/// The members of both messages.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Members<'a> {
    allowed: bool,
    current_count: String,
    ttl: String,
    limit: String,
    remaining: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_after: Option<String>,
    rule: &'a str,
    algorithm: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
    reason: Value,
}

/// A `CheckResponse`.
#[derive(Serialize)]
struct Response<'a> {
    #[serde(flatten)]
    members: Members<'a>,
    source: Value,
    decisions: Vec<Decision<'a>>,
}

/// A `RuleDecision`.
#[derive(Serialize)]
struct Decision<'a> {
    #[serde(flatten)]
    members: Members<'a>,
    shadow: bool,
}

impl<'a> From<&'a CheckResponse> for Response<'a> {
    fn from(response: &'a CheckResponse) -> Self {
        Self {
            members: Members {
                allowed: response.allowed,
                current_count: response.current_count.to_string(),
                ttl: response.ttl.to_string(),
                limit: response.limit.to_string(),
                remaining: response.remaining.to_string(),
                retry_after: response.retry_after.as_ref().map(in_json),
                reset_after: response.reset_after.as_ref().map(in_json),
                rule: &response.rule,
                algorithm: algorithm(response.algorithm),
                delay: response.delay.as_ref().map(in_json),
                reason: reason(response.reason),
            },
            source: enumerator(response.source, |source: Source| source.as_str_name()),
            decisions: response.decisions.iter().map(Decision::from).collect(),
        }
    }
}

impl<'a> From<&'a RuleDecision> for Decision<'a> {
    fn from(decision: &'a RuleDecision) -> Self {
        Self {
            members: Members {
                allowed: decision.allowed,
                current_count: decision.current_count.to_string(),
                ttl: decision.ttl.to_string(),
                limit: decision.limit.to_string(),
                remaining: decision.remaining.to_string(),
                retry_after: decision.retry_after.as_ref().map(in_json),
                reset_after: decision.reset_after.as_ref().map(in_json),
                rule: &decision.rule,
                algorithm: algorithm(decision.algorithm),
                delay: decision.delay.as_ref().map(in_json),
                reason: reason(decision.reason),
            },
            shadow: decision.shadow,
        }
    }
}

fn algorithm(value: i32) -> Value {
    enumerator(value, |algorithm: Algorithm| algorithm.as_str_name())
}

fn reason(value: i32) -> Value {
    enumerator(value, |reason: Reason| reason.as_str_name())
}

/// Returns the name of an enum's value, or the number of one that a newer server has sent.
fn enumerator<T: TryFrom<i32>>(value: i32, name: impl FnOnce(T) -> &'static str) -> Value {
    T::try_from(value).map_or(Value::from(value), |known| Value::from(name(known)))
}

/// Returns seconds with 0, 3, 6 or 9 decimals.
fn in_json(duration: &prost_types::Duration) -> String {
    let nanos = nanos(duration);
    let sign = if nanos < 0 { "-" } else { "" };
    let (seconds, rest) = (nanos.abs() / NANOS_PER_SECOND, nanos.abs() % NANOS_PER_SECOND);
    match rest {
        0 => format!("{sign}{seconds}s"),
        rest if rest % 1_000_000 == 0 => format!("{sign}{seconds}.{:03}s", rest / 1_000_000),
        rest if rest % 1_000 == 0 => format!("{sign}{seconds}.{:06}s", rest / 1_000),
        rest => format!("{sign}{seconds}.{rest:09}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duration(seconds: i64, nanos: i32) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos }
    }

    #[test]
    fn a_duration_for_people_has_up_to_two_units_and_is_rounded_up() {
        for (seconds, nanos, expected) in [
            (0, 0, "0s"),
            (0, 1_000, "0.001s"),
            (59, 998_000_001, "59.999s"),
            (59, 999_287_000, "60s"),
            (120, 0, "120s"),
            (124, 1, "2m 5s"),
            (7_200, 0, "120m"),
            (7_201, 0, "2h 1m"),
            (12_000, 0, "3h 20m"),
            (172_801, 0, "2d 1h"),
            (31_622_400, 0, "366d"),
        ] {
            assert_eq!(for_people(&duration(seconds, nanos)), expected);
        }
    }

    #[test]
    fn a_duration_in_json_has_0_3_6_or_9_decimals() {
        for (seconds, nanos, expected) in [
            (60, 0, "60s"),
            (59, 900_000_000, "59.900s"),
            (1, 1_000, "1.000001s"),
            (0, 1, "0.000000001s"),
            (-1, -500_000_000, "-1.500s"),
        ] {
            assert_eq!(in_json(&duration(seconds, nanos)), expected);
        }
    }

    #[test]
    fn values_of_a_newer_server_are_shown() {
        let response = CheckResponse { allowed: true, reason: 77, ..CheckResponse::default() };
        assert_eq!(to_text(&response, "alice", 1), "allowed  alice: no rule matches (NO_RULE)");
        assert!(to_json(&response).contains("\"reason\":77"));
    }
}
