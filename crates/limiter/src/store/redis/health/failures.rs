//! Failed calls: how each counts for the circuit breaker, and their log.

use std::collections::HashMap;

use tracing::{error, warn};

use super::breaker::MAX_FAILURES;
use crate::clock::{Micros, Timestamp};
use crate::store::StoreError;

/// Shortest time between two log lines about failures of one kind.
pub(crate) const LOG_INTERVAL: Micros = Micros::from_secs(10);

/// Effect of a failed call on the breaker and on the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Severity {
    /// Number of failures that the breaker counts for the call: 0 if the cause may be a single key,
    /// [`MAX_FAILURES`] if the server denies access, else 1.
    pub(crate) weight: u32,
    /// `true` if an operator has to act, so that the failure is logged as an error.
    needs_operator: bool,
}

impl Severity {
    /// Returns the severity of an error; `None` if it says nothing about the server.
    pub(crate) fn from_error(error: &StoreError) -> Option<Self> {
        let (weight, needs_operator) = match error {
            StoreError::Unreachable
            | StoreError::Timeout(_)
            | StoreError::Lost
            | StoreError::Garbled => (1, false),
            // Logged, and not recorded: it fails the call alone.
            StoreError::OverridesNotPermitted => (MAX_FAILURES, true),
            StoreError::Refused { code, .. } | StoreError::Partial { code, .. } => {
                match code.as_str() {
                    "NOAUTH" | "WRONGPASS" | "NOPERM" => (MAX_FAILURES, true),
                    "OOM" | "MISCONF" | "NOREPLICAS" => (1, true),
                    "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" | "BUSY" => (1, false),
                    "MOVED" | "ASK" | "TRYAGAIN" => return None,
                    _ => (0, false),
                }
            }
            StoreError::WindowMissed
            | StoreError::BreakerOpen
            | StoreError::Overloaded
            | StoreError::Expired
            | StoreError::Full
            | StoreError::Cursor
            | StoreError::ServersChanged
            | StoreError::RequestId(_)
            | StoreError::Custom { .. } => return None,
            #[cfg(feature = "journal")]
            StoreError::Journal(_) => return None,
        };
        Some(Self { weight, needs_operator })
    }
}

/// The log of failed calls: one line for each kind when it first occurs, then at most one per
/// [`LOG_INTERVAL`], with a count.
#[derive(Debug, Default)]
pub(crate) struct FailureLog(HashMap<&'static str, LoggedKind>);

#[derive(Debug, Default)]
struct LoggedKind {
    /// Time of the last line; `None` before the first.
    logged: Option<Timestamp>,
    /// Failures since then.
    unlogged: u64,
}

impl FailureLog {
    pub(crate) fn record(
        &mut self,
        server: &str,
        now: Timestamp,
        error: &StoreError,
        severity: Severity,
    ) {
        // The health monitor logs why there is no connection.
        if matches!(error, StoreError::Unreachable) {
            return;
        }
        let kind = self.0.entry(error.kind()).or_default();
        kind.unlogged += 1;
        if kind.logged.is_some_and(|logged| now.since(logged) < LOG_INTERVAL) {
            return;
        }
        kind.logged = Some(now);
        let failures = std::mem::take(&mut kind.unlogged);
        match severity {
            Severity { weight: MAX_FAILURES, .. } => {
                error!(redis = server, %error, failures, "redis denied access");
            }
            Severity { needs_operator: true, .. } => {
                error!(redis = server, %error, failures, "redis call failed");
            }
            _ => warn!(redis = server, %error, failures, "redis call failed"),
        }
    }
}
