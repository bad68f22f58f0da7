//! The commands that administer a server: those of the tables of `rlaas_cli`.

use std::process::ExitCode;

use clap::ArgMatches;
use rlaas_cli::{EXIT_NO_RESPONSE, Invocation};

use super::rule;

/// Adds the commands.
pub(super) fn add_commands(program: clap::Command) -> clap::Command {
    let program = rlaas_cli::add_commands(program, "");
    program.mut_subcommand("rule", |rule| rlaas_cli::add_commands(rule, "rule"))
}

/// Runs the command if it is one of a table.
pub(super) fn run(matches: &ArgMatches) -> Option<ExitCode> {
    match Invocation::read(matches, rule::fields) {
        Ok(invocation) => invocation.map(rule::run_table),
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            Some(ExitCode::from(EXIT_NO_RESPONSE))
        }
    }
}

/// Returns `true` if this build has no such command, but another one has.
pub(super) fn is_left_out(_command: &str) -> bool {
    false
}
