//! Errors of operations on projects.

use thiserror::Error;

use super::ValidationError;
use crate::admin::AdminError;
use crate::projects::registry::{ChangeError, RestoreError, SyncError};
use crate::projects::{ApiKeyError, InvalidProject, RuleWriteError};
use crate::store::StoreError;

/// Reason why an operation on a project was not done.
#[derive(Clone, Debug, Error)]
pub enum ProjectError {
    /// As of other changes.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// There is no such project, or none that the caller has a role for.
    #[error("no such project")]
    NoProject,
    /// There is a project with the id.
    #[error("a project with this id exists")]
    ProjectExists,
    /// There was a project with the id a short time ago.
    #[error("a project with this id was deleted within the last 366 days: choose another id")]
    DeletedBefore,
    /// The catalogue to keep is missing.
    #[error("from must be that of the instance or that of the store")]
    RestoreSource,
    /// The catalogue was not restored.
    #[error("{0}")]
    Restore(#[source] RestoreError),
    /// The project has changed since the caller read it.
    #[error("the project has changed: etag is not that of the stored project")]
    StaleProject,
    /// Rules have changed since the caller read them.
    #[error("the project has changed: its revision is not expected_revision")]
    StaleRevision,
    /// The operation is for projects with an id.
    #[error("not possible for the project \"\", which every service has")]
    Unnamed,
    /// A property of a project is not valid.
    #[error(transparent)]
    Invalid(#[from] InvalidProject),
    /// A key cannot be changed as requested.
    #[error(transparent)]
    Key(#[from] ApiKeyError),
    /// A key would be ignored.
    #[error("API keys are ignored: set auth.api-keys to accepted or required")]
    KeysOff,
    /// Rules cannot be changed as requested.
    #[error(transparent)]
    Rules(#[from] RuleWriteError),
    /// A file has the rule.
    #[error("a file has the rule {0}, so it can't be changed here")]
    FileRule(String),
    /// A file names the project.
    #[error("a file names the project, so it can't be deleted here")]
    FileProject,
    /// A file has the policy for requests without a rule.
    #[error("a file has unmatched of the project, so it can't be changed here")]
    FileUnmatched,
    /// The revision is not among the last ones.
    #[error("no such revision: it must be one of the last 100 of the project")]
    NoRevision,
    /// A validation has no result.
    #[error(transparent)]
    Validation(#[from] ValidationError),
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    NoRandomNumbers,
    /// The registry did not write. Boxed errors of the function are unwrapped.
    #[error(transparent)]
    Write(WriteError),
}

/// Reason why a change was not written.
#[derive(Clone, Debug, Error)]
pub enum WriteError {
    /// The store did not answer.
    #[error("store unavailable")]
    Store(#[source] StoreError),
    /// Others wrote the same project each time.
    #[error("the project was changed by others again and again: nothing was changed")]
    Raced,
    /// There are as many projects or rules as there may be, or the change is too large.
    #[error("{0}")]
    Bound(String),
    /// The catalogue of the store conflicts with that of an instance.
    #[error(
        "the catalogue of the store conflicts with that of an instance: nothing was changed (see \
         RestoreCatalogue)"
    )]
    Conflict,
    /// A later release has written the project.
    #[error("a later release has written the project: nothing was changed")]
    Unreadable,
}

impl ProjectError {
    /// Returns `true` if the change was possibly made.
    pub fn is_ambiguous(&self) -> bool {
        match self {
            Self::Write(WriteError::Store(error)) | Self::Restore(RestoreError::Store(error)) => {
                error.is_ambiguous()
            }
            _ => false,
        }
    }

    /// Returns `true` if the store did not answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Write(WriteError::Store(_)) | Self::Restore(RestoreError::Store(_)))
    }
}

impl From<SyncError> for ProjectError {
    fn from(error: SyncError) -> Self {
        Self::Write(match error {
            SyncError::Store(error) => WriteError::Store(error),
            SyncError::Conflict => WriteError::Conflict,
        })
    }
}

impl From<ChangeError<Self>> for ProjectError {
    fn from(error: ChangeError<Self>) -> Self {
        let text = error.to_string();
        Self::Write(match error {
            ChangeError::Refused(error) => return error,
            ChangeError::Unavailable(error) => WriteError::Store(error),
            ChangeError::Raced => WriteError::Raced,
            ChangeError::TooManyProjects
            | ChangeError::TooManyRules
            | ChangeError::TooManyRulesOfProject(_)
            | ChangeError::TooLarge
            | ChangeError::TooManyEnded
            | ChangeError::LongField => WriteError::Bound(text),
            ChangeError::Deleted => return Self::DeletedBefore,
            ChangeError::Conflict => WriteError::Conflict,
            ChangeError::Unreadable => WriteError::Unreadable,
        })
    }
}
