//! `rlaas rule apply`: makes the rules of files those of projects, and shows before what that changes.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use rlaas_cli::text::{self, project as shown_id};
use rlaas_cli::{
    CallArgs, CommandError, CommandOutput, ProjectClient, change_counts, change_lines, confirm,
    is_confirmed, print, printable, repeated,
};
use rlaas_proto::ratelimit::admin::v1::problem::Severity;
use rlaas_proto::ratelimit::admin::v1::{
    ApplyRulesRequest, GetProjectRequest, Problem, Project, UpdateProjectRequest, ValidateRequest,
    ValidateResponse,
};
use rlaas_proto::ratelimit::v1::{Rule, UnmatchedPolicy};
use rlaas_proto::rule_messages;

use super::{ProjectFile, fields, read_file};
use crate::cli::refuse;
use crate::config::Problems;
use crate::rules::Unmatched;

#[derive(Args, Debug)]
pub(super) struct ApplyRulesArgs {
    /// Rules files, each for one project; '-' is standard input
    #[arg(long = "file", short, required = true, num_args = 1.., value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Id of the project, unless the file names it; '_' is that of requests without a key
    /// [default: _]
    #[arg(long, value_name = "ID")]
    project: Option<String>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete the other rules of the projects, but for those of the server's files
    #[arg(long)]
    prune: bool,
    /// Reason, for the audit: up to 1024 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Do not ask for confirmation on a terminal
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    call: CallArgs,
}

/// What would change in a project.
struct ProjectPlan {
    project_id: String,
    rules: Vec<Rule>,
    /// Its problems are warnings alone.
    validated: ValidateResponse,
    /// The project before, and the policy afterwards, if it changes.
    unmatched: Option<(Project, UnmatchedPolicy)>,
}

pub(super) fn run(args: &ApplyRulesArgs) -> ExitCode {
    let files = match read(args) {
        Ok(files) => files,
        Err(problems) => return refuse(&problems),
    };
    args.call.run_on_projects(async |projects| {
        let mut plans = Vec::new();
        for file in &files {
            plans.push(ProjectPlan::new(projects, file, args.prune).await?);
        }
        let text: String = plans.iter().map(ProjectPlan::to_text).collect();
        if args.dry_run {
            let responses: Vec<_> = plans.into_iter().map(|plan| plan.validated).collect();
            return Ok(CommandOutput::of_several("admin.v1.ValidateResponse", &responses, text));
        }
        if !args.call.json {
            let _closed = print(&text);
        }
        if plans.iter().any(ProjectPlan::changes_something) && !is_confirmed(args.yes) {
            confirm("Write this?")?;
        }
        for plan in plans {
            plan.write(projects, args).await?;
        }
        Ok(CommandOutput::printed())
    })
}

/// Reads all files. No two may be for the same project: the second would undo the first.
fn read(args: &ApplyRulesArgs) -> Result<Vec<ProjectFile>, Problems> {
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for path in &args.files {
        match read_file(path, args.project.as_deref()) {
            Ok(file) => files.push(file),
            Err(Problems(more)) => problems.extend(more),
        }
    }
    let mut seen = HashSet::new();
    for file in &files {
        if !seen.insert(&file.project) {
            let valid = "must be another one: a file before is for the same project";
            problems.push(file.problem("project", valid));
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(Problems(problems)) }
}

impl ProjectPlan {
    /// Asks the server what would change; with `prune` the other rules are deleted.
    async fn new(
        projects: &mut ProjectClient,
        file: &ProjectFile,
        prune: bool,
    ) -> Result<Self, CommandError> {
        let project_id = file.project.clone();
        let unmatched = match file.content.unmatched {
            Some(policy) => unmatched_change(projects, &project_id, policy).await?,
            None => None,
        };
        let rules: Vec<Rule> = file.content.rules.iter().map(rule_messages::message).collect();
        let request =
            ValidateRequest { project_id: project_id.clone(), rules: rules.clone(), prune };
        let mut validated = projects.validate(request).await?.into_inner();
        for problem in &mut validated.problems {
            name_rule(problem, &rules);
        }
        let (errors, warnings): (Vec<_>, Vec<_>) = std::mem::take(&mut validated.problems)
            .into_iter()
            .partition(|problem| problem.severity() == Severity::Error);
        if !errors.is_empty() {
            let lines: Vec<String> = errors.iter().map(line).collect();
            return Err(anyhow!("project {}: {}", shown_id(&project_id), lines.join("; ")).into());
        }
        validated.problems = warnings;
        Ok(Self { project_id, rules, validated, unmatched })
    }

    fn changes_something(&self) -> bool {
        !self.validated.changes.is_empty() || self.unmatched.is_some()
    }

    fn to_text(&self) -> String {
        let (project, changes) = (shown_id(&self.project_id), &self.validated.changes);
        let head = match change_counts(changes) {
            [0, 0, 0] => format!("project {project}: no rule changes\n"),
            [created, updated, deleted] => format!(
                "project {project}: {created} to create, {updated} to update, {deleted} to delete\n"
            ),
        };
        let warnings = self.validated.problems.iter();
        let warnings = warnings.map(|problem| format!("  warning: {}\n", line(problem)));
        let unmatched = self.unmatched.as_ref().map(|(before, after)| {
            format!("  unmatched: {} -> {}\n", policy(before.unmatched()), policy(*after))
        });
        head + &warnings.collect::<String>()
            + &change_lines(changes, fields)
            + &unmatched.unwrap_or_default()
    }

    /// Writes the rules as one revision, and then the policy. Prints what was written.
    async fn write(
        self,
        projects: &mut ProjectClient,
        args: &ApplyRulesArgs,
    ) -> Result<(), CommandError> {
        let project = shown_id(&self.project_id);
        // With nothing to change the server still answers with the revision in force.
        let request = ApplyRulesRequest {
            project_id: self.project_id,
            rules: self.rules,
            prune: args.prune,
            expected_revision: Some(self.validated.revision),
            reason: args.reason.clone(),
        };
        let response = repeated(async || projects.clone().apply_rules(request.clone()).await);
        let response = response.await?.into_inner();
        let mut text = String::new();
        if !response.changes.is_empty() {
            let revision = response.revision.as_ref().map_or(0, |made| made.revision);
            let rules = text::count(response.changes.len() as u64, "rule");
            text = format!("project {project}: revision {revision}, {rules}\n");
        }
        let name = "admin.v1.ApplyRulesResponse";
        args.call.print(&CommandOutput::of_message(name, &response, text));
        let Some((before, after)) = self.unmatched else { return Ok(()) };
        let request = UpdateProjectRequest {
            project: Some(Project { id: before.id, unmatched: after.into(), ..Project::default() }),
            update_mask: Some(prost_types::FieldMask { paths: vec!["unmatched".to_owned()] }),
            etag: before.etag,
            reason: args.reason.clone(),
        };
        repeated(async || projects.clone().update_project(request.clone()).await).await?;
        if !args.call.json {
            print(&format!("project {project}: unmatched is {}\n", policy(after)));
        }
        Ok(())
    }
}

/// Returns the project before and the policy afterwards, if they differ.
async fn unmatched_change(
    projects: &mut ProjectClient,
    project_id: &str,
    policy: Unmatched,
) -> Result<Option<(Project, UnmatchedPolicy)>, CommandError> {
    let request = GetProjectRequest { project_id: project_id.to_owned() };
    let project = projects.get_project(request).await?.into_inner().project;
    let project = project.ok_or_else(|| anyhow!("the server did not answer with the project"))?;
    let after = match policy {
        Unmatched::DefaultRule => UnmatchedPolicy::DefaultRule,
        Unmatched::Allow => UnmatchedPolicy::Allow,
        Unmatched::Deny => UnmatchedPolicy::Deny,
    };
    Ok((project.unmatched() != after).then_some((project, after)))
}

fn policy(policy: UnmatchedPolicy) -> &'static str {
    match policy {
        UnmatchedPolicy::Unspecified => "-",
        UnmatchedPolicy::DefaultRule => Unmatched::DefaultRule.name(),
        UnmatchedPolicy::Allow => Unmatched::Allow.name(),
        UnmatchedPolicy::Deny => Unmatched::Deny.name(),
    }
}

fn line(problem: &Problem) -> String {
    format!("{} {}", printable(&problem.field), printable(&problem.message))
}

/// Puts the name of the rule in place of its number.
fn name_rule(problem: &mut Problem, rules: &[Rule]) {
    let field = problem.field.strip_prefix("rules[").and_then(|rest| rest.split_once(']'));
    let Some((index, rest)) = field else { return };
    let Some(rule) = index.parse().ok().and_then(|index: usize| rules.get(index)) else { return };
    let rest = rest.trim_start_matches('.').to_owned();
    problem.field = format!("rule {}: {rest}", text::value(&rule.name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_names_its_rule_and_its_field_once() {
        let named = |field: &str, message: &str| {
            let (field, message) = (field.to_owned(), message.to_owned());
            let mut problem = Problem { field, message, ..Problem::default() };
            let rule = Rule { name: "whole-shop".to_owned(), ..Rule::default() };
            name_rule(&mut problem, &[rule]);
            line(&problem)
        };
        let warned = named("rules[0].key_by", "no matcher requires it");
        assert_eq!(warned, "rule whole-shop: key_by no matcher requires it");
        let refused = named("rules[0].max_requests", "must be at least 1");
        assert_eq!(refused, "rule whole-shop: max_requests must be at least 1");
        assert_eq!(named("rules[7].window", "missing"), "rules[7].window missing");
    }
}
