//! The connection, which adds the caller's credentials to each call.

use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderName, HeaderValue, Request, Response};
use tonic::transport::{self, Channel};

/// A connection for generated clients, which sends the client's token and API key with each call.
///
/// Clones share the connection. It reconnects when the connection is lost.
#[derive(Clone, Debug)]
pub struct ApiChannel {
    channel: Channel,
    credentials: Credentials,
}

/// Headers of each call.
pub(crate) type Credentials = Arc<[(HeaderName, HeaderValue)]>;

impl ApiChannel {
    pub(crate) fn new(channel: Channel, credentials: Credentials) -> Self {
        Self { channel, credentials }
    }
}

impl Service<Request<Body>> for ApiChannel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        for (name, value) in self.credentials.iter() {
            request.headers_mut().insert(name, value.clone());
        }
        Service::call(&mut self.channel, request)
    }
}
