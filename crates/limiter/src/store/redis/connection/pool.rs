//! The pool of one worker: one connection to one server, opened on first use.
//!
//! The manager of deadpool-redis sends UNWATCH and PING before each reuse, supports no custom
//! authority, and accepts a replica as a master. So it is wrapped, as getsentry/relay does: see
//! [`super::options::ConnectOptions::connect`].

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use tokio::time::timeout;

use super::connector::{ConnectError, Connector, ManagedConnection};

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
            let probe = timeout(IDLE_PROBE_TIMEOUT, self.connector.probe(managed));
            probe.await.unwrap_or(Err(ConnectError::TimedOut))?;
        }
        Ok(())
    }
}
