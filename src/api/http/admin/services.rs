//! The routes of the services that administer.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use axum::routing::any;
use rlaas_admin::routes::ROUTES;
use rlaas_admin::{Administrator, Projects, Service};
use rlaas_proto::ratelimit::admin::v1::admin_service_server::AdminServiceServer;
use rlaas_proto::ratelimit::admin::v1::project_service_server::ProjectServiceServer;
use rlaas_telemetry::metrics::Metrics;

use super::{fixed_paths, respond};
use crate::api::http::{compat_projects, other_method, unknown_path};
use crate::api::{self, routes};

/// Returns the routes of the administration.
pub fn administration_router(
    administrator: Administrator,
    projects: Projects,
    metrics: Arc<Metrics>,
) -> Router {
    let keys = AdminServiceServer::new(Service::new(administrator, projects.clone(), metrics));
    fixed_paths(keys, ROUTES)
        .merge(compat_projects::router(projects.clone()))
        .merge(project_router(projects))
}

/// Returns the routes of the service for projects. Their paths are matched in `routes.rs`: a
/// segment may have a field and a verb.
fn project_router(projects: Projects) -> Router {
    let service =
        ProjectServiceServer::new(projects).max_decoding_message_size(api::MAX_RULES_MESSAGE);
    let handler = |State(service): State<ProjectServiceServer<Projects>>, request: Request| async {
        let path = request.uri().path();
        if let Some(route) = routes::of_http(request.method(), path) {
            return respond(service, route, request).await;
        }
        let allowed = routes::allowed(path);
        if allowed.is_empty() {
            return unknown_path(request).await.into_response();
        }
        let mut response = other_method(request).await;
        let allowed = HeaderValue::try_from(allowed).expect("names of methods");
        response.headers_mut().insert(header::ALLOW, allowed);
        response
    };
    Router::new()
        .route("/v1/projects", any(handler))
        .route("/v1/projects/{*rest}", any(handler))
        .route("/v1/catalogue:restore", any(handler))
        .with_state(service)
}
