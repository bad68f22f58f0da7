//! The pool of one worker: a connection to one server, opened when it is first needed.
//!
//! deadpool-redis' own manager sends UNWATCH and PING before each reuse, knows no authority of one's
//! own and takes a replica for a master, so it is wrapped, as getsentry/relay does: see
//! [`super::options::ConnectOptions::connect`].

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use tokio::time::timeout;

use super::connector::{ConnectError, Connector, ManagedConnection};

/// A connection that was not used for this long may have been closed by the server or on the way.
/// Sooner it may only be lost with the server, which the monitor sees.
const MAX_IDLE: Duration = Duration::from_secs(5);
/// The longest that such a connection may take to answer.
const IDLE_PROBE_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) type Pool = managed::Pool<PoolManager>;

/// Opens and recycles the connections of one pool.
#[derive(Debug)]
pub(crate) struct PoolManager(pub(crate) Arc<Connector>);

/// A pool that is empty until somebody asks. One connection is enough: it carries the calls of many
/// batches at once.
pub(crate) fn new_pool(connector: &Arc<Connector>) -> Pool {
    let pool = Pool::builder(PoolManager(Arc::clone(connector))).max_size(1).build();
    pool.expect("a pool without time-outs needs no runtime")
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
        if !self.0.is_trusted(managed.generation) {
            return Err(RecycleError::message("another connection of its time was lost"));
        }
        if metrics.last_used() > MAX_IDLE {
            let probe = timeout(IDLE_PROBE_TIMEOUT, self.0.probe(managed));
            probe.await.unwrap_or(Err(ConnectError::TimedOut))?;
        }
        Ok(())
    }
}
