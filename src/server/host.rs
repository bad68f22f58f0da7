//! What is answered on connections, and how they are treated.
//!
//! hyper serves each connection by itself, not tonic's server: so each can be told when its time
//! is up, and gRPC (HTTP/2) and HTTP/1.1 get the same treatment.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::service::Routes;
use tracing::debug;

use super::Flag;
use super::calls::Calls;
use super::connection::Connection;
use super::farewell::Spoken;
use super::life::{Life, Stage};
use super::services::Services;
use super::settings::ConnectionSettings;
use super::tls::{Encrypted, Tls, Version};
use crate::api::auth::Certificate;
use crate::clock::SystemClock;
use crate::telemetry::metrics::{ApiLabels, Metrics};

/// Calls that one connection may have in flight.
const STREAMS: u32 = 1024;
/// Bytes of headers that one call may send.
const HEADER_BYTES: u32 = 16 * 1024;
/// Calls that a client may cancel before they are read: h2's default cuts off a legitimate burst.
const PENDING_RESETS: usize = 1000;
/// Streams that a client may get wrong before its connection is closed.
const ERROR_RESETS: usize = 1024;
/// The longest that the head of an HTTP/1.1 request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// What is answered, and how. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct Host {
    protocol: Protocol,
    router: Router,
    settings: ConnectionSettings,
    metrics: Arc<Metrics>,
    clock: SystemClock,
    tls: Option<Tls>,
}

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http,
}

impl Host {
    /// Answers gRPC.
    pub(super) fn grpc(
        services: Routes,
        settings: ConnectionSettings,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let router = services.prepare().into_axum_router();
        let (metrics, clock) = (Arc::clone(metrics), SystemClock::new());
        Self { protocol: Protocol::Grpc, router, settings, metrics, clock, tls: None }
    }

    /// The same, encrypted where it comes by TCP. Who may open a socket file is a matter of its
    /// permissions, and nobody listens in between.
    pub(super) fn encrypted(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// Answers HTTP, otherwise like this one.
    pub(super) fn http(&self, pages: Router) -> Self {
        Self { protocol: Protocol::Http, router: pages, ..self.clone() }
    }

    /// What its threads are called.
    pub(super) fn name(&self) -> &'static str {
        match self.protocol {
            Protocol::Grpc => "worker",
            Protocol::Http => "http",
        }
    }

    /// Serves a connection to its end; from `drain` on only what is in flight.
    pub(super) async fn serve(self, connection: Connection, drain: Flag) {
        let _open = Open::count(&self.metrics, self.protocol);
        let (Connection::Tcp(_), Some(tls)) = (&connection, &self.tls) else {
            let version = Version::usual_for(self.protocol);
            return self.converse(connection, version, None, drain).await;
        };
        let shaken = tokio::select! {
            shaken = tls.accept(connection, self.protocol) => shaken,
            () = drain.clone().raised() => return,
        };
        match shaken {
            Ok(Encrypted { stream, version, certificate }) => {
                self.converse(stream, version, certificate, drain).await;
            }
            Err(error) => {
                self.metrics.tls_handshake_errors.inc();
                debug!(%error, "no handshake");
            }
        }
    }

    async fn converse<IO>(
        self,
        connection: IO,
        version: Version,
        certificate: Option<Certificate>,
        drain: Flag,
    ) where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stage, seen) = watch::channel(Stage::Open);
        let mut life = Life {
            age: self.settings.max_age.map(|age| self.clock.jittered(age)),
            grace: self.settings.max_age_grace,
            drain,
            farewell: None,
            stage,
        };
        let http2 = self.http2();
        let services = Services::new(self.router, certificate);
        let ended = match (self.protocol, version) {
            (Protocol::Grpc, _) => {
                let (io, farewell) = Spoken::new(connection);
                life.farewell = Some(farewell);
                let calls = Calls::new(services, seen);
                life.lead(http2.serve_connection(TokioIo::new(io), calls)).await
            }
            (Protocol::Http, Version::Http2) => {
                life.lead(http2.serve_connection(TokioIo::new(connection), services)).await
            }
            (Protocol::Http, Version::Http1) => {
                life.lead(http1().serve_connection(TokioIo::new(connection), services)).await
            }
        };
        if let Err(error) = ended {
            debug!(error = &error as &dyn Error, "connection lost");
        }
    }

    fn http2(&self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADER_BYTES)
            .max_pending_accept_reset_streams(PENDING_RESETS)
            .max_local_error_reset_streams(ERROR_RESETS)
            .keep_alive_interval(self.settings.keepalive_interval)
            .keep_alive_timeout(self.settings.keepalive_timeout);
        builder
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
}

/// Counts a connection for as long as it is open.
struct Open {
    metrics: Arc<Metrics>,
    labels: ApiLabels,
}

impl Open {
    fn count(metrics: &Arc<Metrics>, protocol: Protocol) -> Self {
        let api = match protocol {
            Protocol::Grpc => "grpc",
            Protocol::Http => "http",
        };
        let labels = ApiLabels { api };
        metrics.connections.get_or_create(&labels).inc();
        metrics.open_connections.get_or_create(&labels).inc();
        Self { metrics: Arc::clone(metrics), labels }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.open_connections.get_or_create(&self.labels).dec();
    }
}
