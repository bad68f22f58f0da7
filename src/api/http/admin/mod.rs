//! `/v1/admin/…`, `/v1/projects/…` and `/v1/catalogue:restore`: the methods of `ratelimit.admin.v1.AdminService` and
//! `ratelimit.admin.v1.ProjectService` with messages in JSON.
//!
//! The request becomes a message, and the service for gRPC answers it in the same process; its
//! response, or its status, becomes JSON. So each method is written once, and its route is a line in
//! `routes.rs`.
//!
//! | over gRPC | over HTTP |
//! | --- | --- |
//! | request | body of a `POST`, `PUT` or `PATCH`, parameters of a `GET` or `DELETE`; the path |
//! | response | body; 201 if something was created, 204 without a body if it was deleted |
//! | etag | `ETag` of a response, `If-Match` of a request |
//! | usage | JSON, or `text/csv` if `Accept` prefers it |
//! | whole rule | also one in the words of rules files, with `endpoint`, as RLaaS on GoRL has it |
//! | stream of responses | `text/event-stream`: an event `message` for each, and `error` at its end |
//! | status | problem document |

mod call;
mod csv;
mod json;
pub(super) mod openapi;
mod query;
mod resource;
#[cfg(feature = "admin")]
mod services;

#[cfg(feature = "admin")]
pub use services::administration_router;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use prost_reflect::{DynamicMessage, MethodDescriptor};
use rlaas_auth::{AdminApi, AdminRoute, ConfiguredProjects, Verb, run_blocking};
use rlaas_limiter::Limiter;
use rlaas_limiter::headers::LimitHeaders;
use rlaas_proto::WARNING;
use rlaas_proto::ratelimit::v1::rate_limit_service_server::RateLimitServiceServer;
use rlaas_proto::ratelimit::v1::reservation_service_server::ReservationServiceServer;
use rlaas_telemetry::metrics::Metrics;
use tonic::Status;

use self::call::{GrpcService, InProcessCall, framed};
use super::body;
use super::problem::ProblemDocument;
use crate::api::routes::{DECISION_ROUTES, RESERVATION_ROUTES};
use crate::api::status::{http_of_code, is_bound};
use crate::api::{self, reservations};
use crate::json_messages::{self, POOL};

/// Bytes above which messages are large: more than a page of any list needs.
const LARGE: usize = 64 * 1024;

/// Returns the routes of decisions without a form of their own, and of reservations.
pub(super) fn decision_router(
    limiter: Limiter,
    projects: Option<Arc<dyn ConfiguredProjects>>,
    metrics: Arc<Metrics>,
    headers: LimitHeaders,
) -> Router {
    let reservations = reservations::Service::new(limiter.clone(), Arc::clone(&metrics));
    let service = api::v1::Service::new(limiter, projects, metrics);
    let reservations = fixed_paths(ReservationServiceServer::new(reservations), RESERVATION_ROUTES);
    let decisions = fixed_paths(RateLimitServiceServer::new(service), DECISION_ROUTES);
    decisions.merge(reservations).layer(Extension(headers))
}

fn fixed_paths<S>(service: S, routes: &'static [AdminRoute]) -> Router
where
    S: GrpcService + Clone + Sync + 'static,
{
    let mut all = Router::new();
    for route in routes {
        let handler = move |State(service): State<S>, request| respond(service, route, request);
        all = all.route(
            route.path,
            match route.verb {
                Verb::Get => get(handler),
                _ => post(handler),
            },
        );
    }
    all.with_state(service)
}

/// Returns the description of the method of a route.
fn method(route: &AdminRoute) -> MethodDescriptor {
    let name = match route.api {
        AdminApi::Decisions => "ratelimit.v1.RateLimitService",
        AdminApi::Reservations => "ratelimit.v1.ReservationService",
        AdminApi::Keys => "ratelimit.admin.v1.AdminService",
        AdminApi::Projects => "ratelimit.admin.v1.ProjectService",
    };
    let service = POOL.get_service_by_name(name);
    let mut methods = service.iter().flat_map(prost_reflect::ServiceDescriptor::methods);
    let method = methods.find(|method| method.name() == route.rpc);
    method.expect("a test compares the routes with the methods of the service")
}

async fn respond<S>(service: S, route: &'static AdminRoute, request: Request) -> Response
where
    S: GrpcService,
{
    let mut response = match answer(service, route, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

async fn answer<S>(
    service: S,
    route: &'static AdminRoute,
    request: Request,
) -> Result<Response, ProblemDocument>
where
    S: GrpcService,
{
    let (head, body) = request.into_parts();
    let method = method(route);
    let mut len = 0;
    let mut message = if route.verb.has_body() {
        let max = if route.takes_rules { api::MAX_RULES_MESSAGE } else { body::MAX_BODY_BYTES };
        let (body, input) = (body::read_at_most(body, max).await?, method.input());
        len = body.len();
        let is_whole = matches!(route.verb, Verb::Post | Verb::Put);
        let takes_file_rule = is_whole && ["CreateRule", "UpdateRule"].contains(&route.rpc);
        let read = move || match takes_file_rule
            .then(|| resource::read_file_rule(&body, &input))
            .flatten()
        {
            Some(message) => message,
            None => json::read(&body, input),
        };
        unless_large(len, read).await?
    } else {
        query::read(head.uri.query().unwrap_or_default(), method.input())?
    };
    resource::set_fields(route, head.uri.path(), &mut message)?;
    resource::set_etag(&head.headers, &mut message)?;
    if route.verb == Verb::Put {
        resource::set_whole(&mut message)?;
    }
    let prefers_csv = csv::is_preferred(route, &head.headers);
    if prefers_csv {
        csv::set_page_size(&mut message);
    }
    let framed = unless_large(len, move || framed(&message)).await;
    let mut call = InProcessCall::start(service, &method, framed, head.extensions).await?;
    if method.is_server_streaming() {
        return Ok(call::response(call));
    }
    let response = call.next().await?;
    let response = response.ok_or_else(|| Status::internal("internal error"))?;
    if prefers_csv {
        return Ok(csv::response(&response)?);
    }
    let status = resource::status(route, &response);
    if status == StatusCode::NO_CONTENT {
        return Ok(status.into_response());
    }
    let (etag, len) = (resource::etag(&response), call.received);
    let mut response = unless_large(len, move || json_response(status, &response)).await;
    response.headers_mut().extend(call.headers);
    if let Some(warning) = call.warning {
        response.headers_mut().insert(WARNING, warning);
    }
    if let Some(etag) = etag {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

/// Runs work on messages of `len` bytes: here, or if they are large on a thread of its own, so that
/// the other requests of this worker do not wait for it.
async fn unless_large<T: Send + 'static>(
    len: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if len > LARGE { run_blocking(work).await } else { work() }
}

fn json_response(status: StatusCode, message: &DynamicMessage) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, content_type)], json_messages::write(message)).into_response()
}

impl From<Status> for ProblemDocument {
    fn from(status: Status) -> Self {
        let code =
            if is_bound(&status) { StatusCode::CONFLICT } else { http_of_code(status.code()) };
        Self::new(code, status.message())
    }
}
