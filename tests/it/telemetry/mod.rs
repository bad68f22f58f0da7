//! Metrics, dashboards, alerts and traces.

mod dashboard;
mod metrics;
mod queries;
mod series;
mod traces;
