//! Metrics, dashboards, alerts and traces.

mod collector;
mod dashboard;
mod metrics;
mod metrics_push;
mod queries;
mod series;
mod top_keys;
mod traces;
