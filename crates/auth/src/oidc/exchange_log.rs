//! Logs exchanges of codes on change of state: anybody can begin a sign-in and bring a code that is none.

use std::sync::{Mutex, PoisonError};

use tracing::{info, warn};

/// The outcome of the last exchange.
#[derive(Debug, Default)]
pub(super) struct ExchangeLog(Mutex<ExchangeState>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExchangeState {
    #[default]
    Succeeds,
    Refused,
    Fails,
}

impl ExchangeLog {
    /// Records a code that was exchanged.
    pub(super) fn succeeded(&self, issuer: &str) {
        if self.changes_to(ExchangeState::Succeeds) {
            info!(issuer, "exchanging codes at the OIDC issuer succeeds again");
        }
    }

    /// Records a code that the issuer refused.
    pub(super) fn refused(&self, issuer: &str, error: &str) {
        if self.changes_to(ExchangeState::Refused) {
            warn!(issuer, ?error, "the OIDC issuer refused a code");
        }
    }

    /// Records a request that failed.
    pub(super) fn failed(&self, issuer: &str, error: &dyn std::error::Error) {
        if self.changes_to(ExchangeState::Fails) {
            let cause = error.source().map(tracing::field::display);
            warn!(issuer, %error, cause, "exchanging a code at the OIDC issuer failed");
        }
    }

    /// Returns `true` if the state was another.
    fn changes_to(&self, state: ExchangeState) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *last, state) != state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_kind_are_a_change_once() {
        let log = ExchangeLog::default();
        assert!(!log.changes_to(ExchangeState::Succeeds));
        for state in [ExchangeState::Refused, ExchangeState::Fails, ExchangeState::Succeeds] {
            assert!(log.changes_to(state));
            assert!(!log.changes_to(state), "{state:?} again");
        }
    }
}
