//! `rlaas rule`: what reads and writes rules files, and the reading of one. The other commands are in the tables of
//! `rlaas_cli`.

mod apply;
mod export;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use rlaas_cli::text::project_id;
use rlaas_cli::{EXIT_NO_RESPONSE, Invocation};
use rlaas_proto::ratelimit::admin::v1::{CreateRuleRequest, UpdateRuleRequest};
use rlaas_proto::ratelimit::v1::Rule;
use rlaas_proto::rule_messages;
use serde_json::Value;

use self::apply::ApplyRulesArgs;
use self::export::ExportRulesArgs;
use crate::cli::refuse;
use crate::config::{Problem, Problems, RulesFile};

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

/// In place of a file: standard input.
const STDIN: &str = "-";

/// A file that was read, and is valid.
#[derive(Clone, Debug)]
struct ProjectFile {
    /// Name in messages.
    origin: String,
    /// Id of the project, as the protocol has it.
    project: String,
    content: RulesFile,
}

impl ProjectFile {
    /// Returns a problem of the file.
    fn problem(&self, key: &str, valid: &str) -> Problem {
        Problem::invalid(self.origin.clone(), key.to_owned(), valid.to_owned())
    }

    fn refuse<T>(&self, key: &str, valid: &str) -> Result<T, Problems> {
        Err(Problems(vec![self.problem(key, valid)]))
    }
}

/// Reads a file, whose rules are for the project of the command or for the one that it names.
///
/// # Errors
///
/// All [`Problems`] of the file.
fn read_file(path: &Path, project: Option<&str>) -> Result<ProjectFile, Problems> {
    let (origin, text) =
        text(path).map_err(|error| Problems(vec![Problem::unreadable(path, error)]))?;
    let content = RulesFile::parse(origin.clone(), text)?;
    let named = content.project.as_ref().map(|id| id.as_str().to_owned());
    let given = project.map(project_id);
    let project = named.clone().or(given.clone()).unwrap_or_default();
    let file = ProjectFile { origin, project, content };
    if named.is_some() && given.is_some() && named != given {
        return file.refuse("project", "must be the project of the option --project");
    }
    if file.project.is_empty() && file.content.unmatched.is_some() {
        let valid = "must be in the configuration of the server for requests without an API key";
        return file.refuse("unmatched", valid);
    }
    Ok(file)
}

/// Reads a file that has one rule. Its name must be that of the command, if it has one.
fn read_one(
    path: &Path,
    project: Option<&str>,
    name: Option<&str>,
) -> Result<ProjectFile, Problems> {
    let file = read_file(path, project)?;
    let [rule] = &file.content.rules[..] else {
        return file.refuse("rules", "must have one rule: `rlaas rule apply` writes many");
    };
    if name.is_some_and(|name| rule.name.value().is_none_or(|of_file| of_file != name)) {
        return file.refuse("rules[0].name", "must be the name of the command");
    }
    if file.content.unmatched.is_some() {
        return file
            .refuse("unmatched", "must not be given with one rule: `rlaas rule apply` sets it");
    }
    Ok(file)
}

/// Returns the name of a file in messages, and its text.
fn text(path: &Path) -> io::Result<(String, String)> {
    if path != Path::new(STDIN) {
        return Ok((path.display().to_string(), std::fs::read_to_string(path)?));
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text)?;
    Ok(("standard input".to_owned(), text))
}

/// Runs a command of the tables. `rule create` and `rule set` may have their rule from a file.
pub(in crate::cli) fn run_table(mut invocation: Invocation<'_>) -> ExitCode {
    let of_file = match of_file(&invocation) {
        Ok(of_file) => of_file,
        Err(problems) => return refuse(&problems),
    };
    match (invocation.words(), of_file) {
        ("rule create", Some((project_id, rule))) => {
            let request: CreateRuleRequest = invocation.request();
            invocation.set_request(&CreateRuleRequest { project_id, rule: Some(rule), ..request });
        }
        ("rule set", Some((project_id, rule))) => {
            let request: UpdateRuleRequest = invocation.request();
            invocation.set_request(&UpdateRuleRequest { project_id, rule: Some(rule), ..request });
        }
        ("rule set", None) if invocation.request::<UpdateRuleRequest>().update_mask.is_none() => {
            eprintln!("rlaas: a field to change is required, such as --limit, or a file with -f");
            return ExitCode::from(EXIT_NO_RESPONSE);
        }
        _ => {}
    }
    invocation.run()
}

/// Returns the project and the rule of the file, if the command has one.
fn of_file(invocation: &Invocation<'_>) -> Result<Option<(String, Rule)>, Problems> {
    let Some(path) = invocation.text("file") else { return Ok(None) };
    let (project, name) = (invocation.text("project"), invocation.text("NAME"));
    let file = read_one(Path::new(path), project, name)?;
    let rule = file.content.rules.first().map(rule_messages::message);
    Ok(Some((file.project, rule.unwrap_or_default())))
}
