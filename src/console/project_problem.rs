//! Refused changes of projects, in the words of pages: statuses and texts.

use axum::http::StatusCode;

use super::page_error::{PageError, admin_status, sentence};
use crate::admin::AdminError;
use crate::admin::projects::{ProjectError, ValidationError, WriteError};
use crate::projects::registry::RestoreError;
use crate::projects::{ApiKeyError, InvalidProject, Project, RuleWriteError};

impl From<ProjectError> for PageError {
    fn from(error: ProjectError) -> Self {
        let spends_id = matches!(&error, ProjectError::Admin(error) if error.spends_request_id());
        Self { status: status(&error), problem: text(&error), spends_id }
    }
}

/// Returns the status of a page that shows the error.
fn status(error: &ProjectError) -> StatusCode {
    match error {
        ProjectError::Admin(error) => admin_status(error),
        ProjectError::NoProject
        | ProjectError::NoRevision
        | ProjectError::Key(ApiKeyError::NotFound)
        | ProjectError::Rules(RuleWriteError::NotFound) => StatusCode::NOT_FOUND,
        ProjectError::Invalid(_)
        | ProjectError::RestoreSource
        | ProjectError::Key(ApiKeyError::ExpiresAt | ApiKeyError::Grace)
        | ProjectError::Rules(RuleWriteError::Invalid(_)) => StatusCode::BAD_REQUEST,
        ProjectError::ProjectExists
        | ProjectError::DeletedBefore
        | ProjectError::StaleProject
        | ProjectError::StaleRevision
        | ProjectError::Unnamed
        | ProjectError::KeysOff
        | ProjectError::FileRule(_)
        | ProjectError::FileProject
        | ProjectError::FileUnmatched
        | ProjectError::Key(ApiKeyError::Ended | ApiKeyError::TooMany)
        | ProjectError::Rules(RuleWriteError::Exists | RuleWriteError::Stale)
        | ProjectError::Restore(
            RestoreError::NoConflict
            | RestoreError::Nothing
            | RestoreError::Unreadable
            | RestoreError::Stale { .. },
        )
        | ProjectError::Write(
            WriteError::Bound(_) | WriteError::Conflict | WriteError::Unreadable,
        ) => StatusCode::CONFLICT,
        ProjectError::Key(ApiKeyError::IdTaken)
        | ProjectError::Restore(RestoreError::Changed | RestoreError::Store(_))
        | ProjectError::Validation(ValidationError::TooMany | ValidationError::Expired)
        | ProjectError::NoRandomNumbers
        | ProjectError::Write(WriteError::Store(_) | WriteError::Raced) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

/// Returns the error as a sentence with the labels of forms.
fn text(error: &ProjectError) -> String {
    match error {
        ProjectError::Invalid(InvalidProject::Id) => {
            "Id must be 1 to 63 lower case letters, digits or '-', and begin with a letter.".into()
        }
        ProjectError::Invalid(InvalidProject::DisplayName) => {
            format!("Name must be at most {} bytes.", Project::MAX_NAME_LEN)
        }
        ProjectError::Invalid(InvalidProject::Environment) => {
            "Environment must be 1 to 16 lower case letters or digits.".into()
        }
        ProjectError::Key(ApiKeyError::ExpiresAt) => "End must be in the future.".into(),
        ProjectError::Key(ApiKeyError::Grace) => "Grace must be 0 s to 30 d.".into(),
        ProjectError::Key(ApiKeyError::Ended) => {
            "The key is revoked, expired or replaced already: nothing was changed.".into()
        }
        ProjectError::Key(ApiKeyError::TooMany) => format!(
            "The project has {} active keys, the most that it may have: revoke one first.",
            Project::MAX_KEYS
        ),
        ProjectError::Admin(AdminError::OptionalReason) => "Why must be at most 1024 bytes.".into(),
        ProjectError::Admin(AdminError::OtherChange) => {
            "This form was sent before with other values: nothing was changed now. Send it again if \
             you want this change too."
                .into()
        }
        ProjectError::Admin(AdminError::Unfinished) => {
            "The change that this form asked for has not ended, or its outcome is unknown: see the \
             audit."
                .into()
        }
        other => sentence(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::fields::FormFields;
    use crate::store::StoreError;

    #[test]
    fn a_change_that_may_have_been_made_keeps_its_id() {
        let fields = FormFields::parse(b"request_id=one").expect("fields");
        for (error, expected) in [
            (AdminError::Unfinished, "one"),
            (AdminError::Running, "one"),
            (AdminError::TooManyIds, "one"),
            (AdminError::OptionalReason, "one"),
            (AdminError::OtherChange, ""),
            (AdminError::RequestId, ""),
        ] {
            let of_page = PageError::from(error.clone());
            assert_eq!(of_page.request_id(&fields), expected, "{error}");
            let of_project = PageError::from(ProjectError::from(error.clone()));
            assert_eq!(of_project.request_id(&fields), expected, "{error}");
        }
    }

    #[test]
    fn errors_have_statuses_and_sentences() {
        for (error, expected, shown) in [
            (ProjectError::NoProject, 404, "No such project."),
            (InvalidProject::DisplayName.into(), 400, "Name must be at most 128 bytes."),
            (
                ProjectError::Write(WriteError::Store(StoreError::Expired)),
                503,
                "Store unavailable.",
            ),
            (AdminError::OptionalReason.into(), 400, "Why must be at most 1024 bytes."),
            (AdminError::TooManyChanges.into(), 503, {
                "Too many changes run: nothing was changed."
            }),
        ] {
            assert_eq!(status(&error).as_u16(), expected, "{error}");
            assert_eq!(text(&error), shown);
        }
    }
}
