//! Refusals, as texts.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rlaas_projects::RuleWriteError;
use tonic::Status;
use tonic_types::StatusExt;

use crate::api::http::problem::Rejection;
use crate::api::status::{http_of_code, is_bound};
use crate::rules::spec::Problem;
use rlaas_admin::rule_refusal;

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

/// Most problems in a text.
const MAX_PROBLEMS: usize = 50;

/// Returns the status of a rule that can't be written, in the names of these routes.
pub(super) fn refused(error: RuleWriteError) -> Status {
    let RuleWriteError::Invalid(problems) = error else { return rule_refusal(error, "") };
    let text = |Problem { field, text }: &Problem| format!("{} {text}", name_of(field));
    let mut texts: Vec<String> = problems.iter().map(text).collect();
    texts.dedup();
    texts.truncate(MAX_PROBLEMS);
    Status::invalid_argument(texts.join("; "))
}

/// Returns the name that these routes have for a field of a rule.
fn name_of(field: &str) -> &str {
    let own = field.split_once("].").map_or(field, |(_, own)| own);
    match own {
        "limit" => "limit_count",
        "window" => "window_seconds",
        "algorithm" => "strategy",
        "key-by" => "key_by",
        "match.resource" => "endpoint",
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
        refused(error).into()
    }
}

impl From<Status> for ManagementError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        if details.error_info().is_some_and(|info| info.reason == "UNKNOWN_PROJECT") {
            // Deleted meanwhile.
            return Self::forbidden();
        }
        let text = match details.bad_request().map(|bad| &*bad.field_violations) {
            Some([violation]) if violation.field == "project.display_name" => {
                format!("project_name {}", violation.description)
            }
            _ => status.message().to_owned(),
        };
        let code =
            if is_bound(&status) { StatusCode::CONFLICT } else { http_of_code(status.code()) };
        Self::new(code, text)
    }
}

impl IntoResponse for ManagementError {
    fn into_response(self) -> Response {
        (self.status, self.text).into_response()
    }
}
