//! `rlaas rule`: the rules of a running server.

mod mode;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::mode::ModeArgs;

#[derive(Args, Debug)]
pub(in crate::cli) struct RuleArgs {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, Subcommand)]
enum RuleCommand {
    /// Switch a rule, or all, to enforce, shadow or off for a time; or end that early
    Mode(ModeArgs),
}

pub(in crate::cli) fn run(args: &RuleArgs) -> ExitCode {
    match &args.command {
        RuleCommand::Mode(args) => mode::run(args),
    }
}
