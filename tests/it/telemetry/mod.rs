//! Metrics, dashboards, alerts and traces.

mod dashboard;
mod metrics;
mod preview;
mod queries;
mod record;
mod series;
mod top_keys;
mod traces;
