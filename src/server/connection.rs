//! Connections of clients, from their first byte to their end.
//!
//! hyper serves the connections of all protocols. tonic's own server is not used, because it sends
//! no GOAWAY at the maximum age of a connection (`docs/decisions/0003-goaway-and-drain.md`).

use std::error::Error;
use std::sync::Arc;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rlaas_auth::{ClientCertificate, ClientNetwork};
use rlaas_telemetry::metrics::{ApiLabels, Metrics};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::calls::CallExecutor;
use super::connection_limit::client_network;
use super::goaway::GoAwayIo;
use super::lifecycle::ConnectionLifecycle;
use super::listener::{self, ClientStream, DetachedSocket};
use super::middleware::{ConnectionContext, Middleware};
use super::protocol::Protocol;
use super::read_budget::ReadBudget;
use super::settings::ConnectionSettings;
use super::tls::Tls;
use crate::api::http::OverTls;
use crate::clock::jittered;

/// Maximum size of the headers of a request, in bytes.
const MAX_HEADER_BYTES: u16 = 16 * 1024;
/// Maximum number of streams that a client has reset before they were accepted. h2's default, 20,
/// closes the connections of clients that cancel a burst of calls.
const MAX_PENDING_RESETS: usize = 1000;
/// Maximum number of streams that are reset because of errors of the client, before its connection
/// is closed.
const MAX_ERROR_RESETS: usize = 1024;

/// Serves the connections of one protocol on one worker.
#[derive(Debug)]
pub(super) struct ConnectionHandler {
    pub(super) middleware: Arc<Middleware>,
    pub(super) settings: ConnectionSettings,
    /// TLS for TCP connections. Unix domain sockets are not encrypted: file permissions decide who
    /// may connect, and no other process can read the data.
    pub(super) tls: Option<Tls>,
    /// Certificate of clients over TCP without TLS: a missing one if the server asks for them elsewhere.
    pub(super) without_tls: Option<ClientCertificate>,
    pub(super) drain: CancellationToken,
}

/// The byte stream of a connection. TLS streams are boxed because they are large.
type Io = Either<ClientStream, Box<TlsStream<ClientStream>>>;

impl ConnectionHandler {
    /// Serves a connection until it ends.
    pub(super) async fn serve(self: Arc<Self>, socket: DetachedSocket) {
        let _open = OpenConnection::count(&self.middleware.metrics, self.middleware.protocol);
        let stream = match listener::attach(socket) {
            Ok(stream) => stream,
            Err(error) => return debug!(%error, "connection lost before its first request"),
        };
        let (Either::Left(_), Some(tls)) = (&stream, &self.tls) else {
            let is_tcp = matches!(stream, Either::Left(_));
            let certificate = self.without_tls.clone().filter(|_| is_tcp);
            return self.serve_http(Either::Left(stream), certificate).await;
        };
        let handshake = tokio::select! {
            handshake = tls.accept(stream, self.middleware.protocol) => handshake,
            () = self.drain.cancelled() => return,
        };
        match handshake {
            Ok((stream, certificate)) => {
                self.serve_http(Either::Right(Box::new(stream)), certificate).await;
            }
            Err(error) => {
                self.middleware.metrics.tls_handshake_errors.inc();
                debug!(%error, "TLS handshake failed");
            }
        }
    }

    async fn serve_http(&self, io: Io, certificate: Option<ClientCertificate>) {
        let stream = match &io {
            Either::Left(stream) => stream,
            Either::Right(tls) => tls.get_ref().0,
        };
        let is_console = self.middleware.protocol == Protocol::Console;
        let address = is_console.then(|| listener::address(stream)).flatten();
        let peer = listener::peer(stream);
        let is_encrypted = matches!(io, Either::Right(_));
        let is_https = is_encrypted && self.middleware.protocol != Protocol::Grpc;
        let context = Arc::new(ConnectionContext {
            middleware: Arc::clone(&self.middleware),
            certificate,
            peer,
            network: ClientNetwork(address.map(client_network)),
            over_tls: is_https.then_some(OverTls),
            counters: Arc::default(),
            phases: Arc::default(),
        });
        let (counters, phases) = (Arc::clone(&context.counters), Arc::clone(&context.phases));
        let builder = self.builder(&io);
        let (io, goaway) = GoAwayIo::new(ReadBudget::new(io, Arc::clone(&counters)));
        let lifecycle = ConnectionLifecycle {
            max_age: self.settings.max_age.map(jittered),
            grace: self.settings.max_age_grace,
            preface_timeout: self.settings.request_time,
            drain: self.drain.clone(),
            counters,
            goaway,
            phases,
        };
        let service = service_fn(move |request| context.respond(request));
        // Boxed because it is large, and inline would be copied with each future that holds it.
        let connection = Box::pin(builder.serve_connection(TokioIo::new(io), service));
        if let Err(error) = lifecycle.run(connection).await {
            debug!(error = &*error as &dyn Error, "connection lost");
        }
    }

    fn builder(&self, io: &Io) -> auto::Builder<CallExecutor> {
        let mut builder = auto::Builder::new(CallExecutor);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.settings.request_time)
            // The builder has no limit for headers alone; this buffer holds them.
            .max_buf_size(MAX_HEADER_BYTES.into());
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.settings.streams)
            .max_header_list_size(MAX_HEADER_BYTES.into())
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .keep_alive_interval(self.settings.keepalive_interval)
            .keep_alive_timeout(self.settings.keepalive_timeout);
        match (self.middleware.protocol, io) {
            (Protocol::Grpc, _) => builder.http2_only(),
            (Protocol::Http | Protocol::Console | Protocol::Metrics, Either::Left(_)) => {
                builder.http1_only()
            }
            (Protocol::Http | Protocol::Console | Protocol::Metrics, Either::Right(_)) => builder,
        }
    }
}

/// Counts a connection as open until it is dropped.
struct OpenConnection {
    metrics: Arc<Metrics>,
    labels: ApiLabels,
}

impl OpenConnection {
    fn count(metrics: &Arc<Metrics>, protocol: Protocol) -> Self {
        let labels = ApiLabels { api: protocol.label() };
        metrics.connections.get_or_create(&labels).inc();
        metrics.open_connections.get_or_create(&labels).inc();
        Self { metrics: Arc::clone(metrics), labels }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.metrics.open_connections.get_or_create(&self.labels).dec();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::time::Duration;

    use axum::Router;
    use axum::body::{Body, Bytes};
    use axum::http::header::CONTENT_TYPE;
    use axum::routing::post;
    use futures_util::stream;
    use opentelemetry::KeyValue;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
    use rlaas_auth::{Auth, HostNames};
    use rlaas_proto::ratelimit::v1::CheckRequest;
    use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
    use rlaas_telemetry::otlp::SampleRatio;
    use rlaas_telemetry::traces::Traces;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;
    use tonic::Code;
    use tonic::transport::{Channel, Endpoint};

    use super::*;
    use crate::server::middleware::DirectServices;

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
    const CHECK: &str = "/ratelimit.v1.RateLimitService/Check";

    /// A handler that panics, since no request makes the services panic.
    async fn panics() -> &'static str {
        panic!("a bug")
    }

    async fn panics_in_the_body() -> impl axum::response::IntoResponse {
        let body = stream::poll_fn(|_| -> std::task::Poll<Option<Result<Bytes, Infallible>>> {
            panic!("a bug")
        });
        ([(CONTENT_TYPE, "application/grpc")], Body::from_stream(body))
    }

    fn middleware(protocol: Protocol, services: Router, metrics: &Arc<Metrics>) -> Middleware {
        Middleware {
            protocol,
            direct: DirectServices::None,
            services,
            auth: Arc::new(Auth::unlisted(HostNames::default(), Arc::clone(metrics))),
            cors: None,
            traces: None,
            request_timeout: SETTINGS.request_time,
            metrics: Arc::clone(metrics),
        }
    }

    /// Accepts and serves one connection.
    async fn serve(middleware: Middleware) -> SocketAddr {
        let handler = Arc::new(ConnectionHandler {
            middleware: Arc::new(middleware),
            settings: SETTINGS,
            tls: None,
            without_tls: None,
            drain: CancellationToken::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            handler.serve(listener::detach(Either::Left(stream)).expect("a socket")).await;
        });
        address
    }

    async fn connect(address: SocketAddr) -> RateLimitServiceClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let channel = endpoint.expect("an address").connect().await.expect("a connection");
        RateLimitServiceClient::new(channel)
    }

    /// Keeps the gRPC statuses of ended spans.
    #[derive(Clone, Debug, Default)]
    struct SpanStatuses(Arc<Mutex<Vec<String>>>);

    impl SpanProcessor for SpanStatuses {
        fn on_start(&self, _span: &mut Span, _context: &opentelemetry::Context) {}

        fn on_end(&self, span: SpanData) {
            let is_status =
                |attribute: &&KeyValue| attribute.key.as_str() == "rpc.response.status_code";
            let statuses = span.attributes.iter().filter(is_status);
            let statuses = statuses.map(|attribute| attribute.value.to_string());
            self.0.lock().expect("no panic").extend(statuses);
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    #[tokio::test]
    async fn span_of_a_panic_has_the_status_of_the_response() {
        for routes in [
            Router::new().route(CHECK, post(panics)),
            Router::new().route(CHECK, post(panics_in_the_body)),
        ] {
            let statuses = SpanStatuses::default();
            let every_call = SampleRatio::new(1.0).expect("a ratio");
            let traces = Traces::with_processor(statuses.clone(), every_call, "one");
            let middleware = Middleware {
                traces: Some(traces),
                ..middleware(Protocol::Grpc, routes, &Arc::new(Metrics::new()))
            };
            let mut client = connect(serve(middleware).await).await;
            client.check(CheckRequest::default()).await.expect_err("a panic");
            let ended = async {
                while statuses.0.lock().expect("no panic").is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(10), ended).await.expect("the span ends");
            assert_eq!(*statuses.0.lock().expect("no panic"), ["INTERNAL"]);
        }
    }

    #[tokio::test]
    async fn panic_is_an_internal_error_and_the_connection_stays_open() {
        for routes in [
            Router::new().route(CHECK, post(panics)),
            Router::new().route(CHECK, post(panics_in_the_body)),
        ] {
            let metrics = Arc::new(Metrics::new());
            let address = serve(middleware(Protocol::Grpc, routes, &metrics)).await;
            let mut client = connect(address).await;
            for count in 1..=3 {
                let status = client.check(CheckRequest::default()).await.expect_err("a panic");
                assert_eq!((status.code(), status.message()), (Code::Internal, "internal error"));
                assert_eq!(metrics.panics.get(), count);
            }
            let labels = ApiLabels { api: "grpc" };
            assert_eq!(metrics.connections.get_or_create(&labels).get(), 1);
        }
    }

    #[tokio::test]
    async fn panic_over_http_is_a_problem_document() {
        let metrics = Arc::new(Metrics::new());
        let routes = Router::new().route("/check", post(panics));
        let address = serve(middleware(Protocol::Http, routes, &metrics)).await;
        let mut client = TcpStream::connect(address).await.expect("a connection");
        let mut responses = String::new();
        for (count, then) in [(1, "keep-alive"), (2, "close")] {
            let head = "POST /check HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n";
            let request = format!("{head}Connection: {then}\r\n\r\n");
            client.write_all(request.as_bytes()).await.expect("a server");
            while responses.matches("\"internal error\"}").count() < count {
                let mut part = [0; 1024];
                let read = client.read(&mut part).await.expect("a response");
                assert!(read > 0, "{responses}");
                responses += &String::from_utf8_lossy(&part[..read]);
            }
        }
        assert_eq!(responses.matches("HTTP/1.1 500 Internal Server Error").count(), 2);
        assert_eq!(responses.matches("content-type: application/problem+json").count(), 2);
        assert_eq!(metrics.panics.get(), 2);
    }
}
