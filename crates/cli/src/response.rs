//! Formats a `CheckResponse` as text.

use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, CheckResponse};

use crate::text::printable;

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Returns the response as one line of text. `cost` is the cost of the request.
pub(crate) fn to_text(response: &CheckResponse, user: &str, cost: u64) -> String {
    let verb = if response.allowed { "allowed " } else { "denied  " };
    with_verb(verb, response, user, cost)
}

/// As [`to_text`], with another word for the decision.
pub(crate) fn with_verb(verb: &str, response: &CheckResponse, user: &str, cost: u64) -> String {
    let detail = detail(response, cost);
    let detail = if response.replayed { format!("{detail}, replayed") } else { detail };
    let user = printable(user);
    match response.rule.as_str() {
        "" if !response.decisions.is_empty() => {
            format!("{verb} {user}: every rule that matches is in shadow (NO_RULE)")
        }
        "" => format!("{verb} {user}: no rule matches (NO_RULE)"),
        rule => format!("{verb} {user}: {detail} ({})", printable(rule)),
    }
}

/// Returns what is left, or how long to wait and why.
pub(crate) fn detail(response: &CheckResponse, cost: u64) -> String {
    if response.allowed { allowed(response) } else { denied(response, cost) }
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
        Some(reset) if nanos(&reset) > 0 => format!(", all in {}", human_duration(&reset)),
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
        Reason::Held => "held by reservations".to_owned(),
        Reason::OverLimit if response.retry_after.is_none() => {
            format!("over the limit of {}", response.limit)
        }
        _ if response.source() == Source::LocalFallback => {
            "store unavailable, decided locally".to_owned()
        }
        _ => String::new(),
    };
    let wait = response.retry_after.as_ref();
    let wait = wait.map(|wait| format!("try again in {}", human_duration(wait)));
    let detail = [wait.unwrap_or_default(), why].into_iter().filter(|text| !text.is_empty());
    detail.collect::<Vec<_>>().join(", ")
}

/// Returns the burst of the rule if it differs from the limit. For algorithms with a burst it is the
/// sum of the units in use and the remaining units.
fn burst(response: &CheckResponse) -> Option<i64> {
    let has_burst = matches!(
        response.algorithm(),
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra
    );
    // A local fallback has a share of the burst only.
    let is_whole = response.source() == Source::Store;
    let burst = response.current_count.saturating_add(response.remaining);
    (has_burst && is_whole && burst != response.limit).then_some(burst)
}

/// Returns a duration of up to two units, rounded up: `57.216s`, `2m 5s`, `3h 20m`, `2d 1h`.
pub(crate) fn human_duration(duration: &prost_types::Duration) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn duration(seconds: i64, nanos: i32) -> prost_types::Duration {
        prost_types::Duration { seconds, nanos }
    }

    #[test]
    fn duration_has_up_to_two_units_and_is_rounded_up() {
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
            assert_eq!(human_duration(&duration(seconds, nanos)), expected);
        }
    }

    #[test]
    fn values_of_a_newer_server_are_shown() {
        let response = CheckResponse { allowed: true, reason: 77, ..CheckResponse::default() };
        assert_eq!(to_text(&response, "alice", 1), "allowed  alice: no rule matches (NO_RULE)");
    }
}
