//! The command line: one file or folder for each command.
//!
//! Exit codes: 0 success (allowed, serving), 1 denied, not serving or failed to serve, 2 no response,
//! 64 invalid configuration, 130 terminated by a second signal. Commands that try rules use 1 for rules that refuse too much, 2
//! for traffic that can't be judged, and 64 for wrong options, too.

mod admin;
mod bench;
mod certificates;
mod check;
mod check_config;
mod client;
mod completions;
mod config;
mod example;
mod health;
mod journal;
mod metrics;
mod printable;
mod reference;
mod reload;
mod response;
mod serve;
mod signals;
mod simulate;
mod table;
mod test;
mod traffic;
mod transport_error;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};

use crate::config::{Config, Problems, REMOVED, RemovedKind, RemovedName, Sources};

const EXIT_NO: u8 = 1;
const EXIT_NO_RESPONSE: u8 = 2;
const EXIT_CONFIG: u8 = 64;
const EXIT_INTERRUPTED: u8 = 130;

/// Commands whose exit codes are those of a gate.
const TRIES_RULES: [&str; 2] = ["simulate", "test"];

/// Rate limiting as a service: may this request pass?
///
/// Without a command, starts the server: gRPC on 127.0.0.1:50051, state in memory.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server until SIGTERM or SIGINT, then drain; a second signal exits at once
    Serve(ConfigurationArgs),
    /// Send one request to a running server: exit code 0 allowed, 1 denied, 2 no response
    Check(check::CheckArgs),
    /// Validate configuration files: exit code 0, or 64 and a list of all problems
    CheckConfig(check_config::CheckConfigArgs),
    /// Print the effective configuration with the origin of each value; secrets are masked
    Config(config::ConfigArgs),
    /// Query the health of a server: exit code 0 serving, 1 not serving, 2 no response
    Health(health::HealthArgs),
    /// Explain how a request is decided, rule by rule; by a server, or by files alone
    Explain(admin::ExplainArgs),
    /// Show the state of keys: what is left, which override applies, where it is stored
    Inspect(admin::InspectArgs),
    /// Make keys as if nothing had been taken; overrides and bans stay; asks on a terminal
    Reset(admin::ResetArgs),
    /// Return units to keys, up to full; asks on a terminal
    Refund(admin::RefundArgs),
    /// Refuse everything to keys for a time; their rules must be overridable
    Ban(admin::BanArgs),
    /// End a ban before its time
    Unban(admin::UnbanArgs),
    /// Grant something else to single keys for a time: set, clear, list
    Override(admin::OverrideArgs),
    /// See and change rules of a running server: create, set, apply, export, list and more
    Rule(admin::RuleArgs),
    /// Manage projects: create, list, get, set, delete
    Project(admin::ProjectArgs),
    /// Manage the API keys of projects: create, list, rotate, revoke
    Key(admin::ApiKeyArgs),
    /// Accept a damaged journal of the memory store: accept
    Journal(journal::JournalArgs),
    /// Run unit tests of rules: exit code 0 all pass, 1 one fails, 2 none ran, 64 invalid
    Test(test::TestArgs),
    /// List who changed what, and why
    Audit(admin::AuditArgs),
    /// Watch decisions by rule; or list the keys with the highest counts, or the instances
    Top(admin::TopArgs),
    /// Print decisions of one instance as they are made
    Tail(admin::TailArgs),
    /// Try rules on recorded traffic: who would be refused, and when
    Simulate(simulate::SimulateArgs),
    /// Load a running server and measure throughput and latency
    Bench(bench::BenchArgs),
    /// Print every metric with its type, unit, labels and help, as Markdown
    Metrics(metrics::MetricsArgs),
    /// Print the completions of a shell for this program
    Completions(completions::CompletionsArgs),
}

/// Sources of the configuration, besides the environment.
#[derive(Args, Clone, Debug, Default)]
struct ConfigurationArgs {
    /// YAML file; may be given several times, later ones override earlier ones
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// One value, such as store.backend=redis; overrides files and environment
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl ConfigurationArgs {
    fn sources(self) -> Sources {
        Sources::with_environment(self.config, self.set)
    }

    /// Returns these arguments with those that stand behind them.
    fn with(self, later: Self) -> Self {
        Self { config: [self.config, later.config].concat(), set: [self.set, later.set].concat() }
    }
}

/// Loads the configuration. If it is not valid, prints the problems and returns the exit code.
fn load(sources: &Sources) -> Result<Config, ExitCode> {
    Config::load(sources).map_err(|problems| refuse(&problems))
}

/// Prints the problems on standard error.
fn refuse(problems: &Problems) -> ExitCode {
    eprintln!("{problems}");
    ExitCode::from(EXIT_CONFIG)
}

impl Cli {
    /// Reads the command line. If it is wrong, or asks for help or the version, prints that and
    /// returns the exit code: 64 for what was removed, and for commands that try rules if it is
    /// wrong, because 2 says something about their traffic, else clap's.
    ///
    /// # Errors
    ///
    /// The exit code.
    pub fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            if let Some(RemovedName { name, instead, .. }) = removed(&error) {
                eprintln!("rlaas {name} was removed: {instead}");
                return ExitCode::from(EXIT_CONFIG);
            }
            let _closed = error.print();
            let command = std::env::args_os().nth(1);
            let tries_rules =
                command.is_some_and(|command| TRIES_RULES.iter().any(|name| command == *name));
            match error.exit_code() {
                0 => ExitCode::SUCCESS,
                _ if tries_rules => ExitCode::from(EXIT_CONFIG),
                code => ExitCode::from(u8::try_from(code).unwrap_or(EXIT_CONFIG)),
            }
        })
    }

    /// Runs the command and returns its exit code.
    pub fn run(self) -> ExitCode {
        let given = self.configuration;
        match self.command.unwrap_or(Command::Serve(ConfigurationArgs::default())) {
            Command::Serve(args) => serve::run(given.with(args)),
            Command::Config(args) => config::run(args, given),
            _ if !(given.config.is_empty() && given.set.is_empty()) => {
                eprintln!("rlaas: --config and --set before a command are for serve and config");
                ExitCode::from(EXIT_CONFIG)
            }
            Command::Check(args) => check::run(args),
            Command::CheckConfig(args) => check_config::run(args),
            Command::Health(args) => health::run(&args),
            Command::Explain(args) => admin::explain(&args),
            Command::Inspect(args) => admin::inspect(&args),
            Command::Reset(args) => admin::reset(&args),
            Command::Refund(args) => admin::refund(&args),
            Command::Ban(args) => admin::ban(&args),
            Command::Unban(args) => admin::unban(&args),
            Command::Override(args) => admin::overrides(&args),
            Command::Rule(args) => admin::rule(&args),
            Command::Project(args) => admin::project(&args),
            Command::Key(args) => admin::api_key(&args),
            Command::Journal(args) => journal::run(&args),
            Command::Test(args) => test::run(&args),
            Command::Audit(args) => admin::audit(&args),
            Command::Top(args) => admin::top(&args),
            Command::Tail(args) => admin::tail(&args),
            Command::Simulate(args) => simulate::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Metrics(_) => metrics::run(),
            Command::Completions(args) => completions::run(&args),
        }
    }
}

/// Returns the removed command or option that is the reason why the command line is wrong.
fn removed(error: &clap::Error) -> Option<&'static RemovedName> {
    let (kind, last) = match error.kind() {
        ErrorKind::InvalidSubcommand => (RemovedKind::Command, ContextKind::InvalidSubcommand),
        ErrorKind::UnknownArgument => (RemovedKind::Flag, ContextKind::InvalidArg),
        _ => return None,
    };
    let Some(ContextValue::String(last)) = error.get(last) else { return None };
    let words: Vec<String> =
        std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()).collect();
    REMOVED.iter().filter(|removed| removed.kind == kind).find(|removed| {
        let mut names = removed.name.split(' ');
        names.next_back() == Some(last) && names.zip(&words).all(|(name, word)| name == word)
    })
}

fn key_value(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE"),
    }
}
