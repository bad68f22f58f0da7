//! The projects: a list, and a form for a new one.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{
    ListProjectsRequest, Project, RequestStats, WatchStatsResponse,
};
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;

use super::now::{bad_unless_none, share};
use crate::calls::{CHANGE_TIME, EVERY_PROJECT, READ_TIME, every, field_of, within};
use crate::decisions::{ProjectRequests, SPAN_NAME, history};
use crate::fields::{FormFields, Link, UNNAMED, search_input};
use crate::form::{Field, FieldChoice, FieldKind, Form, FormPlace, RefusedForm};
use crate::layout::failure;
use crate::page_error::PageError;
use crate::table::Table;
use crate::text::{foreign, number, or_dash, time};
use crate::visit::{Visit, Visitor};

/// Projects of a page.
const PAGE_SIZE: usize = 50;
/// Policies for requests that no rule matches, the default first.
const POLICIES: [FieldChoice; 3] = [
    ("deny", "refused", "UNMATCHED_POLICY_DENY"),
    ("allow", "allowed", "UNMATCHED_POLICY_ALLOW"),
    ("default", "decided by the default rule", "UNMATCHED_POLICY_DEFAULT_RULE"),
];
/// The policy of a project, in its forms.
pub(super) const POLICY: Field =
    Field::new("unmatched", "project.unmatched", FieldKind::Choice(&POLICIES))
        .labelled("Requests that no rule matches are");
/// The name of a project, in its forms.
pub(super) const NAME: Field = Field::new("name", "project.display_name", FieldKind::Text)
    .labelled("Name")
    .hint("For people; may be empty.")
    .max(128);
const ID: Field = Field::new("id", "project.id", FieldKind::Text)
    .labelled("Id")
    .hint(
        "Lower case letters, digits and '-', beginning with a letter. Never changes. Empty: a random \
         one.",
    )
    .max(63);
const CREATE: Form = Form::new(
    "projects",
    "CreateProjectRequest",
    &[Field::REQUEST_ID, ID, NAME, POLICY, Field::REASON],
    "Create project",
)
.tone("primary");

/// The requests of a project, if they are known, and the project.
type ListedProject = (Option<RequestStats>, Project);

/// A page of the projects that fit a search.
struct ListedProjects {
    /// Part of the id or of the name.
    search: String,
    /// From 1.
    number: usize,
    page: Vec<ListedProject>,
    /// Projects that fit.
    fitting: usize,
    /// Projects of the visitor.
    all: usize,
}

/// Shows the projects that the visitor has a role for.
pub(crate) async fn show(visit: Visit) -> Response {
    respond(visit, None).await
}

/// Creates a project.
pub(crate) async fn create(visit: Visit) -> Response {
    let Visit { console, visitor, fields } = &visit;
    if !visitor.is_admin_of_all() {
        return console.refuse(PageError::forbidden("admin")).await;
    }
    match try_create(visitor, fields).await {
        Ok(id) => {
            let link = Link::to("project").with("id", &id);
            visitor.done(link, &format!("Project {id} was created."))
        }
        Err(error) => {
            let refused = CREATE.refused(fields.clone(), error);
            respond(Visit { fields: FormFields::default(), ..visit }, Some(refused)).await
        }
    }
}

/// Creates the project of a form, and returns its id.
async fn try_create(visitor: &Visitor, fields: &FormFields) -> Result<String, PageError> {
    let request = within(CHANGE_TIME, CREATE.message(fields)?);
    let created = visitor.projects().create_project(request).await?;
    Ok(created.into_inner().project.unwrap_or_default().id)
}

async fn respond(visit: Visit, refused: Option<RefusedForm>) -> Response {
    let frame = visit.frame("projects");
    let Visit { console, visitor, fields } = visit;
    let points = history(&console, &visitor, EVERY_PROJECT, "").await.unwrap_or_default();
    let listed = async move {
        fields.check()?;
        ListedProjects::new(list(&visitor).await?, &fields, &points)
    };
    let listed = console.in_background(listed).await;
    let problem = refused.as_ref().map(|refused| &refused.error).or(listed.as_ref().err());
    let status = problem.map_or(StatusCode::OK, |error| error.status);
    let render = move || {
        let may_create = frame.visitor.is_admin_of_all();
        let place =
            FormPlace { frame: &frame, prefix: "new-", values: &[], refused: refused.as_ref() };
        let content = html! {
            @if let Some(refused) = &refused { (refused.notice()) }
            @if may_create {
                details #new open[refused.is_some()] {
                    summary.button { "Create a project" }
                    (CREATE.render("card narrow-form", &place))
                }
            }
            @match &listed {
                Ok(listed) => (listed.render()),
                Err(error) => (failure(&error.sentence())),
            }
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

impl ListedProjects {
    fn new(
        mut projects: Vec<Project>,
        search: &FormFields,
        points: &[WatchStatsResponse],
    ) -> Result<Self, PageError> {
        let (all, number) = (projects.len(), search.page()?);
        let search = search.get("q").to_owned();
        let text = search.trim().to_lowercase();
        projects.retain(|project| {
            field_of(&project.id).contains(&text)
                || project.display_name.to_lowercase().contains(&text)
        });
        let fitting = projects.len();
        let requests = ProjectRequests::new(points);
        let listed = |project: Project| (requests.of_project(&project.id), project);
        let page = projects.into_iter().skip((number - 1) * PAGE_SIZE).take(PAGE_SIZE);
        Ok(Self { page: page.map(listed).collect(), search, number, fitting, all })
    }

    fn render(&self) -> Markup {
        let (number_of, pages) = (self.number, self.fitting.div_ceil(PAGE_SIZE).max(1));
        let previous = (number_of > 1).then(|| (number_of - 1).min(pages));
        let next = (number_of < pages).then_some(number_of + 1);
        let link = |page: usize| {
            Link::to("projects").with("q", &self.search).with("page", &page.to_string())
        };
        html! {
            form.row method="get" action="projects" role="search" {
                (search_input("q", "Id or name", "search", &self.search))
                button.primary { "Search" }
            }
            p.summary {
                (number(self.fitting as u64)) @if self.fitting == 1 { " project" } @else { " projects" }
                @if self.fitting != self.all { " of " (number(self.all as u64)) }
                @if pages > 1 { ", page " (number(number_of as u64)) " of " (number(pages as u64)) }
            }
            @if self.page.is_empty() {
                p.notice {
                    @if self.all == 0 { "There is no project that you have a role for." }
                    @else if self.fitting == 0 { "No project fits." }
                    @else { "There is no such page." }
                }
            } @else { (table(&self.page)) }
            @if pages > 1 {
                nav.row aria-label="Pages of projects" {
                    @if let Some(page) = previous { a rel="prev" href=(link(page)) { "Newer projects" } }
                    @if let Some(page) = next { a rel="next" href=(link(page)) { "Older projects" } }
                }
            }
        }
    }
}

fn table(projects: &[ListedProject]) -> Markup {
    let caption = format!(
        "Newest first; requests without an API key last. Requests: of the last {SPAN_NAME}; a dash: not known"
    );
    let table = Table::<ListedProject>::new("projects", &caption)
        .cards()
        .text("Project", |(_, project)| {
            let id = field_of(&project.id);
            html! {
                a href=(Link::to("project").with("id", id)) { (foreign(id)) }
                @if id == UNNAMED { br; span.muted.remark { "requests without an API key" } }
                @else if !project.display_name.is_empty() { br; span.muted.remark { (foreign(&project.display_name)) } }
            }
        })
        .right("Requests", |(requests, _)| {
            or_dash(requests.as_ref().map(|requests| number(requests.requests())))
        })
        .right("Refused", |(requests, _)| {
            or_dash(requests.as_ref().map(|requests| share(requests.denied, requests.requests())))
        })
        .right("Failed", |(requests, _)| {
            or_dash(requests.as_ref().map(|requests| bad_unless_none(requests.failed)))
        })
        .right("API keys", |(_, project)| number(project.keys.into()))
        .right("Rules", |(_, project)| number(project.rules.into()))
        .text("Without a rule", |(_, project)| html! { (policy_text(project.unmatched())) })
        .text("Created", |(_, project)| created(project));
    table.rows(projects)
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

/// Returns the value of a policy in forms, and its words.
fn policy(policy: UnmatchedPolicy) -> Option<(&'static str, &'static str)> {
    let named = POLICIES.iter().find(|(.., name)| *name == policy.as_str_name());
    named.map(|(value, text, _)| (*value, *text))
}

pub(super) fn policy_text(unmatched: UnmatchedPolicy) -> &'static str {
    policy(unmatched).map_or("", |(_, text)| text)
}

/// Returns the words of the policy that a form has.
pub(super) fn typed_policy_text(value: &str) -> &'static str {
    POLICIES.iter().find(|(known, ..)| *known == value).map_or("", |(_, text, _)| text)
}

/// Returns the value of a policy in forms.
pub(super) fn policy_value(unmatched: UnmatchedPolicy) -> &'static str {
    policy(unmatched).map_or("", |(value, _)| value)
}
