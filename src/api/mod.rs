//! Protocols: thin adapters over [`Limiter::check`]. Bytes to request, verdict to response.
//!
//! Wire types live here alone. No adapter knows which store decides.

pub mod auth;
mod config;
mod deadline;
pub mod envoy;
pub mod http;
pub(crate) mod json;
mod request_log;
mod response;
mod status;
mod traces;
mod v1;

pub use rlaas_limiter::headers::LimitHeaders;
pub use status::Interruption;
pub(crate) use traces::code_name;
pub use traces::{BatchStats, RequestTrace, Sampled, TracedDecision};

use std::sync::Arc;

use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer as EnvoyServer;
use rlaas_proto::ratelimit::v1::rate_limit_service_server::RateLimitServiceServer as V1Server;
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};

use self::auth::{Auth, Role};
use self::envoy::EnvoySettings;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;
use rlaas_limiter::Limiter;

/// Full name of the service, as health and reflection know it.
pub const SERVICE: &str = "ratelimit.v1.RateLimitService";

/// Largest message that is read, in bytes: a request at all its bounds fits, and a batch of 1,000
/// with 500 bytes each.
const MAX_MESSAGE: usize = 512 * 1024;

/// How the services answer, beside what the limiter says.
#[derive(Clone, Debug, Default)]
pub struct ApiSettings {
    /// Who is answered; everybody if there is nothing.
    pub auth: Option<Arc<Auth>>,
    /// How Envoy is answered.
    pub envoy: EnvoySettings,
    /// What tells of each call.
    pub traces: Option<Traces>,
    /// Which headers are metadata of the responses of `Check`.
    pub headers: LimitHeaders,
}

/// Makes the gRPC services: rate limiting, that of Envoy, and reflection v1 and v1alpha.
///
/// # Panics
///
/// Never: the descriptors are made at build time.
pub fn services(
    limiter: &Limiter,
    metrics: &Arc<Metrics>,
    ApiSettings { envoy, headers, .. }: &ApiSettings,
) -> Routes {
    let v1 = v1::Service::new(limiter.clone(), Arc::clone(metrics));
    let v1 = V1Server::new(v1.with_headers(*headers)).max_decoding_message_size(MAX_MESSAGE);
    let envoy = envoy::Service::new(limiter.clone(), Arc::clone(metrics), *envoy);
    let envoy = EnvoyServer::new(envoy).max_decoding_message_size(MAX_MESSAGE);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(rlaas_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = RoutesBuilder::default();
    routes
        .add_service(v1)
        .add_service(envoy)
        .add_service(reflection().build_v1().expect("the descriptors are made at build time"))
        .add_service(reflection().build_v1alpha().expect("the descriptors are made at build time"));
    routes.routes()
}

/// Returns the role that a path of gRPC needs, such as `/ratelimit.v1.RateLimitService/Check`; `None`
/// if it is open to everybody. Reflection is: it shows the protocol, which is public, and no data.
pub fn role_of(path: &str) -> Option<Role> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    match service {
        V1Server::<v1::Service>::NAME => Some(v1::role_of(method)),
        EnvoyServer::<envoy::Service>::NAME => Some(envoy::role_of(method)),
        _ => None,
    }
}
