//! The process: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use rlaas::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
