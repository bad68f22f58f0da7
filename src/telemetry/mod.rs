//! What operators see: metrics and logs.

pub mod exposition;
pub mod labels;
pub mod log;
pub mod metrics;
mod process;
pub mod sharded;

use self::log::LogSettings;

/// What is told, and how.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    /// What is logged, and how.
    pub log: LogSettings,
}
