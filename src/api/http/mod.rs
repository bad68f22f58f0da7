//! HTTP: decisions for those who do not speak gRPC, probes and metrics.
//!
//! | path | answers |
//! | --- | --- |
//! | `POST /v1/check` | the JSON mapping of `Check`; what is no 200 is a problem document |
//! | `GET /check`, `POST /check` | what RLaaS Users Service and GoRL answered |
//! | `POST /json`, `GET /rlconfig`, `GET /healthcheck` | what envoyproxy/ratelimit answers |
//! | `GET /openapi.json` | the description of all this |
//! | `GET /metrics`, `/livez`, `/readyz` | metrics and probes |
//!
//! Callers have no deadline here: the store's own bounds what they wait.

mod body;
mod check;
mod compat;
mod denial;
mod envoy;
mod json_object;
mod openapi;
mod probes;
mod problem;
mod query;
mod rejection;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rlaas_limiter::headers::{LimitHeaders, retry_after};
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::problem::ProblemDocument;
use self::rejection::Rejection;
use super::auth::{AuthError, Role};
use super::envoy::EnvoySettings;
use super::request_log;
use super::traces::TracedDecision;
use crate::api;
use crate::clock::Deadline;
use crate::rules;
use crate::telemetry::metrics::{ApiLabels, Metrics, ReasonLabels};
use crate::telemetry::sharded::ShardedHistogram;
use crate::telemetry::traces::Traces;
use rlaas_limiter::{CheckError, Limiter, Verdict};

/// This protocol in metrics and logs.
const API: &str = "http";
/// What a caller without a known token may show.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer");

/// Everything that is answered.
pub fn router(state: HttpState, ready: watch::Receiver<bool>) -> Router {
    let probes = probes::router(&state, ready);
    let decisions = Router::new()
        .route("/v1/check", post(check::check))
        .route("/check", get(compat::by_user).post(compat::by_endpoint))
        .route("/json", post(envoy::should_rate_limit))
        .with_state(state.clone());
    let rules = Router::new().route("/rlconfig", get(envoy::rlconfig)).with_state(state);
    decisions
        .route("/openapi.json", get(openapi::document))
        .merge(rules)
        .merge(probes)
        .fallback(unknown_path)
        .method_not_allowed_fallback(other_method)
}

/// Returns the role that a request needs; `None` if it is open to everybody, or not answered at all.
pub fn role_of(method: &Method, path: &str) -> Option<Role> {
    let reads = [Method::GET, Method::HEAD].contains(method);
    match path {
        "/v1/check" | "/json" if method == Method::POST => Some(Role::Check),
        "/check" if reads || method == Method::POST => Some(Role::Check),
        "/rlconfig" if reads => Some(Role::Admin),
        _ => None,
    }
}

/// Returns the answer to a request whose caller may not make it.
pub async fn refuse(error: AuthError, request: Request) -> Response {
    body::discard(request).await;
    match error {
        AuthError::Unauthenticated => {
            let problem = ProblemDocument::new(StatusCode::UNAUTHORIZED, error.to_string());
            ([(header::WWW_AUTHENTICATE, CHALLENGE)], problem).into_response()
        }
        AuthError::Forbidden(_) => {
            ProblemDocument::new(StatusCode::FORBIDDEN, error.to_string()).into_response()
        }
    }
}

/// Returns the answer to a request that met a bug.
pub fn internal_error() -> Response {
    ProblemDocument::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error").into_response()
}

/// Extension of a request that has come by TLS.
#[derive(Clone, Copy, Debug)]
pub struct OverTls;

/// What decides. Clones share everything.
#[derive(Clone, Debug)]
pub struct HttpState {
    limiter: Limiter,
    metrics: Arc<Metrics>,
    timing: ShardedHistogram,
    headers: LimitHeaders,
    envoy: api::envoy::Service,
    /// For what takes long.
    background: Handle,
    /// Whether responses carry what was decided to their spans.
    is_traced: bool,
}

impl HttpState {
    /// Answers by what `limiter` decides, and tells of the limits by `headers`. What takes long is
    /// done as blocking work on the runtime of `background`.
    pub fn new(
        limiter: Limiter,
        metrics: Arc<Metrics>,
        headers: LimitHeaders,
        background: Handle,
    ) -> Self {
        let timing = metrics.check_duration.get_or_create_owned(&ApiLabels { api: API });
        let (of_limiter, of_metrics) = (limiter.clone(), Arc::clone(&metrics));
        let envoy = api::envoy::Service::new(of_limiter, of_metrics, EnvoySettings::default());
        Self { limiter, metrics, timing, headers, envoy, background, is_traced: false }
    }

    /// Answers what Envoy's service answers by these settings.
    #[must_use]
    pub fn with_envoy(self, settings: EnvoySettings) -> Self {
        Self { envoy: self.envoy.with_settings(settings), ..self }
    }

    /// The same, with responses that carry what was decided to their spans.
    #[must_use]
    pub fn with_traces(self, traces: Option<&Traces>) -> Self {
        Self { is_traced: traces.is_some(), ..self }
    }

    async fn decide(&self, request: &rules::Request<'_>) -> Result<Verdict, CheckError> {
        let timer = self.timing.start();
        let verdict = self.limiter.check(request, Deadline::NEVER).await;
        timer.stop();
        match &verdict {
            Ok(verdict) => request_log::decided(API, verdict.is_allowed(), &verdict.decisions),
            Err(error) => request_log::undecided(API, error),
        }
        verdict
    }

    /// Counts and logs a request that is not valid.
    fn count(&self, rejection: Rejection) -> Rejection {
        request_log::rejected(API, rejection.reason, rejection.without_name());
        let labels = ReasonLabels { reason: rejection.reason };
        self.metrics.rejected.get_or_create(&labels).inc();
        rejection
    }

    /// Tells of the limits, and that the answer holds for this moment alone.
    fn with_headers(&self, verdict: &Verdict, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in
            self.headers.for_verdict(verdict).into_iter().chain(retry_after(verdict))
        {
            let value = HeaderValue::try_from(value).expect("names are encoded, numbers are ASCII");
            headers.insert(HeaderName::from_static(name), value);
        }
        if self.is_traced {
            response.extensions_mut().insert(TracedDecision::from_verdict(verdict));
        }
        response
    }
}

async fn unknown_path(request: Request) -> ProblemDocument {
    body::discard(request).await;
    ProblemDocument::new(StatusCode::NOT_FOUND, "see /openapi.json for what there is")
}

/// The header `Allow` is added by the router.
async fn other_method(request: Request) -> Response {
    let method = request.method().clone();
    body::discard(request).await;
    if method == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        ProblemDocument::new(StatusCode::METHOD_NOT_ALLOWED, "the header Allow tells which are")
            .into_response()
    }
}
