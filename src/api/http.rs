//! HTTP: metrics and probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::watch;

use crate::telemetry::metrics::Metrics;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `GET /metrics`, `/livez` and `/readyz`.
pub fn router(metrics: &Arc<Metrics>, ready: watch::Receiver<bool>) -> Router {
    let probes = Router::new().route("/readyz", get(readyz)).with_state(ready);
    Router::new()
        .route("/metrics", get(render))
        .with_state(Arc::clone(metrics))
        .route("/livez", get("ok\n"))
        .merge(probes)
}

async fn render(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPENMETRICS)], metrics.render())
}

async fn readyz(State(ready): State<watch::Receiver<bool>>) -> (StatusCode, &'static str) {
    if *ready.borrow() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}
