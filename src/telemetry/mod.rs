//! Telemetry for operators: metrics, logs and traces.

pub mod exposition;
pub mod labels;
pub mod log;
pub mod metrics;
mod observer;
mod process;
pub mod reference;
mod series;
pub mod sharded;
mod text_fields;
pub mod traces;

use self::log::LogSettings;
use self::traces::OtlpSettings;

/// Settings of logs and traces.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    /// Settings of logs.
    pub log: LogSettings,
    /// Settings of traces; `None` turns them off.
    pub otlp: Option<OtlpSettings>,
}
