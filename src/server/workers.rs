//! Worker threads: each serves its share of the connections, of both protocols, on a runtime of its
//! own.
//!
//! A request stays on one thread from its first byte to its last. That costs nothing in locks and
//! wake-ups between threads, which is most of what a decision in memory costs otherwise.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::connection::ConnectionHandler;
use super::connection_limit::ConnectionPermit;
use super::protocol::Protocol;
use super::socket::DetachedSocket;
use crate::limiter::Limiter;

/// Connections that wait for a worker to take them.
const QUEUE_CAPACITY: usize = 128;

/// A connection on its way to a worker.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    pub(super) socket: DetachedSocket,
    pub(super) protocol: Protocol,
    /// Held until the connection has ended.
    pub(super) permit: ConnectionPermit,
    /// Held as long: a drain waits for it.
    pub(super) open: TaskTrackerToken,
}

/// What a worker answers, by protocol.
#[derive(Clone, Debug)]
pub(super) struct Handlers {
    pub(super) grpc: Arc<ConnectionHandler>,
    pub(super) http: Arc<ConnectionHandler>,
}

/// The queues of the workers. Clones share the turn; with the last one all threads end.
#[derive(Clone, Debug)]
pub(super) struct WorkerQueues {
    queues: Arc<[mpsc::Sender<AcceptedConnection>]>,
    next: Arc<AtomicUsize>,
}

impl WorkerQueues {
    /// Starts `count` threads; each decides by a handle of `limiter` of its own.
    pub(super) fn start(
        count: NonZeroUsize,
        limiter: &Limiter,
        handlers: impl Fn(&Limiter) -> Handlers,
    ) -> io::Result<Self> {
        let mut queues = Vec::new();
        for number in 0..count.get() {
            let (queue, accepted) = mpsc::channel(QUEUE_CAPACITY);
            queues.push(queue);
            let (limiter, keep_connections) = limiter.for_worker();
            let handlers = handlers(&limiter);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            // Ends with the runtime.
            runtime.spawn(keep_connections);
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            thread.spawn(move || runtime.block_on(serve(accepted, handlers)))?;
        }
        Ok(Self { queues: queues.into(), next: Arc::default() })
    }

    /// Gives a connection to the next worker.
    pub(super) async fn push(&self, accepted: AcceptedConnection) {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        // A worker that has ended takes nothing: the connection is closed.
        let _ended = self.queues[index].send(accepted).await;
    }
}

async fn serve(mut accepted: mpsc::Receiver<AcceptedConnection>, handlers: Handlers) {
    while let Some(AcceptedConnection { socket, protocol, permit, open }) = accepted.recv().await {
        let handler = match protocol {
            Protocol::Grpc => Arc::clone(&handlers.grpc),
            Protocol::Http => Arc::clone(&handlers.http),
        };
        tokio::spawn(async move {
            let _until_its_end = (permit, open);
            handler.serve(socket).await;
        });
        // One connection at a time; others that are ready come in between.
        yield_now().await;
    }
}
