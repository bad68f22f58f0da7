//! `rlaas rule`: the rules of a running server.

mod apply;
mod changes;
mod export;
mod fields;
mod in_force;
mod mode;
mod plan;
mod project_rules;
mod revisions;
mod source;
mod write;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::apply::ApplyRulesArgs;
use self::export::ExportRulesArgs;
use self::mode::ModeArgs;
use self::project_rules::{DeleteRuleArgs, GetRuleArgs, ListRulesArgs};
use self::revisions::{DiffArgs, HistoryArgs, RollbackArgs};
use self::write::{CreateRuleArgs, SetRuleArgs};

#[derive(Args, Debug)]
pub(in crate::cli) struct RuleArgs {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, Subcommand)]
enum RuleCommand {
    /// Create a rule, by options or from a file
    Create(CreateRuleArgs),
    /// Change fields of a rule by options, or replace it from a file
    Set(SetRuleArgs),
    /// Make the rules of files those of projects: shows what changes, and asks on a terminal
    Apply(ApplyRulesArgs),
    /// Print the rules of a project that were made at run time as a rules file; or all projects
    Export(ExportRulesArgs),
    /// List the rules of a project, those of files included
    List(ListRulesArgs),
    /// Show a rule
    Get(GetRuleArgs),
    /// Delete a rule that was made at run time; asks on a terminal
    Delete(DeleteRuleArgs),
    /// List the last 100 revisions of the rules of a project, newest first
    History(HistoryArgs),
    /// Show what a revision changed
    Diff(DiffArgs),
    /// Restore the rules of a revision, as a new revision
    Rollback(RollbackArgs),
    /// Switch a rule, or all, to enforce, shadow or off for a time; or end that early
    Mode(ModeArgs),
}

pub(in crate::cli) fn run(args: &RuleArgs) -> ExitCode {
    match &args.command {
        RuleCommand::Create(args) => write::create(args),
        RuleCommand::Set(args) => write::set(args),
        RuleCommand::Apply(args) => apply::run(args),
        RuleCommand::Export(args) => export::run(args),
        RuleCommand::List(args) => project_rules::list(args),
        RuleCommand::Get(args) => project_rules::get(args),
        RuleCommand::Delete(args) => project_rules::delete(args),
        RuleCommand::History(args) => revisions::history(args),
        RuleCommand::Diff(args) => revisions::diff(args),
        RuleCommand::Rollback(args) => revisions::rollback(args),
        RuleCommand::Mode(args) => mode::run(args),
    }
}
