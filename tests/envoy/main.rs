//! `envoy.service.ratelimit.v3`: a table of cases over a socket on both stores, the files of
//! envoyproxy/ratelimit, and a real Envoy in front.

#[path = "../common/mod.rs"]
mod common;

mod asking;
mod envoy;
mod files;
mod front;
mod notation;
mod service;
mod table;
