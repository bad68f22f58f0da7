//! The calls of one connection, on their way to the services and back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body as AnyBody;
use axum::http::{HeaderMap, Request, Response};
use axum::routing::future::RouteFuture;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::Service;
use tokio::sync::watch;
use tonic::Status;

use super::life::{Stage, Until};
use super::services::Services;
use crate::api::Interruption;

/// The way of calls to the services.
#[derive(Debug)]
pub(super) struct Calls {
    services: Services,
    stage: watch::Receiver<Stage>,
}

impl Calls {
    pub(super) fn new(services: Services, stage: watch::Receiver<Stage>) -> Self {
        Self { services, stage }
    }
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Call;

    fn call(&self, request: Request<Incoming>) -> Call {
        let closing = Until::new(Stage::Closing, self.stage.clone());
        let request = request.map(|body| Question { body, closing });
        Call { answer: self.services.answer(request), stage: self.stage.clone() }
    }
}

/// A call until its answer begins.
pub(super) struct Call {
    answer: RouteFuture<Infallible>,
    stage: watch::Receiver<Stage>,
}

impl Future for Call {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx).map_ok(|response| {
            let over = Until::new(Stage::Over, self.stage.clone());
            response.map(|body| Answer { body: Some(body), over })
        })
    }
}

/// What a client sends; no more is read of it once its connection closes.
struct Question {
    body: Incoming,
    closing: Until,
}

impl Body for Question {
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if !self.closing.is_reached() {
            let frame = Pin::new(&mut self.body).poll_frame(cx);
            if frame.is_ready() {
                return frame.map_err(Into::into);
            }
        }
        let closed = self.closing.poll(cx);
        closed.map(|()| Some(Err(Status::from(Interruption::Closing).into())))
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
}

impl Answer {
    /// Ends the answer.
    fn interrupt(&mut self, by: Interruption) -> Frame<Bytes> {
        self.body = None;
        let mut trailers = HeaderMap::new();
        let _valid = Status::from(by).add_header(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
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
