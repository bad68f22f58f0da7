//! The services behind one connection. They see what its client has shown.

use std::convert::Infallible;

use axum::Router;
use axum::http::Request;
use axum::routing::future::RouteFuture;
use hyper::body::{Body, Bytes};
use tonic::codegen::StdError;

use crate::api::auth::Certificate;

/// What answers on a connection.
#[derive(Debug)]
pub(super) struct Services {
    router: Router,
    certificate: Option<Certificate>,
}

impl Services {
    pub(super) fn new(router: Router, certificate: Option<Certificate>) -> Self {
        Self { router, certificate }
    }

    pub(super) fn answer<B>(&self, mut request: Request<B>) -> RouteFuture<Infallible>
    where
        B: Body<Data = Bytes, Error: Into<StdError>> + Send + 'static,
    {
        if let Some(certificate) = &self.certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        // A router is always ready.
        tonic::codegen::Service::call(&mut self.router.clone(), request)
    }
}
