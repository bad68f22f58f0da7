//! What operators see: metrics, logs and traces.

pub mod exposition;
pub mod labels;
pub mod log;
pub mod metrics;
mod observer;
mod process;
mod series;
pub mod sharded;
mod text_fields;
pub mod traces;

use self::log::LogSettings;
use self::traces::OtlpSettings;

/// What is told, and how.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    /// What is logged, and how.
    pub log: LogSettings,
    /// Where spans go; nowhere if there is nothing.
    pub otlp: Option<OtlpSettings>,
}
