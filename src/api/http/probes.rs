//! Metrics and probes.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use rlaas_telemetry::exposition::Exposition;
use tokio::sync::watch;

use super::HttpState;

/// The reason why the server is not ready; `None` if it is.
pub type NotReady = Option<&'static str>;

/// What `/metrics` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrapes {
    /// All metrics.
    Everything,
    /// All metrics, with names of projects for callers who have the role `metrics` alone.
    ProjectsByRole,
    /// Nothing: it has an address of its own.
    Elsewhere,
}

/// Returns the routes `/metrics`, `/livez`, `/readyz` and `/healthcheck`.
pub(super) fn router(state: &HttpState, ready: watch::Receiver<NotReady>) -> Router {
    let probes = Router::new()
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(healthcheck))
        .with_state(ready);
    let router = Router::new().route("/livez", get("ok\n")).merge(probes);
    if state.scrapes == Scrapes::Elsewhere {
        return router;
    }
    router.merge(metrics_router(state.clone()))
}

/// Returns the route `/metrics`.
pub(super) fn metrics_router(state: HttpState) -> Router {
    Router::new().route("/metrics", get(render)).with_state(state)
}

/// `GET /metrics`. With many rules this takes long, so it does not run on a worker thread.
async fn render(
    State(state): State<HttpState>,
    request: Request,
) -> Result<impl IntoResponse, StatusCode> {
    let names_projects = state.scrapes != Scrapes::ProjectsByRole
        || state.auth.is_some_and(|auth| auth.has_role_metrics(&request));
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let exposition = Exposition::from_accept(accept.unwrap_or_default());
    let metrics = state.metrics;
    let text = state.background.spawn_blocking(move || {
        if names_projects {
            metrics.render(exposition)
        } else {
            metrics.render_without_projects(exposition)
        }
    });
    let text = text.await;
    // The task was cancelled because the process is shutting down.
    let text = text.map_err(|_cancelled| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(([(header::CONTENT_TYPE, exposition.content_type())], text))
}

async fn readyz(State(ready): State<watch::Receiver<NotReady>>) -> (StatusCode, String) {
    match *ready.borrow() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

/// `GET /healthcheck` of envoyproxy/ratelimit: the same readiness as `/readyz`.
async fn healthcheck(State(ready): State<watch::Receiver<NotReady>>) -> (StatusCode, &'static str) {
    match *ready.borrow() {
        None => (StatusCode::OK, "OK"),
        Some(_) => (StatusCode::INTERNAL_SERVER_ERROR, ""),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use axum::body::Body;
    use axum::http::Request;
    use futures_util::FutureExt;
    use rlaas_limiter::headers::LimitHeaders;
    use rlaas_telemetry::metrics::Metrics;
    use tokio::runtime::Builder;
    use tonic::codegen::Service;

    use super::*;
    use rlaas_limiter::Limiter;

    #[tokio::test]
    async fn probes_answer_while_metrics_are_rendered() {
        let background = Builder::new_current_thread().max_blocking_threads(1).build();
        let background = background.expect("a runtime");
        let (release, released) = mpsc::channel::<()>();
        background.spawn_blocking(move || released.recv());
        let limiter = Limiter::builder().build().expect("a limiter");
        let (metrics, handle) = (Arc::new(Metrics::new()), background.handle().clone());
        let state = HttpState::new(limiter, metrics, LimitHeaders::None, handle);
        let mut router = router(&state, watch::channel(None).1);
        let mut get_status = |path: &str| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            router.call(request).map(|response| response.expect("infallible").status())
        };
        let mut metrics = get_status("/metrics");
        assert_eq!((&mut metrics).now_or_never(), None, "the background thread is busy");
        for probe in ["/livez", "/readyz", "/healthcheck"] {
            assert_eq!(get_status(probe).now_or_never(), Some(StatusCode::OK), "{probe}");
        }
        release.send(()).expect("a waiting receiver");
        assert_eq!(metrics.await, StatusCode::OK);
        background.shutdown_background();
    }
}
