//! Answers a call that panics, and counts it: its connection and all other calls go on.
//!
//! The layer of this name in tower-http does not see panics of bodies, which is where the decisions of
//! a stream are made, and puts the body of each response in a box.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use tower::{Layer, Service};
use tracing::error;

use crate::api::Interruption;
use crate::server::protocol::Protocol;
use crate::telemetry::metrics::Metrics;

/// Catches the panics of a service.
#[derive(Clone, Debug)]
pub(super) struct CatchPanicLayer {
    pub(super) protocol: Protocol,
    pub(super) metrics: Arc<Metrics>,
}

/// A service whose panics are caught.
#[derive(Clone, Debug)]
pub(in crate::server) struct CatchPanic<S> {
    inner: S,
    layer: CatchPanicLayer,
}

/// The response of a [`CatchPanic`].
#[derive(Debug)]
pub(in crate::server) struct CatchPanicFuture<F> {
    inner: F,
    layer: CatchPanicLayer,
}

/// The body of its response.
#[derive(Debug)]
pub(in crate::server) struct CatchPanicBody {
    /// None after a panic.
    inner: Option<Body>,
    metrics: Arc<Metrics>,
}

impl<S> Layer<S> for CatchPanicLayer {
    type Service = CatchPanic<S>;

    fn layer(&self, inner: S) -> CatchPanic<S> {
        CatchPanic { inner, layer: self.clone() }
    }
}

impl<S, B> Service<Request<B>> for CatchPanic<S>
where
    S: Service<Request<B>, Response = Response<Body>, Future: Unpin>,
{
    type Response = Response<CatchPanicBody>;
    type Error = S::Error;
    type Future = CatchPanicFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        CatchPanicFuture { inner: self.inner.call(request), layer: self.layer.clone() }
    }
}

impl<F, E> Future for CatchPanicFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>> + Unpin,
{
    type Output = Result<Response<CatchPanicBody>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = &mut self.inner;
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(inner).poll(cx)));
        let CatchPanicLayer { protocol, metrics } = &self.layer;
        let polled = polled.unwrap_or_else(|_panic| {
            count(metrics);
            Poll::Ready(Ok(protocol.internal_error()))
        });
        polled.map_ok(|response| {
            response.map(|body| CatchPanicBody { inner: Some(body), metrics: Arc::clone(metrics) })
        })
    }
}

impl HttpBody for CatchPanicBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(inner).poll_frame(cx)));
        polled.unwrap_or_else(|_panic| {
            count(&self.metrics);
            self.inner = None;
            Poll::Ready(Some(Ok(Frame::trailers(Interruption::Panic.trailers()))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

fn count(metrics: &Metrics) {
    error!("a call panicked");
    metrics.panics.inc();
}
