//! Where a server is.

use std::fmt;
use std::path::PathBuf;

use deadpool_redis::redis::ConnectionAddr;

use crate::store::redis::settings::RedisUrl;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    /// Returns the address of a URL.
    pub(crate) fn from_url(url: &RedisUrl) -> Self {
        match url.connection().addr() {
            ConnectionAddr::Unix(path) => Self::Unix(path.clone()),
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Self::Tcp { host: host.clone(), port: *port }
            }
            // The driver may learn of other kinds; settings know no others.
            other => Self::Unix(other.to_string().into()),
        }
    }

    /// `host:port`, as Redis writes it: the port is what follows the last colon. A server that does
    /// not know its host leaves it out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        Some(Self::Tcp { host: host.to_owned(), port })
    }

    /// The same, with the host of the server that was asked where it has none.
    pub(crate) fn resolved_by(self, server: &Self) -> Self {
        match self {
            Self::Tcp { host, port } if host.is_empty() => {
                Self::Tcp { host: server.host().to_owned(), port }
            }
            address => address,
        }
    }

    /// The host of a server that is known by this address.
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
