//! Requests over HTTP: the first byte selects the route, the rest is the body, or the query of a GET.

#![no_main]

use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, header};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use rlaas::admin::{AdminSettings, Administrator};
use rlaas::api::LimitHeaders;
use rlaas::api::http::{HttpState, router};
use rlaas_limiter::fleet::Fleet;
use rlaas_fuzz::{LIMITER, METRICS, RUNTIME};
use tower::ServiceExt;

const ROUTES: [(Method, &str); 6] = [
    (Method::POST, "/v1/check"),
    (Method::POST, "/json"),
    (Method::POST, "/check"),
    (Method::GET, "/check"),
    (Method::GET, "/v1/check"),
    (Method::POST, "/v1/admin/keys:inspect"),
];

static ROUTER: LazyLock<Router> = LazyLock::new(|| {
    let state = HttpState::new(
        LIMITER.clone(),
        METRICS.clone(),
        LimitHeaders::Both,
        RUNTIME.handle().clone(),
    );
    let (_, ready) = tokio::sync::watch::channel(true);
    let fleet = Fleet::new(LIMITER.store());
    let administrator = Administrator::new(
        LIMITER.clone(),
        fleet,
        METRICS.clone(),
        AdminSettings::default(),
    );
    router(state, administrator, ready)
});

fuzz_target!(|data: &[u8]| {
    let Some((selector, rest)) = data.split_first() else { return };
    let (method, path) = &ROUTES[usize::from(*selector) % ROUTES.len()];
    let (uri, body) = match *method {
        Method::GET => (format!("{path}?{}", String::from_utf8_lossy(rest)), Body::empty()),
        _ => ((*path).to_owned(), Body::from(rest.to_vec())),
    };
    let request = Request::builder().method(method).uri(&uri);
    let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
    // Not every text is a URI.
    let Ok(request) = request else { return };
    RUNTIME.block_on(async {
        let response = ROUTER.clone().oneshot(request).await.expect("the router is infallible");
        let status = response.status();
        // A store in memory does not fail.
        assert!(!status.is_server_error(), "{status} for {uri}");
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let is_json = content_type.is_some_and(|kind| kind.as_bytes().ends_with(b"json"));
        let body = response.into_body().collect().await.expect("a body in memory").to_bytes();
        if is_json {
            serde_json::from_slice::<serde_json::Value>(&body).expect("JSON");
        }
    });
});
