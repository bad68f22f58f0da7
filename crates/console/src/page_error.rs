//! The reason why a page does not show, or do, what its visitor asks for.

use std::fmt::Display;

use axum::http::StatusCode;
use axum::response::Response;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::Console;
use super::fields::{FieldError, FormFields};
use super::form::Field;
use super::layout::notice;

/// Reasons of the service.
const NO_ROLE: &str = "ROLE_MISSING";
const NO_PROJECT: &str = "UNKNOWN_PROJECT";
const NO_PROJECT_TEXT: &str = "There is no such project, or none that you have a role for.";
/// Texts for people in place of those for programs, by reason.
const SENTENCES: [(&str, &str); 3] = [
    (
        "REQUEST_ID_USED",
        "This form was sent before with other values: nothing was changed now. Send it again if you \
         want this change too.",
    ),
    (
        "REQUEST_UNFINISHED",
        "The change that this form asked for has not ended, or its outcome is unknown: see the audit.",
    ),
    ("NOT_OVERRIDABLE", "The rule must have `overridable: true` for bans and other limits."),
];

/// A reason with the status of the response. The text names the field that is not valid, if it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageError {
    pub(super) status: StatusCode,
    pub(super) problem: String,
    /// The reason as programs know it, such as `STALE`; empty for what is found here.
    pub(super) reason: String,
    /// Path of the field that is not valid, as the service has it; empty if none is.
    pub(super) field: String,
    /// The problem after the name of the field; empty if it has no name.
    pub(super) must: String,
}

impl PageError {
    fn new(status: StatusCode, problem: String) -> Self {
        let (reason, field, must) = Default::default();
        Self { status, problem, reason, field, must }
    }

    /// Creates the error of a field that is not valid.
    pub(super) fn invalid(problem: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, problem.to_string())
    }

    /// Creates the error of a field of a message that is not valid.
    pub(super) fn of_field(path: &str, problem: String) -> Self {
        Self { field: path.to_owned(), ..Self::invalid(problem) }
    }

    /// Creates the error of something that does not exist, as far as its visitor may know.
    pub(super) fn not_found(problem: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, problem.into())
    }

    /// Creates the error of a visitor who has none of these roles.
    pub(super) fn forbidden(required: impl Display) -> Self {
        let problem = format!("The role {required} is required.");
        Self { reason: NO_ROLE.to_owned(), ..Self::new(StatusCode::FORBIDDEN, problem) }
    }

    /// Creates the error of a project that does not exist for the visitor.
    pub(super) fn no_project() -> Self {
        let (status, problem) = (StatusCode::NOT_FOUND, NO_PROJECT_TEXT.to_owned());
        Self { reason: NO_PROJECT.to_owned(), ..Self::new(status, problem) }
    }

    /// Returns `true` if the visitor may not see what the page is about, or it does not exist.
    pub(super) fn is_of_access(&self) -> bool {
        [NO_ROLE, NO_PROJECT].contains(&&*self.reason)
    }

    /// Returns the problem as a sentence.
    pub(super) fn sentence(&self) -> String {
        sentence(&self.problem)
    }

    /// Returns the id of the change with which a refused form is shown again; empty for a new one. The
    /// change may have been made: sent again under the same id, it is not made twice.
    pub(super) fn request_id<'a>(&self, fields: &'a FormFields) -> &'a str {
        let is_spent = self.field == "request_id"
            && ["REQUEST_ID_USED", "INVALID_FIELD"].contains(&&*self.reason);
        if is_spent { "" } else { fields.get(Field::REQUEST_ID.name) }
    }
}

impl Console {
    /// Returns the response to a visitor who may not see what the page is about.
    pub(super) async fn refuse(&self, error: PageError) -> Response {
        let title = match error.status {
            StatusCode::NOT_FOUND => "No such project",
            StatusCode::FORBIDDEN => "Not permitted",
            StatusCode::BAD_REQUEST => "Not valid",
            _ => "Not available",
        };
        self.page(error.status, move || notice(title, &error.sentence())).await
    }
}

impl From<FieldError> for PageError {
    fn from(error: FieldError) -> Self {
        Self::invalid(error)
    }
}

impl From<Status> for PageError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let reason = details.error_info().map(|info| info.reason.clone()).unwrap_or_default();
        let violations = details.bad_request().map_or(&[][..], |bad| &bad.field_violations);
        let first = violations.first().cloned().unwrap_or_default();
        let sentence = SENTENCES.iter().find(|(known, _)| *known == reason);
        let (problem, must) = match (sentence, &*first.field) {
            (Some((_, sentence)), _) => ((*sentence).to_owned(), String::new()),
            _ if reason == NO_ROLE => (format!("The {}.", status.message()), String::new()),
            _ if reason == NO_PROJECT => (NO_PROJECT_TEXT.to_owned(), String::new()),
            (_, "") => (status.message().to_owned(), String::new()),
            (_, path) => {
                let others = violations.iter().skip(1);
                let others = others.map(|other| format!("; {} {}", other.field, other.description));
                let must = first.description + &others.collect::<String>();
                (format!("{} {must}", path.rsplit('.').next().unwrap_or(path)), must)
            }
        };
        let status = page_status(status.code(), &reason);
        Self { status, problem, reason, field: first.field, must }
    }
}

/// Returns the status of a page that shows why the service refuses a call.
fn page_status(code: Code, reason: &str) -> StatusCode {
    match (code, reason) {
        (_, "REQUEST_ID_USED" | "BOUND_REACHED" | "TOO_MANY_KEYS")
        | (Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition, _) => {
            StatusCode::CONFLICT
        }
        (Code::InvalidArgument | Code::OutOfRange, _) => StatusCode::BAD_REQUEST,
        (Code::NotFound, _) => StatusCode::NOT_FOUND,
        (Code::PermissionDenied, _) => StatusCode::FORBIDDEN,
        (Code::DeadlineExceeded, "CHANGE_RUNNING") => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Returns a text as a sentence.
pub fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}
