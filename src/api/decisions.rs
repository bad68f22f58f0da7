//! The services that decide, called without a router, and `Check` also without what the generated
//! server boxes: a call from memory makes one future, with buffers as small as its messages.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::http::{Request, Response};
use futures_util::future::{BoxFuture, Either};
use rlaas_limiter::Limiter;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer as EnvoyServer;
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_server::RateLimitServiceServer as KuadrantServer;
use rlaas_proto::ratelimit::v1::rate_limit_service_server::RateLimitServiceServer as V1Server;
use rlaas_proto::ratelimit::v1::reservation_service_server::ReservationServiceServer as ReservationServer;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest, CheckResponse};
use rlaas_telemetry::metrics::Metrics;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};
use tower::{BoxError, Service};

use super::envoy::kuadrant::Kuadrant;
use super::{ApiSettings, MAX_DESCRIPTORS_MESSAGE, MAX_MESSAGE, envoy, reservations, v1};

/// Path of the method that is called most.
const CHECK: &str = "/ratelimit.v1.RateLimitService/Check";
/// Path of the method whose response is encoded in another way.
const CHECK_BATCH: &str = "/ratelimit.v1.RateLimitService/CheckBatch";

/// Initial size of the buffer of a message, in bytes, and the size from which it is sent.
const BUFFER: (usize, usize) = (256, 32 * 1024);

/// The services that decide. Clones share their state.
#[derive(Clone, Debug)]
pub struct Decisions {
    service: Arc<v1::Service>,
    pub(super) v1: V1Server<v1::Service>,
    pub(super) envoy: EnvoyServer<envoy::Service>,
    pub(super) kuadrant: KuadrantServer<Kuadrant>,
    pub(super) reservations: ReservationServer<reservations::Service>,
}

/// The response to a call, when it is ready.
pub type Responding = BoxFuture<'static, Result<Response<Body>, Infallible>>;

impl Decisions {
    /// Creates the services over `limiter`.
    pub fn new(limiter: &Limiter, metrics: &Arc<Metrics>, settings: &ApiSettings) -> Self {
        let service =
            v1::Service::new(limiter.clone(), settings.projects.clone(), Arc::clone(metrics));
        let service = Arc::new(service.with_headers(settings.headers));
        let v1 = V1Server::from_arc(Arc::clone(&service)).max_decoding_message_size(MAX_MESSAGE);
        let envoy =
            envoy::Service::new(limiter.clone(), Arc::clone(metrics)).with_settings(settings);
        let kuadrant = KuadrantServer::new(Kuadrant(envoy.clone()));
        let kuadrant = kuadrant.max_decoding_message_size(MAX_DESCRIPTORS_MESSAGE);
        let envoy = EnvoyServer::new(envoy).max_decoding_message_size(MAX_DESCRIPTORS_MESSAGE);
        let reservations = reservations::Service::new(limiter.clone(), Arc::clone(metrics));
        let reservations =
            ReservationServer::new(reservations).max_decoding_message_size(MAX_MESSAGE);
        Self { service, v1, envoy, kuadrant, reservations }
    }

    /// Calls the method of a request. Returns the request if its path is in none of these services.
    pub fn call<B>(&self, request: Request<B>) -> Either<Responding, Request<B>>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        if request.uri().path() == CHECK {
            return Either::Left(Box::pin(check(Arc::clone(&self.service), request)));
        }
        if request.uri().path() == CHECK_BATCH {
            return Either::Left(Box::pin(check_batch(Arc::clone(&self.service), request)));
        }
        let service = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        match service {
            Some((V1Server::<v1::Service>::NAME, _)) => Either::Left(self.v1.clone().call(request)),
            Some((EnvoyServer::<envoy::Service>::NAME, _)) => {
                Either::Left(self.envoy.clone().call(request))
            }
            _ => Either::Right(request),
        }
    }
}

async fn check<B>(
    service: Arc<v1::Service>,
    request: Request<B>,
) -> Result<Response<Body>, Infallible>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    let mut grpc = Grpc::new(CheckCodec).max_decoding_message_size(MAX_MESSAGE);
    Ok(grpc.unary(CheckMethod(service), request).await)
}

async fn check_batch<B>(
    service: Arc<v1::Service>,
    request: Request<B>,
) -> Result<Response<Body>, Infallible>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    let codec = ProstCodec::<v1::EncodedBatch, CheckBatchRequest>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_MESSAGE);
    Ok(grpc.unary(BatchMethod(service), request).await)
}

struct BatchMethod(Arc<v1::Service>);

impl UnaryService<CheckBatchRequest> for BatchMethod {
    type Response = v1::EncodedBatch;
    type Future = BoxFuture<'static, Result<tonic::Response<v1::EncodedBatch>, Status>>;

    fn call(&mut self, request: tonic::Request<CheckBatchRequest>) -> Self::Future {
        let service = Arc::clone(&self.0);
        Box::pin(async move { service.check_encoded_batch(request).await })
    }
}

struct CheckMethod(Arc<v1::Service>);

impl UnaryService<CheckRequest> for CheckMethod {
    type Response = CheckResponse;
    type Future = v1::Checking;

    fn call(&mut self, request: tonic::Request<CheckRequest>) -> v1::Checking {
        self.0.begin_check(request)
    }
}

/// As tonic's codec, with small buffers.
struct CheckCodec;

impl Codec for CheckCodec {
    type Encode = CheckResponse;
    type Decode = CheckRequest;
    type Encoder = ProstEncoder<CheckResponse>;
    type Decoder = ProstDecoder<CheckRequest>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER.0, BUFFER.1))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER.0, BUFFER.1))
    }
}
