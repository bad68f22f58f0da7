//! The command line: one file or folder for each command.
//!
//! Exit codes: 0 yes, 1 no, 2 no answer, 64 the configuration is wrong, 130 ended by a second
//! signal.

mod bench;
mod certificates;
mod check;
mod check_config;
mod client;
mod config;
mod health;
mod reload;
mod response;
mod serve;
mod signals;
mod transport_error;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, Problems, Sources};

const EXIT_NO: u8 = 1;
const EXIT_NO_RESPONSE: u8 = 2;
const EXIT_CONFIG: u8 = 64;
const EXIT_INTERRUPTED: u8 = 130;

/// Rate limiting as a service: may this request pass?
///
/// Without a command it serves: gRPC on 127.0.0.1:50051, state in memory.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT, then drain; a second signal ends at once
    Serve(ConfigurationArgs),
    /// Ask a running server once: exit code 0 allowed, 1 denied, 2 no answer
    Check(check::CheckArgs),
    /// Validate configuration files: exit code 0, or 64 with every problem
    CheckConfig(check_config::CheckConfigArgs),
    /// Print the effective configuration with the origin of each value, secrets masked
    Config(ConfigurationArgs),
    /// Ask the health service of a running server: exit code 0 if it is serving
    Health(health::HealthArgs),
    /// Load a running server and measure it: throughput and latency by percentile
    Bench(bench::BenchArgs),
}

/// Where the configuration comes from, beside the environment.
#[derive(Args, Debug)]
struct ConfigurationArgs {
    /// YAML file; may be given several times, later ones win
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// One value, such as store.backend=redis; wins over files and environment
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl ConfigurationArgs {
    fn sources(self) -> Sources {
        Sources::with_environment(self.config, self.set)
    }
}

/// The configuration, or its problems on standard error and the exit code.
fn load(sources: &Sources) -> Result<Config, ExitCode> {
    Config::load(sources).map_err(|problems| refuse(&problems))
}

/// Tells what is wrong.
fn refuse(problems: &Problems) -> ExitCode {
    eprintln!("{problems}");
    ExitCode::from(EXIT_CONFIG)
}

impl Cli {
    /// Runs the command to its end.
    pub fn run(self) -> ExitCode {
        match self.command.unwrap_or(Command::Serve(self.configuration)) {
            Command::Serve(args) => serve::run(args),
            Command::Check(args) => check::run(args),
            Command::CheckConfig(args) => check_config::run(args),
            Command::Config(args) => config::run(args),
            Command::Health(args) => health::run(&args),
            Command::Bench(args) => bench::run(&args),
        }
    }
}

fn key_value(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE"),
    }
}
