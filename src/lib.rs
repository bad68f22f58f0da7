//! Rate limiting as a service: may this request pass?

pub mod algorithm;
pub mod api;
pub mod clock;
pub mod config;
pub mod limiter;
pub mod rules;
pub mod server;
pub mod store;
pub mod telemetry;
