//! Requests over HTTP: the first byte selects the route, the rest is the body, or the query of a GET.

#![no_main]

use std::sync::LazyLock;

use axum::Router;
use axum::http::Method;
use libfuzzer_sys::fuzz_target;
use rlaas_fuzz::{LIMITER, RUNTIME, administrator, http_api, send};

const ROUTES: [(Method, &str); 5] = [
    (Method::POST, "/v1/check"),
    (Method::POST, "/json"),
    (Method::POST, "/check"),
    (Method::GET, "/check"),
    (Method::GET, "/v1/check"),
];

static API: LazyLock<Router> = LazyLock::new(|| http_api(administrator(&LIMITER)));

fuzz_target!(|data: &[u8]| {
    let Some((selector, rest)) = data.split_first() else { return };
    let (method, path) = &ROUTES[usize::from(*selector) % ROUTES.len()];
    let sent = RUNTIME.block_on(send(&API, method, path, rest));
    // A store in memory does not fail.
    assert!(sent.is_none_or(|(status, _)| !status.is_server_error()), "{method} {path}");
});
