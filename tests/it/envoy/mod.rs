//! `envoy.service.ratelimit.v3`: a table of cases over a socket on both stores, the files of
//! envoyproxy/ratelimit, and a real Envoy in front.

mod case_files;
mod client;
mod end_to_end;
mod files;
mod notation;
mod proxy;
mod service;
