//! Problem documents: what `/v1/check` answers where there is no decision, and unknown paths.
//!
//! **Source:** RFC 9457.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rlaas_proto::ratelimit::v1::check_response::Reason;
use serde::Serialize;

use super::rejection::Rejection;
use crate::api::status;
use rlaas_limiter::CheckError;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
/// What a server that can't decide asks a caller to wait: the store may be back by then.
const RETRY_AFTER: (HeaderName, &str) = (header::RETRY_AFTER, "1");

/// Why a request has no answer.
#[derive(Debug, Serialize)]
pub(super) struct ProblemDocument {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    /// What programs tell it by, where the status says too little.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl ProblemDocument {
    /// One that its status says all about, but for the detail.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or_default();
        let (status, detail) = (status.as_u16(), detail.into());
        Self { r#type: "about:blank", title, status, detail, reason: None }
    }
}

impl From<Rejection> for ProblemDocument {
    fn from(rejection: Rejection) -> Self {
        Self::new(rejection.status, rejection.detail)
    }
}

impl From<CheckError> for ProblemDocument {
    fn from(error: CheckError) -> Self {
        let reason = match error {
            CheckError::NoRule => Some(Reason::NoRule.as_str_name()),
            _ => None,
        };
        Self { reason, ..Self::new(status::http(&error), status::text(&error)) }
    }
}

impl IntoResponse for ProblemDocument {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or_default();
        let mut response = problem_response(status, &self);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER.0, HeaderValue::from_static(RETRY_AFTER.1));
        }
        response
    }
}

/// A problem document.
pub(super) fn problem_response(status: StatusCode, problem: &impl Serialize) -> Response {
    let text = serde_json::to_vec(problem).expect("texts, numbers and lists are JSON");
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], text).into_response()
}
