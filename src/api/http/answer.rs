//! `CheckResponse` in the JSON mapping of protobuf, and as the problem document of a denial.
//!
//! Numbers, texts, enums and booleans are always there, also where they are 0, empty or false;
//! durations where they are set. 64-bit integers are texts, enums their names.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>;
//! draft-ietf-httpapi-ratelimit-headers-11, 5.1 (the problem type `quota-exceeded`).

use std::fmt::{self, Display};

use axum::http::StatusCode;
use serde::{Serialize, Serializer};

use crate::api::facts::Facts;
use crate::api::headers::{policy_name, retry_after};
use crate::clock::Span;
use crate::limiter::{RuleDecision, Verdict};

/// A `CheckResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer<'a> {
    allowed: bool,
    #[serde(flatten)]
    deciding: Told<'a>,
    source: &'static str,
    decisions: Vec<Decision<'a>>,
}

/// A `RuleDecision`.
#[derive(Debug, Serialize)]
struct Decision<'a> {
    allowed: bool,
    #[serde(flatten)]
    told: Told<'a>,
    shadow: bool,
}

/// What both have.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    current_count: Text<u64>,
    ttl: Text<u64>,
    limit: Text<u64>,
    remaining: Text<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<Text<Seconds>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_after: Option<Text<Seconds>>,
    rule: &'a str,
    algorithm: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<Text<Seconds>>,
    reason: &'static str,
}

/// A problem document with the answer beside it.
#[derive(Debug, Serialize)]
pub(super) struct Denial<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
    #[serde(flatten)]
    answer: Answer<'a>,
}

impl<'a> Answer<'a> {
    pub(super) fn of(verdict: &'a Verdict) -> Self {
        let deciding = Facts::of(verdict.deciding());
        Self {
            allowed: verdict.is_allowed(),
            source: deciding.source.as_str_name(),
            deciding: Told::from(deciding),
            decisions: verdict.decisions.iter().map(Decision::of).collect(),
        }
    }
}

impl<'a> Decision<'a> {
    fn of(decided: &'a RuleDecision) -> Self {
        let facts = Facts::of(decided);
        Self { allowed: facts.allowed, shadow: facts.shadow, told: Told::from(facts) }
    }
}

impl<'a> From<Facts<'a>> for Told<'a> {
    fn from(facts: Facts<'a>) -> Self {
        let seconds = |span| Text(Seconds(span));
        Self {
            current_count: Text(facts.current_count),
            ttl: Text(facts.ttl_seconds),
            limit: Text(facts.limit),
            remaining: Text(facts.remaining),
            retry_after: facts.retry_after.map(seconds),
            reset_after: facts.reset_after.map(seconds),
            rule: facts.rule,
            algorithm: facts.algorithm.as_str_name(),
            delay: facts.delay.map(seconds),
            reason: facts.reason.as_str_name(),
        }
    }
}

impl<'a> Denial<'a> {
    pub(super) fn of(verdict: &'a Verdict) -> Self {
        let violated = verdict.decisions.iter().filter(|one| verdict.is_refused_by(one));
        Self {
            r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Quota Exceeded",
            status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
            detail: match retry_after(verdict) {
                Some((_, seconds)) if seconds == "1" => "try again after 1 second".to_owned(),
                Some((_, seconds)) => format!("try again after {seconds} seconds"),
                None => "waiting does not help".to_owned(),
            },
            violated_policies: violated.map(|decided| policy_name(&decided.rule)).collect(),
            answer: Answer::of(verdict),
        }
    }
}

/// A value that stands as a text.
#[derive(Debug)]
struct Text<T>(T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Debug)]
struct Seconds(Span);

impl Display for Seconds {
    /// With 0, 3 or 6 digits behind the point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
        match rest {
            0 => write!(f, "{seconds}s"),
            rest if rest % 1_000 == 0 => write!(f, "{seconds}.{:03}s", rest / 1_000),
            rest => write!(f, "{seconds}.{rest:06}s"),
        }
    }
}
