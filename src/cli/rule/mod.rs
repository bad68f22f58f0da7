//! `rlaas rule`: what reads and writes rules files. The other commands are in the tables of
//! `rlaas_cli`.

mod apply;
mod export;
mod file;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use rlaas_proto::ratelimit::v1::Rule;
use rlaas_proto::rule_messages;
use serde_json::Value;

use self::apply::ApplyRulesArgs;
use self::export::ExportRulesArgs;
pub(super) use self::file::run_table;

#[derive(Args, Debug)]
pub(super) struct RuleArgs {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, Subcommand)]
enum RuleCommand {
    /// Make the rules of files those of projects: shows what changes, and asks on a terminal
    Apply(ApplyRulesArgs),
    /// Print the rules of a project that were made at run time as a rules file; or all projects
    Export(ExportRulesArgs),
}

/// Returns the fields of a rule that are not at their defaults, in the words of rules files.
pub(super) fn fields(rule: &Rule) -> BTreeMap<String, Value> {
    rule_messages::fields(&rule_messages::spec(rule))
}

pub(super) fn run(args: &RuleArgs) -> ExitCode {
    match &args.command {
        RuleCommand::Apply(args) => apply::run(args),
        RuleCommand::Export(args) => export::run(args),
    }
}
