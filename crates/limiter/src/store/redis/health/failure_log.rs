//! What a failed call says about the server, and the log of such calls: one line for each kind when
//! it begins, then one in [`LOG_INTERVAL`] with a count.

use tracing::{error, warn};

use super::breaker::MAX_FAILURES;
use crate::clock::{Micros, Timestamp};
use crate::store::StoreError;

/// Time between two lines about failures of one kind.
pub(crate) const LOG_INTERVAL: Micros = Micros::from_secs(10);

/// What a failure says about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Nothing.
    None,
    /// Nothing that is known: it may be the one key.
    Oddity,
    /// It failed once.
    Failure,
    /// It will fail until somebody does something, or it recovers.
    Defect,
    /// It will fail until somebody does something.
    Fatal,
}

impl Severity {
    pub(crate) fn from_error(error: &StoreError) -> Self {
        match error {
            StoreError::Unreachable
            | StoreError::Timeout(_)
            | StoreError::Lost
            | StoreError::Garbled => Self::Failure,
            StoreError::Refused { code, .. } | StoreError::Partial { code, .. } => {
                match code.as_str() {
                    "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::Fatal,
                    "OOM" | "MISCONF" | "NOREPLICAS" => Self::Defect,
                    "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" | "BUSY" => Self::Failure,
                    "MOVED" | "ASK" | "TRYAGAIN" => Self::None,
                    _ => Self::Oddity,
                }
            }
            StoreError::WindowMissed
            | StoreError::BreakerOpen
            | StoreError::Overloaded
            | StoreError::Expired
            | StoreError::Custom { .. } => Self::None,
        }
    }

    /// How many failures it counts as for the breaker.
    pub(crate) fn weight(self) -> u32 {
        match self {
            Self::None | Self::Oddity => 0,
            Self::Failure | Self::Defect => 1,
            Self::Fatal => MAX_FAILURES,
        }
    }
}

/// What was logged of each kind of failure.
#[derive(Debug, Default)]
pub(crate) struct FailureLog(Vec<LoggedKind>);

#[derive(Debug)]
struct LoggedKind {
    kind: &'static str,
    logged: Timestamp,
    /// Failures since then.
    unlogged: u64,
}

impl FailureLog {
    pub(crate) fn record(&mut self, server: &str, now: Timestamp, error: &StoreError) {
        // The health monitor logs why there is no connection.
        if matches!(error, StoreError::Unreachable) {
            return;
        }
        let kind = error.kind();
        let failures = match self.0.iter_mut().find(|entry| entry.kind == kind) {
            Some(entry) if now.since(entry.logged) < LOG_INTERVAL => {
                entry.unlogged += 1;
                return;
            }
            Some(entry) => {
                entry.logged = now;
                std::mem::take(&mut entry.unlogged) + 1
            }
            None => {
                self.0.push(LoggedKind { kind, logged: now, unlogged: 0 });
                1
            }
        };
        match Severity::from_error(error) {
            Severity::Fatal => error!(redis = server, %error, failures, "redis refuses us"),
            Severity::Defect => error!(redis = server, %error, failures, "redis does not decide"),
            Severity::Failure | Severity::Oddity | Severity::None => {
                warn!(redis = server, %error, failures, "redis does not decide");
            }
        }
    }
}
