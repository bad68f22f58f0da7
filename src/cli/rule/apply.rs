//! `rlaas rule apply`: makes the rules of files those of projects, and shows before what that changes.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use rlaas_cli::text::{self, project as shown_id};
use rlaas_cli::{
    CallArgs, CommandError, CommandOutput, ProjectClient, confirm, is_confirmed, print,
};
use rlaas_proto::ratelimit::admin::v1::{
    ApplyRulesRequest, ApplyRulesResponse, DeleteRuleRequest, GetProjectRequest, Project,
    UpdateProjectRequest,
};
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;

use super::plan::{RulesPlan, RulesWrite};
use super::source::{self, ProjectFile};
use crate::cli::refuse;
use crate::config::{Problem, Problems};
use crate::rule_messages;
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
    rules: RulesPlan,
    /// The project before, and the policy afterwards, if it changes.
    unmatched: Option<(Project, UnmatchedPolicy)>,
}

/// What was written.
#[derive(Default)]
struct ApplyReport {
    text: String,
    responses: Vec<ApplyRulesResponse>,
    revisions: usize,
}

impl ApplyReport {
    fn add(&mut self, line: &str) {
        self.text.push_str(line);
    }
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
            let responses: Vec<_> = plans.iter().map(|plan| plan.rules.to_response()).collect();
            return Ok(CommandOutput::of_several("admin.v1.ValidateResponse", &responses, text));
        }
        if !args.call.json {
            let _closed = print(&text);
        }
        if plans.iter().any(|plan| !plan.is_empty()) && !is_confirmed(args.yes) {
            confirm("Write this?")?;
        }
        let mut written = ApplyReport::default();
        let all: usize = plans.iter().map(|plan| plan.rules.writes.len()).sum();
        for plan in plans {
            if let Err(error) = plan.write(projects, &args.reason, &mut written).await {
                if written.revisions > 0 {
                    let _closed = print(&written.text);
                    eprintln!("rlaas: only {} of {all} revisions were written", written.revisions);
                }
                return Err(error);
            }
        }
        Ok(CommandOutput::of_several(
            "admin.v1.ApplyRulesResponse",
            &written.responses,
            written.text,
        ))
    })
}

/// Reads all files. No two may be for the same project: the second would undo the first.
fn read(args: &ApplyRulesArgs) -> Result<Vec<ProjectFile>, Problems> {
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for file in &args.files {
        match source::read(file, args.project.as_deref()) {
            Ok(source) => files.push(source),
            Err(Problems(more)) => problems.extend(more),
        }
    }
    let mut seen = HashSet::new();
    for ProjectFile { origin, project, .. } in &files {
        if !seen.insert(project) {
            let valid = "must be another one: a file before is for the same project".to_owned();
            let (origin, key) = (origin.clone(), "project".to_owned());
            problems.push(Problem::Invalid { origin, key, valid, line: None, found: None });
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(Problems(problems)) }
}

impl ProjectPlan {
    async fn new(
        projects: &mut ProjectClient,
        file: &ProjectFile,
        prune: bool,
    ) -> Result<Self, CommandError> {
        let ProjectFile { project, content, .. } = file;
        let unmatched = match content.unmatched {
            Some(policy) => unmatched_change(projects, project, policy).await?,
            None => None,
        };
        let rules = content.rules.iter().map(rule_messages::message).collect();
        let rules = RulesPlan::new(projects, project, rules, prune).await?;
        Ok(Self { rules, unmatched })
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.unmatched.is_none()
    }

    fn to_text(&self) -> String {
        let unmatched = self.unmatched.as_ref().map(|(before, after)| {
            format!("  unmatched: {} -> {}\n", policy(before.unmatched()), policy(*after))
        });
        self.rules.to_text() + &unmatched.unwrap_or_default()
    }

    async fn write(
        self,
        projects: &mut ProjectClient,
        reason: &str,
        written: &mut ApplyReport,
    ) -> Result<(), CommandError> {
        let Self { rules: plan, unmatched } = self;
        let project = shown_id(&plan.project_id);
        // With nothing to change the server still answers with the revision in force.
        let mut revision = plan.revision;
        for write in plan.writes {
            match write {
                RulesWrite::Apply(request) => {
                    let request = ApplyRulesRequest {
                        expected_revision: Some(revision),
                        reason: reason.to_owned(),
                        ..*request
                    };
                    let response = projects.apply_rules(request).await?.into_inner();
                    let changed = response.changes.len() as u64;
                    if changed > 0 {
                        revision =
                            response.revision.as_ref().map_or(revision, |made| made.revision);
                        let rules = text::count(changed, "rule");
                        written.add(&format!("project {project}: revision {revision}, {rules}\n"));
                        written.revisions += 1;
                    }
                    written.responses.push(response);
                }
                RulesWrite::Delete(rule_name, etag) => {
                    let shown = text::value(&rule_name);
                    let request = DeleteRuleRequest {
                        project_id: plan.project_id.clone(),
                        rule_name,
                        etag,
                        reason: reason.to_owned(),
                    };
                    projects.delete_rule(request).await?;
                    written.add(&format!("project {project}: rule {shown} deleted\n"));
                    written.revisions += 1;
                }
            }
        }
        let Some((before, after)) = unmatched else { return Ok(()) };
        let request = UpdateProjectRequest {
            project: Some(Project { id: before.id, unmatched: after.into(), ..Project::default() }),
            update_mask: Some(prost_types::FieldMask { paths: vec!["unmatched".to_owned()] }),
            etag: before.etag,
            reason: reason.to_owned(),
        };
        projects.update_project(request).await?;
        written.add(&format!("project {project}: unmatched is {}\n", policy(after)));
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
