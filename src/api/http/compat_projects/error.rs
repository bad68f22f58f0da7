//! Refusals, as texts.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tonic::Status;
use tonic_types::StatusExt;

use crate::api::admin::rule_refusal;
use crate::api::http::rejection::Rejection;
use crate::api::projects::RuleWriteError;
use crate::api::status::{http_of_code, is_bound};

/// The reason why a request is refused.
#[derive(Debug)]
pub(super) struct ManagementError {
    status: StatusCode,
    text: String,
}

impl ManagementError {
    /// Refuses a project that does not exist, or is not the caller's.
    pub(super) fn forbidden() -> Self {
        Self::new(StatusCode::FORBIDDEN, "no such project, or not yours".to_owned())
    }

    fn new(status: StatusCode, text: String) -> Self {
        Self { status, text }
    }
}

/// Returns the name that these routes have for a field of a message.
fn name_of(field: &str) -> &str {
    match field {
        "rule.max_requests" => "limit_count",
        "rule.window" => "window_seconds",
        "rule.algorithm" => "strategy",
        "rule.key_by" => "key_by",
        "rule.matchers" => "endpoint",
        "project.display_name" => "project_name",
        other => other,
    }
}

impl From<Rejection> for ManagementError {
    fn from(Rejection { status, detail, .. }: Rejection) -> Self {
        Self::new(status, detail)
    }
}

impl From<RuleWriteError> for ManagementError {
    fn from(error: RuleWriteError) -> Self {
        rule_refusal(error, "rule").into()
    }
}

impl From<Status> for ManagementError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        if details.error_info().is_some_and(|info| info.reason == "UNKNOWN_PROJECT") {
            // Deleted meanwhile.
            return Self::forbidden();
        }
        let violations = details.bad_request().into_iter().flat_map(|bad| &bad.field_violations);
        let mut texts: Vec<String> = violations
            .map(|violation| format!("{} {}", name_of(&violation.field), violation.description))
            .collect();
        texts.dedup();
        if !texts.is_empty() {
            return Self::new(StatusCode::BAD_REQUEST, texts.join("; "));
        }
        let code =
            if is_bound(&status) { StatusCode::CONFLICT } else { http_of_code(status.code()) };
        Self::new(code, status.message().to_owned())
    }
}

impl IntoResponse for ManagementError {
    fn into_response(self) -> Response {
        (self.status, self.text).into_response()
    }
}
