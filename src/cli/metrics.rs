//! `rlaas metrics --reference`: prints the reference of all metrics.

use std::process::ExitCode;

use clap::Args;

use super::reference;
use rlaas_cli::print;

#[derive(Args, Debug)]
pub(super) struct MetricsArgs {
    /// Print the reference; the metrics themselves are served at /metrics
    #[arg(long, required = true)]
    reference: bool,
}

pub(super) fn run() -> ExitCode {
    print(&reference::metrics())
}
