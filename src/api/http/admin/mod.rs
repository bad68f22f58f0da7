//! `/v1/admin/…`: the methods of `ratelimit.admin.v1.AdminService` with messages in JSON.
//!
//! The request becomes a message, and the service for gRPC answers it in the same process; its
//! response, or its status, becomes JSON. So each method is written once, and its route is a line in
//! `api/admin/routes.rs`.
//!
//! | over gRPC | over HTTP |
//! | --- | --- |
//! | request | body of a `POST`, parameters of a `GET` |
//! | response | body |
//! | stream of responses | `text/event-stream`: an event `message` for each, and `error` at its end |
//! | status | problem document |

mod call;
mod events;
mod json;
pub(super) mod openapi;
mod query;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prost_reflect::{DynamicMessage, MethodDescriptor};
use rlaas_proto::ratelimit::admin::v1::admin_service_server::AdminServiceServer;
use tonic::Status;

use self::call::InProcessCall;
use super::body;
use super::problem::ProblemDocument;
use crate::admin::Administrator;
use crate::api::admin::Service;
use crate::api::admin::WARNING;
use crate::api::admin::routes::{AdminRoute, ROUTES, Verb};
use crate::api::status::http_of_code;
use crate::json_messages::{self, POOL};
use crate::telemetry::metrics::Metrics;

/// Full name of the service.
const SERVICE: &str = "ratelimit.admin.v1.AdminService";

/// Returns the routes of the service.
pub(super) fn router(administrator: Administrator, metrics: Arc<Metrics>) -> Router {
    let service = AdminServiceServer::new(Service::new(administrator, metrics));
    let mut router = Router::new();
    for route in ROUTES {
        let method = method(route.rpc);
        let handler = move |State(service), request| respond(service, method, request);
        router = router.route(
            route.path,
            match route.verb {
                Verb::Get => get(handler),
                Verb::Post => post(handler),
            },
        );
    }
    router.with_state(service)
}

/// Returns the description of a method.
fn method(rpc: &str) -> MethodDescriptor {
    let service = POOL.get_service_by_name(SERVICE);
    let method = service.and_then(|service| service.methods().find(|method| method.name() == rpc));
    method.expect("a test compares the routes with the methods of the service")
}

async fn respond(
    service: AdminServiceServer<Service>,
    method: MethodDescriptor,
    request: Request,
) -> Response {
    let mut response = match answer(service, method, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

async fn answer(
    service: AdminServiceServer<Service>,
    method: MethodDescriptor,
    request: Request,
) -> Result<Response, ProblemDocument> {
    let (head, body) = request.into_parts();
    let verb = AdminRoute::of_http(&head.method, head.uri.path()).map(|route| route.verb);
    let message = if verb == Some(Verb::Post) {
        json::read(&body::read(body).await?, method.input())?
    } else {
        query::read(head.uri.query().unwrap_or_default(), method.input())?
    };
    let mut call = InProcessCall::start(service, &method, &message, head.extensions).await?;
    if method.is_server_streaming() {
        return Ok(events::response(call));
    }
    let response = call.next().await?;
    let response = response.ok_or_else(|| Status::internal("internal error"))?;
    let mut response = json_response(&response);
    if let Some(warning) = call.warning {
        response.headers_mut().insert(WARNING, warning);
    }
    Ok(response)
}

fn json_response(message: &DynamicMessage) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    (StatusCode::OK, [(header::CONTENT_TYPE, content_type)], json_messages::write(message))
        .into_response()
}

impl From<Status> for ProblemDocument {
    fn from(status: Status) -> Self {
        Self::new(http_of_code(status.code()), status.message())
    }
}
