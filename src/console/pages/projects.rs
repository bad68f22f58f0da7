//! The projects: a list, and a form for a new one.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use crate::admin::projects::{NewProject, ProjectAdministrator, ProjectCall, ProjectError};
use crate::api::auth::{Permission, Role};
use crate::clock::Deadline;
use crate::console::Console;
use crate::console::action::Action;
use crate::console::change_form::{Input, REQUEST_ID, hidden, reason};
use crate::console::fields::{FieldError, FormFields, Link};
use crate::console::layout::{Frame, failure};
use crate::console::page_error::PageError;
use crate::console::project_access::{OPERATE_OR_ADMIN, field_of};
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, number, time};
use crate::console::visitor::ConsoleVisitor;
use crate::projects::registry::ProjectState;
use crate::projects::{ApiKeyState, InvalidProject};
use crate::proto_values::timestamp;
use crate::rules::Unmatched;

/// Projects of a page.
const PAGE_SIZE: usize = 50;
/// Policies for requests that no rule matches, the default first, each in words.
pub(super) const POLICIES: [(Unmatched, &str); 3] = [
    (Unmatched::Deny, "refused"),
    (Unmatched::Allow, "allowed"),
    (Unmatched::DefaultRule, "decided by the default rule"),
];

/// What a visitor looks for.
#[derive(Clone, Debug)]
struct ProjectSearch {
    /// Part of the id or of the name.
    text: String,
    /// From 1.
    page: usize,
}

/// The form for a new project as it was sent, and why it was refused.
#[derive(Debug, Default)]
struct NewProjectForm {
    id: String,
    name: String,
    unmatched: String,
    reason: String,
    /// Id of the change; empty for a new one.
    request_id: String,
    problem: Option<String>,
}

/// Shows the projects that the visitor has a role for.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Response {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes());
    let search = query.as_ref().map_err(ToString::to_string).and_then(ProjectSearch::new);
    let frame = console.frame_after_change(&visitor, "projects", &query.unwrap_or_default());
    let status = if search.is_ok() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    respond(&console, visitor, status, (frame, search, NewProjectForm::default())).await
}

/// Creates a project.
pub(in crate::console) async fn create(State(console): State<Console>, action: Action) -> Response {
    let Action { visitor, fields, .. } = action;
    if !visitor.caller.has(Role::Admin) {
        return console.lacks_role(Permission::ADMIN.roles()).await;
    }
    let frame = console.frame(&visitor, "projects");
    let search = Ok(ProjectSearch { text: String::new(), page: 1 });
    let form = NewProjectForm::new(&fields);
    let created = match &form {
        Ok(form) => form.create(&console, &visitor).await,
        Err(error) => Err(PageError::invalid(error)),
    };
    match created {
        Ok(state) => {
            let id = &state.project.id;
            let link = Link::to("project").with("id", field_of(id));
            console.done(&visitor, link, &format!("Project {id} was created."))
        }
        Err(error) => {
            let (status, text) = (error.status, error.sentence());
            // One that failed otherwise may have been made: its text says so.
            let fate = if status.is_client_error() { "No project was created. " } else { "" };
            let problem = Some(format!("{fate}{text}"));
            let request_id = error.request_id(&fields).to_owned();
            let form = NewProjectForm { request_id, problem, ..form.unwrap_or_default() };
            respond(&console, visitor, status, (frame, search, form)).await
        }
    }
}

async fn respond(
    console: &Console,
    visitor: ConsoleVisitor,
    status: StatusCode,
    (frame, search, form): (Frame, Result<ProjectSearch, String>, NewProjectForm),
) -> Response {
    let projects = console.projects.clone();
    let render = move || {
        let listed = search.map(|search| ListedProjects::new(&projects, &visitor, search));
        let form = visitor.caller.has(Role::Admin).then_some(&form);
        let content = html! {
            @if let Some(problem) = form.and_then(|form| form.problem.as_ref()) { (failure(problem)) }
            @match &listed {
                Ok(listed) => (listed.render(&projects, form.is_some())),
                Err(problem) => (failure(problem)),
            }
            @if let Some(form) = form { (form.render(&frame)) }
        };
        frame.page("Projects", &content)
    };
    console.page(status, render).await
}

impl ProjectSearch {
    fn new(fields: &FormFields) -> Result<Self, String> {
        let field = |name| fields.one(name).map_err(|error| error.to_string());
        let page = match field("page")? {
            "" => 1,
            text => text
                .parse()
                .ok()
                .filter(|page| (1..=1_000_000).contains(page))
                .ok_or("page must be a number from 1 to 1000000")?,
        };
        Ok(Self { text: field("q")?.to_owned(), page })
    }

    fn link(&self, page: usize) -> Link {
        Link::to("projects").with("q", &self.text).with("page", &page.to_string())
    }
}

/// A page of the projects that fit a search.
struct ListedProjects {
    search: ProjectSearch,
    page: Vec<Arc<ProjectState>>,
    /// Projects that fit.
    fitting: usize,
    /// Projects of the visitor.
    all: usize,
}

impl ListedProjects {
    fn new(
        projects: &ProjectAdministrator,
        visitor: &ConsoleVisitor,
        search: ProjectSearch,
    ) -> Self {
        let mut states = projects.projects();
        states.retain(|state| {
            visitor.caller.roles_in(&state.project.id).intersects(OPERATE_OR_ADMIN)
        });
        let all = states.len();
        let text = search.text.trim().to_lowercase();
        states.retain(|state| {
            let of = &state.project;
            field_of(&of.id).contains(&text) || of.display_name.to_lowercase().contains(&text)
        });
        let fitting = states.len();
        let page = states.into_iter().skip((search.page - 1) * PAGE_SIZE).take(PAGE_SIZE).collect();
        Self { search, page, fitting, all }
    }

    fn pages(&self) -> usize {
        self.fitting.div_ceil(PAGE_SIZE).max(1)
    }

    fn render(&self, projects: &ProjectAdministrator, may_create: bool) -> Markup {
        html! {
            form.row method="get" action="projects" role="search" {
                div {
                    label for="q" { "Id or name" }
                    input id="q" name="q" type="search" value=(self.search.text) autocomplete="off" spellcheck="false";
                }
                button.primary { "Search" }
                @if may_create { a.beside-button href="#new" { "Create a project" } }
            }
            p.summary {
                (number(self.fitting as u64)) @if self.fitting == 1 { " project" } @else { " projects" }
                @if self.fitting != self.all { " of " (number(self.all as u64)) }
                @if self.pages() > 1 {
                    ", page " (number(self.search.page as u64)) " of " (number(self.pages() as u64))
                }
            }
            @if self.page.is_empty() {
                p.notice {
                    @if self.all == 0 { "There is no project that you have a role for." }
                    @else if self.fitting == 0 { "No project fits." }
                    @else { "There is no such page." }
                }
            } @else { (self.table(projects)) }
            @if self.pages() > 1 { (self.navigation()) }
        }
    }

    fn table(&self, projects: &ProjectAdministrator) -> Markup {
        let table = PageTable {
            of: "projects",
            caption: "Newest first; requests without an API key last",
            columns: &[
                PageColumn::Text("Project"),
                PageColumn::Text("Name"),
                PageColumn::Text("Requests without a rule"),
                PageColumn::Number("Rules"),
                PageColumn::Number("Active keys"),
                PageColumn::Text("Created"),
            ],
        };
        table.with_rows(&html! { @for state in &self.page { (row(state, projects)) } })
    }

    fn navigation(&self) -> Markup {
        let page = self.search.page;
        let previous = (page > 1).then(|| (page - 1).min(self.pages()));
        let next = (page < self.pages()).then_some(page + 1);
        html! {
            nav.row aria-label="Pages of projects" {
                @if let Some(page) = previous { a rel="prev" href=(self.search.link(page)) { "Newer projects" } }
                @if let Some(page) = next { a rel="next" href=(self.search.link(page)) { "Older projects" } }
            }
        }
    }
}

fn row(state: &ProjectState, projects: &ProjectAdministrator) -> Markup {
    let of = &state.project;
    let now = projects.clock().now();
    let active = of.keys.iter().filter(|key| key.state(now) == ApiKeyState::Active).count();
    let policy = projects.unmatched_of_files(&of.id).unwrap_or_else(|| of.unmatched.into());
    html! {
        tr {
            th scope="row" {
                a href=(Link::to("project").with("id", field_of(&of.id))) { (foreign(field_of(&of.id))) }
            }
            td {
                @if of.id.is_unnamed() { span.muted { "requests without an API key" } }
                @else if of.display_name.is_empty() { span.muted { "–" } }
                @else { (foreign(&of.display_name)) }
            }
            td { (policy_text(policy)) }
            td.right { (number(rule_count(state, projects) as u64)) }
            td.right { (number(active as u64)) }
            td { (created(state)) }
        }
    }
}

/// Returns how many rules a project has, those of files included.
pub(super) fn rule_count(state: &ProjectState, projects: &ProjectAdministrator) -> usize {
    let files = projects.files_beside(&state.project.id);
    // The first is the default rule.
    let of_files = files.iter().flat_map(|files| files.iter().skip(1));
    let of_files: HashSet<&str> = of_files.map(|rule| &*rule.name).collect();
    of_files.len() + state.rules.iter().filter(|(name, _)| !of_files.contains(name)).count()
}

/// Shows when a project was created.
pub(super) fn created(state: &ProjectState) -> Markup {
    let at = state.project.created_at;
    html! {
        @if at == crate::clock::Timestamp::EPOCH { span.muted { "always there" } }
        @else { (time(Some(&timestamp(at)))) }
    }
}

pub(super) fn policy_text(policy: Unmatched) -> &'static str {
    POLICIES.iter().find(|(of, _)| *of == policy).map_or("", |(_, text)| *text)
}

/// Returns the policy that a form has.
pub(super) fn policy_named(name: &str) -> Result<Unmatched, PageError> {
    let named = POLICIES.iter().map(|(policy, _)| *policy).find(|policy| policy.name() == name);
    let valid = "Requests that no rule matches must be one of those in the list.";
    named.ok_or_else(|| PageError::invalid(valid))
}

/// Returns the list of policies to select from.
pub(super) fn policy_input(id: &str, value: &str) -> Markup {
    let options = POLICIES.map(|(policy, text)| (policy.name(), text));
    let label = "Requests that no rule matches are";
    Input { id, name: "unmatched", label, value, ..Input::default() }.select(&options)
}

impl NewProjectForm {
    fn new(fields: &FormFields) -> Result<Self, FieldError> {
        let field = |name| fields.one(name).map(str::to_owned);
        Ok(Self {
            id: field("id")?,
            name: field("name")?,
            unmatched: field("unmatched")?,
            reason: field("reason")?,
            request_id: field(REQUEST_ID)?,
            problem: None,
        })
    }

    async fn create(
        &self,
        console: &Console,
        visitor: &ConsoleVisitor,
    ) -> Result<Arc<ProjectState>, PageError> {
        let id = Some(&self.id).filter(|id| !id.is_empty()).map(|id| id.parse()).transpose();
        let id = id.map_err(|error: InvalidProject| ProjectError::from(error))?;
        let new = NewProject {
            id,
            display_name: self.name.clone(),
            unmatched: policy_named(&self.unmatched)?,
        };
        let call = ProjectCall {
            actor: visitor.caller.actor().to_owned(),
            action: "CreateProject",
            reason: self.reason.clone(),
            request_id: self.request_id.clone(),
            scope: visitor.caller.scope(),
            deadline: Deadline::within(super::project::MAX_TIME),
        };
        Ok(console.projects.create(&call, new).await?)
    }

    fn render(&self, frame: &Frame) -> Markup {
        let id = Input {
            id: "new-id",
            name: "id",
            label: "Id",
            value: &self.id,
            hint: "Lower case letters, digits and '-', beginning with a letter. Never changes. \
                   Empty: a random one.",
            max: Some(63),
            ..Input::default()
        };
        let name = Input {
            id: "new-name",
            name: "name",
            label: "Name",
            value: &self.name,
            hint: "For people; may be empty.",
            max: Some(128),
            ..Input::default()
        };
        html! {
            h2 #new { "Create a project" }
            form.card.stack.narrow-form method="post" action="projects" {
                (hidden(frame, &self.request_id))
                (id.render())
                (name.render())
                (policy_input("new-unmatched", &self.unmatched))
                (reason("new-reason", &self.reason))
                button.primary { "Create project" }
            }
        }
    }
}
