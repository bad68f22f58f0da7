//! What is spoken on a connection: gRPC over HTTP/2, or HTTP/1.1.
//!
//! hyper serves each connection by itself here, not tonic's server: a connection can be told to
//! end when it is time for it, and both protocols get the same treatment.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::service::Routes;
use tracing::debug;

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
/// The longest that the head of an HTTP/1.1 request may take.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// A protocol and what is answered by it. Clones share everything.
#[derive(Clone, Debug)]
pub(super) enum Protocol {
    Grpc(Calls),
    Http(Calls),
}

impl Protocol {
    pub(super) fn grpc(routes: Routes) -> Self {
        Self::Grpc(Calls(routes.prepare().into_axum_router()))
    }

    pub(super) fn http(router: Router) -> Self {
        Self::Http(Calls(router))
    }

    /// What threads that speak it are called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Grpc(_) => "worker",
            Self::Http(_) => "http",
        }
    }

    /// Serves a connection to its end; from `stop` on only what is in flight.
    pub(super) async fn serve<IO>(self, io: IO, stop: impl Future<Output = ()>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(io);
        match self {
            Self::Grpc(calls) => drive(http2().serve_connection(io, calls), stop).await,
            Self::Http(calls) => drive(http1().serve_connection(io, calls), stop).await,
        }
    }
}

async fn drive<C>(connection: C, stop: impl Future<Output = ()>)
where
    C: GracefulConnection<Error: Error + 'static>,
{
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(error = &error as &dyn Error, "connection lost");
    }
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_BYTES)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(ERROR_RESETS)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE);
    builder
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
}

/// The calls of one connection, on their way to the services.
#[derive(Clone, Debug)]
pub(super) struct Calls(Router);

impl Service<axum::http::Request<Incoming>> for Calls {
    type Response = Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn call(&self, request: axum::http::Request<Incoming>) -> Self::Future {
        // A router is always ready.
        tonic::codegen::Service::call(&mut self.0.clone(), request)
    }
}
