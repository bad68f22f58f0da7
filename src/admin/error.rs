//! Errors of administration.

use thiserror::Error;

use super::AuditError;
use super::change::{MAX_REASON, MAX_REQUEST_ID};
use crate::plan::SelectError;
use crate::store::StoreError;
use rlaas_limiter::ChangeError;
use rlaas_limiter::fleet::MAX_VALUES;

/// Reason why an operation was not done, or not completely.
#[derive(Clone, Debug, Error)]
pub enum AdminError {
    /// A field of the selector is not valid.
    #[error(transparent)]
    Selector(SelectError),
    /// No reason, or one that is too long.
    #[error("reason must be 1 to {MAX_REASON} bytes")]
    Reason,
    /// A reason that is too long, where none is required.
    #[error("reason must be at most {MAX_REASON} bytes")]
    OptionalReason,
    /// The id is too long.
    #[error("request_id must be at most {MAX_REQUEST_ID} bytes")]
    RequestId,
    /// Another change of the caller has the id.
    #[error("request_id must be a new one: it was used for another change")]
    OtherChange,
    /// An earlier call with the id has no answer.
    #[error("request_id: an earlier call with it has not ended, or its outcome is unknown")]
    Unfinished,
    /// As many ids of changes are remembered as there is space for. Nothing was changed.
    #[error("request_id can't be remembered: {MAX_VALUES} others are, each for idempotency.ttl")]
    TooManyIds,
    /// No project has the id.
    #[error("{0} must be that of a project")]
    UnknownProject(&'static str),
    /// No rule of the project has the name.
    #[error("rule must be the name of a rule in force")]
    UnknownRule,
    /// As many modes are set as there is space for. Nothing was changed.
    #[error("too many modes are set: nothing was changed")]
    TooManyModes,
    /// Too many changes run. Nothing was changed.
    #[error("too many changes run: nothing was changed")]
    TooManyChanges,
    /// The caller's deadline passed while the change ran. It goes on.
    #[error("deadline exceeded: the change may have been made")]
    Running,
    /// An override for rules that obey none.
    #[error("selector must select a key of a rule with `overridable: true`")]
    NotOverridable,
    /// An override with more units than the algorithm can count.
    #[error("grant.limit must be 1 to {max} for {algorithm}")]
    TooManyUnits {
        /// Canonical name of the algorithm.
        algorithm: &'static str,
        /// The most units.
        max: u64,
    },
    /// An override with a burst that the algorithm does not have, or that fills too slowly.
    #[error("grant.burst must be 0, or one that {algorithm} accepts with this limit and window")]
    Burst {
        /// Canonical name of the algorithm.
        algorithm: &'static str,
    },
    /// The token is not from the page before.
    #[error("page_token must be the next_page_token of the response before")]
    PageToken,
    /// The token is from a time when other servers had the keys.
    #[error("page_token must be empty: other servers have the keys by now, so list them again")]
    ServersChanged,
    /// The change was not recorded beforehand. Nothing was changed.
    #[error("the audit can't be written: nothing was changed{}", permission(.0))]
    Audit(#[source] StoreError),
    /// The store did not answer. Nothing was changed.
    #[error("store unavailable{}", permission(.0))]
    Store(#[source] StoreError),
    /// The journal did not keep the change. Nothing was changed.
    #[error("nothing was changed: the journal can't be written (store.memory.journal)")]
    Journal(#[source] StoreError),
    /// The store did not answer to a change. Some keys may have been changed.
    #[error("store unavailable: the change may have been made")]
    Change(#[source] ChangeError),
}

impl AdminError {
    /// Returns the field that is not valid, with which the text begins.
    pub const fn field(&self) -> Option<&'static str> {
        match self {
            Self::Selector(error) => Some(error.field()),
            Self::Reason | Self::OptionalReason => Some("reason"),
            Self::RequestId | Self::OtherChange | Self::TooManyIds => Some("request_id"),
            Self::NotOverridable => Some("selector"),
            Self::TooManyUnits { .. } => Some("grant.limit"),
            Self::Burst { .. } => Some("grant.burst"),
            Self::PageToken | Self::ServersChanged => Some("page_token"),
            Self::UnknownProject(field) => Some(field),
            Self::UnknownRule => Some("rule"),
            Self::Unfinished
            | Self::TooManyChanges
            | Self::TooManyModes
            | Self::Running
            | Self::Audit(_)
            | Self::Store(_)
            | Self::Journal(_)
            | Self::Change(_) => None,
        }
    }
}

/// Returns the permission that the store's user lacks, as the end of a text. No other detail of the
/// store is for callers.
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

impl From<AuditError> for AdminError {
    fn from(AuditError(error): AuditError) -> Self {
        match error {
            StoreError::Journal(_) => Self::Journal(error),
            error => Self::Audit(error),
        }
    }
}

impl From<SelectError> for AdminError {
    fn from(error: SelectError) -> Self {
        Self::Selector(error)
    }
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Cursor => Self::PageToken,
            StoreError::ServersChanged => Self::ServersChanged,
            StoreError::Journal(_) => Self::Journal(error),
            error => Self::Store(error),
        }
    }
}

impl From<ChangeError> for AdminError {
    fn from(error: ChangeError) -> Self {
        if error.done.after.is_empty() && !error.error.is_ambiguous() {
            error.error.into()
        } else {
            Self::Change(error)
        }
    }
}
