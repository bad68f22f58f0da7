//! The services behind one connection. They see what its client has shown.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{Request, Response};
use axum::routing::future::RouteFuture;
use hyper::body::{Body, Bytes};
use tonic::body::Body as AnyBody;
use tonic::codegen::StdError;

use crate::api::auth::Certificate;
use crate::api::http::OverTls;
use crate::api::{Answer, Direct};

/// What answers on a connection.
#[derive(Debug)]
pub(super) struct Services {
    router: Router,
    /// Asked first.
    direct: Option<Direct>,
    certificate: Option<Certificate>,
    over_tls: Option<OverTls>,
}

impl Services {
    pub(super) fn new(
        router: Router,
        direct: Option<Direct>,
        certificate: Option<Certificate>,
    ) -> Self {
        Self { router, direct, certificate, over_tls: None }
    }

    /// The same for HTTP on an encrypted connection.
    pub(super) fn over_tls(self) -> Self {
        Self { over_tls: Some(OverTls), ..self }
    }

    pub(super) fn answer<B>(&self, mut request: Request<B>) -> Answering
    where
        B: Body<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
    {
        if let Some(certificate) = &self.certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if let Some(over_tls) = self.over_tls {
            request.extensions_mut().insert(over_tls);
        }
        let direct = self.direct.as_ref();
        if let Some(service) = direct.and_then(|direct| direct.find(request.uri().path())) {
            return Answering::Direct(service.answer(request));
        }
        // A router is always ready.
        Answering::Routed(tonic::codegen::Service::call(&mut self.router.clone(), request))
    }
}

/// Until the answer begins.
pub(super) enum Answering {
    Direct(Answer),
    Routed(RouteFuture<Infallible>),
}

impl Future for Answering {
    type Output = Result<Response<AnyBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Direct(answer) => Pin::new(answer).poll(cx),
            Self::Routed(answer) => Pin::new(answer).poll(cx).map_ok(|got| got.map(AnyBody::new)),
        }
    }
}
