//! Settings of the Redis store.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use deadpool_redis::redis::{self, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use thiserror::Error;

/// Settings of the Redis store.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Addresses of the servers.
    pub servers: Servers,
    /// Credentials, which override those of an address.
    pub credentials: Credentials,
    /// Database number, which overrides that of the address.
    pub database: Option<u32>,
    /// Certificates for `rediss://`.
    pub tls: Tls,
    /// Prefix of every key.
    pub key_prefix: KeyPrefix,
    /// Longest time that a decision may take: 1 ms to 60 s.
    pub timeout: Duration,
    /// Maximum number of decisions that wait for Redis at once; further ones are shed.
    pub max_in_flight: u32,
}

/// Addresses of Redis.
#[derive(Clone, Debug)]
pub enum Servers {
    /// One server at this address.
    Standalone(Box<RedisUrl>),
    /// The master that sentinels report.
    Sentinel {
        /// Addresses of sentinels, with the sentinels' credentials; at least one.
        sentinels: Vec<RedisUrl>,
        /// Name of the master in the configuration of the sentinels.
        master_name: String,
    },
    /// A cluster.
    Cluster {
        /// Addresses of servers from which the map is queried first; at least one.
        seeds: Vec<RedisUrl>,
    },
}

/// Credentials for the servers that hold state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the ACL user.
    pub username: Option<String>,
    /// Password of the user.
    pub password: Option<Secret>,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

/// Certificates in PEM. By default the authorities of the system are trusted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Authorities to trust instead of those of the system.
    pub ca: Option<Vec<u8>>,
    /// Client certificate and its key.
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

    /// Creates settings for these servers, with defaults for all else.
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
    /// Returns `standalone`, `sentinel` or `cluster`.
    pub const fn mode(&self) -> &'static str {
        match self {
            Self::Standalone(_) => "standalone",
            Self::Sentinel { .. } => "sentinel",
            Self::Cluster { .. } => "cluster",
        }
    }

    /// Returns all configured addresses.
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

/// An address of Redis, with credentials and database. The password is never shown.
#[derive(Clone)]
pub struct RedisUrl {
    connection: ConnectionInfo,
    shown: String,
}

impl RedisUrl {
    pub(super) fn connection(&self) -> &ConnectionInfo {
        &self.connection
    }

    /// Returns `true` if the scheme is `rediss://`.
    pub fn is_tls(&self) -> bool {
        matches!(self.connection.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Returns the database in the address; 0 by default.
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
        // A user name without a password is usually a password without its colon.
        let masked = match (shown.username(), shown.password()) {
            ("", None) => Ok(()),
            (_, None) => shown.set_username("***"),
            (_, Some(_)) => shown.set_password(Some("***")),
        };
        masked.map_err(|()| SettingError::Url)?;
        if shown.query().is_some() {
            // In `unix:` addresses, the password is in the query.
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

/// Prefix of every key: 1 to 64 letters, digits, `-`, `_`, `.` or `:`.
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

/// Reason why a setting is invalid. The value is never shown, because it may contain a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SettingError {
    /// Not an address of Redis.
    #[error(
        "must be redis://[user:password@]host[:port][/database], rediss:// for TLS, or \
         unix:///path"
    )]
    Url,
    /// An address that disables the verification of certificates.
    #[error("must not contain #insecure: set store.redis.tls.ca to the authority of the server")]
    Insecure,
    /// Not a key prefix.
    #[error("must be 1 to 64 letters, digits, '-', '_', '.' or ':'")]
    KeyPrefix,
    /// Not PEM certificates, or a key that does not match.
    #[error("must be PEM files: authorities, a certificate and its private key")]
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
    fn invalid_addresses_are_rejected() {
        for text in ["", "127.0.0.1:6379", "http://h", "redis://h:99999", "redis://h/x"] {
            assert_eq!(text.parse::<RedisUrl>().map(|_| ()), Err(SettingError::Url), "{text}");
        }
        let insecure = "rediss://h/#insecure".parse::<RedisUrl>();
        assert_eq!(insecure.map(|_| ()), Err(SettingError::Insecure));
    }
}
