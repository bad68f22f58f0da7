//! Worker threads: each serves a share of the connections of all protocols, on a runtime of its
//! own.
//!
//! A request stays on one thread from its first byte to its last. Locks and wake-ups between
//! threads would cost more than a decision in memory (docs/decisions/0004-one-pool-of-workers.md).

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rlaas_telemetry::metrics::Metrics;
use rlaas_telemetry::top_keys::TopKeys;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::calls::with_calls;
use super::connection::ConnectionHandler;
use super::connection_limit::ConnectionPermit;
use super::listener::DetachedSocket;
use super::protocol::Protocol;
use rlaas_limiter::Limiter;
use tokio::runtime::{Builder, Handle, Runtime};

/// Maximum number of connections in the queue of a worker.
const QUEUE_CAPACITY: usize = 128;

/// A connection that an accept loop hands to a worker.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    pub(super) socket: DetachedSocket,
    pub(super) protocol: Protocol,
    /// Held until the connection has ended.
    pub(super) permit: ConnectionPermit,
    /// Held until the connection has ended. The drain waits for all of them.
    pub(super) open: TaskTrackerToken,
}

/// The connection handlers of one worker, in the order of [`Protocol::ALL`].
pub(super) type Handlers = [Arc<ConnectionHandler>; 4];

/// The queues of the workers, used in rotation. Clones share the rotation. The threads end when the
/// last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct WorkerQueues {
    queues: Arc<[mpsc::Sender<AcceptedConnection>]>,
    next: Arc<AtomicUsize>,
}

impl WorkerQueues {
    /// Starts `count` threads, each with its own handle of `limiter`.
    pub(super) fn start(
        count: NonZeroUsize,
        limiter: &Limiter,
        metrics: &Metrics,
        handlers: impl Fn(&Limiter) -> Handlers,
    ) -> io::Result<Self> {
        let mut queues = Vec::new();
        for number in 0..count.get() {
            let (queue, accepted) = mpsc::channel(QUEUE_CAPACITY);
            queues.push(queue);
            let (limiter, keep_connections) = limiter.for_worker();
            let handlers = handlers(&limiter);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            // The tasks end with the runtime.
            runtime.spawn(keep_connections);
            if metrics.top_keys().is_some() {
                runtime.spawn(TopKeys::flush_thread());
            }
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            thread.spawn(move || runtime.block_on(with_calls(serve(accepted, handlers))))?;
        }
        Ok(Self { queues: queues.into(), next: Arc::default() })
    }

    /// Sends a connection to the next worker.
    pub(super) async fn push(&self, accepted: AcceptedConnection) {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        // If the worker has ended, the connection is dropped, which closes it.
        let _ended = self.queues[index].send(accepted).await;
    }
}

async fn serve(mut accepted: mpsc::Receiver<AcceptedConnection>, handlers: Handlers) {
    while let Some(AcceptedConnection { socket, protocol, permit, open }) = accepted.recv().await {
        let handler = Arc::clone(&handlers[protocol as usize]);
        tokio::spawn(async move {
            let _held = (permit, open);
            handler.serve(socket).await;
        });
        // A burst of new connections must not delay those that are open.
        yield_now().await;
    }
}

/// A runtime that runs blocking tasks on one thread, which starts with the first task.
#[derive(Debug)]
pub(super) struct BackgroundThread(Option<Runtime>);

impl BackgroundThread {
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = Builder::new_current_thread();
        Ok(Self(Some(builder.thread_name("background").max_blocking_threads(1).build()?)))
    }

    /// Returns the handle by which tasks are spawned on the thread.
    pub(super) fn handle(&self) -> Handle {
        self.0.as_ref().expect("only drop takes it").handle().clone()
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // A plain drop waits for the tasks, and tokio panics if it happens on another runtime.
            runtime.shutdown_background();
        }
    }
}
