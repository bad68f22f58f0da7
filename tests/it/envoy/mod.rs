//! `envoy.service.ratelimit.v3`: cases on both stores, the rule files of envoyproxy/ratelimit, and
//! a real Envoy.

mod ai_gateway;
mod amounts;
mod case_files;
pub(crate) mod client;
mod end_to_end;
mod environment;
mod files;
mod headers;
mod kuadrant;
mod near_limit;
mod notation;
mod projects;
pub(crate) mod proxy;
mod service;
mod undecided;
mod xds;
mod xds_bounds;
mod xds_refused;
mod xds_with_projects;
