//! The HTTP API over sockets.

mod auth;
mod check;
pub(crate) mod client;
mod compat;
mod cors;
mod early_responses;
mod embedded;
mod envoy;
mod headers;
mod invalid_requests;
mod openapi;
pub(crate) mod schema;
mod schemathesis;
