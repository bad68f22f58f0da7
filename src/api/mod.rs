//! Protocols: adapters that turn bytes into a request for the
//! [`Limiter`], and its verdict into a response.
//!
//! Wire types are used here and in the CLI only. An adapter never makes a decision itself and never
//! depends on the kind of store; only `GetConfig` reports the name of the store.

mod config;
#[cfg(feature = "admin")]
pub mod console;
mod decision_events;
mod decisions;
pub mod envoy;
pub mod http;
#[cfg(feature = "admin")]
mod in_process;
pub(crate) mod json;
mod request_log;
mod reservations;
mod routes;
mod status;
mod traces;
mod unary;
mod undecided;
mod v1;
mod verdict_headers;

pub use decisions::{Decisions, Responding};
#[cfg(feature = "admin")]
pub use in_process::InProcess;
pub use rlaas_limiter::headers::LimitHeaders;
pub(crate) use status::grpc as check_status;
pub use status::{Interruption, refused, refused_admin};
pub(crate) use traces::code_name;
pub use traces::{BatchStats, RequestTrace, Sampled, TracedDecision};

use std::fmt::Debug;
use std::sync::Arc;

use axum::Router;
use futures_util::future::BoxFuture;
use prost::Message;
use prost_types::FileDescriptorSet;
use rlaas_auth::{AdminApi, ApiKeys, Auth, ConfiguredProjects, Permission};
use rlaas_limiter::Limiter;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer as EnvoyServer;
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_server::RateLimitServiceServer as KuadrantServer;
use rlaas_proto::ratelimit::admin::v1::{admin_service_server, project_service_server};
use rlaas_proto::ratelimit::v1::rate_limit_service_server::RateLimitServiceServer as V1Server;
use rlaas_proto::ratelimit::v1::reservation_service_server::ReservationServiceServer as ReservationServer;
use rlaas_telemetry::traces::Traces;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};

use self::envoy::EnvoySettings;
use self::envoy::kuadrant::Kuadrant;

/// Full name of the service in health checks and reflection.
pub const SERVICE: &str = "ratelimit.v1.RateLimitService";

/// Maximum size of other messages, in bytes: the largest valid request fits, and a batch of 1,000 requests
/// with 500 bytes each.
pub(crate) const MAX_MESSAGE: usize = 512 * 1024;
/// Maximum size of a message with descriptors, in bytes: 64 of them with 64 KiB each, and their frame.
const MAX_DESCRIPTORS_MESSAGE: usize = 9 * MAX_MESSAGE;
/// Maximum size of a message with rules, in bytes.
pub(crate) const MAX_RULES_MESSAGE: usize = 4 * 1024 * 1024;

/// Settings of the services.
#[derive(Clone, Debug, Default)]
pub struct ApiSettings {
    /// Authorization; without it every caller gets decisions, and local callers alone administer.
    pub auth: Option<Arc<Auth>>,
    /// API keys of callers that `auth` does not list; those in `auth` are its own.
    pub api_keys: ApiKeys,
    /// Settings of Envoy's service.
    pub envoy: EnvoySettings,
    /// The projects; `None` if there are none.
    pub projects: Option<Arc<dyn ConfiguredProjects>>,
    /// Exporter of traces.
    pub traces: Option<Traces>,
    /// Rate limit headers in the metadata of responses to `Check`.
    pub headers: LimitHeaders,
    /// Whether a management server has sent the rules for Envoy. `None`: they come from files.
    pub rules_known: Option<RulesKnown>,
}

/// Whether a management server has sent rules. Before that calls of Envoy are refused.
#[derive(Clone, Debug)]
pub struct RulesKnown {
    /// Whether the server is not ready before.
    pub wait: bool,
    /// Becomes `true`.
    pub known: watch::Receiver<bool>,
}

/// Creates the gRPC services: rate limiting, Envoy's and Kuadrant's, reservations, the administration if there is
/// one, and reflection v1 and v1alpha.
///
/// # Panics
///
/// Never: the descriptors are made at build time.
pub fn services(
    Decisions { v1, envoy, kuadrant, reservations }: Decisions,
    administration: Option<&dyn ServedAdministration>,
    limiter: &Limiter,
) -> Routes {
    let mut served = FileDescriptorSet::decode(rlaas_proto::FILE_DESCRIPTOR_SET)
        .expect("the descriptors are made at build time");
    // Of a service that is called, not served; and of those that the build lacks.
    let is_served = |name: &str| {
        !name.starts_with("envoy/service/discovery/")
            && (administration.is_some() || !name.starts_with("ratelimit/admin/"))
    };
    served.file.retain(|file| is_served(file.name()));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_file_descriptor_set(served.clone())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut routes = RoutesBuilder::default();
    routes
        .add_service(v1.server)
        .add_service(envoy.server)
        .add_service(kuadrant.server)
        .add_service(reservations.server)
        .add_service(reflection().build_v1().expect("the descriptors are made at build time"))
        .add_service(reflection().build_v1alpha().expect("the descriptors are made at build time"));
    if let Some(administration) = administration {
        administration.add_services(limiter, &mut routes);
    }
    routes.routes()
}

/// Returns what a gRPC path requires of callers, such as `/ratelimit.v1.RateLimitService/Check`;
/// `None` if it requires nothing. Reflection requires nothing: it shows the protocol, which is public.
pub fn permission_of(path: &str) -> Option<Permission> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    match service {
        V1Server::<v1::Service>::NAME => Some(v1::permission_of(method)),
        EnvoyServer::<envoy::Service>::NAME | KuadrantServer::<Kuadrant>::NAME => {
            Some(envoy::permission_of(method))
        }
        ReservationServer::<reservations::Service>::NAME => Some(Permission::Decisions),
        admin_service_server::SERVICE_NAME => {
            let route = routes::of_rpc(AdminApi::Keys, method);
            Some(route.map_or(Permission::ADMIN, |route| route.permission))
        }
        project_service_server::SERVICE_NAME => {
            let route = routes::of_rpc(AdminApi::Projects, method);
            Some(route.map_or(Permission::ADMIN, |route| route.permission))
        }
        _ => None,
    }
}

/// Returns `true` if the responses of a gRPC path are a stream that may last, such as
/// `/ratelimit.v1.RateLimitService/CheckStream`.
pub fn is_stream(path: &str) -> bool {
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    parts.is_some_and(|(service, method)| match service {
        V1Server::<v1::Service>::NAME => v1::is_stream(method),
        admin_service_server::SERVICE_NAME => {
            routes::of_rpc(AdminApi::Keys, method).is_some_and(|route| route.is_stream)
        }
        _ => false,
    })
}

/// The administration of a service: services, routes and pages, and work in the background. Each worker has its
/// own handle of the limiter.
pub trait ServedAdministration: Debug + Send + Sync {
    /// Adds the services of gRPC.
    fn add_services(&self, limiter: &Limiter, routes: &mut RoutesBuilder);

    /// Returns the routes over HTTP.
    fn http_routes(&self, limiter: &Limiter) -> Router;

    /// Returns the pages. They call `services` in this process, and long work of theirs runs on `background`.
    fn pages(
        &self,
        limiter: &Limiter,
        services: Router,
        auth: Arc<Auth>,
        background: Handle,
    ) -> Router;

    /// Starts the work in the background.
    fn start(&self, tasks: &mut JoinSet<()>);

    /// Looks at the store for the first time, or gives up.
    fn first_look(&self) -> BoxFuture<'_, ()>;

    /// Ends the streams that show statistics.
    fn drain(&self);

    /// Completes when no change runs. To be called when no more of them come.
    fn finish_changes(&self) -> BoxFuture<'_, ()>;

    /// Writes what is still to be written.
    fn stop(&self) -> BoxFuture<'_, ()>;
}
