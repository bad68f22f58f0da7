//! Rate limiting as a service: may this request pass?
//!
//! `rlaas` answers over gRPC and HTTP. It keeps its counters in memory, or in Redis, where any number
//! of instances share them. This crate is the service around [`rlaas_limiter::Limiter`].
//!
//! The map of the code is `docs/architecture.md`: the path of a request, the layers, the threads, the
//! invariants, and what is deliberately absent. The words are in `docs/glossary.md`.

#![recursion_limit = "256"] // for the compiler: futures of several crates within each other

pub use rlaas_core::{algorithm, calendar, clock, control, operation, plan, rules, verdict};
pub use rlaas_limiter::{observer, store};
pub(crate) use rlaas_proto::json as json_messages;

pub mod api;
pub mod cli;
pub mod config;
mod run;
pub mod server;
