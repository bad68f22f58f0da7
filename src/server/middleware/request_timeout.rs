//! Gives up requests whose body does not arrive in time, or not before their connection closes.
//!
//! The time is that of the whole body: tower-http's layer begins anew with each of its parts, so that
//! a client could send a byte a second for ever. A stream has any time: it is told from other requests
//! by its response, which begins before the body has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::HttpBody;
use axum::http::Request;
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;
use tonic::codegen::StdError;
use tower::{Layer, Service};

use crate::api::Interruption;
use crate::server::lifecycle::{Phases, Wait};

/// Limits the time that the body of a request may take.
#[derive(Clone, Debug)]
pub(super) struct RequestTimeoutLayer {
    pub(super) timeout: Duration,
    pub(super) phases: Arc<Phases>,
}

/// A service that reads bodies for a limited time.
#[derive(Clone, Debug)]
pub(in crate::server) struct RequestTimeout<S> {
    inner: S,
    layer: RequestTimeoutLayer,
}

/// The response of a [`RequestTimeout`].
#[derive(Debug)]
pub(in crate::server) struct RequestTimeoutFuture<F> {
    inner: F,
    is_answered: Arc<AtomicBool>,
}

/// A body that has to arrive in time, unless its request is answered before.
#[derive(Debug)]
pub(in crate::server) struct TimedBody<B> {
    inner: B,
    limits: RequestTimeoutLayer,
    closing: Wait,
    /// Made for those that did not arrive at once.
    timer: Option<Pin<Box<Sleep>>>,
    is_answered: Arc<AtomicBool>,
}

impl<S> Layer<S> for RequestTimeoutLayer {
    type Service = RequestTimeout<S>;

    fn layer(&self, inner: S) -> RequestTimeout<S> {
        RequestTimeout { inner, layer: self.clone() }
    }
}

impl<S, B> Service<Request<B>> for RequestTimeout<S>
where
    S: Service<Request<TimedBody<B>>, Future: Unpin>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RequestTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (limits, is_answered) = (self.layer.clone(), Arc::<AtomicBool>::default());
        let answered = Arc::clone(&is_answered);
        let timed = |inner| TimedBody {
            inner,
            limits,
            closing: Wait::default(),
            timer: None,
            is_answered: answered,
        };
        RequestTimeoutFuture { inner: self.inner.call(request.map(timed)), is_answered }
    }
}

impl<F: Future + Unpin> Future for RequestTimeoutFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = Pin::new(&mut self.inner).poll(cx);
        if response.is_ready() {
            self.is_answered.store(true, Ordering::Relaxed);
        }
        response
    }
}

impl<B> TimedBody<B> {
    /// Completes when the time to arrive is over.
    #[expect(clippy::disallowed_methods, reason = "how long a client is waited for")]
    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_answered.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let timeout = self.limits.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        timer.as_mut().poll(cx)
    }
}

impl<B> HttpBody for TimedBody<B>
where
    B: HttpBody<Data = Bytes, Error: Into<StdError>> + Unpin,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let Self { inner, limits, closing, .. } = &mut *self;
        let read_closed = &limits.phases.read_closed;
        if !read_closed.is_cancelled() {
            let frame = Pin::new(inner).poll_frame(cx);
            if frame.is_ready() {
                return frame.map_err(Into::into);
            }
        }
        let by = if closing.poll(read_closed, cx).is_ready() {
            Interruption::ConnectionClosing
        } else {
            ready!(self.poll_elapsed(cx));
            Interruption::RequestTimeout
        };
        Poll::Ready(Some(Err(Status::from(by).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
