//! The body of a denial: a problem document that also has the members of the response.

use axum::http::StatusCode;
use rlaas_limiter::problem;
use rlaas_proto::ratelimit::v1::CheckResponse;
use serde::Serialize;

use crate::api::json;
use rlaas_limiter::Verdict;

/// A problem document with the members of the response.
#[derive(Debug, Serialize)]
pub(super) struct Denial<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
    #[serde(flatten)]
    response: json::ResponseView<'a>,
}

impl<'a> Denial<'a> {
    /// Creates the body from a verdict and the response made from it.
    pub(super) fn new(verdict: &Verdict, response: &'a CheckResponse) -> Self {
        Self {
            r#type: problem::TYPE,
            title: problem::TITLE,
            status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
            detail: problem::detail(verdict),
            violated_policies: problem::violated_policies(verdict).collect(),
            response: response.into(),
        }
    }
}
