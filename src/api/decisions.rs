//! The services that decide, called without a router: a call from memory makes one future.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::http::{Request, Response};
use futures_util::future::{BoxFuture, Either};
use hyper::body::Bytes;
use prost::Message;
use rlaas_limiter::Limiter;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService as _, RateLimitServiceServer as EnvoyServer,
};
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_server::{
    RateLimitService as _, RateLimitServiceServer as KuadrantServer,
};
use rlaas_proto::ratelimit::v1::rate_limit_service_server::{
    RateLimitService as _, RateLimitServiceServer as V1Server,
};
use rlaas_proto::ratelimit::v1::reservation_service_server::{
    ReservationService as _, ReservationServiceServer as ReservationServer,
};
use rlaas_telemetry::metrics::Metrics;
use tonic::Status;
use tonic::body::Body;
use tower::{BoxError, Service};

use super::envoy::kuadrant::Kuadrant;
use super::unary::{ReplayedBody, unary};
use super::{ApiSettings, MAX_DESCRIPTORS_MESSAGE, MAX_MESSAGE, envoy, reservations, v1};

/// The services that decide. Clones share their state.
#[derive(Clone, Debug)]
pub struct Decisions {
    pub(super) v1: Served<v1::Service, V1Server<v1::Service>>,
    pub(super) envoy: Served<envoy::Service, EnvoyServer<envoy::Service>>,
    pub(super) kuadrant: Served<Kuadrant, KuadrantServer<Kuadrant>>,
    pub(super) reservations:
        Served<reservations::Service, ReservationServer<reservations::Service>>,
}

/// A service, and the server of all its methods.
#[derive(Clone, Debug)]
pub(super) struct Served<T, S> {
    service: Arc<T>,
    pub(super) server: S,
    max_message: usize,
}

/// The response to a call, when it is ready.
pub type Responding = BoxFuture<'static, Result<Response<Body>, Infallible>>;

/// The response of a method, when it is ready.
type Calling<'a, A> = BoxFuture<'a, Result<tonic::Response<A>, Status>>;

impl Decisions {
    /// Creates the services over `limiter`.
    pub fn new(limiter: &Limiter, metrics: &Arc<Metrics>, settings: &ApiSettings) -> Self {
        let v1 = v1::Service::new(limiter.clone(), settings.projects.clone(), Arc::clone(metrics));
        let v1 = v1.with_headers(settings.headers);
        let envoy =
            envoy::Service::new(limiter.clone(), Arc::clone(metrics)).with_settings(settings);
        let kuadrant = Kuadrant(envoy.clone());
        let reservations = reservations::Service::new(limiter.clone(), Arc::clone(metrics));
        Self {
            v1: Served::new(v1, MAX_MESSAGE, |service, max| {
                V1Server::from_arc(service).max_decoding_message_size(max)
            }),
            envoy: Served::new(envoy, MAX_DESCRIPTORS_MESSAGE, |service, max| {
                EnvoyServer::from_arc(service).max_decoding_message_size(max)
            }),
            kuadrant: Served::new(kuadrant, MAX_DESCRIPTORS_MESSAGE, |service, max| {
                KuadrantServer::from_arc(service).max_decoding_message_size(max)
            }),
            reservations: Served::new(reservations, MAX_MESSAGE, |service, max| {
                ReservationServer::from_arc(service).max_decoding_message_size(max)
            }),
        }
    }

    /// Calls the method of a request. Returns the request if the router has its method.
    pub fn call<B>(&self, request: Request<B>) -> Either<Responding, Request<B>>
    where
        B: HttpBody<Data = Bytes, Error = BoxError> + Send + Unpin + 'static,
    {
        let Self { v1, envoy, kuadrant, reservations } = self;
        Either::Left(match request.uri().path() {
            "/ratelimit.v1.RateLimitService/Check" => {
                let Served { service, server, max_message } = v1.clone();
                let check = move |request| service.begin_check(request);
                Box::pin(unary(request, max_message, server, check))
            }
            "/ratelimit.v1.RateLimitService/CheckBatch" => {
                v1.call(request, |service, request| service.check_encoded_batch(request))
            }
            "/ratelimit.v1.RateLimitService/Report" => {
                v1.call(request, |service, request| service.report(request))
            }
            "/ratelimit.v1.ReservationService/Reserve" => {
                reservations.call(request, |service, request| service.reserve(request))
            }
            "/ratelimit.v1.ReservationService/Extend" => {
                reservations.call(request, |service, request| service.extend(request))
            }
            "/ratelimit.v1.ReservationService/Commit" => {
                reservations.call(request, |service, request| service.commit(request))
            }
            "/ratelimit.v1.ReservationService/Cancel" => {
                reservations.call(request, |service, request| service.cancel(request))
            }
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                envoy.call(request, |service, request| service.should_rate_limit(request))
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => {
                kuadrant.call(request, |service, request| service.check_rate_limit(request))
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => {
                kuadrant.call(request, |service, request| service.report(request))
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve" => {
                kuadrant.call(request, |service, request| service.reserve(request))
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Commit" => {
                kuadrant.call(request, |service, request| service.commit(request))
            }
            path if path.starts_with("/ratelimit.v1.RateLimitService/") => {
                v1.server.clone().call(request)
            }
            _ => return Either::Right(request),
        })
    }
}

impl<T, S> Served<T, S> {
    fn new(service: T, max_message: usize, server: impl FnOnce(Arc<T>, usize) -> S) -> Self {
        let service = Arc::new(service);
        Self { server: server(Arc::clone(&service), max_message), service, max_message }
    }

    /// Calls a method.
    fn call<B, Q, A>(
        &self,
        request: Request<B>,
        method: impl for<'a> FnOnce(&'a T, tonic::Request<Q>) -> Calling<'a, A> + Send + 'static,
    ) -> Responding
    where
        T: Send + Sync + 'static,
        S: Service<
                Request<ReplayedBody<B>>,
                Response = Response<Body>,
                Error = Infallible,
                Future: Send,
            > + Clone
            + Send
            + 'static,
        B: HttpBody<Data = Bytes, Error = BoxError> + Send + Unpin + 'static,
        Q: Message + Default + 'static,
        A: Message + 'static,
    {
        let (service, server) = (Arc::clone(&self.service), self.server.clone());
        let method = move |request| async move { method(&service, request).await };
        Box::pin(unary(request, self.max_message, server, method))
    }
}

#[cfg(test)]
mod tests;
