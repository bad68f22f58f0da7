//! Ends a call that panics, or still waits when its connection closes; other calls go on.
//!
//! The layer of this name in tower-http does not see panics of bodies, which is where the decisions of
//! a stream are made, and puts the body of each response in a box.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::{Layer, Service};
use tracing::error;

use super::Middleware;
use crate::api::Interruption;
use crate::server::lifecycle::{Phases, Wait};

/// Catches the panics of a service, and counts them.
#[derive(Clone, Debug)]
pub(super) struct CatchPanicLayer {
    pub(super) middleware: Arc<Middleware>,
    pub(super) phases: Arc<Phases>,
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
    /// Goes on with the body of the response.
    in_flight: Option<TaskTrackerToken>,
}

/// The body of a response. It ends with a status, for which HTTP/1 has no trailers that anybody
/// reads: there it is cut short.
#[derive(Debug)]
pub(in crate::server) struct ResponseBody {
    /// None once it was cut short.
    inner: Option<Body>,
    layer: CatchPanicLayer,
    closing: Wait,
    _in_flight: Option<TaskTrackerToken>,
}

impl CatchPanicLayer {
    fn count(&self) {
        error!("a call panicked");
        self.middleware.metrics.panics.inc();
    }
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
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = CatchPanicFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, layer) = (self.inner.call(request), self.layer.clone());
        let in_flight = Some(layer.phases.in_flight.token());
        CatchPanicFuture { inner, layer, in_flight }
    }
}

impl<F, E> Future for CatchPanicFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>> + Unpin,
{
    type Output = Result<Response<ResponseBody>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = &mut self.inner;
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(inner).poll(cx)));
        let polled = polled.unwrap_or_else(|_panic| {
            self.layer.count();
            Poll::Ready(Ok(self.layer.middleware.protocol.internal_error()))
        });
        polled.map_ok(|response| {
            let (layer, in_flight) = (self.layer.clone(), self.in_flight.take());
            response.map(|body| ResponseBody {
                inner: Some(body),
                layer,
                closing: Wait::default(),
                _in_flight: in_flight,
            })
        })
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { inner, layer, closing, .. } = &mut *self;
        let Some(body) = inner else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(cx)));
        let by = match polled {
            Ok(Poll::Ready(frame)) => return Poll::Ready(frame),
            Ok(Poll::Pending) => {
                ready!(closing.poll(&layer.phases.closed, cx));
                Interruption::ConnectionClosing
            }
            Err(_panic) => {
                layer.count();
                Interruption::Panic
            }
        };
        *inner = None;
        Poll::Ready(Some(Ok(Frame::trailers(by.trailers()))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
