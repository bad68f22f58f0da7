//! The requests of one connection, on their way from hyper to the services.

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::{Request, Response};
use hyper::body::Incoming;
use tower::Service;

use super::middleware::{ResponseBody, Stack};
use super::read_budget::ReceiveCounters;
use crate::api::auth::ClientCertificate;
use crate::api::http::OverTls;

/// What hyper hands the requests of a connection to. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct RequestService(pub(super) Arc<ConnectionContext>);

/// What the requests of a connection have in common.
#[derive(Debug)]
pub(super) struct ConnectionContext {
    pub(super) services: Stack,
    /// What the client has shown, where certificates are wanted.
    pub(super) certificate: Option<ClientCertificate>,
    /// Set for HTTP over TLS.
    pub(super) over_tls: Option<OverTls>,
    pub(super) counters: ReceiveCounters,
}

impl hyper::service::Service<Request<Incoming>> for RequestService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = <Stack as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let Self(context) = self;
        context.counters.count_request();
        if let Some(certificate) = &context.certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if let Some(over_tls) = context.over_tls {
            request.extensions_mut().insert(over_tls);
        }
        // They are always ready.
        context.services.clone().call(request)
    }
}
