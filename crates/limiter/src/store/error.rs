//! Reasons why a store did not decide.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::idempotency::RequestIdError;
#[cfg(feature = "journal")]
use crate::journal::JournalError;

/// Reason why a store did not decide.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// No connection; nothing was sent.
    #[error("no connection to redis (store.redis.url)")]
    Unreachable,
    /// The circuit breaker is open after repeated failures; nothing was sent.
    #[error("circuit breaker is open after repeated redis failures")]
    BreakerOpen,
    /// Too many decisions are waiting for Redis; nothing was sent.
    #[error("too many decisions are waiting for redis (store.redis.max-in-flight)")]
    Overloaded,
    /// The caller's deadline has passed; nothing was sent.
    #[error("the caller's deadline has passed")]
    Expired,
    /// No reply in time; Redis may have executed the call.
    #[error("redis call timed out after {0:?} (store.redis.timeout)")]
    Timeout(Duration),
    /// The connection broke after sending; Redis may have executed the call.
    #[error("connection to redis lost before the reply")]
    Lost,
    /// Redis replied with an error and decided nothing.
    #[error("redis error {code}: {text}")]
    Refused {
        /// Error code of Redis, such as `LOADING` or `OOM`.
        code: String,
        /// Rest of the error message, for logs.
        text: String,
    },
    /// A write failed after others of the same script. Those stay, because Redis rolls nothing
    /// back.
    #[error("redis write failed after others of the same script: {code}: {text}")]
    Partial {
        /// Error code of Redis, such as `NOPERM`.
        code: String,
        /// Rest of the error message, for logs.
        text: String,
    },
    /// The reply does not match the request.
    #[error("redis reply does not match the request")]
    Garbled,
    /// The clock of Redis repeatedly left the window of the keys before the call arrived.
    #[error("redis clock repeatedly left the window of the keys")]
    WindowMissed,
    /// The memory store has no space for another override; nothing was changed.
    #[error("no space for another override (store.memory.max-keys)")]
    Full,
    /// The user of Redis may not read the overrides of an overridable rule; nothing was changed.
    #[error("redis denies access to overrides (HGET on keys with :control:)")]
    OverridesNotPermitted,
    /// The cursor of a list does not come from this store.
    #[error("page token must be that of the page before")]
    Cursor,
    /// The cursor of a list comes from a time when other servers had the keys, so that some could be
    /// left out. Not a failure of the store.
    #[error("the servers have changed since the page before")]
    ServersChanged,
    /// The request id forbids the request; nothing was counted. Not a failure of the store.
    #[error(transparent)]
    RequestId(RequestIdError),
    /// The journal of the memory store did not keep a change, which was therefore not made.
    #[cfg(feature = "journal")]
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A custom store failed.
    #[error("{source}")]
    Custom {
        /// Outcome of the request, as far as known.
        fate: Fate,
        /// Cause of the failure.
        source: Arc<dyn Error + Send + Sync>,
    },
}

/// Outcome of a request that a store has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The request changed nothing.
    NotExecuted,
    /// The request may have been executed, partly or entirely.
    Unknown,
}

impl StoreError {
    /// Creates the error of a custom store.
    pub fn custom(fate: Fate, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Custom { fate, source: Arc::new(source) }
    }

    /// Returns the kind as a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::BreakerOpen => "breaker_open",
            Self::Overloaded => "overloaded",
            Self::Expired => "expired",
            Self::Timeout(_) => "timeout",
            Self::Lost => "lost",
            Self::Refused { code, .. } | Self::Partial { code, .. } => refusal(code),
            Self::Garbled => "garbled",
            Self::WindowMissed => "window_missed",
            Self::Full => "full",
            Self::OverridesNotPermitted => "overrides_noperm",
            Self::Cursor => "cursor",
            Self::ServersChanged => "servers_changed",
            Self::RequestId(_) => "request_id",
            #[cfg(feature = "journal")]
            Self::Journal(_) => "journal",
            Self::Custom { .. } => "custom",
        }
    }

    /// Returns the permission that the user of Redis lacks, as a word of `ACL SETUSER` such as
    /// `+xadd`, if the error names one.
    pub fn missing_permission(&self) -> Option<&str> {
        match self {
            Self::Refused { code, text } if code == "NOPERM" => {
                text.strip_prefix(MISSING_PERMISSION)
            }
            _ => None,
        }
    }

    /// Returns `true` if the request may have been executed in spite of the error.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_)
                | Self::Lost
                | Self::Garbled
                | Self::Partial { .. }
                | Self::Custom { fate: Fate::Unknown, .. }
        )
    }
}

/// Start of the text of an error that names a permission.
pub(crate) const MISSING_PERMISSION: &str = "the user lacks the permission ";

/// Returns an error code of Redis as a metric label. Unexpected codes share one label.
fn refusal(code: &str) -> &'static str {
    match code {
        "LOADING" => "loading",
        "BUSY" => "busy",
        "OOM" => "oom",
        "MISCONF" => "misconf",
        "NOREPLICAS" => "noreplicas",
        "READONLY" => "readonly",
        "CLUSTERDOWN" => "clusterdown",
        "MASTERDOWN" => "masterdown",
        "MOVED" | "ASK" | "TRYAGAIN" => "slot_moves",
        "NOAUTH" | "WRONGPASS" => "auth",
        "NOPERM" => "noperm",
        _ => "refused",
    }
}
