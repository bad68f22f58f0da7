//! What operators see: metrics and logs.

pub mod log;
pub mod metrics;
pub mod sharded;
