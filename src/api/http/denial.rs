//! A denial as a problem document.
//!
//! **Source:** draft-ietf-httpapi-ratelimit-headers-11, 5.1 (the problem type `quota-exceeded`).

use axum::http::StatusCode;
use rlaas_proto::ratelimit::v1::CheckResponse;
use serde::Serialize;

use crate::api::headers::{policy_name, retry_after};
use crate::api::json;
use crate::limiter::Verdict;

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
    response: json::Response<'a>,
}

impl<'a> Denial<'a> {
    /// Of a verdict and the response that says it.
    pub(super) fn of(verdict: &Verdict, response: &'a CheckResponse) -> Self {
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
            response: response.into(),
        }
    }
}
