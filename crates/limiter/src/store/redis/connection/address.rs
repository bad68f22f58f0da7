//! Addresses of servers.

use std::fmt;
use std::path::PathBuf;

use deadpool_redis::redis::ConnectionAddr;

use crate::store::redis::settings::RedisUrl;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    /// Returns the address in a URL.
    pub(crate) fn from_url(url: &RedisUrl) -> Self {
        match url.connection().addr() {
            ConnectionAddr::Unix(path) => Self::Unix(path.clone()),
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Self::Tcp { host: host.clone(), port: *port }
            }
            // redis-rs may add other kinds, but settings accept no others.
            other => Self::Unix(other.to_string().into()),
        }
    }

    /// Parses `host:port` in a reply of `server`. The port follows the last colon. The host may be
    /// empty: then it is that of `server`.
    pub(crate) fn parse(text: &str, server: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { server.host() } else { host };
        Some(Self::Tcp { host: host.to_owned(), port: port.parse().ok()? })
    }

    /// Returns the host, by which a certificate is verified.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } => host,
            Self::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
