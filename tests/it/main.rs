//! Integration tests through public interfaces: the library, sockets and the program.
//!
//! They are one binary with a module for each subject: `cargo test --test it conformance::`.

mod admin;
mod api;
mod calendar;
mod cli;
mod client;
mod clients;
mod compose;
mod conformance;
mod console;
mod differential;
mod docs;
mod envoy;
mod examples;
mod faults;
mod first_use;
mod fleet;
mod holds;
mod hostile;
mod http;
mod kubernetes;
mod layers;
mod mixed_fleet;
mod names;
mod notices;
mod oidc;
mod pipelines;
mod projects;
mod public_api;
mod reference;
mod repository;
mod schema;
mod sidecar;
mod sources;
mod telemetry;
mod thresholds;
mod workflows;
