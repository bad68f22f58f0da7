//! What operators see: metrics, dashboards and alerts over them, traces.

mod dashboard;
mod metrics;
mod queries;
mod series;
mod traces;
