//! Formats a `CheckResponse` as text.

use rlaas_proto::ratelimit::v1::CheckResponse;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::wait_words;

use crate::text::{is_positive, printable};

/// Returns the response as one line of text. `cost` is the cost of the request.
pub(crate) fn to_text(response: &CheckResponse, user: &str, cost: u64) -> String {
    let verb = if response.allowed { "allowed " } else { "denied  " };
    with_verb(verb, response, user, cost)
}

/// As [`to_text`], with another word for the decision.
pub(crate) fn with_verb(verb: &str, response: &CheckResponse, user: &str, cost: u64) -> String {
    let detail = detail(response, cost);
    let detail = if response.replayed { format!("{detail}, replayed") } else { detail };
    let detail = match response.taken {
        Some(taken) if response.allowed => format!("{taken} taken, {detail}"),
        _ => detail,
    };
    let user = printable(user);
    match response.rule.as_str() {
        "" if !response.decisions.is_empty() => {
            format!("{verb} {user}: every rule that matches is in shadow (NO_RULE)")
        }
        "" if response.reason() == Reason::StoreUnavailable => format!("{verb} {user}: {detail}"),
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
    let reset = response.reset_after.as_ref().filter(|reset| is_positive(reset));
    let all = reset.map(|reset| format!(", all in {}", wait_words(reset))).unwrap_or_default();
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
    let wait = wait.map(|wait| format!("try again in {}", wait_words(wait)));
    let detail = [wait.unwrap_or_default(), why].into_iter().filter(|text| !text.is_empty());
    detail.collect::<Vec<_>>().join(", ")
}

/// Returns the burst of the rule if it differs from the limit. For algorithms with a burst it is the
/// sum of the units in use and the remaining units.
fn burst(response: &CheckResponse) -> Option<i64> {
    let has_burst = response.algorithm().has_burst();
    // A local fallback has a share of the burst only.
    let is_whole = response.source() == Source::Store;
    let burst = response.current_count.saturating_add(response.remaining);
    (has_burst && is_whole && burst != response.limit).then_some(burst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_newer_server_are_shown() {
        let response = CheckResponse { allowed: true, reason: 77, ..CheckResponse::default() };
        assert_eq!(to_text(&response, "alice", 1), "allowed  alice: no rule matches (NO_RULE)");
        let reason = Reason::StoreUnavailable.into();
        let response = CheckResponse { reason, ..CheckResponse::default() };
        assert_eq!(to_text(&response, "alice", 1), "denied   alice: store unavailable");
    }
}
