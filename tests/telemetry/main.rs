//! What operators see: metrics, dashboards and alerts over them, traces.

#[path = "../common/mod.rs"]
mod common;

mod dashboard;
mod metrics;
mod queries;
mod series;
mod traces;
