//! How a call ends without a decision, and what that means for the call.

use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};

use super::keys::SLOTS;
use crate::store::StoreError;
use crate::store::redis::connection::address::Address;

/// A server that says which other one to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    pub(crate) address: Address,
    pub(crate) kind: RedirectKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectKind {
    /// The slot is there from now on.
    Moved,
    /// The slot is on its way there: this call alone.
    Ask,
}

impl Redirect {
    /// The same, as it was meant by the server of this name: a server that does not know its host
    /// leaves it out.
    pub(crate) fn resolved_by(self, server: &str) -> Self {
        match Address::parse(server) {
            Some(server) => Self { address: self.address.resolved_by(&server), ..self },
            None => self,
        }
    }
}

/// How a call ended without a decision.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// Another server has the slot.
    Redirected(Redirect),
    /// The slot is half moved.
    TryAgain,
    /// The server became a replica.
    ReadOnly,
    /// The rest.
    Other(StoreError),
}

impl CallError {
    /// What an error of the driver means for the call that met it.
    pub(crate) fn from_redis(error: &RedisError) -> Self {
        let refused =
            || Self::refused(error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
        let elsewhere = |kind| {
            let redirect = error.redirect_node().and_then(|(address, slot)| {
                let address = Address::parse(address).filter(|_| slot < SLOTS)?;
                Some(Redirect { slot, address, kind })
            });
            redirect.map_or_else(refused, Self::Redirected)
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => elsewhere(RedirectKind::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => elsewhere(RedirectKind::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Self::TryAgain,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::ReadOnly,
            ErrorKind::Server(_) | ErrorKind::Extension => refused(),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Other(StoreError::Garbled),
            _ => Self::Other(StoreError::Lost),
        }
    }

    /// What an error means that a script has met on its way: `CODE text`.
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

    /// The same of a write that failed after others of its step.
    pub(crate) fn from_partial(error: &str) -> Self {
        match Self::from_text(error).into_error() {
            StoreError::Refused { code, text } => Self::Other(StoreError::Partial { code, text }),
            error => Self::Other(error),
        }
    }

    fn refused(code: &str, text: &str) -> Self {
        let code = if lacks_permission(text) { "NOPERM" } else { code };
        // Of an unknown command Redis tells the arguments too: a key is nothing for logs.
        let text = text.split(", with args").next().unwrap_or_default();
        Self::Other(StoreError::Refused { code: code.to_owned(), text: text.to_owned() })
    }

    /// What it is for those who don't know of servers.
    pub(crate) fn into_error(self) -> StoreError {
        let refused = |code: &str, text: &str| StoreError::Refused {
            code: code.to_owned(),
            text: text.to_owned(),
        };
        match self {
            Self::Redirected(redirect) => match redirect.kind {
                RedirectKind::Moved => refused("MOVED", "the slot is elsewhere, again"),
                RedirectKind::Ask => refused("ASK", "the key is elsewhere, again"),
            },
            Self::TryAgain => refused("TRYAGAIN", "the slot is half moved"),
            Self::ReadOnly => refused("READONLY", "it is a replica"),
            Self::Other(error) => error,
        }
    }
}

/// Returns `true` if a script met a command or key that the user may not use. There is no code for
/// that.
fn lacks_permission(text: &str) -> bool {
    // As Redis 7.0 puts it, and as Valkey and later ones do.
    text.starts_with("The user executing the script can't")
        || text.starts_with("ACL failure in script")
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis;

    use super::*;

    #[test]
    fn a_redirect_names_a_slot_that_there_is() {
        let failure = |text: &str| {
            let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
            let error = value.and_then(redis::Value::extract_error).expect_err("an error");
            CallError::from_redis(&error)
        };
        let moved = failure("MOVED 16383 h:1");
        assert!(matches!(moved, CallError::Redirected(redirect) if redirect.slot == 16_383));
        for text in ["MOVED 16384 h:1", "MOVED 20000 h:1", "ASK -1 h:1", "MOVED 5 h", "MOVED"] {
            assert!(matches!(failure(text), CallError::Other(_)), "{text}");
        }
    }

    #[test]
    fn what_a_script_met_is_known_by_its_code() {
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
