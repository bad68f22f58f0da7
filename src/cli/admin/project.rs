//! `rlaas project`: the projects of a running server.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use prost_types::FieldMask;
use rlaas_proto::ratelimit::admin::v1::{
    CatalogueSource, CreateProjectRequest, DeleteProjectRequest, GetProjectRequest,
    ListProjectsRequest, ListProjectsResponse, Project, RestoreCatalogueRequest,
    UpdateProjectRequest,
};
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;

use super::call::{CallArgs, CommandError, CommandOutput, ProjectClient};
use super::change::{ConfirmArgs, RequestIdArgs};
use super::text;
use super::usage::{self, UsageArgs};
use crate::cli::table::{Column, Table};

/// The project of requests without an API key, in paths and commands.
const UNNAMED: &str = "_";

#[derive(Args, Debug)]
pub(in crate::cli) struct ProjectArgs {
    #[command(subcommand)]
    command: ProjectCommand,
}

#[derive(Debug, Subcommand)]
enum ProjectCommand {
    /// Create a project, without keys and rules
    Create(CreateProjectArgs),
    /// List the projects, newest first
    List(ListProjectsArgs),
    /// Show a project
    Get(GetProjectArgs),
    /// Change the name of a project, or what becomes of requests that no rule matches
    Set(SetProjectArgs),
    /// Delete a project with its keys, rules, revisions and usage; asks on a terminal
    Delete(DeleteProjectArgs),
    /// End a conflict of catalogues: keep that of the answering instance or that of the store
    Restore(RestoreCatalogueArgs),
    /// Show requests and units by UTC day, of the last 40 days
    Usage(UsageArgs),
}

/// Why a project changes.
#[derive(Args, Debug)]
pub(super) struct ReasonArgs {
    /// Reason, for the audit: up to 1024 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) reason: String,
}

#[derive(Args, Debug)]
struct CreateProjectArgs {
    /// 1 to 63 lower case letters, digits or '-', beginning with a letter [default: random]
    id: Option<String>,
    /// Name for people: up to 128 bytes
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Requests without a rule: deny, allow or default
    #[arg(long, value_enum, default_value = "deny", hide_possible_values = true)]
    unmatched: UnmatchedArg,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    request: RequestIdArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
struct ListProjectsArgs {
    /// Most projects to list
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    max: usize,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
struct GetProjectArgs {
    /// Id of the project; '_' is that of requests without an API key
    id: String,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "rlaas project set <ID> [--name <TEXT>] [--unmatched <POLICY>] [OPTIONS]"
)]
struct SetProjectArgs {
    /// Id of the project
    id: String,
    #[command(flatten)]
    fields: ProjectFieldArgs,
    /// Refuse the change if the project has another etag by now
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
struct ProjectFieldArgs {
    /// Name for people: up to 128 bytes
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Requests without a rule: deny, allow or default
    #[arg(long, value_enum, value_name = "POLICY", hide_possible_values = true)]
    unmatched: Option<UnmatchedArg>,
}

#[derive(Args, Debug)]
struct DeleteProjectArgs {
    /// Id of the project
    id: String,
    /// Refuse the change if the project has another etag by now
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
struct RestoreCatalogueArgs {
    /// The catalogue to keep: instance (the answering one) or store
    #[arg(long, value_enum, hide_possible_values = true)]
    from: SourceArg,
    /// Revision of the catalogue to keep; another one is refused
    #[arg(long, value_name = "N")]
    expected_revision: u64,
    /// Reason, for the audit: 1 to 1024 bytes
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// Catalogues that may be in conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SourceArg {
    /// That of the answering instance
    Instance,
    /// That of the store
    Store,
}

/// What becomes of requests that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UnmatchedArg {
    /// They are refused
    Deny,
    /// They pass
    Allow,
    /// The default rule decides
    Default,
}

impl From<UnmatchedArg> for UnmatchedPolicy {
    fn from(policy: UnmatchedArg) -> Self {
        match policy {
            UnmatchedArg::Deny => Self::Deny,
            UnmatchedArg::Allow => Self::Allow,
            UnmatchedArg::Default => Self::DefaultRule,
        }
    }
}

pub(in crate::cli) fn run(args: &ProjectArgs) -> ExitCode {
    match &args.command {
        ProjectCommand::Create(args) => create(args),
        ProjectCommand::List(args) => list(args),
        ProjectCommand::Get(args) => get(args),
        ProjectCommand::Set(args) => set(args),
        ProjectCommand::Delete(args) => delete(args),
        ProjectCommand::Restore(args) => restore(args),
        ProjectCommand::Usage(args) => usage::run(args),
    }
}

/// Returns the id of a project as the protocol has it.
pub(super) fn project_id(shown: &str) -> String {
    if shown == UNNAMED { String::new() } else { shown.to_owned() }
}

/// Returns the id of a project as commands have it.
pub(super) fn shown_id(id: &str) -> String {
    if id.is_empty() { UNNAMED.to_owned() } else { text::value(id) }
}

fn create(args: &CreateProjectArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let project = Project {
            id: args.id.clone().unwrap_or_default(),
            display_name: args.name.clone().unwrap_or_default(),
            unmatched: UnmatchedPolicy::from(args.unmatched).into(),
            ..Project::default()
        };
        let request = CreateProjectRequest {
            project: Some(project),
            request_id: args.request.request_id()?,
            reason: args.reason.reason.clone(),
        };
        let response = projects.create_project(request).await?;
        let text = table(response.get_ref().project.as_slice());
        let output = CommandOutput::new("CreateProjectResponse", response.get_ref(), text);
        Ok(output.with_warning_of(response.metadata()))
    })
}

fn list(args: &ListProjectsArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let response = pages(projects, args.max).await?;
        let rest = if response.next_page_token.is_empty() { "" } else { "there are more: --max\n" };
        let text = table(&response.projects) + rest;
        Ok(CommandOutput::new("ListProjectsResponse", &response, text))
    })
}

/// Reads pages up to the most projects to list. Its token is that of the rest.
pub(super) async fn pages(
    projects: &mut ProjectClient,
    max: usize,
) -> Result<ListProjectsResponse, CommandError> {
    let mut all = ListProjectsResponse::default();
    loop {
        let left = max.saturating_sub(all.projects.len()).max(1);
        let request = ListProjectsRequest {
            page_size: i32::try_from(left.min(1_000)).unwrap_or(1_000),
            page_token: all.next_page_token,
        };
        let page = projects.list_projects(request).await?.into_inner();
        all.projects.extend(page.projects);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() || all.projects.len() >= max {
            return Ok(all);
        }
    }
}

fn get(args: &GetProjectArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let request = GetProjectRequest { project_id: project_id(&args.id) };
        let response = projects.get_project(request).await?.into_inner();
        let text = table(response.project.as_slice());
        Ok(CommandOutput::new("GetProjectResponse", &response, text))
    })
}

fn set(args: &SetProjectArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let ProjectFieldArgs { name, unmatched } = &args.fields;
        let paths = [("display_name", name.is_some()), ("unmatched", unmatched.is_some())];
        let paths = paths.into_iter().filter(|(_, is_set)| *is_set);
        let project = Project {
            id: project_id(&args.id),
            display_name: name.clone().unwrap_or_default(),
            unmatched: unmatched.map(UnmatchedPolicy::from).unwrap_or_default().into(),
            ..Project::default()
        };
        let request = UpdateProjectRequest {
            project: Some(project),
            update_mask: Some(FieldMask {
                paths: paths.map(|(path, _)| path.to_owned()).collect(),
            }),
            etag: args.etag.clone(),
            reason: args.reason.reason.clone(),
        };
        let response = projects.update_project(request).await?.into_inner();
        let text = table(response.project.as_slice());
        Ok(CommandOutput::new("UpdateProjectResponse", &response, text))
    })
}

fn delete(args: &DeleteProjectArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let shown = text::value(&args.id);
        args.confirm.confirm(&format!("Delete project {shown} with its keys and rules?"))?;
        let request = DeleteProjectRequest {
            project_id: project_id(&args.id),
            etag: args.etag.clone(),
            reason: args.reason.reason.clone(),
        };
        let response = projects.delete_project(request).await?.into_inner();
        let text = format!("project {shown} deleted\n");
        Ok(CommandOutput::new("DeleteProjectResponse", &response, text))
    })
}

fn restore(args: &RestoreCatalogueArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let (kept, from) = match args.from {
            SourceArg::Instance => ("the instance", CatalogueSource::Instance),
            SourceArg::Store => ("the store", CatalogueSource::Store),
        };
        args.confirm.confirm(&format!("Keep the catalogue of {kept}, and lose the other one?"))?;
        let request = RestoreCatalogueRequest {
            from: from.into(),
            reason: args.reason.clone(),
            expected_revision: args.expected_revision,
        };
        let response = projects.restore_catalogue(request).await?.into_inner();
        let text = format!("catalogue restored as revision {}\n", response.catalogue_revision);
        Ok(CommandOutput::new("RestoreCatalogueResponse", &response, text))
    })
}

fn table(projects: &[Project]) -> String {
    let mut table = Table::new(&[
        Column::word("PROJECT"),
        Column::number("REVISION"),
        Column::word("UNMATCHED"),
        Column::word("CREATED"),
        Column::word("ETAG"),
        Column::text("NAME"),
    ]);
    for project in projects {
        let unmatched = match project.unmatched() {
            UnmatchedPolicy::Unspecified => "-",
            UnmatchedPolicy::DefaultRule => "default",
            UnmatchedPolicy::Allow => "allow",
            UnmatchedPolicy::Deny => "deny",
        };
        table.push([
            shown_id(&project.id),
            project.revision.to_string(),
            unmatched.to_owned(),
            text::time(project.created_at.as_ref()),
            text::words(&project.etag),
            text::words(&project.display_name),
        ]);
    }
    table.lines()
}
