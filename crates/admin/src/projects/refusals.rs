//! Refusals of changes of projects, their API keys and their rules.

use std::collections::{HashMap, HashSet};

use rlaas_projects::registry::{ChangeError, RestoreError, SyncError};
use rlaas_projects::{ApiKeyError, InvalidProject, RuleWriteError};
use rlaas_proto::rule_messages::in_message;
use rlaas_proto::{ERROR_DOMAIN, STORE_UNAVAILABLE};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use super::validations::ValidationError;
use crate::refusals::{store, too_many_changes};
use rlaas_core::rules::Violation;
use rlaas_core::rules::spec::Problem;
use rlaas_proto::status::{invalid_field, with_reason};

/// Most bytes of the problems in a status, but for the first one: it has them twice, once in base64, and
/// is sent in headers, of which clients take 8 KiB.
const MAX_PROBLEMS_LEN: usize = 2_000;

/// Returns the status of an etag or a revision that is no longer that of the project.
pub(super) fn stale(what: &str) -> Status {
    with_reason(Code::Aborted, "STALE", format!("the project has changed: {what}"))
}

/// Returns the status of a revision that is not among the last ones.
pub(super) fn no_revision() -> Status {
    let text = "no such revision: it must be one of the last 100 of the project";
    with_reason(Code::NotFound, "UNKNOWN_REVISION", text.to_owned())
}

/// Returns the status of a change that is not possible beside what files have.
pub(super) fn of_file(reason: &str, text: String) -> Status {
    with_reason(Code::FailedPrecondition, reason, text)
}

/// Returns the status of a system without random numbers.
pub fn no_random_numbers<E>(_: E) -> Status {
    let text = "the system has no random numbers";
    with_reason(Code::Unavailable, "NO_RANDOM_NUMBERS", text.to_owned())
}

/// Returns the status of a validation without a result.
pub(super) fn validation(error: ValidationError) -> Status {
    let (code, reason) = match error {
        ValidationError::TooMany => (Code::ResourceExhausted, "TOO_MANY_VALIDATIONS"),
        ValidationError::Expired => (Code::DeadlineExceeded, "VALIDATION_EXPIRED"),
    };
    with_reason(code, reason, error.to_string())
}

/// Returns the status of a property of a project or a key, whose path in the request begins with `prefix`.
pub(super) fn invalid(error: InvalidProject, prefix: &str) -> Status {
    let Violation { path, must } = error.violation();
    invalid_field(&format!("{prefix}{path}"), &must)
}

/// Returns the status of an API key that can't be changed as requested.
pub(super) fn key(error: ApiKeyError) -> Status {
    let (code, reason) = match error {
        ApiKeyError::Invalid(error @ InvalidProject::Grace) => return invalid(error, ""),
        ApiKeyError::Invalid(error) => return invalid(error, "key."),
        ApiKeyError::NotFound => (Code::NotFound, "UNKNOWN_KEY"),
        ApiKeyError::Ended => (Code::FailedPrecondition, "KEY_ENDED"),
        ApiKeyError::TooMany => (Code::ResourceExhausted, "TOO_MANY_KEYS"),
        ApiKeyError::IdTaken => (Code::Unavailable, "KEY_ID_TAKEN"),
    };
    with_reason(code, reason, error.to_string())
}

/// Returns the status of rules that can't be changed as requested. `path` is that of the rule in the
/// request, empty if there are several.
pub fn rules(error: RuleWriteError, path: &str) -> Status {
    let (code, reason) = match error {
        RuleWriteError::Invalid(problems) => return invalid_rules(problems, path),
        RuleWriteError::Exists => (Code::AlreadyExists, "RULE_EXISTS"),
        RuleWriteError::NotFound => (Code::NotFound, "UNKNOWN_RULE"),
        RuleWriteError::Stale => (Code::Aborted, "STALE"),
    };
    with_reason(code, reason, error.to_string())
}

/// Returns the problems of rules with the paths of the message.
pub(super) fn problems(problems: Vec<Problem>, path: &str) -> Vec<Problem> {
    let mut seen = HashSet::new();
    let problems = problems.into_iter().map(|problem| in_message(problem, path));
    problems.filter(|problem| seen.insert((problem.field.clone(), problem.text.clone()))).collect()
}

fn invalid_rules(found: Vec<Problem>, path: &str) -> Status {
    let found = problems(found, path);
    let mut len = 0;
    let fits = |problem: &&Problem| {
        len += problem.field.len() + problem.text.len();
        len <= MAX_PROBLEMS_LEN
    };
    let shown = &found[..found.iter().take_while(fits).count().max(1)];
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

/// Returns the status of a catalogue that can't be compared with that of the store.
pub(super) fn sync(error: SyncError) -> Status {
    written(error.into())
}

/// Returns the status of a read that others overtake each time, or whose store did not answer.
pub(super) fn read(error: &SyncError) -> Status {
    let (code, reason) = match error {
        SyncError::Store(error) => return store(error),
        SyncError::Conflict => (Code::FailedPrecondition, "CATALOGUE_CONFLICT"),
        SyncError::Busy => (Code::ResourceExhausted, "TOO_MANY_CHANGES"),
    };
    with_reason(code, reason, error.to_string())
}

/// Returns the status of a change that was not written. The text of a conflict says how it ends.
pub(super) fn written(error: ChangeError<Status>) -> Status {
    let (code, reason, text) = match error {
        ChangeError::Refused(status) => return status,
        ChangeError::Unavailable(error) => return store(&error),
        ChangeError::Raced => return too_many_changes(),
        ChangeError::Conflict => {
            let text = "the catalogue of the store conflicts with that of an instance: nothing was \
                        changed (see RestoreCatalogue)";
            (Code::FailedPrecondition, "CATALOGUE_CONFLICT", text.to_owned())
        }
        ChangeError::Unreadable => {
            let text = "a later release has written the project: nothing was changed";
            (Code::FailedPrecondition, "LATER_RELEASE", text.to_owned())
        }
        ChangeError::Deleted => {
            let text =
                "a project with this id was deleted within the last 366 days: choose another id";
            (Code::AlreadyExists, "PROJECT_DELETED", text.to_owned())
        }
        bound @ (ChangeError::TooManyProjects
        | ChangeError::TooManyRules
        | ChangeError::TooManyRulesOfProject(_)
        | ChangeError::TooLarge
        | ChangeError::TooManyEnded
        | ChangeError::LongField) => (Code::ResourceExhausted, "BOUND_REACHED", bound.to_string()),
    };
    with_reason(code, reason, text)
}

/// Returns the status of a catalogue that was not restored.
pub(super) fn restore(error: &RestoreError) -> Status {
    let (code, reason) = match error {
        RestoreError::NoConflict | RestoreError::Nothing => {
            (Code::FailedPrecondition, "NO_CONFLICT")
        }
        RestoreError::Unreadable => (Code::FailedPrecondition, "LATER_RELEASE"),
        RestoreError::Store(error) => return store(error),
        RestoreError::Changed => (Code::Unavailable, STORE_UNAVAILABLE),
        RestoreError::Stale { .. } => (Code::Aborted, "STALE"),
    };
    with_reason(code, reason, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_problems_fit_into_headers() {
        let problem = |number| Problem {
            field: format!("rules[{number}].limit"),
            text: "must be a whole number from 0 to 999999999999999".to_owned(),
        };
        let status = rules(RuleWriteError::Invalid((0..1_000).map(problem).collect()), "");
        let in_base64 = status.details().len().div_ceil(3) * 4;
        assert!(in_base64 + status.message().len() < 8_000, "{in_base64} {}", status.message());
        let shown = status
            .get_error_details()
            .bad_request()
            .map_or(0, |request| request.field_violations.len());
        assert!(
            shown > 10 && status.message().ends_with(&format!("{} more problems", 1_000 - shown))
        );
    }
}
