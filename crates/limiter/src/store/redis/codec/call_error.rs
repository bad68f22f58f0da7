//! Errors of calls, and what they mean for a retry.

use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};

use super::keys::SLOTS;
use crate::store::StoreError;
use crate::store::redis::connection::Address;

/// A redirect to another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) address: Address,
    pub(crate) kind: RedirectKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectKind {
    /// The slot has moved to the server.
    Moved,
    /// The slot is being moved to the server: the redirect is for this call only.
    Ask,
}

/// Reason why a call ended without a decision.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// Another server serves the slot.
    Redirected(Redirect),
    /// The slot is being moved, and its keys are on two servers.
    TryAgain,
    /// The server is a replica.
    ReadOnly,
    /// The server does not know the script.
    UnknownScript,
    /// Any other error.
    Other(StoreError),
}

impl CallError {
    /// Converts an error of redis-rs in a reply of `server`.
    pub(crate) fn from_redis(error: &RedisError, server: &Address) -> Self {
        let refused =
            || Self::refused(error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
        let elsewhere = |kind| {
            let redirect = error.redirect_node().and_then(|(address, slot)| {
                let address = Address::parse(address, server).filter(|_| slot < SLOTS)?;
                Some(Redirect { slot, address, kind })
            });
            redirect.map_or_else(refused, Self::Redirected)
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => elsewhere(RedirectKind::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => elsewhere(RedirectKind::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Self::TryAgain,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::ReadOnly,
            ErrorKind::Server(ServerErrorKind::NoScript) => Self::UnknownScript,
            ErrorKind::Server(_) | ErrorKind::Extension => refused(),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Other(StoreError::Garbled),
            _ => Self::Other(StoreError::Lost),
        }
    }

    /// Converts an error that a script met: `CODE text`.
    pub(crate) fn from_text(error: &str) -> Self {
        let (first, rest) = error.split_once(' ').unwrap_or((error, ""));
        let is_code = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_uppercase());
        let (code, text) = if is_code { (first, rest) } else { ("ERR", error) };
        match code {
            "READONLY" => Self::ReadOnly,
            "TRYAGAIN" => Self::TryAgain,
            code => Self::refused(code, text),
        }
    }

    /// As [`CallError::from_text`], for a write that failed after others of its step.
    pub(crate) fn from_partial(error: &str) -> Self {
        match Self::from_text(error).into_error() {
            StoreError::Refused { code, text } => Self::Other(StoreError::Partial { code, text }),
            error => Self::Other(error),
        }
    }

    fn refused(code: &str, text: &str) -> Self {
        let code = if lacks_permission(text) { "NOPERM" } else { code };
        // For an unknown command, Redis quotes the arguments: keys must not appear in logs.
        let text = text.split(", with args").next().unwrap_or_default();
        Self::Other(StoreError::Refused { code: code.to_owned(), text: text.to_owned() })
    }

    /// Converts to an error for callers that know nothing of servers.
    pub(crate) fn into_error(self) -> StoreError {
        let refused = |code: &str, text: &str| StoreError::Refused {
            code: code.to_owned(),
            text: text.to_owned(),
        };
        match self {
            Self::Redirected(redirect) => match redirect.kind {
                RedirectKind::Moved => refused("MOVED", "too many redirects"),
                RedirectKind::Ask => refused("ASK", "too many redirects"),
            },
            Self::TryAgain => refused("TRYAGAIN", "the slot is being moved"),
            Self::ReadOnly => refused("READONLY", "the server is a replica"),
            Self::UnknownScript => refused("NOSCRIPT", "the server does not know the script"),
            Self::Other(error) => error,
        }
    }
}

/// Returns `true` if a script used a command or key without permission. Redis has no error code for
/// this.
fn lacks_permission(text: &str) -> bool {
    // The texts of Redis 7.0, and of Valkey and later Redis versions.
    text.starts_with("The user executing the script can't")
        || text.starts_with("ACL failure in script")
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis;

    use super::*;

    #[test]
    fn a_redirect_must_name_a_valid_slot() {
        let server = Address::Tcp { host: "s".to_owned(), port: 1 };
        let failure = |text: &str| {
            let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
            let error = value.and_then(redis::Value::extract_error).expect_err("an error");
            CallError::from_redis(&error, &server)
        };
        let moved = failure("MOVED 16383 h:1");
        assert!(matches!(moved, CallError::Redirected(redirect) if redirect.slot == 16_383));
        let asked = failure("ASK 5 :2");
        let same_host = Address::Tcp { host: "s".to_owned(), port: 2 };
        assert!(matches!(asked, CallError::Redirected(redirect) if redirect.address == same_host));
        for text in ["MOVED 16384 h:1", "MOVED 20000 h:1", "ASK -1 h:1", "MOVED 5 h", "MOVED"] {
            assert!(matches!(failure(text), CallError::Other(_)), "{text}");
        }
    }

    #[test]
    fn errors_of_scripts_are_classified_by_their_code() {
        let code = |text: &str| match CallError::from_text(text) {
            CallError::Other(StoreError::Refused { code, .. }) => code,
            other => format!("{other:?}"),
        };
        assert_eq!(code("OOM command not allowed"), "OOM");
        assert_eq!(code("READONLY You can't write"), "ReadOnly");
        assert_eq!(code("The user executing the script can't run this command"), "NOPERM");
        assert_eq!(code("ERR ACL failure in script: No permissions to access a key"), "NOPERM");
        assert_eq!(code("user_script:1: attempt to index a nil value"), "ERR");
        assert_eq!(code(""), "ERR");
    }
}
