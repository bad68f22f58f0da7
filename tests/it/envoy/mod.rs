//! `envoy.service.ratelimit.v3`: a table of cases over a socket on both stores, the files of
//! envoyproxy/ratelimit, and a real Envoy in front.

mod asking;
mod files;
mod front;
mod notation;
mod proxy;
mod service;
mod table;
