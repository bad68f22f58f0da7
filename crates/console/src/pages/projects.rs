//! The projects: a list, and a form for a new one.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{CreateProjectRequest, ListProjectsRequest, Project};
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;

use crate::Console;
use crate::calls::{CHANGE_TIME, READ_TIME, every, field_of, within};
use crate::change_form::{Input, REQUEST_ID, hidden, reason};
use crate::fields::{FormFields, Link};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, number, time};
use crate::visit::Visitor;

/// Projects of a page.
const PAGE_SIZE: usize = 50;
/// Policies for requests that no rule matches, the default first: values of the list, and words.
const POLICIES: [(UnmatchedPolicy, &str, &str); 3] = [
    (UnmatchedPolicy::Deny, "deny", "refused"),
    (UnmatchedPolicy::Allow, "allow", "allowed"),
    (UnmatchedPolicy::DefaultRule, "default", "decided by the default rule"),
];

/// What a visitor looks for.
#[derive(Clone, Debug, Default)]
struct ProjectSearch {
    /// Part of the id or of the name.
    text: String,
    /// From 1.
    page: usize,
}

/// A form that was refused: what was typed, and why.
struct Refused {
    fields: FormFields,
    error: PageError,
}

/// A page of the projects that fit a search.
struct ListedProjects {
    search: ProjectSearch,
    page: Vec<Project>,
    /// Projects that fit.
    fitting: usize,
    /// Projects of the visitor.
    all: usize,
}

/// Shows the projects that the visitor has a role for.
pub(crate) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes());
    let search = query.clone().map_err(PageError::from).and_then(|of| ProjectSearch::new(&of));
    let frame = visitor.frame_after_change("projects", &query.unwrap_or_default());
    respond(&console, &visitor, frame, search, None).await
}

/// Creates a project.
pub(crate) async fn create(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    if !visitor.is_admin_of_all() {
        return console.refuse(PageError::forbidden("admin")).await;
    }
    let error = match try_create(&visitor, &fields).await {
        Ok(id) => {
            let link = Link::to("project").with("id", &id);
            return visitor.done(link, &format!("Project {id} was created."));
        }
        Err(error) => error,
    };
    let frame = visitor.frame("projects");
    let search = Ok(ProjectSearch { page: 1, ..ProjectSearch::default() });
    respond(&console, &visitor, frame, search, Some(Refused { fields, error })).await
}

/// Creates the project of a form, and returns its id.
async fn try_create(visitor: &Visitor, fields: &FormFields) -> Result<String, PageError> {
    let field = |name| fields.one(name).map(str::to_owned);
    let project = Project {
        id: field("id")?,
        display_name: field("name")?,
        unmatched: policy_named(fields.one("unmatched")?)?.into(),
        ..Project::default()
    };
    let (request_id, reason) = (field(REQUEST_ID)?, field("reason")?);
    let request = CreateProjectRequest { project: Some(project), request_id, reason };
    let created = visitor.projects().create_project(within(CHANGE_TIME, request)).await?;
    Ok(created.into_inner().project.unwrap_or_default().id)
}

async fn respond(
    console: &Console,
    visitor: &Visitor,
    frame: Frame,
    search: Result<ProjectSearch, PageError>,
    refused: Option<Refused>,
) -> Response {
    let listed = match search {
        Ok(search) => {
            let visitor = visitor.clone();
            let listed = async move { Ok(ListedProjects::new(list(&visitor).await?, search)) };
            console.in_background(listed).await
        }
        Err(error) => Err(error),
    };
    let problem = refused.as_ref().map(|refused| &refused.error).or(listed.as_ref().err());
    let status = problem.map_or(StatusCode::OK, |error| error.status);
    let may_create = visitor.is_admin_of_all();
    let render = move || {
        let content = html! {
            @if let Some(Refused { error, .. }) = &refused {
                // One that failed otherwise may have been made: its text says so.
                (failure(&format!(
                    "{}{}",
                    if error.status.is_client_error() { "No project was created. " } else { "" },
                    error.sentence()
                )))
            }
            @match &listed {
                Ok(listed) => (listed.render(may_create)),
                Err(error) => (failure(&error.sentence())),
            }
            @if may_create { (new_project(&frame, refused.as_ref())) }
        };
        frame.page("Projects", &content)
    };
    console.page(status, render).await
}

/// Returns all projects of a visitor, newest first, the unnamed one last.
pub(super) async fn list(visitor: &Visitor) -> Result<Vec<Project>, PageError> {
    let listed = every(|page_size, page_token| {
        let mut client = visitor.projects();
        let request = ListProjectsRequest { page_size, page_token };
        async move {
            let page = client.list_projects(within(READ_TIME, request)).await?.into_inner();
            Ok((page.projects, page.next_page_token))
        }
    });
    Ok(listed.await?)
}

impl ProjectSearch {
    fn new(fields: &FormFields) -> Result<Self, PageError> {
        let page = match fields.one("page")? {
            "" => Some(1),
            text => text.parse().ok().filter(|page| (1..=1_000_000).contains(page)),
        };
        let invalid = || PageError::invalid("page must be a number from 1 to 1000000");
        Ok(Self { text: fields.one("q")?.to_owned(), page: page.ok_or_else(invalid)? })
    }

    fn link(&self, page: usize) -> Link {
        Link::to("projects").with("q", &self.text).with("page", &page.to_string())
    }
}

impl ListedProjects {
    fn new(projects: Vec<Project>, search: ProjectSearch) -> Self {
        let all = projects.len();
        let text = search.text.trim().to_lowercase();
        let fits = |project: &Project| {
            field_of(&project.id).contains(&text)
                || project.display_name.to_lowercase().contains(&text)
        };
        let mut projects = projects;
        projects.retain(fits);
        let fitting = projects.len();
        let page = projects.into_iter().skip((search.page - 1) * PAGE_SIZE).take(PAGE_SIZE);
        Self { page: page.collect(), search, fitting, all }
    }

    fn pages(&self) -> usize {
        self.fitting.div_ceil(PAGE_SIZE).max(1)
    }

    fn render(&self, may_create: bool) -> Markup {
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
            } @else { (self.table()) }
            @if self.pages() > 1 { (self.navigation()) }
        }
    }

    fn table(&self) -> Markup {
        let table = PageTable {
            of: "projects",
            caption: "Newest first; requests without an API key last",
            columns: &["Project", "Name", "Requests without a rule", "Created"]
                .map(PageColumn::Text),
        };
        table.with_rows(&html! { @for project in &self.page { (row(project)) } })
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

fn row(project: &Project) -> Markup {
    let id = field_of(&project.id);
    html! {
        tr {
            th scope="row" { a href=(Link::to("project").with("id", id)) { (foreign(id)) } }
            td {
                @if project.id.is_empty() { span.muted { "requests without an API key" } }
                @else if project.display_name.is_empty() { span.muted { "–" } }
                @else { (foreign(&project.display_name)) }
            }
            td { (policy_text(project.unmatched())) }
            td { (created(project)) }
        }
    }
}

/// Shows when a project was created.
pub(super) fn created(project: &Project) -> Markup {
    html! {
        @match &project.created_at {
            None => span.muted { "always there" },
            at => (time(at.as_ref())),
        }
    }
}

pub(super) fn policy_text(policy: UnmatchedPolicy) -> &'static str {
    POLICIES.iter().find(|(of, ..)| *of == policy).map_or("", |(.., text)| text)
}

/// Returns the policy that a form has.
pub(super) fn policy_named(name: &str) -> Result<UnmatchedPolicy, PageError> {
    let named = POLICIES.iter().find(|(_, value, _)| *value == name).map(|(policy, ..)| *policy);
    let valid = "Requests that no rule matches must be one of those in the list.";
    named.ok_or_else(|| PageError::invalid(valid))
}

/// Returns the value of a policy in forms.
pub(super) fn policy_value(policy: UnmatchedPolicy) -> &'static str {
    POLICIES.iter().find(|(of, ..)| *of == policy).map_or("", |(_, value, _)| value)
}

/// Returns the list of policies to select from.
pub(super) fn policy_input(id: &str, value: &str) -> Markup {
    let options = POLICIES.map(|(_, value, text)| (value, text));
    let label = "Requests that no rule matches are";
    Input { id, name: "unmatched", label, value, ..Input::default() }.select(&options)
}

fn new_project(frame: &Frame, refused: Option<&Refused>) -> Markup {
    let typed = |name| refused.map_or("", |of| of.fields.one(name).unwrap_or_default());
    let request_id = refused.map_or("", |of| of.error.request_id(&of.fields));
    let id = Input {
        id: "new-id",
        name: "id",
        label: "Id",
        value: typed("id"),
        hint: "Lower case letters, digits and '-', beginning with a letter. Never changes. Empty: a \
               random one.",
        max: Some(63),
        ..Input::default()
    };
    let name = Input {
        id: "new-name",
        name: "name",
        label: "Name",
        value: typed("name"),
        hint: "For people; may be empty.",
        max: Some(128),
        ..Input::default()
    };
    html! {
        h2 #new { "Create a project" }
        form.card.stack.narrow-form method="post" action="projects" {
            (hidden(frame, request_id))
            (id.render())
            (name.render())
            (policy_input("new-unmatched", typed("unmatched")))
            (reason("new-reason", typed("reason")))
            button.primary { "Create project" }
        }
    }
}
