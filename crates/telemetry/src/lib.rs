//! Telemetry for operators: metrics, logs and traces.
//!
//! The limiter reports each decision to a [`rlaas_limiter::observer`]; other events are counted in
//! [`metrics::Metrics`]. This crate knows no protocol of decisions and no configuration.

pub mod decisions;
mod envoy_names;
pub mod exposition;
pub mod holder;
mod key_hash;
pub mod labels;
pub mod log;
pub mod metrics;
pub mod metrics_push;
mod observer;
pub mod otlp;
mod process;
mod projects;
pub mod reference;
pub mod rule_counters;
mod rule_metrics;
mod series;
pub mod sharded;
pub mod stats;
mod text_fields;
pub mod thresholds;
pub mod top_keys;
pub mod traces;

pub use key_hash::keyed;
pub use process::InstanceId;

use self::log::LogSettings;
use self::otlp::OtlpSettings;

/// Settings of logs and traces.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    /// Settings of logs.
    pub log: LogSettings,
    /// Settings of traces and pushed metrics; `None` turns both off.
    pub otlp: Option<OtlpSettings>,
    /// Whether metrics of descriptors have the names of envoyproxy/ratelimit, too.
    pub has_envoy_names: bool,
    /// Whether the keys with the highest counts are recorded.
    pub has_top_keys: bool,
    /// Most projects with metrics of their own.
    pub max_projects: usize,
}
