//! The description of the HTTP API: `openapi.json`. Tests compare it with the running server.

use axum::http::{HeaderName, header};

const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /openapi.json`.
pub(super) async fn document() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}
