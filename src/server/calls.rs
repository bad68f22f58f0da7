//! The calls of one connection, on their way to the services and back.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderMap, Request, Response};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::Service;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::Status;
use tonic::body::Body as AnyBody;
use tonic::codegen::StdError;
use tracing::error;

use super::lifecycle::Phases;
use super::read_budget::Arrivals;
use super::services::{Answering, Services};
use crate::api::Interruption;
use crate::telemetry::metrics::Metrics;

/// The way of calls to the services.
#[derive(Clone, Debug)]
pub(super) struct Calls(pub(super) Arc<Way>);

/// Where calls go, and what bounds them.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) services: Services,
    /// The longest that a request may take to arrive; streams have any time.
    pub(super) request_time: Duration,
    pub(super) arrivals: Arrivals,
    pub(super) in_flight: TaskTracker,
    pub(super) phases: Phases,
    pub(super) metrics: Arc<Metrics>,
    /// What an interruption looks like to the client.
    pub(super) interrupt: fn(Interruption) -> Response<AnyBody>,
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Call;

    fn call(&self, request: Request<Incoming>) -> Call {
        self.0.arrivals.count_request();
        let is_answered = Arc::new(AtomicBool::new(false));
        let request = request.map(|body| Question {
            body,
            closing: Until::new(self.0.phases.read_closed.clone()),
            time: self.0.request_time,
            timer: None,
            is_answered: Arc::clone(&is_answered),
        });
        let answer = self.0.services.answer(request);
        let in_flight = Some(self.0.in_flight.token());
        Call { answer, is_answered, in_flight, way: Arc::clone(&self.0) }
    }
}

impl Way {
    fn count_panic(&self) {
        error!("a call panicked");
        self.metrics.panics.inc();
    }
}

/// A call until its answer begins.
pub(super) struct Call {
    answer: Answering,
    is_answered: Arc<AtomicBool>,
    /// Goes on with the body of the answer.
    in_flight: Option<TaskTrackerToken>,
    way: Arc<Way>,
}

impl Future for Call {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = &mut self.answer;
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(answer).poll(cx)));
        polled
            .unwrap_or_else(|_panic| {
                self.way.count_panic();
                Poll::Ready(Ok((self.way.interrupt)(Interruption::Panicked)))
            })
            .map_ok(|response| {
                self.is_answered.store(true, Ordering::Relaxed);
                let over = Until::new(self.way.phases.closed.clone());
                let (in_flight, way) = (self.in_flight.take(), Arc::clone(&self.way));
                response.map(|body| Answer { body: Some(body), over, way, _in_flight: in_flight })
            })
    }
}

/// What a client sends. It has to arrive in time, unless it is a stream: those are answered from
/// their start. No more is read of it once its connection closes.
struct Question {
    body: Incoming,
    closing: Until,
    time: Duration,
    /// Made for those that did not arrive at once.
    timer: Option<Pin<Box<Sleep>>>,
    is_answered: Arc<AtomicBool>,
}

impl Question {
    /// Completes when the time to arrive is over.
    #[expect(clippy::disallowed_methods, reason = "how long somebody is waited for")]
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_answered.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let time = self.time;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        timer.as_mut().poll(cx)
    }
}

impl Body for Question {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let interrupted =
            |by: Interruption| Poll::Ready(Some(Err(StdError::from(Status::from(by)))));
        if !self.closing.is_reached() {
            let frame = Pin::new(&mut self.body).poll_frame(cx);
            if frame.is_ready() {
                return frame.map_err(Into::into);
            }
        }
        if self.closing.poll(cx).is_ready() {
            return interrupted(Interruption::Closing);
        }
        if self.poll_late(cx).is_ready() {
            return interrupted(Interruption::Late);
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a client gets; it is waited for until its connection is over.
pub(super) struct Answer {
    /// None after an interruption.
    body: Option<AnyBody>,
    over: Until,
    way: Arc<Way>,
    _in_flight: Option<TaskTrackerToken>,
}

impl Answer {
    /// Ends the answer. HTTP/1 has no trailers that anybody reads: there it is cut short.
    fn interrupt(&mut self, by: Interruption) -> Frame<Bytes> {
        self.body = None;
        let mut trailers = HeaderMap::new();
        let _valid = Status::from(by).add_header(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(cx)));
        let Ok(frame) = polled else {
            self.way.count_panic();
            return Poll::Ready(Some(Ok(self.interrupt(Interruption::Panicked))));
        };
        if frame.is_ready() {
            return frame;
        }
        self.over.poll(cx).map(|()| Some(Ok(self.interrupt(Interruption::Closing))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Waits for a phase of the connection.
struct Until {
    phase: CancellationToken,
    /// Made when there is somebody to wake: most calls never wait.
    waiting: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Until {
    fn new(phase: CancellationToken) -> Self {
        Self { phase, waiting: None }
    }

    fn is_reached(&self) -> bool {
        self.phase.is_cancelled()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let phase = &self.phase;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(phase.clone().cancelled_owned()));
        waiting.as_mut().poll(cx)
    }
}
