//! What is answered on connections, and how they are treated.
//!
//! hyper serves each connection by itself, not tonic's server: so each can be told when its time
//! is up, and gRPC (HTTP/2) and HTTP/1.1 get the same treatment.

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body as AnyBody;
use tonic::service::Routes;
use tracing::debug;

use super::Flag;
use super::calls::{Calls, Way};
use super::goaway::Spoken;
use super::inline_executor::{Arrived, CallsWait};
use super::lifecycle::{Life, Stage};
use super::read_budget::InTurns;
use super::services::Services;
use super::settings::ConnectionSettings;
use super::socket::Connection;
use super::tls::{Encrypted, Tls, Version};
use crate::api::auth::Certificate;
use crate::api::{Direct, Interruption};
use crate::clock::jittered;
use crate::telemetry::metrics::{ApiLabels, Metrics};

/// Bytes of headers that one request may have.
const HEADER_BYTES: u16 = 16 * 1024;
/// Calls that a client may cancel before they are read: h2's default cuts off a legitimate burst.
const PENDING_RESETS: usize = 1000;
/// Streams that a client may get wrong before its connection is closed.
const ERROR_RESETS: usize = 1024;

/// What is answered, and how. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct Host {
    protocol: Protocol,
    router: Router,
    direct: Option<Direct>,
    settings: ConnectionSettings,
    metrics: Arc<Metrics>,
    calls: CallsWait,
    tls: Option<Tls>,
}

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    Http,
}

impl Host {
    /// Answers nothing yet.
    pub(super) fn new(settings: ConnectionSettings, metrics: &Arc<Metrics>) -> Self {
        Self {
            protocol: Protocol::Grpc,
            router: Router::new(),
            direct: None,
            settings,
            metrics: Arc::clone(metrics),
            calls: CallsWait::Seldom,
            tls: None,
        }
    }

    /// The same, encrypted where it comes by TCP. Who may open a socket file is a matter of its
    /// permissions, and nobody listens in between.
    pub(super) fn encrypted(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// The same for calls of this kind.
    pub(super) fn where_calls(self, calls: CallsWait) -> Self {
        Self { calls, ..self }
    }

    /// Answers gRPC, with a short cut to some of the services, otherwise like this one.
    pub(super) fn grpc(&self, services: Routes, direct: Option<Direct>) -> Self {
        let router = services.prepare().into_axum_router();
        Self { protocol: Protocol::Grpc, router, direct, ..self.clone() }
    }

    /// Answers HTTP, otherwise like this one.
    pub(super) fn http(&self, pages: Router) -> Self {
        Self { protocol: Protocol::Http, router: pages, direct: None, ..self.clone() }
    }

    pub(super) fn settings(&self) -> ConnectionSettings {
        self.settings
    }

    pub(super) fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
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
            let plain = Self { tls: None, ..self };
            return plain.converse(connection, version, None, drain).await;
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
        let services = Services::new(self.router.clone(), self.direct.clone(), certificate);
        let way = Arc::new(Way {
            services: match (self.protocol, &self.tls) {
                (Protocol::Http, Some(_)) => services.over_tls(),
                _ => services,
            },
            request_time: self.settings.request_time,
            stage: seen,
            metrics: Arc::clone(&self.metrics),
            interrupt: match self.protocol {
                Protocol::Grpc => |by| Status::from(by).into_http(),
                Protocol::Http => http_interruption,
            },
        });
        let calls = Calls(Arc::clone(&way));
        let mut life = Life {
            age: self.settings.max_age.map(jittered),
            grace: self.settings.max_age_grace,
            drain,
            hello: self.settings.request_time,
            farewell: None,
            way,
            arrived: Arrived::new(self.calls),
            stage,
        };
        let connection = InTurns::new(connection, life.arrived.clone());
        // In boxes: they are large, and would be moved with whatever holds them.
        let ended = match version {
            Version::Http2 => {
                let (io, farewell) = Spoken::new(connection);
                life.farewell = Some(farewell);
                let builder = self.http2(life.arrived.clone());
                life.lead(Box::pin(builder.serve_connection(TokioIo::new(io), calls))).await
            }
            Version::Http1 => {
                let io = TokioIo::new(connection);
                life.lead(Box::pin(self.http1().serve_connection(io, calls))).await
            }
        };
        if let Err(error) = ended {
            debug!(error = &error as &dyn Error, "connection lost");
        }
    }

    fn http2(&self, arrived: Arrived) -> http2::Builder<Arrived> {
        let mut builder = http2::Builder::new(arrived);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.settings.streams)
            .max_header_list_size(HEADER_BYTES.into())
            .max_pending_accept_reset_streams(PENDING_RESETS)
            .max_local_error_reset_streams(ERROR_RESETS)
            .keep_alive_interval(self.settings.keepalive_interval)
            .keep_alive_timeout(self.settings.keepalive_timeout);
        builder
    }

    fn http1(&self) -> http1::Builder {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.settings.request_time)
            .max_header_size(HEADER_BYTES.into());
        builder
    }
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

/// What an interruption looks like to a client of HTTP.
fn http_interruption(by: Interruption) -> Response<AnyBody> {
    let status = match by {
        Interruption::Closing => StatusCode::SERVICE_UNAVAILABLE,
        Interruption::Late => StatusCode::REQUEST_TIMEOUT,
        Interruption::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
    };
    status.into_response().map(AnyBody::new)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use axum::routing::post;
    use rlaas_proto::ratelimit::v1::CheckRequest;
    use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
    use tokio::net::TcpListener;
    use tonic::Code;
    use tonic::transport::Endpoint;

    use super::*;

    const SETTINGS: ConnectionSettings = ConnectionSettings {
        max_age: None,
        max_age_grace: Duration::ZERO,
        keepalive_interval: Duration::from_secs(20),
        keepalive_timeout: Duration::from_secs(20),
        connections: 10,
        connections_per_address: 10,
        streams: 10,
        request_time: Duration::from_secs(10),
    };

    /// No request makes the service panic, so here are handlers that do.
    async fn panics() -> &'static str {
        panic!("a bug")
    }

    /// Serves one connection.
    async fn serve(host: Host) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            let (connection, _) = listener.accept().await.expect("a connection");
            let (_open, never) = watch::channel(false);
            host.serve(Connection::Tcp(connection), Flag(never)).await;
        });
        address
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_error_and_the_connection_lives() {
        let metrics = Arc::new(Metrics::new());
        let path = "/ratelimit.v1.RateLimitService/Check";
        let services = Router::new().route(path, post(panics));
        let host = Host::new(SETTINGS, &metrics).grpc(services.into(), None);
        let address = serve(host).await;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.connect().await.expect("a connection");
        let mut client = RateLimitServiceClient::new(channel);
        for count in 1..=3 {
            let status = client.check(CheckRequest::default()).await.expect_err("a panic");
            assert_eq!((status.code(), status.message()), (Code::Internal, "internal error"));
            assert_eq!(metrics.panics.get(), count);
        }
        let labels = ApiLabels { api: "grpc" };
        assert_eq!(metrics.connections.get_or_create(&labels).get(), 1);
    }
}
