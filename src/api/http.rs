//! HTTP: metrics and probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;

use crate::telemetry::exposition::Exposition;
use crate::telemetry::metrics::Metrics;

/// `GET /metrics`, `/livez` and `/readyz`.
pub fn router(metrics: &Arc<Metrics>, ready: watch::Receiver<bool>) -> Router {
    let probes = Router::new().route("/readyz", get(readyz)).with_state(ready);
    Router::new()
        .route("/metrics", get(render))
        .with_state(Arc::clone(metrics))
        .route("/livez", get("ok\n"))
        .merge(probes)
}

async fn render(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let exposition = Exposition::accepted(accept.unwrap_or_default());
    ([(header::CONTENT_TYPE, exposition.content_type())], metrics.render(exposition))
}

async fn readyz(State(ready): State<watch::Receiver<bool>>) -> (StatusCode, &'static str) {
    if *ready.borrow() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}
