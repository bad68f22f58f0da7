//! Accept loops: they accept connections and hand them to the workers, one after the other.

use std::collections::VecDeque;
use std::future::pending;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rlaas_telemetry::metrics::{Metrics, ReasonLabels};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

use super::connection_limit::{ConnectionLimiter, RejectReason};
use super::listener::{self, ClientStream, Listener};
use super::protocol::Protocol;
use super::workers::{AcceptedConnection, WorkerQueues};

/// Maximum wait for the first byte of a new connection while the server drains.
const DRAIN_FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait after `accept` has failed: the process is out of file descriptors, and an immediate retry
/// would fail too.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The accept loops of one protocol.
#[derive(Debug)]
pub(super) struct AcceptLoops {
    loops: JoinSet<()>,
    acceptor: Acceptor,
}

/// Settings and shared state of the accept loops of one protocol. Clones share the state.
#[derive(Clone, Debug)]
pub(super) struct Acceptor {
    pub(super) protocol: Protocol,
    pub(super) workers: WorkerQueues,
    pub(super) limiter: ConnectionLimiter,
    /// Maximum wait for the first byte of a connection.
    pub(super) first_byte_timeout: Duration,
    /// Maximum number of connections that wait for their first byte. Above it the oldest is closed.
    pub(super) max_pending: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) drain: CancellationToken,
    /// Holds a token for each connection that was handed to a worker and has not ended.
    pub(super) connections: TaskTracker,
}

impl AcceptLoops {
    /// Starts a loop for each listener.
    pub(super) fn start(listeners: Vec<Listener>, acceptor: Acceptor) -> Self {
        let loops = listeners.into_iter().map(|listener| acceptor.clone().run(listener));
        Self { loops: loops.collect(), acceptor }
    }

    /// Completes when a loop has ended, which happens only if it panics or the server drains.
    pub(super) async fn ended(&mut self) -> Result<(), JoinError> {
        match self.loops.join_next().await {
            Some(ended) => ended,
            None => pending().await,
        }
    }

    /// Stops accepting, and completes when all connections have ended.
    pub(super) async fn drain(mut self) {
        self.acceptor.drain.cancel();
        while let Some(ended) = self.loops.join_next().await {
            if let Err(error) = ended {
                error!(%error, "accept loop failed");
            }
        }
        self.acceptor.connections.close();
        self.acceptor.connections.wait().await;
    }
}

impl Acceptor {
    /// Accepts connections until the server drains. Connections without a first byte then get
    /// [`DRAIN_FIRST_BYTE_TIMEOUT`] to send one.
    async fn run(self, listener: Listener) {
        let mut pending = PendingConnections::default();
        let mut drain = pin!(self.drain.clone().cancelled_owned());
        let mut is_failing = false;
        loop {
            tokio::select! {
                () = &mut drain => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        if is_failing {
                            info!("accepting connections again");
                            is_failing = false;
                        }
                        pending.push(stream, address, &self);
                    }
                    Err(error) => {
                        if !is_failing {
                            warn!(%error, "accept failed");
                            is_failing = true;
                        }
                        back_off().await;
                    }
                },
                Some(_) = pending.tasks.join_next() => {}
            }
        }
        // Clients in the accept queue do not know that this server drains: serve them.
        while let Some(Ok((stream, address))) = listener.accept().now_or_never() {
            pending.push(stream, address, &self);
        }
        drop(listener);
        while pending.tasks.join_next().await.is_some() {}
    }

    /// Hands a connection to a worker when its first byte has arrived. A connection that sends
    /// nothing takes no permit, and the drain of a worker does not wait for it.
    async fn admit(self, stream: ClientStream, address: Option<IpAddr>) {
        let drain_timeout = async {
            self.drain.cancelled().await;
            let _elapsed = timeout(DRAIN_FIRST_BYTE_TIMEOUT, std::future::pending::<()>()).await;
        };
        let first_byte = tokio::select! {
            biased;
            first_byte = timeout(self.first_byte_timeout, listener::peek(&stream)) => first_byte,
            () = drain_timeout => return,
        };
        match first_byte {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) => return debug!("connection closed before its first byte"),
            Ok(Err(error)) => return debug!(%error, "connection lost before its first byte"),
            Err(_elapsed) => return self.count_rejected(RejectReason::Silent),
        }
        let permit = match self.limiter.acquire(address) {
            Ok(permit) => permit,
            Err(reason) => return self.count_rejected(reason),
        };
        match listener::detach(stream) {
            Ok(socket) => {
                let (protocol, open) = (self.protocol, self.connections.token());
                self.workers.push(AcceptedConnection { socket, protocol, permit, open }).await;
            }
            Err(error) => debug!(%error, "connection lost before its first request"),
        }
    }

    fn count_rejected(&self, reason: RejectReason) {
        let reason = reason.label();
        debug!(reason, "connection rejected");
        self.metrics.refused_connections.get_or_create(&ReasonLabels { reason }).inc();
    }
}

/// Connections whose first byte has not arrived.
#[derive(Default)]
struct PendingConnections {
    tasks: JoinSet<()>,
    /// The tasks in order of arrival; some of them have ended.
    order: VecDeque<AbortHandle>,
}

impl PendingConnections {
    /// Adds a connection. If there are too many, the oldest is closed.
    fn push(&mut self, stream: ClientStream, address: Option<IpAddr>, acceptor: &Acceptor) {
        while self.order.front().is_some_and(AbortHandle::is_finished) {
            self.order.pop_front();
        }
        if self.tasks.len() >= acceptor.max_pending
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
            acceptor.count_rejected(RejectReason::Silent);
        }
        self.order.push_back(self.tasks.spawn(acceptor.clone().admit(stream, address)));
    }
}

#[expect(clippy::disallowed_methods, reason = "no event reports that descriptors are free again")]
async fn back_off() {
    tokio::time::sleep(ACCEPT_BACKOFF).await;
}
