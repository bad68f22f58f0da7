//! The HTTP API: decisions in JSON, probes and metrics.
//!
//! | path | response |
//! | --- | --- |
//! | `POST /v1/check` | the JSON mapping of `Check`; other statuses than 200 have a problem document |
//! | `POST /v1/report`, `/v1/reserve`, `/v1/extend`, `/v1/commit`, `/v1/cancel` | the JSON mapping of these methods |
//! | `GET /check`, `POST /check` | the responses of RLaaS Users Service and of RLaaS on GoRL |
//! | `POST /json`, `GET /rlconfig`, `GET /healthcheck` | the responses of envoyproxy/ratelimit |
//! | `/projects`, `/projects/…` | the management API of RLaaS on GoRL, in its shapes |
//! | `/v1/admin/…`, `/v1/projects/…` | the JSON mapping of `ratelimit.admin.v1` |
//! | `GET /openapi.json` | the description of this API |
//! | `GET /metrics`, `/livez`, `/readyz` | metrics and probes |
//!
//! HTTP requests carry no deadline: the timeout of the store limits the wait.

mod admin;
mod body;
mod check;
mod compat;
#[cfg_attr(not(feature = "admin"), path = "no_projects.rs")]
mod compat_projects;
mod cors;
mod envoy;
mod json_object;
mod openapi;
mod probes;
mod problem;
mod query;

#[cfg(feature = "admin")]
pub use admin::administration_router;
pub use cors::{Cors, PageOrigin, PageOriginError};
pub use probes::{NotReady, Scrapes};

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use rlaas_auth::{
    ApiKeyRefusal, Auth, AuthError, ConfiguredProjects, KeyRefusal, Permission, Tenant, TokenError,
    WebError,
};
use rlaas_limiter::headers::LimitHeaders;
use rlaas_telemetry::metrics::{ApiLabels, Metrics, ReasonLabels};
use rlaas_telemetry::sharded::ShardedHistogram;
use rlaas_telemetry::traces::Traces;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tower::BoxError;

use self::problem::{ProblemDocument, Rejection};
use super::decision_events::{self, Origin};
use super::traces::TracedDecision;
use super::verdict_headers::VerdictHeaders;
use super::{ApiSettings, ServedAdministration, request_log, routes, status, undecided};
use crate::api;
use crate::clock::Deadline;
use crate::rules;
use rlaas_limiter::{CheckError, Limiter, Verdict};

/// Name of this protocol in metrics and logs.
const API: &str = "http";
/// What those who watch decisions see of requests.
const ORIGIN: Origin = Origin { api: API, method: "Check" };
/// The authentication scheme, for callers without a known token.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer");
/// The same, for callers whose token is not a valid one of the issuer (RFC 6750 section 3.1).
const INVALID_TOKEN: HeaderValue = HeaderValue::from_static("Bearer error=\"invalid_token\"");

/// Returns the routes of the HTTP API.
pub fn router(
    state: HttpState,
    administration: Option<&dyn ServedAdministration>,
    ready: watch::Receiver<NotReady>,
) -> Router {
    let (limiter, of_decisions) = (state.limiter.clone(), Arc::clone(&state.metrics));
    let configured = state.projects.clone();
    let probes = probes::router(&state, ready);
    let administration =
        administration.map_or_else(Router::new, |served| served.http_routes(&limiter));
    let decisions = Router::new()
        .route("/v1/check", post(check::check))
        .route("/check", get(compat::by_user).post(compat::by_endpoint))
        .route("/json", post(envoy::should_rate_limit))
        .with_state(state.clone());
    let headers = state.headers;
    let rules = Router::new().route("/rlconfig", get(envoy::rlconfig)).with_state(state);
    decisions
        .route("/openapi.json", get(openapi::document))
        .merge(rules)
        .merge(probes)
        .merge(administration)
        .merge(admin::decision_router(limiter, configured, of_decisions, headers))
        .fallback(unknown_path)
        .method_not_allowed_fallback(other_method)
}

/// Returns the route of metrics alone.
pub fn metrics_router(state: HttpState) -> Router {
    probes::metrics_router(state).fallback(unknown_path).method_not_allowed_fallback(other_method)
}

/// Returns what a request requires of its caller; `None` if it requires nothing or the path is unknown.
pub fn permission_of(method: &Method, path: &str) -> Option<Permission> {
    let reads = [Method::GET, Method::HEAD].contains(method);
    match path {
        "/v1/check" if method == Method::POST => Some(Permission::Decisions),
        "/json" if method == Method::POST => Some(Permission::Descriptors),
        "/check" if reads || method == Method::POST => Some(Permission::Decisions),
        "/rlconfig" if reads => Some(Permission::Configuration),
        _ => routes::of_http(method, path)
            .map(|route| route.permission)
            .or_else(|| compat_projects::permission_of(method, path)),
    }
}

/// Returns `true` if the body of a request may have an API key.
pub fn takes_key_in_body(method: &Method, path: &str) -> bool {
    method == Method::POST && path == "/check"
}

/// Returns `true` if the response of a path is an event stream.
pub fn is_stream(path: &str) -> bool {
    routes::streams(path)
}

/// Returns the response to a request that is not authorized.
pub async fn refuse(error: AuthError, request: Request) -> Response {
    body::discard(request).await;
    refusal(error)
}

fn refusal(error: AuthError) -> Response {
    match error {
        AuthError::ApiKey(ApiKeyRefusal::Key(KeyRefusal::Unavailable))
        | AuthError::Token(TokenError::KeysUnavailable) => {
            ProblemDocument::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
        AuthError::Unauthenticated | AuthError::ApiKey(_) => {
            let problem = ProblemDocument::new(StatusCode::UNAUTHORIZED, error.to_string());
            ([(header::WWW_AUTHENTICATE, CHALLENGE)], problem).into_response()
        }
        AuthError::Token(_) => {
            let problem = ProblemDocument::new(StatusCode::UNAUTHORIZED, error.to_string());
            ([(header::WWW_AUTHENTICATE, INVALID_TOKEN)], problem).into_response()
        }
        AuthError::Web(WebError::ContentType(_)) => {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            ProblemDocument::new(status, error.to_string()).into_response()
        }
        AuthError::Web(WebError::Hosts) => {
            ProblemDocument::new(StatusCode::BAD_REQUEST, error.to_string()).into_response()
        }
        AuthError::Forbidden(_) | AuthError::NotLocal(..) | AuthError::Web(WebError::Origin) => {
            ProblemDocument::new(StatusCode::FORBIDDEN, error.to_string()).into_response()
        }
    }
}

/// Returns the response to a request whose handler panicked.
pub fn internal_error() -> Response {
    ProblemDocument::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error").into_response()
}

/// Extension of a request that arrived over TLS.
#[derive(Clone, Copy, Debug)]
pub struct OverTls;

/// State of the handlers. Clones share it.
#[derive(Clone, Debug)]
pub struct HttpState {
    limiter: Limiter,
    metrics: Arc<Metrics>,
    timing: ShardedHistogram,
    headers: LimitHeaders,
    envoy: api::envoy::Service,
    /// The projects; `None` if there are none.
    projects: Option<Arc<dyn ConfiguredProjects>>,
    /// Admits calls with an API key in the body.
    auth: Option<Arc<Auth>>,
    /// Runtime for blocking work.
    background: Handle,
    /// Whether responses carry a [`TracedDecision`].
    is_traced: bool,
    /// What `/metrics` shows.
    scrapes: Scrapes,
}

/// The response to a request, when it is ready.
type AnsweredRequest = BoxFuture<'static, Result<Response, Infallible>>;

impl HttpState {
    /// Creates the state: `limiter` decides, `headers` selects the rate limit headers of responses.
    /// Long work, such as writing metrics, runs as blocking tasks on `background`.
    pub fn new(
        limiter: Limiter,
        metrics: Arc<Metrics>,
        headers: LimitHeaders,
        background: Handle,
    ) -> Self {
        let timing = metrics.check_duration.get_or_create_owned(&ApiLabels { api: API });
        let (of_limiter, of_metrics) = (limiter.clone(), Arc::clone(&metrics));
        let envoy = api::envoy::Service::new(of_limiter, of_metrics);
        Self {
            limiter,
            metrics,
            timing,
            headers,
            envoy,
            projects: None,
            auth: None,
            background,
            is_traced: false,
            scrapes: Scrapes::Everything,
        }
    }

    /// Sets what admits calls with an API key in the body.
    #[must_use]
    pub fn with_auth(self, auth: Arc<Auth>) -> Self {
        Self { auth: Some(auth), ..self }
    }

    /// Sets what `/metrics` shows.
    #[must_use]
    pub fn with_scrapes(self, scrapes: Scrapes) -> Self {
        Self { scrapes, ..self }
    }

    /// Sets the settings of `POST /json`, and the projects.
    #[must_use]
    pub fn with_settings(self, settings: &ApiSettings) -> Self {
        let projects = settings.projects.clone();
        Self { envoy: self.envoy.with_settings(settings), projects, ..self }
    }

    /// Enables traces: responses carry a [`TracedDecision`] if `traces` is given.
    #[must_use]
    pub fn with_traces(self, traces: Option<&Traces>) -> Self {
        Self { is_traced: traces.is_some(), ..self }
    }

    /// Answers `POST /v1/check` without the router, which notes the matched path and copies the state.
    /// Returns any other request.
    pub fn call<B>(
        self: &Arc<Self>,
        request: axum::http::Request<B>,
    ) -> Either<AnsweredRequest, axum::http::Request<B>>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if request.method() != Method::POST || request.uri().path() != "/v1/check" {
            return Either::Right(request);
        }
        let (state, request) = (Arc::clone(self), request.map(Body::new));
        let respond = async move {
            let mut response = check::respond(&state, request).await;
            if let Some(length) = response.body().size_hint().exact() {
                // As the router does: it comes before the headers that other steps add.
                response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            }
            Ok(response)
        };
        Either::Left(respond.boxed())
    }

    async fn decide(
        &self,
        tenant: Option<&Tenant>,
        request: &rules::Request<'_>,
    ) -> Result<Verdict, CheckError> {
        let timer = self.timing.start();
        let limiter = Tenant::limiter(tenant, &self.limiter);
        let verdict = limiter.check(request, Deadline::NEVER).await;
        timer.stop();
        decision_events::decided(&self.metrics, &self.limiter, ORIGIN, request, &verdict);
        match &verdict {
            Ok(verdict) => request_log::decided(API, verdict.is_allowed(), &verdict.decisions),
            Err(error) => {
                request_log::undecided(API, error);
                if !request.looks() {
                    undecided::count(&self.limiter, request.project(), status::grpc(error).code());
                }
            }
        }
        verdict
    }

    /// Counts and logs an invalid request.
    fn count(&self, rejection: Rejection) -> Rejection {
        request_log::rejected(API, rejection.reason, rejection.without_name());
        let labels = ReasonLabels { reason: rejection.reason };
        self.metrics.rejected.get_or_create(&labels).inc();
        rejection
    }

    /// Adds the rate limit headers, and `no-store`: a decision must not be cached.
    fn with_headers(&self, verdict: &Verdict, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        VerdictHeaders::insert(self.headers, verdict, headers);
        if self.is_traced {
            response.extensions_mut().insert(TracedDecision::from_verdict(verdict));
        }
        response
    }
}

async fn unknown_path(request: Request) -> ProblemDocument {
    body::discard(request).await;
    ProblemDocument::new(StatusCode::NOT_FOUND, "unknown path: see /openapi.json")
}

/// Answers other methods of a known path. The router adds the header `Allow`.
async fn other_method(request: Request) -> Response {
    let method = request.method().clone();
    body::discard(request).await;
    if method == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        ProblemDocument::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method not allowed: see the header Allow",
        )
        .into_response()
    }
}
