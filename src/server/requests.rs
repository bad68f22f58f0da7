//! The requests of one connection: they are counted, and end with it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use axum::http::{Request, Response};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::Status;
use tonic::codegen::StdError;
use tower::Service;

use super::lifecycle::Phases;
use super::middleware::{CatchPanicBody, Stack};
use super::read_budget::Arrivals;
use crate::api::Interruption;
use crate::api::auth::Certificate;
use crate::api::http::OverTls;

/// What hyper hands the requests of a connection to. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct RequestService(pub(super) Arc<ConnectionContext>);

/// What the requests of a connection have in common.
#[derive(Debug)]
pub(super) struct ConnectionContext {
    pub(super) services: Stack,
    /// What the client has shown, where certificates are wanted.
    pub(super) certificate: Option<Certificate>,
    /// Set for HTTP over TLS.
    pub(super) over_tls: Option<OverTls>,
    pub(super) arrivals: Arrivals,
    pub(super) in_flight: TaskTracker,
    pub(super) phases: Phases,
}

impl hyper::service::Service<Request<Incoming>> for RequestService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, mut request: Request<Incoming>) -> ResponseFuture {
        let Self(context) = self;
        context.arrivals.count_request();
        if let Some(certificate) = &context.certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if let Some(over_tls) = context.over_tls {
            request.extensions_mut().insert(over_tls);
        }
        let of_request = Arc::clone(context);
        let request =
            request.map(|inner| RequestBody { inner, context: of_request, waiting: None });
        // They are always ready.
        let inner = context.services.clone().call(request);
        ResponseFuture { inner, in_flight: Some((context.in_flight.token(), Arc::clone(context))) }
    }
}

/// The response to a request.
pub(super) struct ResponseFuture {
    inner: <Stack as Service<Request<RequestBody>>>::Future,
    /// For the body of the response.
    in_flight: Option<(TaskTrackerToken, Arc<ConnectionContext>)>,
}

impl Future for ResponseFuture {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = Pin::new(&mut self.inner).poll(cx);
        response.map_ok(|response| {
            let in_flight = self.in_flight.take();
            response.map(|inner| ResponseBody { inner: Some(inner), in_flight, waiting: None })
        })
    }
}

/// A body that is read until its connection closes for reading.
#[derive(Debug)]
pub(super) struct RequestBody {
    inner: Incoming,
    context: Arc<ConnectionContext>,
    waiting: Waiting,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let Self { inner, context, waiting } = &mut *self;
        let read_closed = &context.phases.read_closed;
        if !read_closed.is_cancelled() {
            let frame = Pin::new(inner).poll_frame(cx);
            if frame.is_ready() {
                return frame.map_err(Into::into);
            }
        }
        let closing = || Some(Err(Status::from(Interruption::ConnectionClosing).into()));
        poll_cancelled(read_closed, waiting, cx).map(|()| closing())
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body that is waited for until its connection closes. It ends with a status then, for which
/// HTTP/1 has no trailers that anybody reads: there it is cut short.
#[derive(Debug)]
pub(super) struct ResponseBody {
    /// None once it was cut short.
    inner: Option<CatchPanicBody>,
    /// Held to the end of the body.
    in_flight: Option<(TaskTrackerToken, Arc<ConnectionContext>)>,
    waiting: Waiting,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { inner, in_flight, waiting } = &mut *self;
        let (Some(body), Some((_, context))) = (inner.as_mut(), in_flight) else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(cx);
        if frame.is_ready() || poll_cancelled(&context.phases.closed, waiting, cx).is_pending() {
            return frame;
        }
        *inner = None;
        Poll::Ready(Some(Ok(Frame::trailers(Interruption::ConnectionClosing.trailers()))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

/// Made when there is a task to wake: most requests never wait.
type Waiting = Option<Pin<Box<WaitForCancellationFutureOwned>>>;

fn poll_cancelled(
    phase: &CancellationToken,
    waiting: &mut Waiting,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let waiting = waiting.get_or_insert_with(|| Box::pin(phase.clone().cancelled_owned()));
    waiting.as_mut().poll(cx)
}
