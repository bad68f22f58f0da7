//! The connection, which adds the token to each call.

use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderValue, Request, Response, header};
use tonic::transport::{self, Channel};

/// A connection for generated clients, which sends the client's token with each call.
///
/// Clones share the connection. It reconnects when the connection is lost.
#[derive(Clone, Debug)]
pub struct ApiChannel {
    channel: Channel,
    authorization: Option<HeaderValue>,
}

impl ApiChannel {
    pub(crate) fn new(channel: Channel, authorization: Option<HeaderValue>) -> Self {
        Self { channel, authorization }
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
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        Service::call(&mut self.channel, request)
    }
}
