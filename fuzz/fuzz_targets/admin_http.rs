//! Administration over HTTP: each line is a request. Its first byte selects the route, the rest is the
//! body, or the query of a GET: selectors, changes, filters, page tokens.

#![no_main]

use axum::http::{Method, StatusCode};
use libfuzzer_sys::fuzz_target;
use rlaas_fuzz::{RUNTIME, administrator, http_api, limiter, send};

/// By their letters: `a` is the first.
const ROUTES: [(Method, &str); 14] = [
    (Method::POST, "/v1/admin/keys:inspect"),
    (Method::POST, "/v1/admin/keys:reset"),
    (Method::POST, "/v1/admin/keys:refund"),
    (Method::POST, "/v1/admin/keys:override"),
    (Method::POST, "/v1/admin/keys:clear-override"),
    (Method::GET, "/v1/admin/overrides"),
    (Method::POST, "/v1/admin/explain"),
    (Method::POST, "/v1/admin/explain-descriptors"),
    (Method::GET, "/v1/admin/audit"),
    (Method::GET, "/v1/admin/instances"),
    (Method::GET, "/v1/admin/top-keys"),
    (Method::GET, "/v1/admin/decisions"),
    (Method::POST, "/v1/check"),
    (Method::POST, "/json"),
];

fuzz_target!(|data: &[u8]| {
    let limiter = limiter();
    let api = http_api(administrator(&limiter));
    RUNTIME.block_on(async {
        let everything: [(_, &[u8]); 2] =
            [("/v1/admin/overrides", b"pageSize=1000"), ("/v1/admin/audit", b"pageSize=1000")];
        let state = async || {
            let mut state = Vec::new();
            for (path, query) in everything {
                let (status, body) = send(&api, &Method::GET, path, query).await.expect("a URI");
                assert_eq!(status, StatusCode::OK, "{path}");
                state.extend(body);
            }
            state
        };
        let mut before = state().await;
        for line in data.split(|byte| *byte == b'\n').take(8) {
            let Some((selector, content)) = line.split_first() else { continue };
            let (method, path) = &ROUTES[usize::from(selector.wrapping_sub(b'a')) % ROUTES.len()];
            let Some((status, _)) = send(&api, method, path, content).await else { continue };
            // A store in memory does not fail.
            assert!(!status.is_server_error(), "{status} for {path}");
            let after = state().await;
            // What is refused, or only reads, changes neither overrides nor the audit.
            let changes = path.starts_with("/v1/admin/keys:") && !path.ends_with(":inspect");
            assert!(after == before || changes && status.is_success(), "{status} for {path}");
            before = after;
        }
    });
});
