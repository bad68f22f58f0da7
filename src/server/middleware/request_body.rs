//! The body of a request: it has to arrive within `server.limits.request-time`, and before its
//! connection closes.
//!
//! The timeout covers the whole body. tower-http's layer restarts it with each frame, so that a
//! client could send one byte per second for ever. A stream has no timeout: its response starts
//! before its body ends, which tells it from other requests.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::HttpBody;
use futures_util::future::BoxFuture;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use tokio::time::timeout;
use tonic::Status;
use tonic::codegen::StdError;

use super::ConnectionContext;
use crate::api::Interruption;

/// The body of a request, which fails if it does not arrive in time.
pub(super) struct RequestBody {
    inner: Incoming,
    context: Arc<ConnectionContext>,
    /// Set when the response to the request starts.
    has_response: Arc<AtomicBool>,
    /// Created when the body is first waited for: most bodies arrive with their headers.
    interruption: Option<BoxFuture<'static, Interruption>>,
}

impl RequestBody {
    pub(super) fn new(
        inner: Incoming,
        context: Arc<ConnectionContext>,
        has_response: Arc<AtomicBool>,
    ) -> Self {
        Self { inner, context, has_response, interruption: None }
    }
}

/// Completes when a body has taken too long, or its connection closes.
async fn interrupted(
    context: Arc<ConnectionContext>,
    has_response: Arc<AtomicBool>,
) -> Interruption {
    let mut closing = pin!(context.phases.read_closed.cancelled());
    let elapsed = timeout(context.middleware.request_timeout, closing.as_mut()).await.is_err();
    if elapsed && !has_response.load(Ordering::Relaxed) {
        return Interruption::RequestTimeout;
    }
    if elapsed {
        closing.await;
    }
    Interruption::ConnectionClosing
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        if !self.context.phases.read_closed.is_cancelled() {
            let frame = Pin::new(&mut self.inner).poll_frame(cx);
            if frame.is_ready() {
                return frame.map_err(Into::into);
            }
        }
        let mut interruption = self.interruption.take().unwrap_or_else(|| {
            Box::pin(interrupted(Arc::clone(&self.context), Arc::clone(&self.has_response)))
        });
        let poll = interruption.as_mut().poll(cx);
        if poll.is_pending() {
            self.interruption = Some(interruption);
        }
        poll.map(|interruption| Some(Err(Status::from(interruption).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
