//! The command line: one file or folder for each command that runs rules, or reads the configuration, in
//! this process. Those that ask a server are in `rlaas_cli`.
//!
//! Exit codes: 0 success (allowed, serving), 1 denied, not serving or failed to serve, 2 no response,
//! 64 invalid configuration, 130 terminated by a second signal. Commands that try rules use 1 for rules that refuse too much, 2
//! for traffic that can't be judged, and 64 for wrong options, too.

#[cfg_attr(not(feature = "admin"), path = "no_administer.rs")]
mod administer;
mod check_config;
mod config;
mod example;
#[cfg(feature = "admin")]
mod explain;
mod help;
mod journal;
mod ratelimit;
mod reference;
#[cfg(feature = "admin")]
mod rule;
mod schema;
mod simulate;
mod test;
mod traffic;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use rlaas_cli::{EXIT_NO, EXIT_NO_RESPONSE, key_value, wrong_arguments};

use crate::config::{Config, Problems, REMOVED, RemovedKind, RemovedName, Sources};
use crate::run;

const EXIT_CONFIG: u8 = 64;

/// What `--version` prints.
const VERSION: &str = if cfg!(feature = "admin") {
    concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: admin")
} else {
    concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: none")
};

/// Commands whose exit codes are those of a gate.
const TRIES_RULES: [&str; 2] = ["simulate", "test"];

/// The command line as it was typed, and the names of arguments that were left out.
#[derive(Debug)]
pub struct Cli(ArgMatches, Vec<String>);

/// Rate limiting as a service: may this request pass?
///
/// Without a command, starts the server: gRPC on 127.0.0.1:50051, state in memory.
#[derive(Debug, Parser)]
#[command(name = "rlaas", version, long_version = VERSION, max_term_width = 100)]
struct Program {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

/// The commands that are not in the tables of `rlaas_cli`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server until SIGTERM or SIGINT, then drain; a second signal exits at once
    Serve(ConfigurationArgs),
    /// Send one request to a running server: exit code 0 allowed, 1 denied, 2 no response
    Check(rlaas_cli::CheckArgs),
    /// Count a cost after the work: exit code 0 counted, 1 not all of it, 2 no response
    Report(rlaas_cli::ReportArgs),
    /// Run a command while units are held for it; its exit code, 75 denied, 69 no server
    Reserve(rlaas_cli::ReserveArgs),
    /// Validate configuration files: exit code 0, or 64 and a list of all problems
    CheckConfig(check_config::CheckConfigArgs),
    /// Print the effective configuration with the origin of each value; secrets are masked
    Config(config::ConfigArgs),
    /// Query the health of a server: exit code 0 serving, 1 not serving, 2 no response
    Health(rlaas_cli::HealthArgs),
    /// Explain how a request is decided, rule by rule; by a server, or by files alone
    #[cfg(feature = "admin")]
    Explain(rlaas_cli::ExplainArgs),
    /// See and change rules of a running server: create, set, apply, export, list and more
    #[cfg(feature = "admin")]
    Rule(rule::RuleArgs),
    /// Accept a damaged journal of the memory store: accept
    Journal(journal::JournalArgs),
    /// Run unit tests of rules: exit code 0 all pass, 1 one fails, 2 none ran, 64 invalid
    Test(test::TestArgs),
    /// Watch decisions by rule; or list the keys with the highest counts, or the instances
    #[cfg(feature = "admin")]
    Top(rlaas_cli::TopArgs),
    /// Print decisions of one instance as they are made
    #[cfg(feature = "admin")]
    Tail(rlaas_cli::TailArgs),
    /// Print the parts of limits that keys have used, by rules with notify-at
    #[cfg(feature = "admin")]
    Events(rlaas_cli::EventsArgs),
    /// Try rules on recorded traffic: who would be refused, and when
    Simulate(simulate::SimulateArgs),
    /// Print every metric with its type, unit, labels and help, as Markdown
    Metrics(reference::MetricsArgs),
    /// Print the JSON Schema of files, for editors: rules or config
    Schema(schema::SchemaArgs),
    /// Print the completions of a shell for this program
    Completions(CompletionsArgs),
}

/// Sources of the configuration, besides the environment.
#[derive(Args, Clone, Debug, Default)]
struct ConfigurationArgs {
    /// YAML file; may be repeated: later settings win, rules add up
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// One value, such as store.backend=redis; overrides files and environment
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

#[derive(Args, Debug)]
struct CompletionsArgs {
    /// Shell to print completions for
    shell: Shell,
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

/// Returns the whole command line.
fn program() -> clap::Command {
    help::grouped(administer::add_commands(Program::command()))
}

/// Prints a script that completes commands and options in a shell.
fn complete(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program(), "rlaas", &mut script);
    rlaas_cli::print(&String::from_utf8_lossy(&script))
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
        let (arguments, ignored) = ratelimit::without_foreign(std::env::args_os().collect());
        let matches = program().try_get_matches_from(arguments);
        matches.map(|matches| Self(matches, ignored)).map_err(|error| {
            if let Some(RemovedName { name, instead, .. }) = removed(&error) {
                eprintln!("rlaas {name} was removed: {instead}");
                return ExitCode::from(EXIT_CONFIG);
            }
            if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
                && administer::is_left_out(name)
            {
                eprintln!("rlaas {name}: this build has no administration: feature admin");
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
        let Self(matches, ignored) = self;
        let given = match ConfigurationArgs::from_arg_matches(&matches) {
            Ok(given) => given,
            Err(error) => return wrong_arguments(&error),
        };
        let is_of_server = matches!(matches.subcommand_name(), None | Some("serve" | "config"));
        let is_given = !given.config.is_empty() || !given.set.is_empty();
        if is_given && !is_of_server {
            eprintln!("rlaas: --config and --set before a command are for serve and config");
            return ExitCode::from(EXIT_CONFIG);
        }
        administer::run(&matches).unwrap_or_else(|| match Program::from_arg_matches(&matches) {
            Ok(program) => program.run(&ignored),
            Err(error) => wrong_arguments(&error),
        })
    }
}

impl Program {
    fn run(self, ignored: &[String]) -> ExitCode {
        let given = self.configuration;
        match self.command.unwrap_or(Command::Serve(ConfigurationArgs::default())) {
            Command::Serve(args) => run::serve(given.with(args).sources(), ignored)
                .unwrap_or_else(|problems| refuse(&problems)),
            Command::Config(args) => config::run(args, given),
            Command::Check(args) => rlaas_cli::check(args),
            Command::Report(args) => rlaas_cli::report_cost(args),
            Command::Reserve(args) => rlaas_cli::reserve(&args),
            Command::CheckConfig(args) => check_config::run(args),
            Command::Health(args) => rlaas_cli::health(&args),
            #[cfg(feature = "admin")]
            Command::Explain(args) if args.config.is_empty() => rlaas_cli::explain(&args),
            #[cfg(feature = "admin")]
            Command::Explain(args) => explain::run(&args),
            #[cfg(feature = "admin")]
            Command::Rule(args) => rule::run(&args),
            Command::Journal(args) => journal::run(&args),
            Command::Test(args) => test::run(&args),
            #[cfg(feature = "admin")]
            Command::Top(args) => rlaas_cli::top(&args),
            #[cfg(feature = "admin")]
            Command::Tail(args) => rlaas_cli::tail(&args),
            #[cfg(feature = "admin")]
            Command::Events(args) => rlaas_cli::events(&args),
            Command::Simulate(args) => simulate::run(&args),
            Command::Metrics(_) => rlaas_cli::print(&reference::metrics()),
            Command::Schema(args) => rlaas_cli::print(&schema::printed(&args)),
            Command::Completions(args) => complete(&args),
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
