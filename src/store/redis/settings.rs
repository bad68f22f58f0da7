//! Where Redis is, and how to use it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use deadpool_redis::redis::{self, ConnectionInfo, IntoConnectionInfo};
use thiserror::Error;

/// How to reach and use Redis.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Where it is.
    pub url: RedisUrl,
    /// What every key starts with.
    pub key_prefix: KeyPrefix,
    /// The longest that a decision may take: 1 ms to 60 s.
    pub timeout: Duration,
}

impl RedisSettings {
    /// The default `store.redis.timeout`.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            url: RedisUrl::default(),
            key_prefix: KeyPrefix::default(),
            timeout: Self::DEFAULT_TIMEOUT,
        }
    }
}

/// An address of Redis, with its credentials and database. Never shows the password.
#[derive(Clone)]
pub struct RedisUrl {
    connection: ConnectionInfo,
    shown: String,
}

impl RedisUrl {
    pub(super) fn connection(&self) -> &ConnectionInfo {
        &self.connection
    }
}

impl Default for RedisUrl {
    fn default() -> Self {
        "redis://127.0.0.1:6379".parse().expect("the documented default is valid")
    }
}

impl FromStr for RedisUrl {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut shown = redis::parse_redis_url(text).ok_or(SettingError::Url)?;
        let connection = text.into_connection_info().map_err(|_| SettingError::Url)?;
        if !connection.addr().is_supported() {
            return Err(SettingError::Url);
        }
        // A name without a password is a password without its colon, more often than not.
        let masked = match (shown.username(), shown.password()) {
            ("", None) => Ok(()),
            (_, None) => shown.set_username("***"),
            (_, Some(_)) => shown.set_password(Some("***")),
        };
        masked.map_err(|()| SettingError::Url)?;
        if shown.query().is_some() {
            // `unix:` addresses carry the password there.
            shown.set_query(Some("***"));
        }
        Ok(Self { connection, shown: shown.to_string() })
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// What every key starts with: 1 to 64 letters, digits, `-`, `_`, `.` or `:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefix(String);

impl Default for KeyPrefix {
    fn default() -> Self {
        Self("rlaas".to_owned())
    }
}

impl FromStr for KeyPrefix {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(valid) {
            return Ok(Self(text.to_owned()));
        }
        Err(SettingError::KeyPrefix)
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a setting is refused. Never shows the value: it may hold a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SettingError {
    /// Not an address of Redis.
    #[error("valid is redis://[user:password@]host[:port][/database] or unix:///path")]
    Url,
    /// Not a key prefix.
    #[error("valid is 1 to 64 letters, digits, '-', '_', '.' or ':'")]
    KeyPrefix,
    /// The pool can't be built.
    #[error("the connection pool can't be built with these settings")]
    Pool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "redis://:s3cret@h:1/0",
            "redis://me:s3cret@h",
            "redis://s3cret@h",
            "unix:///run/r.sock?pass=s3cret&db=1",
        ] {
            let url: RedisUrl = text.parse().expect(text);
            let settings = RedisSettings { url, ..RedisSettings::default() };
            let shown = format!("{settings:?} {}", settings.url);
            assert!(!shown.contains("s3cret"), "{shown}");
            assert!(shown.contains("***"), "{shown}");
        }
    }

    #[test]
    fn what_is_not_redis_is_refused() {
        for text in ["", "127.0.0.1:6379", "http://h", "redis://h:99999", "redis://h/x"] {
            assert_eq!(text.parse::<RedisUrl>().map(|_| ()), Err(SettingError::Url), "{text}");
        }
    }
}
