//! Refusals of the administration: of a field, with what it must be, or with a reason for programs. No
//! detail of the store is for callers but the permission that it lacks.

use rlaas_limiter::fleet::{MAX_VALUES, OutOfBounds};
use tonic::{Code, Status};

use rlaas_core::plan::SelectError;
use rlaas_core::rules::Violation;
use rlaas_limiter::store::StoreError;
use rlaas_proto::status::{invalid_field, violation, with_reason};
use rlaas_proto::{OVERLOADED, STORE_UNAVAILABLE};

/// Returns the status of a project that does not exist, or that the caller has no role for.
pub(super) fn no_project() -> Status {
    with_reason(Code::NotFound, "UNKNOWN_PROJECT", "no such project".to_owned())
}

/// Returns the status of a caller who lacks a role in a project.
pub fn forbidden(role: impl std::fmt::Display) -> Status {
    with_reason(Code::PermissionDenied, "ROLE_MISSING", format!("role {role} is required"))
}

/// Returns the status of a rule that is not in force.
pub(super) fn unknown_rule() -> Status {
    let must = "must be the name of a rule in force";
    violation(Code::NotFound, "UNKNOWN_RULE", "rule", must)
}

/// Returns the status of a selector.
pub(super) fn selector(error: SelectError) -> Status {
    let (code, reason) = match error {
        SelectError::UnknownRule => (Code::NotFound, "UNKNOWN_RULE"),
        _ => (Code::InvalidArgument, "INVALID_FIELD"),
    };
    let Violation { path, must } = error.violation();
    violation(code, reason, path, &must)
}

/// Returns the status of an earlier call with the same request id that has no answer.
pub(super) fn unfinished() -> Status {
    let text = "request_id: an earlier call with it has not ended, or its outcome is unknown";
    with_reason(Code::Unavailable, "REQUEST_UNFINISHED", text.to_owned())
}

/// Returns the status of a request id that another change of the caller has.
pub(super) fn other_change() -> Status {
    let must = "must be a new one: it was used for another change";
    violation(Code::InvalidArgument, "REQUEST_ID_USED", "request_id", must)
}

/// Returns the status of a change beside which as many are made as may be at a time.
pub(super) fn too_many_changes() -> Status {
    let text = "too many changes are being made: nothing was changed";
    with_reason(Code::ResourceExhausted, "TOO_MANY_CHANGES", text.to_owned())
}

/// Returns the status of a request id that was not claimed. Nothing was changed.
pub(super) fn unclaimed(error: &StoreError) -> Status {
    if !is_full(error) {
        return store(error);
    }
    let must = format!("can't be remembered: {MAX_VALUES} others are, each for idempotency.ttl");
    violation(Code::ResourceExhausted, "TOO_MANY_REQUEST_IDS", "request_id", &must)
}

/// Returns `true` if a map of the fleet has no room.
pub(super) fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Custom { source, .. }
        if matches!(source.downcast_ref(), Some(OutOfBounds::Values)))
}

/// Returns the status of a store that did not answer. Nothing was changed.
pub(super) fn store(error: &StoreError) -> Status {
    match error {
        StoreError::Cursor => invalid_page_token(),
        StoreError::ServersChanged => {
            let problem = "must be empty: other servers have the keys by now, so list them again";
            invalid_field("page_token", problem)
        }
        StoreError::Journal(_) => {
            let text = "nothing was changed: the journal can't be written (store.memory.journal)";
            with_reason(Code::Unavailable, "JOURNAL_UNAVAILABLE", text.to_owned())
        }
        StoreError::Overloaded => {
            let text = "overloaded: nothing was changed (store.redis.max-in-flight)";
            with_reason(Code::ResourceExhausted, OVERLOADED, text.to_owned())
        }
        error => {
            let text = format!("store unavailable{}", permission(error));
            with_reason(store_code(error), STORE_UNAVAILABLE, text)
        }
    }
}

/// Returns the status of a change that was not recorded beforehand. Nothing was changed.
pub(super) fn audit(error: &StoreError) -> Status {
    if matches!(error, StoreError::Journal(_)) {
        return store(error);
    }
    let text = format!("the audit can't be written: nothing was changed{}", permission(error));
    with_reason(store_code(error), "AUDIT_UNAVAILABLE", text)
}

/// Returns the status of a change to which the store did not answer. It may have been made.
pub(super) fn perhaps_changed(error: &StoreError) -> Status {
    let text = "store unavailable: the change may have been made";
    with_reason(store_code(error), STORE_UNAVAILABLE, text.to_owned())
}

pub(super) fn invalid_page_token() -> Status {
    invalid_field("page_token", "must be the next_page_token of the response before")
}

/// Returns the code for an administrative call to which the store did not answer.
pub(super) fn store_code(error: &StoreError) -> Code {
    match error {
        StoreError::Overloaded => Code::ResourceExhausted,
        StoreError::Expired => Code::DeadlineExceeded,
        _ => Code::Unavailable,
    }
}

/// Returns the permission that the store's user lacks, as the end of a text.
fn permission(error: &StoreError) -> String {
    match error.missing_permission() {
        Some(permission) => format!(": the redis user lacks {permission}"),
        None if matches!(error, StoreError::OverridesNotPermitted) => {
            ": the redis user lacks +hget, +hgetall, +hset, +hdel or the keys of overrides"
                .to_owned()
        }
        None if error.kind() == "noperm" => ": the redis user lacks a permission".to_owned(),
        None => String::new(),
    }
}
