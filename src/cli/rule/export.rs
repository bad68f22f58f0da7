//! `rlaas rule export`: the rules of projects as rules files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use rlaas_cli::text::{self, project as shown_id, project_id};
use rlaas_cli::{CallArgs, CommandError, CommandOutput, ProjectClient};
use rlaas_proto::ratelimit::admin::v1::{
    GetProjectRequest, ListProjectsRequest, ListRulesRequest, ListRulesResponse, Project,
    ProjectRule,
};
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{Rule, UnmatchedPolicy};
use rlaas_proto::rule_messages;

use crate::config::RulesFile;
use crate::rules::Unmatched;
use crate::rules::spec::RuleSpec;

/// Times that a project is read while others change it.
const MAX_READS: usize = 5;
/// Largest page of a list.
const MAX_PAGE: i32 = 1_000;

#[derive(Args, Debug)]
#[command(override_usage = "rlaas rule export [--project <ID>] [-o <FILE>] [OPTIONS]
       rlaas rule export --all -o <DIR> [OPTIONS]")]
pub(super) struct ExportRulesArgs {
    /// Id of the project; '_' is that of requests without a key
    #[arg(long, value_name = "ID", default_value = "_")]
    project: String,
    /// Export every project that the caller has a role for, each to a file of the folder
    #[arg(long, conflicts_with = "project", requires = "output")]
    all: bool,
    /// File, or with --all the folder; what is there is replaced [default: standard output]
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    call: CallArgs,
}

/// The rules of a project that were made at run time.
struct Exported {
    response: ListRulesResponse,
    yaml: String,
    rules: usize,
    /// Names of those that a file hides.
    hidden: Vec<String>,
}

pub(super) fn run(args: &ExportRulesArgs) -> ExitCode {
    let id = project_id(&args.project);
    args.call.run_on_projects(async |projects| match &args.output {
        Some(folder) if args.all => all(projects, folder).await,
        Some(file) => {
            let exported = export(projects, &id).await?;
            let text = exported.write(&id, file)?;
            Ok(exported.output(text))
        }
        None => {
            let exported = export(projects, &id).await?;
            let yaml = exported.yaml.clone();
            Ok(exported.output(yaml))
        }
    })
}

/// Exports every project to a file of its own.
async fn all(projects: &mut ProjectClient, folder: &Path) -> Result<CommandOutput, CommandError> {
    fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    let (mut text, mut responses, mut hidden) = (String::new(), Vec::new(), Vec::new());
    for Project { id, .. } in all_projects(projects).await? {
        let exported = export(projects, &id).await?;
        // An id has no character that means something in a path.
        let name = if id.is_empty() { "_" } else { &id };
        text += &exported.write(&id, &folder.join(format!("{name}.yaml")))?;
        hidden.extend(exported.hidden);
        responses.push(exported.response);
    }
    let output = CommandOutput::of_several("admin.v1.ListRulesResponse", &responses, text);
    Ok(with_hidden(output, &hidden))
}

impl Exported {
    /// Writes the file, and returns a line about it.
    fn write(&self, id: &str, file: &Path) -> Result<String, CommandError> {
        fs::write(file, &self.yaml).with_context(|| format!("can't write {}", file.display()))?;
        let (project, rules) = (shown_id(id), text::count(self.rules as u64, "rule"));
        Ok(format!("project {project}: {rules} in {}\n", file.display()))
    }

    fn output(self, text: String) -> CommandOutput {
        let output = CommandOutput::of_message("admin.v1.ListRulesResponse", &self.response, text);
        with_hidden(output, &self.hidden)
    }
}

fn with_hidden(output: CommandOutput, hidden: &[String]) -> CommandOutput {
    if hidden.is_empty() {
        return output;
    }
    let names: Vec<_> = hidden.iter().map(|name| text::value(name)).collect();
    output.with_warning(Some(format!("left out, because files hide them: {}", names.join(", "))))
}

/// Reads the rules of a project as one revision has them.
async fn export(projects: &mut ProjectClient, id: &str) -> Result<Exported, CommandError> {
    for _ in 0..MAX_READS {
        let before = project(projects, id).await?;
        let response = rules_of(projects, id).await?;
        if project(projects, id).await?.revision == before.revision {
            return Ok(exported(&before, response)?);
        }
    }
    Err(anyhow!("project {}: others change it again and again", shown_id(id)).into())
}

/// Reads all rules of a project.
pub(super) async fn rules_of(
    projects: &mut ProjectClient,
    project_id: &str,
) -> Result<ListRulesResponse, CommandError> {
    let mut all = ListRulesResponse::default();
    loop {
        let (project_id, page_token) = (project_id.to_owned(), all.next_page_token);
        let request = ListRulesRequest { project_id, page_size: MAX_PAGE, page_token };
        let page = projects.list_rules(request).await?.into_inner();
        all.rules.extend(page.rules);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            return Ok(all);
        }
    }
}

async fn all_projects(projects: &mut ProjectClient) -> Result<Vec<Project>, CommandError> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListProjectsRequest { page_size: MAX_PAGE, page_token };
        let page = projects.list_projects(request).await?.into_inner();
        all.extend(page.projects);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(all);
        }
    }
}

async fn project(projects: &mut ProjectClient, id: &str) -> Result<Project, CommandError> {
    let request = GetProjectRequest { project_id: id.to_owned() };
    let project = projects.get_project(request).await?.into_inner().project;
    Ok(project.ok_or_else(|| anyhow!("the server did not answer with the project"))?)
}

fn exported(project: &Project, response: ListRulesResponse) -> anyhow::Result<Exported> {
    let (mut rules, mut hidden) = (Vec::new(), Vec::new());
    for ProjectRule { rule, hidden: is_hidden, .. } in &response.rules {
        let Some(rule) = rule else { continue };
        if *is_hidden {
            hidden.push(rule.name.clone());
        } else if rule.origin.as_ref().is_some_and(|origin| origin.kind() == Kind::RunTime) {
            rules.push(spec(rule)?);
        }
    }
    let count = rules.len();
    let id = (!project.id.is_empty()).then(|| project.id.parse()).transpose()?;
    // A file of the project "" can't have it: the configuration does.
    let unmatched = match project.unmatched() {
        _ if id.is_none() => None,
        UnmatchedPolicy::Unspecified => None,
        UnmatchedPolicy::DefaultRule => Some(Unmatched::DefaultRule),
        UnmatchedPolicy::Allow => Some(Unmatched::Allow),
        UnmatchedPolicy::Deny => Some(Unmatched::Deny),
    };
    let yaml = RulesFile { project: id, unmatched, rules }.to_yaml();
    Ok(Exported { response, yaml, rules: count, hidden })
}

/// Returns the rule as files have it.
fn spec(rule: &Rule) -> anyhow::Result<RuleSpec> {
    let spec = rule_messages::explicit(&rule_messages::spec(rule));
    let spec = rule_messages::without_defaults(&spec);
    let problems = spec.build().err().unwrap_or_default();
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
    anyhow::ensure!(
        problems.is_empty(),
        "rule {}: this release can't read {}: use that of the server",
        text::value(&rule.name),
        fields.join(", ")
    );
    Ok(spec)
}
