//! The log of refused administrative calls. They are not in the audit, so that nobody can push
//! entries out of it by asking.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rlaas_core::clock::{Clock, Micros, Timestamp};
use tracing::warn;

use super::roles::Roles;
use super::{AuthError, NotLocal, TokenError, WebError};

/// Shortest time between two lines of one reason.
const INTERVAL: Micros = Micros::from_secs(10);

/// Logs the first refusal for each reason, then at most one in [`INTERVAL`], with a count. Nothing
/// in a line comes from the request.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    clock: Clock,
    reasons: Mutex<HashMap<&'static str, LoggedReason>>,
}

#[derive(Debug, Default)]
struct LoggedReason {
    /// Time of the last line; `None` before the first.
    logged: Option<Timestamp>,
    /// Refusals since then.
    unlogged: u64,
}

impl RefusalLog {
    pub(super) fn record(&self, refusal: AuthError, required: Roles) {
        let reason = reason_of(refusal);
        if let Some(refused) = self.count(reason, self.clock.now()) {
            warn!(reason, role = %required, refused, "administrative call refused");
        }
    }

    /// Counts a refusal. Returns the refusals since the last line if a line is due.
    fn count(&self, reason: &'static str, now: Timestamp) -> Option<u64> {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let of_reason = reasons.entry(reason).or_default();
        of_reason.unlogged += 1;
        if of_reason.logged.is_some_and(|logged| now.since(logged) < INTERVAL) {
            return None;
        }
        of_reason.logged = Some(now);
        Some(std::mem::take(&mut of_reason.unlogged))
    }
}

const fn reason_of(refusal: AuthError) -> &'static str {
    match refusal {
        AuthError::Unauthenticated => "unknown caller",
        AuthError::Forbidden(_) => "role missing",
        AuthError::NotLocal(_, NotLocal::Remote) => "not on loopback, and auth lists nobody",
        AuthError::NotLocal(_, NotLocal::Proxied) => "header of a proxy, and auth lists nobody",
        AuthError::NotLocal(_, NotLocal::Host) => "foreign host, and auth lists nobody",
        AuthError::ApiKey(_) => "API key not valid",
        AuthError::Token(error) => match error {
            TokenError::Malformed => "malformed token",
            TokenError::Algorithm => "token with another algorithm",
            TokenError::UnknownKey => "token with an unknown key",
            TokenError::Claims => "token lacks a claim",
            TokenError::Issuer => "token of another issuer",
            TokenError::Audience => "token for another audience",
            TokenError::Expired => "expired token",
            TokenError::NotYetValid => "token not valid yet",
            TokenError::Signature => "token with an invalid signature",
            TokenError::Nonce => "ID token of another sign-in",
            TokenError::KeysUnavailable => "keys of the issuer not available",
        },
        AuthError::Web(WebError::Origin) => "foreign origin",
        AuthError::Web(WebError::ContentType(_)) => "content type",
        AuthError::Web(WebError::Hosts) => "two hosts",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_one_reason_are_logged_once_in_ten_seconds_with_their_number() {
        let log = RefusalLog::default();
        let at = |seconds| Timestamp::EPOCH + Micros::from_secs(seconds);
        assert_eq!(log.count("a", at(0)), Some(1));
        assert_eq!(log.count("b", at(1)), Some(1));
        for _ in 0..1_000 {
            assert_eq!(log.count("a", at(9)), None);
        }
        assert_eq!(log.count("a", at(10)), Some(1_001));
        assert_eq!(log.count("a", at(11)), None);
    }
}
