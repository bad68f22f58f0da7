//! Connections to Redis: how they are opened, pooled and discarded.
//!
//! redis-rs opens and drives a connection, a deadpool pool keeps it. The batches of a worker check
//! it out one after the other, each only while it sends its call. A connection replies in order, so
//! the next call need not wait for a reply.
//!
//! The manager of deadpool-redis sends UNWATCH and PING before each reuse, supports no custom
//! authority, and accepts a replica as a master. So it is wrapped, as getsentry/relay does: see
//! [`options::ConnectOptions::connect`].

pub(crate) mod connector;
pub(crate) mod options;
mod self_signed;
pub(crate) mod sentinel;
pub(crate) mod server_info;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use deadpool_redis::redis::ConnectionAddr;
use tokio::time::timeout;

use self::connector::{ConnectError, Connector, ManagedConnection, ROLE_SECTION};
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

/// A connection that was idle for longer is probed before use, since it may have been closed. The
/// monitor notices if the server fails earlier.
const MAX_IDLE: Duration = Duration::from_secs(5);
/// Timeout of this probe.
const IDLE_PROBE_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) type Pool = managed::Pool<PoolManager>;

/// Opens and recycles the connections of one pool.
#[derive(Debug)]
pub(crate) struct PoolManager {
    connector: Arc<Connector>,
    used_for: PoolUse,
}

/// Calls that a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolUse {
    /// Decisions. If a connection can't be opened, the server counts as unreachable.
    Decisions,
    /// All else: its failures say nothing about the server.
    Fleet,
}

/// Creates an empty pool. One connection is enough: it carries the calls of many batches at once.
pub(crate) fn new_pool(connector: &Arc<Connector>, used_for: PoolUse) -> Pool {
    let manager = PoolManager { connector: Arc::clone(connector), used_for };
    let pool = Pool::builder(manager).max_size(1).build();
    pool.expect("a pool without timeouts needs no runtime")
}

impl managed::Manager for PoolManager {
    type Type = ManagedConnection;
    type Error = ConnectError;

    async fn create(&self) -> Result<ManagedConnection, ConnectError> {
        match self.used_for {
            PoolUse::Decisions => self.connector.connect_unless_unreachable().await,
            PoolUse::Fleet => self.connector.connect_apart().await,
        }
    }

    async fn recycle(
        &self,
        managed: &mut ManagedConnection,
        metrics: &Metrics,
    ) -> RecycleResult<ConnectError> {
        if !self.connector.is_current(managed.generation) {
            return Err(RecycleError::message("the connections of this generation were discarded"));
        }
        if metrics.last_used() > MAX_IDLE {
            let probe = timeout(IDLE_PROBE_TIMEOUT, self.connector.probe(managed, ROLE_SECTION));
            probe.await.unwrap_or(Err(ConnectError::TimedOut))?;
        }
        Ok(())
    }
}
