//! The process: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use rlaas::cli::Cli;

fn main() -> ExitCode {
    // Without one the first connection by TLS would panic; there is none before.
    let _only_here = rustls::crypto::ring::default_provider().install_default();
    Cli::parse().run()
}
