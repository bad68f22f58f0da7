//! Problem documents: the bodies of errors of `/v1/check`, and of unknown paths and methods.
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
/// The wait that a 503 suggests, in seconds: the store may be available again by then.
const RETRY_AFTER: (HeaderName, &str) = (header::RETRY_AFTER, "1");

/// A problem document.
#[derive(Debug, Serialize)]
pub(super) struct ProblemDocument {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    /// The reason as a constant for programs, where the status alone is ambiguous.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl ProblemDocument {
    /// Creates a problem of type `about:blank`: the status says everything except the detail.
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

/// Returns a response whose body is a problem document.
pub(super) fn problem_response(status: StatusCode, problem: &impl Serialize) -> Response {
    let text = serde_json::to_vec(problem).expect("strings, numbers and lists are JSON");
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], text).into_response()
}
