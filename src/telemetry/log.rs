//! Logs: lines for people, on standard error.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Starts to log at `info`, or as `RUST_LOG` says. Does nothing the second time.
pub fn start() {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .try_init();
    // Somebody, a test perhaps, has set up logs of their own.
    drop(started);
}
