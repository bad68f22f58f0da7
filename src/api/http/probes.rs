//! Metrics and probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::envoy;
use crate::telemetry::exposition::Exposition;
use crate::telemetry::metrics::Metrics;

/// `GET /metrics`, `/livez`, `/readyz` and `/healthcheck`.
pub(super) fn router(metrics: &Arc<Metrics>, ready: watch::Receiver<bool>) -> Router {
    let probes = Router::new()
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(envoy::healthcheck))
        .with_state(ready);
    Router::new()
        .route("/metrics", get(render))
        .with_state(Arc::clone(metrics))
        .route("/livez", get("ok\n"))
        .merge(probes)
}

/// Many rules take a while to write down: not on a thread that decides.
async fn render(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let exposition = Exposition::accepted(accept.unwrap_or_default());
    let text = spawn_blocking(move || metrics.render(exposition)).await;
    let text = text.expect("rendering does not panic");
    ([(header::CONTENT_TYPE, exposition.content_type())], text)
}

async fn readyz(State(ready): State<watch::Receiver<bool>>) -> (StatusCode, &'static str) {
    if *ready.borrow() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}
