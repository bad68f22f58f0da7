//! What the fuzz targets share: a limiter in memory with the example rules, its administration, and a
//! runtime.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode, header};
use rlaas::api::LimitHeaders;
use rlaas_admin::{AdminSettings, Administrator};
use rlaas::api::http::{HttpState, permission_of, router};
use rlaas::clock::{Clock, ManualClock, Timestamp};
use rlaas::config::{Config, Sources};
use rlaas::rules::RuleSet;
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas_auth::{Auth, HostNames, PeerLocality, RequestKind};
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_telemetry::metrics::Metrics;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// Runs the futures of the service.
pub static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// Metrics of the limiter.
pub static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(|| Arc::new(Metrics::new()));

/// The rules of `config/rules.yaml` and `config/envoy/rules.yaml`; the default rule is overridable.
static RULES: LazyLock<RuleSet> = LazyLock::new(|| {
    let project = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config");
    let envoy = format!("[{}]", project.join("envoy/rules.yaml").display());
    let arguments = [("envoy.files", &*envoy), ("rate-limiter.overridable", "true")];
    let sources = Sources {
        files: vec![project.join("rules.yaml")],
        arguments: arguments.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..Sources::default()
    };
    Config::load(&sources).expect("the example configuration is valid").rules
});

/// Admits local callers.
static AUTH: LazyLock<Auth> =
    LazyLock::new(|| Auth::unlisted(HostNames::default(), Arc::clone(&METRICS)));

/// A limiter for all inputs.
pub static LIMITER: LazyLock<Limiter> = LazyLock::new(limiter);

/// Returns a limiter in memory with the example rules. Its clock stands still, so that an input has
/// the same effect in every run.
pub fn limiter() -> Limiter {
    let clock = Clock::Manual(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let store = MemoryStore::new(MemorySettings::default(), clock, METRICS.clone());
    Limiter::new(RULES.clone(), Store::Memory(store), METRICS.clone())
}

/// Returns an administrator of a limiter.
pub fn administrator(limiter: &Limiter) -> Administrator {
    let fleet = Fleet::new(limiter.store());
    Administrator::new(limiter.clone(), fleet, METRICS.clone(), AdminSettings::default())
}

/// Returns the HTTP API.
pub fn http_api(administrator: Administrator) -> Router {
    let (_, ready) = tokio::sync::watch::channel(true);
    let (limiter, handle) = (administrator.limiter().clone(), RUNTIME.handle().clone());
    let state = HttpState::new(limiter, METRICS.clone(), LimitHeaders::Both, handle);
    router(state, administrator, ready)
}

/// Sends JSON, or a query, as a local caller. Returns the status and the body, which is JSON where the
/// response says so; no body of an event stream. `None` if the text is not a URI.
pub async fn send(
    api: &Router,
    method: &Method,
    path: &str,
    content: &[u8],
) -> Option<(StatusCode, Vec<u8>)> {
    let (uri, body) = match *method {
        Method::GET => (format!("{path}?{}", String::from_utf8_lossy(content)), Body::empty()),
        _ => (path.to_owned(), Body::from(content.to_vec())),
    };
    let request = Request::builder().method(method).uri(&uri);
    let mut request = request.header(header::CONTENT_TYPE, "application/json").body(body).ok()?;
    let path = request.uri().path().to_owned();
    if let Some(permission) = permission_of(method, &path) {
        let from = (RequestKind::Http, PeerLocality::UnixSocket);
        let admission = AUTH.admit(&request, permission, from).expect("a local caller is admitted");
        admission.caller.map(|caller| request.extensions_mut().insert(caller));
    }
    let response = api.clone().oneshot(request).await.expect("the router is infallible");
    let status = response.status();
    let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
    let is = |end: &[u8]| content_type.as_ref().is_some_and(|kind| kind.as_bytes().ends_with(end));
    if is(b"event-stream") {
        return Some((status, Vec::new()));
    }
    let body = to_bytes(response.into_body(), usize::MAX).await.expect("a body in memory");
    if is(b"json") {
        serde_json::from_slice::<serde_json::Value>(&body).expect("JSON");
    }
    Some((status, body.into()))
}
