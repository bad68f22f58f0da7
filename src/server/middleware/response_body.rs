//! The body of a response: it ends with a status if its service panics, if it still waits when its
//! connection closes, or if the credentials that opened a stream are no longer valid. Other requests on the
//! connection are not affected.
//!
//! tower-http's layer for panics does not see those of bodies, which is where the decisions of a
//! stream are made.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::Either;
use hyper::body::{Bytes, Frame, SizeHint};
use rlaas_auth::StreamAccess;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::BoxError;

use super::ConnectionContext;
use crate::api::{Interruption, RequestTrace};

/// The body of a response of the router, or of a service that decides.
pub(super) type ServiceBody = Either<Body, tonic::body::Body>;

type FrameResult = Result<Frame<Bytes>, BoxError>;

/// The body of a response. Its status after an interruption is in trailers, which clients of HTTP/1
/// do not read: to them the body is cut off.
pub(in crate::server) struct ResponseBody {
    /// `None` after an interruption.
    inner: Option<ServiceBody>,
    context: Arc<ConnectionContext>,
    /// Created when the body first waits.
    closed: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Set for a stream that needs a role.
    guard: Option<Box<StreamGuard>>,
    /// Set if the trailers end it.
    trace: Option<Box<RequestTrace>>,
    _in_flight: TaskTrackerToken,
}

impl ResponseBody {
    pub(super) fn new(
        inner: ServiceBody,
        context: Arc<ConnectionContext>,
        in_flight: TaskTrackerToken,
        trace: Option<Box<RequestTrace>>,
    ) -> Self {
        Self {
            inner: Some(inner),
            context,
            closed: None,
            guard: None,
            trace,
            _in_flight: in_flight,
        }
    }

    /// Sets the credentials with which the body ends.
    pub(super) fn with_access(self, access: Option<StreamAccess>) -> Self {
        Self { guard: access.map(|access| Box::new(StreamGuard::new(access))), ..self }
    }

    fn poll_or_interrupt(&mut self, cx: &mut Context<'_>) -> Poll<Option<FrameResult>> {
        let Some(body) = &mut self.inner else { return Poll::Ready(None) };
        if self.guard.as_mut().is_some_and(|guard| guard.poll_ended(cx).is_ready()) {
            return self.interrupt(Interruption::AccessEnded);
        }
        let interruption = match catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(cx))) {
            Ok(Poll::Ready(frame)) => return Poll::Ready(frame),
            Ok(Poll::Pending) => {
                let closed = &self.context.phases.closed;
                let closed = || Box::pin(closed.clone().cancelled_owned());
                ready!(self.closed.get_or_insert_with(closed).as_mut().poll(cx));
                Interruption::ConnectionClosing
            }
            Err(_panic) => {
                self.context.middleware.count_panic();
                Interruption::Panic
            }
        };
        self.interrupt(interruption)
    }

    fn interrupt(&mut self, interruption: Interruption) -> Poll<Option<FrameResult>> {
        self.inner = None;
        Poll::Ready(Some(Ok(Frame::trailers(interruption.trailers()))))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FrameResult>> {
        let frame = ready!(self.poll_or_interrupt(cx));
        if let (Some(trace), Some(Ok(frame))) = (&mut self.trace, &frame)
            && let Some(trailers) = frame.trailers_ref()
        {
            trace.record_grpc_status(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(ServiceBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), ServiceBody::size_hint)
    }
}

/// Time between two checks. The end of a token or a key is not slept for, because wall time may be
/// set, and the key of a token may be withdrawn.
const INTERVAL: Duration = Duration::from_secs(1);

/// The credentials of a stream, and the time of their next check.
#[derive(Debug)]
struct StreamGuard {
    access: StreamAccess,
    ticks: Interval,
}

impl StreamGuard {
    fn new(access: StreamAccess) -> Self {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { access, ticks }
    }

    /// Completes when the call would not be admitted any more.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(Pin::new(&mut self.ticks).poll_tick(cx));
            if !self.access.is_admitted() {
                return Poll::Ready(());
            }
        }
    }
}
