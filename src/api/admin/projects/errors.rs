//! Statuses of operations on projects.

use std::collections::{HashMap, HashSet};

use rlaas_proto::ERROR_DOMAIN;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::admin::projects::{ProjectError, ValidationError, WriteError};
use crate::api::status::{admin, invalid_field, with_reason};
use crate::projects::registry::RestoreError;
use crate::projects::{ApiKeyError, InvalidProject, RuleWriteError};
use crate::rule_messages::in_message;
use crate::rules::spec::Problem;
use crate::store::StoreError;

/// Most problems in a status: it is sent in headers.
const MAX_PROBLEMS: usize = 50;

/// Returns the status of an operation that failed, for other shapes of requests.
pub(in crate::api) fn project_status(error: &ProjectError) -> Status {
    status(error, "")
}

/// Returns the status of an operation that failed. `of` is the path of the rule or the key in the
/// request, empty if there are several.
pub(super) fn status(error: &ProjectError, of: &str) -> Status {
    let (code, reason) = match error {
        ProjectError::Admin(error) => return admin(error),
        ProjectError::Invalid(invalid) => return invalid_project(*invalid, of),
        ProjectError::Rules(RuleWriteError::Invalid(problems)) => {
            return invalid_rules(problems.clone(), of);
        }
        ProjectError::Key(error @ ApiKeyError::ExpiresAt) => {
            return field("key.", "expires_at", &error.to_string());
        }
        ProjectError::Key(error @ ApiKeyError::Grace) => {
            return field("", "grace", &error.to_string());
        }
        ProjectError::NoProject => (Code::NotFound, "UNKNOWN_PROJECT"),
        ProjectError::ProjectExists => (Code::AlreadyExists, "PROJECT_EXISTS"),
        ProjectError::DeletedBefore => (Code::AlreadyExists, "PROJECT_DELETED"),
        ProjectError::RestoreSource => {
            let problem = "must be CATALOGUE_SOURCE_INSTANCE or CATALOGUE_SOURCE_STORE";
            return invalid_field("from", problem);
        }
        ProjectError::Restore(RestoreError::NoConflict | RestoreError::Nothing) => {
            (Code::FailedPrecondition, "NO_CONFLICT")
        }
        ProjectError::Restore(RestoreError::Unreadable) => {
            (Code::FailedPrecondition, "LATER_RELEASE")
        }
        ProjectError::Restore(RestoreError::Changed | RestoreError::Store(_)) => {
            (Code::Unavailable, "STORE_UNAVAILABLE")
        }
        ProjectError::Restore(RestoreError::Stale { .. })
        | ProjectError::StaleProject
        | ProjectError::StaleRevision
        | ProjectError::Rules(RuleWriteError::Stale) => (Code::Aborted, "STALE"),
        ProjectError::Unnamed => (Code::FailedPrecondition, "UNNAMED_PROJECT"),
        ProjectError::KeysOff => (Code::FailedPrecondition, "API_KEYS_OFF"),
        ProjectError::Key(ApiKeyError::NotFound) => (Code::NotFound, "UNKNOWN_KEY"),
        ProjectError::Key(ApiKeyError::Ended) => (Code::FailedPrecondition, "KEY_ENDED"),
        ProjectError::Key(ApiKeyError::TooMany) => (Code::ResourceExhausted, "TOO_MANY_KEYS"),
        ProjectError::Key(ApiKeyError::IdTaken) => (Code::Unavailable, "KEY_ID_TAKEN"),
        ProjectError::Rules(RuleWriteError::Exists) => (Code::AlreadyExists, "RULE_EXISTS"),
        ProjectError::Rules(RuleWriteError::NotFound) => (Code::NotFound, "UNKNOWN_RULE"),
        ProjectError::FileRule(_) => (Code::FailedPrecondition, "RULE_OF_FILE"),
        ProjectError::FileProject => (Code::FailedPrecondition, "PROJECT_OF_FILE"),
        ProjectError::FileUnmatched => (Code::FailedPrecondition, "UNMATCHED_OF_FILE"),
        ProjectError::NoRevision => (Code::NotFound, "UNKNOWN_REVISION"),
        ProjectError::Validation(ValidationError::TooMany) => {
            (Code::ResourceExhausted, "TOO_MANY_VALIDATIONS")
        }
        ProjectError::Validation(ValidationError::Expired) => {
            (Code::DeadlineExceeded, "VALIDATION_EXPIRED")
        }
        ProjectError::NoRandomNumbers => (Code::Unavailable, "NO_RANDOM_NUMBERS"),
        ProjectError::Write(WriteError::Store(StoreError::Expired)) => {
            (Code::DeadlineExceeded, "STORE_UNAVAILABLE")
        }
        ProjectError::Write(WriteError::Store(_)) => (Code::Unavailable, "STORE_UNAVAILABLE"),
        ProjectError::Write(WriteError::Raced) => (Code::Unavailable, "RACED"),
        ProjectError::Write(WriteError::Bound(_)) => (Code::ResourceExhausted, "BOUND_REACHED"),
        ProjectError::Write(WriteError::Conflict) => {
            (Code::FailedPrecondition, "CATALOGUE_CONFLICT")
        }
        ProjectError::Write(WriteError::Unreadable) => (Code::FailedPrecondition, "LATER_RELEASE"),
    };
    with_reason(code, reason, error.to_string())
}

/// Returns the status of a caller who lacks a role in a project.
pub(in crate::api) fn forbidden(role: impl std::fmt::Display) -> Status {
    with_reason(Code::PermissionDenied, "ROLE_MISSING", format!("role {role} is required"))
}

/// Returns the status of a project that does not exist, or that the caller has no role for.
pub(in crate::api::admin) fn no_project() -> Status {
    status(&ProjectError::NoProject, "")
}

/// Returns the problems of rules with the paths of the message.
pub(super) fn problems(problems: Vec<Problem>, of: &str) -> Vec<Problem> {
    let mut seen = HashSet::new();
    let problems = problems.into_iter().map(|problem| in_message(problem, of));
    problems.filter(|problem| seen.insert((problem.field.clone(), problem.text.clone()))).collect()
}

fn invalid_rules(found: Vec<Problem>, of: &str) -> Status {
    let found = problems(found, of);
    let shown = &found[..found.len().min(MAX_PROBLEMS)];
    let mut texts: Vec<String> =
        shown.iter().map(|problem| format!("{} {}", problem.field, problem.text)).collect();
    if found.len() > shown.len() {
        texts.push(format!("{} more problems", found.len() - shown.len()));
    }
    let violation = |problem: &Problem| FieldViolation::new(&problem.field, &problem.text);
    let violations: Vec<_> = shown.iter().map(violation).collect();
    let mut details = ErrorDetails::with_bad_request(violations);
    details.set_error_info("INVALID_FIELD", ERROR_DOMAIN, HashMap::new());
    Status::with_error_details(Code::InvalidArgument, texts.join("; "), details)
}

fn invalid_project(invalid: InvalidProject, of: &str) -> Status {
    let name = match invalid {
        InvalidProject::Id => "id",
        InvalidProject::DisplayName => "display_name",
        InvalidProject::Environment => "environment",
    };
    field(of, name, &invalid.to_string())
}

/// Returns the status of a field. `text` begins with its name.
fn field(of: &str, name: &str, text: &str) -> Status {
    let problem = text.strip_prefix(name).unwrap_or(text).trim_start();
    invalid_field(&format!("{of}{name}"), problem)
}
