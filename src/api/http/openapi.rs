//! The description of the HTTP API: `openapi.json`, the routes of administration, which are described
//! by the descriptors of their messages, and those of `compat_projects`. Tests compare it with the running server.

use std::sync::LazyLock;

use axum::http::{HeaderName, header};
use serde_json::Value;

use super::{admin, compat_projects};

const STATIC: &str = include_str!("openapi.json");

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let mut document: Value = serde_json::from_str(STATIC).expect("a test reads the file");
    admin::openapi::describe(&mut document);
    compat_projects::openapi::describe(&mut document);
    document.to_string()
});

/// `GET /openapi.json`.
pub(super) async fn document() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "application/json")], &DOCUMENT)
}
