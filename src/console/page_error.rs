//! The reason why a page does not show, or do, what its visitor asks for.

use std::fmt::Display;

use axum::http::StatusCode;

use super::change_form::REQUEST_ID;
use super::fields::{FieldError, FormFields, UNNAMED};
use super::project_access::{self, AccessError};
use crate::admin::AdminError;
use crate::api::auth::{AuthError, Caller, Roles};
use crate::plan::SelectError;
use crate::projects::ProjectId;

/// A reason with the status of the response. The text names the field that is not valid, if it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageError {
    pub(super) status: StatusCode,
    pub(super) problem: String,
    /// Whether no change can be made any more under the id of the change.
    pub(super) spends_id: bool,
}

impl PageError {
    /// Creates the error of a field that is not valid.
    pub(super) fn invalid(problem: impl Display) -> Self {
        Self { status: StatusCode::BAD_REQUEST, problem: problem.to_string(), spends_id: false }
    }

    /// Creates the error of something that does not exist, as far as its visitor may know.
    pub(super) fn not_found(problem: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, problem: problem.into(), spends_id: false }
    }

    /// Creates the error of a visitor who has none of these roles.
    pub(super) fn forbidden(required: Roles) -> Self {
        let problem = AuthError::Forbidden(required).to_string();
        Self { status: StatusCode::FORBIDDEN, problem, spends_id: false }
    }

    /// Returns the problem as a sentence.
    pub(super) fn sentence(&self) -> String {
        sentence(&self.problem)
    }

    /// Returns the id of the change with which a refused form is shown again; empty for a new one. The
    /// change may have been made: sent again under the same id, it is not made twice.
    pub(super) fn request_id<'a>(&self, fields: &'a FormFields) -> &'a str {
        if self.spends_id { "" } else { fields.one(REQUEST_ID).unwrap_or_default() }
    }
}

impl From<FieldError> for PageError {
    fn from(error: FieldError) -> Self {
        Self::invalid(error)
    }
}

impl From<AdminError> for PageError {
    fn from(error: AdminError) -> Self {
        let status = admin_status(&error);
        // The fields of a form have the last part of a field's name.
        let text = error.to_string();
        let problem = ["selector.", "grant."].iter().find_map(|prefix| text.strip_prefix(prefix));
        let problem = problem.unwrap_or(&text).to_owned();
        Self { status, problem, spends_id: error.spends_request_id() }
    }
}

/// Returns the status of a page that shows an error of an administrative operation.
pub(super) fn admin_status(error: &AdminError) -> StatusCode {
    match error {
        AdminError::Selector(SelectError::UnknownRule)
        | AdminError::UnknownRule
        | AdminError::UnknownProject(_) => StatusCode::NOT_FOUND,
        AdminError::OtherChange => StatusCode::CONFLICT,
        AdminError::Running => StatusCode::GATEWAY_TIMEOUT,
        AdminError::Unfinished
        | AdminError::TooManyIds
        | AdminError::TooManyModes
        | AdminError::TooManyChanges
        | AdminError::Audit(_)
        | AdminError::Store(_)
        | AdminError::Journal(_)
        | AdminError::Change(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Returns the project of a field, if the visitor has one of the roles in it. A project that they have
/// no role in does not exist for them.
pub(super) fn admitted(
    caller: &Caller,
    field: &str,
    required: Roles,
) -> Result<ProjectId, PageError> {
    let field = if field.is_empty() { UNNAMED } else { field };
    project_access::admitted(caller, field, required).map_err(|error| match error {
        AccessError::LacksRole(required) => PageError::forbidden(required),
        AccessError::NoProject => PageError::not_found(format!(
            "project must be one that you have the role {required} for"
        )),
    })
}

/// Returns a text as a sentence.
pub(super) fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}
