//! Where Redis is, and how to use it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use deadpool_redis::redis::{self, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use thiserror::Error;

/// How to reach and use Redis.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Where it is.
    pub servers: Servers,
    /// Who we are; counts before what an address says.
    pub credentials: Credentials,
    /// Which database, if not that of the address.
    pub database: Option<u32>,
    /// Certificates for `rediss://`.
    pub tls: Tls,
    /// What every key starts with.
    pub key_prefix: KeyPrefix,
    /// The longest that a decision may take: 1 ms to 60 s.
    pub timeout: Duration,
    /// Decisions that may wait for Redis at once; what is beyond is shed.
    pub max_in_flight: u32,
}

/// Where Redis is.
#[derive(Clone, Debug)]
pub enum Servers {
    /// One server, at this address.
    Standalone(Box<RedisUrl>),
    /// Whichever server the sentinels name.
    Sentinel {
        /// Addresses of sentinels, with their own credentials; at least one.
        sentinels: Vec<RedisUrl>,
        /// What the sentinels call the master.
        master_name: String,
    },
    /// A cluster that some of its servers tell.
    Cluster {
        /// Addresses of servers to ask first; at least one.
        seeds: Vec<RedisUrl>,
    },
}

/// Who we are to the servers that keep state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The ACL user.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

/// Certificates in PEM. Nothing at all trusts the system's authorities.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities to trust instead of the system's.
    pub ca: Option<Vec<u8>>,
    /// Our certificate and its key.
    pub identity: Option<Identity>,
}

/// A certificate with its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate chain.
    pub cert: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl RedisSettings {
    /// The default `store.redis.timeout`.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(50);
    /// The default `store.redis.max-in-flight`.
    pub const DEFAULT_MAX_IN_FLIGHT: u32 = 4096;

    /// Settings for these servers, all others at their defaults.
    pub fn new(servers: Servers) -> Self {
        Self {
            servers,
            credentials: Credentials::default(),
            database: None,
            tls: Tls::default(),
            key_prefix: KeyPrefix::default(),
            timeout: Self::DEFAULT_TIMEOUT,
            max_in_flight: Self::DEFAULT_MAX_IN_FLIGHT,
        }
    }
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self::new(Servers::Standalone(Box::default()))
    }
}

impl Servers {
    /// `standalone`, `sentinel` or `cluster`.
    pub const fn mode(&self) -> &'static str {
        match self {
            Self::Standalone(_) => "standalone",
            Self::Sentinel { .. } => "sentinel",
            Self::Cluster { .. } => "cluster",
        }
    }

    /// Every address that is given.
    pub fn urls(&self) -> &[RedisUrl] {
        match self {
            Self::Standalone(url) => std::slice::from_ref(&**url),
            Self::Sentinel { sentinels, .. } => sentinels,
            Self::Cluster { seeds } => seeds,
        }
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<String> = self.urls().iter().map(ToString::to_string).collect();
        f.write_str(&urls.join(" "))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ca, identity) = (self.ca.is_some(), self.identity.is_some());
        write!(f, "Tls {{ ca: {ca}, identity: {identity} }}")
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
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

    /// Is it `rediss://`?
    pub fn is_tls(&self) -> bool {
        matches!(self.connection.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// The database that it names; 0 where it names none.
    pub fn database(&self) -> i64 {
        self.connection.redis_settings().db()
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
        if matches!(connection.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
            return Err(SettingError::Insecure);
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

impl KeyPrefix {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

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
    #[error(
        "valid is redis://[user:password@]host[:port][/database], rediss:// for TLS, or \
         unix:///path"
    )]
    Url,
    /// An address that asks to trust anybody.
    #[error("#insecure is not supported: give the server's authority as store.redis.tls.ca")]
    Insecure,
    /// Not a key prefix.
    #[error("valid is 1 to 64 letters, digits, '-', '_', '.' or ':'")]
    KeyPrefix,
    /// No PEM certificates, or a key that does not belong to them.
    #[error("valid are PEM files: authorities, a certificate and its private key")]
    Tls,
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
            "rediss://me:s3cret@h",
            "unix:///run/r.sock?pass=s3cret&db=1",
        ] {
            let url: RedisUrl = text.parse().expect(text);
            let settings = RedisSettings {
                credentials: Credentials {
                    username: None,
                    password: Some(Secret("s3cret".to_owned())),
                },
                ..RedisSettings::new(Servers::Standalone(Box::new(url)))
            };
            let shown = format!("{settings:?} {}", settings.servers);
            assert!(!shown.contains("s3cret"), "{shown}");
            assert!(shown.contains("***"), "{shown}");
        }
    }

    #[test]
    fn what_is_not_redis_is_refused() {
        for text in ["", "127.0.0.1:6379", "http://h", "redis://h:99999", "redis://h/x"] {
            assert_eq!(text.parse::<RedisUrl>().map(|_| ()), Err(SettingError::Url), "{text}");
        }
        let insecure = "rediss://h/#insecure".parse::<RedisUrl>();
        assert_eq!(insecure.map(|_| ()), Err(SettingError::Insecure));
    }
}
