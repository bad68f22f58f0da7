//! Worker threads: each serves its share of the connections on a runtime of its own.
//!
//! A request stays on one thread from its first byte to its last. That costs nothing in locks and
//! wake-ups between threads, which is most of what a decision in memory costs otherwise.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::error;

use super::ServerSettings;

/// Connections that wait for a worker to take them.
const QUEUE: usize = 128;
/// Calls that one connection may have in flight.
const STREAMS: u32 = 1024;
/// Bytes of headers that one call may send.
const HEADER_BYTES: u32 = 16 * 1024;
/// Calls that a client may cancel before they are read: h2's default cuts off a legitimate burst.
const PENDING_RESETS: usize = 1000;
/// Streams that a client may get wrong before its connection is closed.
const ERROR_RESETS: usize = 1024;
/// A connection that does not answer a ping within this time is dead.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The running workers.
#[derive(Debug)]
pub(super) struct Workers {
    intake: Intake,
    running: mpsc::Receiver<()>,
}

/// Where connections go in. Clones share the turn.
#[derive(Clone, Debug)]
pub(super) struct Intake {
    queues: Arc<[mpsc::Sender<TcpStream>]>,
    next: Arc<AtomicUsize>,
}

impl Intake {
    /// Gives a connection, which does not block, to the next worker.
    pub(super) async fn take(&mut self, connection: TcpStream) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        // A worker that has ended takes nothing: the connection is closed.
        let _ended = self.queues[turn].send(connection).await;
    }
}

impl Workers {
    pub(super) fn spawn(settings: &ServerSettings, routes: &Routes) -> io::Result<Self> {
        let (alive, running) = mpsc::channel(1);
        let mut queues = Vec::new();
        for number in 0..settings.workers.get() {
            let (queue, connections) = mpsc::channel(QUEUE);
            queues.push(queue);
            let worker = Worker { connections, routes: routes.clone(), _alive: alive.clone() };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || runtime.block_on(worker.run()))?;
        }
        let intake = Intake { queues: queues.into(), next: Arc::default() };
        Ok(Self { intake, running })
    }

    pub(super) fn intake(&self) -> Intake {
        self.intake.clone()
    }

    /// Completes when every worker has served what is in flight. They drain once their queues
    /// are empty and nobody holds the intake any more.
    pub(super) async fn finish(self) {
        let Self { intake, mut running } = self;
        drop(intake);
        let _all_gone = running.recv().await;
    }
}

struct Worker {
    connections: mpsc::Receiver<TcpStream>,
    routes: Routes,
    /// Dropped with the worker: tells that it has finished.
    _alive: mpsc::Sender<()>,
}

impl Worker {
    async fn run(self) {
        let connections =
            ReceiverStream::new(self.connections).map(tokio::net::TcpStream::from_std);
        let served = Server::builder()
            .max_concurrent_streams(STREAMS)
            .http2_max_header_list_size(HEADER_BYTES)
            .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS))
            .http2_max_local_error_reset_streams(Some(ERROR_RESETS))
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_routes(self.routes)
            // The end of the connections is what begins the drain.
            .serve_with_incoming_shutdown(connections, std::future::pending())
            .await;
        if let Err(error) = served {
            error!(%error, "worker ended");
        }
    }
}
