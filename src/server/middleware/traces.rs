//! Begins the span of a call, and ends it with its response: what was decided is carried to it by an
//! extension of the response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use futures_util::future::Either;
use hyper::body::{Bytes, Frame, SizeHint};
use tower::{Layer, Service};

use super::Middleware;
use crate::api::{RequestTrace, Sampled};
use crate::server::protocol::Protocol;

/// Traces the calls to a service.
#[derive(Clone, Debug)]
pub(super) struct TracesLayer(pub(super) Arc<Middleware>);

/// A service whose calls have spans.
#[derive(Clone, Debug)]
pub(in crate::server) struct Traced<S> {
    inner: S,
    middleware: Arc<Middleware>,
}

/// The response of a [`Traced`] to a call that has a span.
#[derive(Debug)]
pub(in crate::server) struct TracedFuture<F> {
    inner: F,
    protocol: Protocol,
    trace: Option<Box<RequestTrace>>,
}

/// The body of a gRPC response, whose trailers tell the status.
#[derive(Debug)]
struct TracedBody {
    inner: Body,
    trace: Box<RequestTrace>,
}

impl<S> Layer<S> for TracesLayer {
    type Service = Traced<S>;

    fn layer(&self, inner: S) -> Traced<S> {
        Traced { inner, middleware: Arc::clone(&self.0) }
    }
}

impl<S, B> Service<Request<B>> for Traced<S>
where
    S: Service<Request<B>, Response = Response<Body>, Future: Unpin>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, TracedFuture<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Middleware { protocol, traces, .. } = &*self.middleware;
        let trace = traces.as_ref().and_then(|traces| protocol.trace(traces, &request));
        let Some(trace) = trace else { return Either::Left(self.inner.call(request)) };
        request.extensions_mut().insert(Sampled);
        let (protocol, trace) = (*protocol, Some(Box::new(trace)));
        Either::Right(TracedFuture { inner: self.inner.call(request), protocol, trace })
    }
}

impl<F, E> Future for TracedFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let protocol = self.protocol;
        Pin::new(&mut self.inner).poll(cx).map_ok(|mut response| {
            let Some(mut trace) = self.trace.take() else { return response };
            trace.record_decision(response.extensions_mut().remove());
            match protocol {
                Protocol::Http => trace.record_http_status(response.status()),
                // One without a body has its status here, another in its trailers.
                Protocol::Grpc if trace.record_grpc_status(response.headers()) => {}
                Protocol::Grpc => {
                    return response.map(|inner| Body::new(TracedBody { inner, trace }));
                }
            }
            response
        })
    }
}

impl HttpBody for TracedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.trace.record_grpc_status(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
