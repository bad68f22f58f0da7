//! `rlaas rule`: the rules of a running server.

mod mode;
mod project_rules;
mod revisions;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::mode::ModeArgs;
use self::project_rules::{DeleteRuleArgs, GetRuleArgs, ListRulesArgs};
use self::revisions::{HistoryArgs, RollbackArgs};

#[derive(Args, Debug)]
pub(in crate::cli) struct RuleArgs {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, Subcommand)]
enum RuleCommand {
    /// List the rules of a project, those of files included
    List(ListRulesArgs),
    /// Show a rule
    Get(GetRuleArgs),
    /// Delete a rule that was made at run time; asks on a terminal
    Delete(DeleteRuleArgs),
    /// List the last 100 revisions of the rules of a project, newest first
    History(HistoryArgs),
    /// Restore the rules of a revision, as a new revision
    Rollback(RollbackArgs),
    /// Switch a rule, or all, to enforce, shadow or off for a time; or end that early
    Mode(ModeArgs),
}

pub(in crate::cli) fn run(args: &RuleArgs) -> ExitCode {
    match &args.command {
        RuleCommand::List(args) => project_rules::list(args),
        RuleCommand::Get(args) => project_rules::get(args),
        RuleCommand::Delete(args) => project_rules::delete(args),
        RuleCommand::History(args) => revisions::history(args),
        RuleCommand::Rollback(args) => revisions::rollback(args),
        RuleCommand::Mode(args) => mode::run(args),
    }
}
