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
pub(crate) struct PoolManager(pub(crate) Arc<Connector>);

/// Creates an empty pool. One connection is enough: it carries the calls of many batches at once.
pub(crate) fn new_pool(connector: &Arc<Connector>) -> Pool {
    let pool = Pool::builder(PoolManager(Arc::clone(connector))).max_size(1).build();
    pool.expect("a pool without timeouts needs no runtime")
}

impl managed::Manager for PoolManager {
    type Type = ManagedConnection;
    type Error = ConnectError;

    async fn create(&self) -> Result<ManagedConnection, ConnectError> {
        self.0.connect_unless_unreachable().await
    }

    async fn recycle(
        &self,
        managed: &mut ManagedConnection,
        metrics: &Metrics,
    ) -> RecycleResult<ConnectError> {
        if !self.0.is_current(managed.generation) {
            return Err(RecycleError::message("the connections of this generation were discarded"));
        }
        if metrics.last_used() > MAX_IDLE {
            let probe = timeout(IDLE_PROBE_TIMEOUT, self.0.probe(managed));
            probe.await.unwrap_or(Err(ConnectError::TimedOut))?;
        }
        Ok(())
    }
}
