//! `rlaas check-config`: loads, validates, tells every problem and what is probably not meant.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::WRONG_CONFIGURATION;
use crate::config::{Config, Sources, warnings};

#[derive(Args, Debug)]
pub(super) struct CheckConfigArgs {
    /// YAML files; later ones win
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// The files alone are checked: the environment of this shell is not that of the server.
pub(super) fn run(args: CheckConfigArgs) -> ExitCode {
    match Config::load(&Sources { files: args.files, ..Sources::default() }) {
        Ok(config) => {
            for warning in &config.notices {
                eprintln!("warning: {warning}");
            }
            for warning in warnings(&config.rules) {
                eprintln!("warning: {warning}");
            }
            println!("valid");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(WRONG_CONFIGURATION)
        }
    }
}
