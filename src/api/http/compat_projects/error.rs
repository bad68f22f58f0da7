//! Refusals, as texts.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::admin::projects::ProjectError;
use crate::api::admin::project_status;
use crate::api::http::rejection::Rejection;
use crate::api::status::{http_of_code, is_bound};
use crate::projects::{InvalidProject, Project, RuleWriteError};
use crate::rules::spec::Problem;

/// Most problems in a text.
const MAX_PROBLEMS: usize = 50;

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

    /// Refuses fields of a rule, all at once.
    pub(super) fn rule(problems: &[Problem]) -> Self {
        let text = |Problem { field, text }: &Problem| format!("{} {text}", name_of(field));
        let mut texts: Vec<String> = problems.iter().map(text).collect();
        texts.dedup();
        texts.truncate(MAX_PROBLEMS);
        Self::new(StatusCode::BAD_REQUEST, texts.join("; "))
    }

    fn new(status: StatusCode, text: String) -> Self {
        Self { status, text }
    }
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
        ProjectError::from(error).into()
    }
}

impl From<ProjectError> for ManagementError {
    fn from(error: ProjectError) -> Self {
        match &error {
            // Deleted meanwhile.
            ProjectError::NoProject => Self::forbidden(),
            ProjectError::Invalid(InvalidProject::DisplayName) => {
                let text = format!("project_name must be 1 to {} bytes", Project::MAX_NAME_LEN);
                Self::new(StatusCode::BAD_REQUEST, text)
            }
            ProjectError::Rules(RuleWriteError::Invalid(problems)) => Self::rule(problems),
            _ => {
                let status = project_status(&error);
                let code = if is_bound(&status) {
                    StatusCode::CONFLICT
                } else {
                    http_of_code(status.code())
                };
                Self::new(code, status.message().to_owned())
            }
        }
    }
}

impl IntoResponse for ManagementError {
    fn into_response(self) -> Response {
        (self.status, self.text).into_response()
    }
}
