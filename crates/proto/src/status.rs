//! Statuses of calls that are refused, with what programs find in them: the violation of a field, and a reason.

use std::collections::HashMap;
use std::fmt::Display;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::ratelimit::v1::check_response::Reason;
use crate::{ERROR_DOMAIN, NOT_READY};

/// Returns the status of an invalid request. The error names the field and what it must be.
pub fn invalid(error: impl Display) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Returns the status of an invalid field of an administrative request. `must` says what the field
/// must be, such as `must be 1 to 64 bytes`.
pub fn invalid_field(path: &str, must: &str) -> Status {
    violation(Code::InvalidArgument, "INVALID_FIELD", path, must)
}

/// Returns a status with the violation of one field.
pub fn violation(code: Code, reason: &str, path: &str, must: &str) -> Status {
    let mut details = ErrorDetails::with_bad_request_violation(path, must);
    details.set_error_info(reason, ERROR_DOMAIN, HashMap::new());
    Status::with_error_details(code, format!("{path} {must}"), details)
}

/// Returns a status with a reason for programs.
pub fn with_reason(code: Code, reason: &str, message: String) -> Status {
    let details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, HashMap::new());
    Status::with_error_details(code, message, details)
}

/// Returns the status of a call whose keys, project or rules are not known yet.
pub fn not_ready(message: impl Into<String>) -> Status {
    with_reason(Code::Unavailable, NOT_READY, message.into())
}

/// Text of a request that no rule matches, in all protocols.
pub const NO_RULE: &str = "no rule matches";

/// Returns the status of a request that no rule matches.
pub fn no_rule() -> Status {
    with_reason(Code::PermissionDenied, Reason::NoRule.as_str_name(), NO_RULE.to_owned())
}

/// Returns the status of a project that does not exist, where a field names it.
pub fn unknown_project(field: &str) -> Status {
    violation(Code::NotFound, "UNKNOWN_PROJECT", field, "must be that of a project")
}
