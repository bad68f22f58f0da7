//! Metrics, dashboards, alerts and traces.

mod dashboard;
mod metrics;
mod queries;
mod record;
mod series;
mod top_keys;
mod traces;
