//! A short cut to the services that are asked again and again. A router would put bodies in boxes
//! and note what nobody reads.

use std::convert::Infallible;
use std::future::Ready;

use axum::body::HttpBody;
use axum::http::{Request, Response};
use futures_util::future::Either;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer as EnvoyServer;
use rlaas_proto::ratelimit::v1::rate_limit_service_server::RateLimitServiceServer;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Bytes, Service, StdError};
use tonic::server::NamedService;

use super::envoy;
use super::guard::Guarded;
use super::v1;

pub(super) type RateLimiting = Guarded<RateLimitServiceServer<v1::Service>>;
pub(super) type Envoy = Guarded<EnvoyServer<envoy::Service>>;

/// The answer of one of the services.
pub type Answer =
    Either<BoxFuture<Response<Body>, Infallible>, Ready<Result<Response<Body>, Infallible>>>;

/// The services that decide. Clones share everything.
#[derive(Clone, Debug)]
pub struct Direct {
    pub(super) rate_limiting: RateLimiting,
    pub(super) envoy: Envoy,
}

/// One of them.
#[derive(Debug)]
pub struct Deciding<'a>(Named<'a>);

#[derive(Debug)]
enum Named<'a> {
    RateLimiting(&'a RateLimiting),
    Envoy(&'a Envoy),
}

impl Direct {
    /// The service that a path of gRPC names, such as `/ratelimit.v1.RateLimitService/Check`.
    pub fn find(&self, path: &str) -> Option<Deciding<'_>> {
        let named = match path.split('/').nth(1)? {
            RateLimiting::NAME => Named::RateLimiting(&self.rate_limiting),
            Envoy::NAME => Named::Envoy(&self.envoy),
            _ => return None,
        };
        Some(Deciding(named))
    }
}

impl Deciding<'_> {
    /// Its answer to a request.
    pub fn answer<B>(self, request: Request<B>) -> Answer
    where
        B: HttpBody<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
    {
        // They are always ready.
        match self.0 {
            Named::RateLimiting(service) => service.clone().call(request),
            Named::Envoy(service) => service.clone().call(request),
        }
    }
}
