//! One project: its API keys, its usage by day and its properties.
//!
//! | file | subject |
//! | --- | --- |
//! | `keys` | the part with the API keys |
//! | `usage` | the part with the usage, and its download |
//! | `forms` | changes |

mod forms;
mod keys;
mod usage;

pub(crate) use self::forms::{create_key, delete, revoke_key, rotate_key, update};
pub(crate) use self::usage::download;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{
    ApiKey, DailyUsage, GetProjectRequest, ListKeysRequest, ListKeysResponse, Project,
};

use super::projects::{created, policy_input, policy_named, policy_text, policy_value};
use crate::Console;
use crate::calls::{READ_TIME, field_of, id_of_page, within};
use crate::change_form::{Input, hidden, reason};
use crate::fields::{FormFields, Link};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, time};
use crate::visit::Visitor;

/// A form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProjectForm {
    Settings,
    Delete,
    CreateKey,
    /// Of one key.
    RotateKey,
    RevokeKey,
}

/// A form that was refused: what was typed, and why.
#[derive(Debug)]
struct RefusedForm {
    form: ProjectForm,
    fields: FormFields,
    error: PageError,
    /// Whether the project has changed since the visitor loaded the page.
    is_stale: bool,
}

/// The API keys of a project.
#[derive(Debug)]
struct ListedKeys {
    keys: Vec<ApiKey>,
    /// What the service warns of, such as that keys are ignored.
    warning: Option<String>,
}

/// All that the page shows.
#[derive(Debug)]
struct ProjectPage {
    frame: Frame,
    project: Project,
    keys: ListedKeys,
    /// Days with usage, oldest first; or why they can't be read.
    usage: Result<Vec<DailyUsage>, PageError>,
    /// Whether the visitor may change the project.
    is_admin: bool,
    /// Whether the visitor may delete it.
    is_admin_of_all: bool,
    refused: Option<RefusedForm>,
}

/// Shows a project.
pub(crate) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes()).unwrap_or_default();
    let frame = visitor.frame_after_change("projects", &query);
    respond(&console, &visitor, frame, query.one("id").unwrap_or_default(), None).await
}

/// Responds with the page of a project that the visitor may see, given as fields have it.
async fn respond(
    console: &Console,
    visitor: &Visitor,
    frame: Frame,
    field: &str,
    refused: Option<RefusedForm>,
) -> Response {
    let id = id_of_page(field);
    match gather(visitor, frame, id, refused).await {
        Ok(page) => {
            let status = page.refused.as_ref().map_or(StatusCode::OK, |of| of.error.status);
            console.page(status, move || page.render()).await
        }
        Err(error) => console.refuse(error).await,
    }
}

async fn gather(
    visitor: &Visitor,
    frame: Frame,
    id: &str,
    refused: Option<RefusedForm>,
) -> Result<ProjectPage, PageError> {
    let project = project(visitor, id).await?;
    let (keys, usage) = tokio::join!(list_keys(visitor, id), usage::list(visitor, id));
    Ok(ProjectPage {
        frame,
        project,
        keys: keys?,
        usage,
        is_admin: visitor.is_admin(id),
        is_admin_of_all: visitor.is_admin_of_all(),
        refused,
    })
}

/// Returns a project.
pub(super) async fn project(visitor: &Visitor, id: &str) -> Result<Project, PageError> {
    let request = within(READ_TIME, GetProjectRequest { project_id: id.to_owned() });
    let found = visitor.projects().get_project(request).await?.into_inner();
    Ok(found.project.unwrap_or_default())
}

async fn list_keys(visitor: &Visitor, id: &str) -> Result<ListedKeys, PageError> {
    let mut listed = ListedKeys { keys: Vec::new(), warning: None };
    let mut request = ListKeysRequest {
        project_id: id.to_owned(),
        page_size: 1_000,
        ..ListKeysRequest::default()
    };
    loop {
        let page = visitor.projects().list_keys(within(READ_TIME, request.clone())).await?;
        let warning = page.metadata().get("rlaas-warning").and_then(|text| text.to_str().ok());
        listed.warning = warning.map(str::to_owned);
        let ListKeysResponse { keys, next_page_token } = page.into_inner();
        listed.keys.extend(keys);
        if next_page_token.is_empty() {
            return Ok(listed);
        }
        request.page_token = next_page_token;
    }
}

impl ProjectPage {
    /// Returns what was typed in a refused form, or else the value that the form begins with.
    fn value<'a>(&'a self, form: ProjectForm, name: &'static str, first: &'a str) -> &'a str {
        match &self.refused {
            Some(refused) if refused.form == form => refused.fields.one(name).unwrap_or_default(),
            _ => first,
        }
    }

    /// Returns the id of the change of a refused form, or else an empty one.
    fn request_id(&self, form: ProjectForm) -> &str {
        let refused = self.refused.as_ref().filter(|of| of.form == form);
        refused.map_or("", |refused| refused.error.request_id(&refused.fields))
    }

    fn is_refused(&self, form: ProjectForm) -> bool {
        self.refused.as_ref().is_some_and(|of| of.form == form)
    }

    fn id(&self) -> &str {
        field_of(&self.project.id)
    }

    fn render(&self) -> Markup {
        let is_unnamed = self.project.id.is_empty();
        let content = html! {
            @if let Some(refused) = &self.refused { (failure(&refused.error.sentence())) }
            @if self.refused.as_ref().is_some_and(|refused| refused.is_stale) { (self.comparison()) }
            (self.summary())
            @if is_unnamed {
                p.notice {
                    "Requests without an API key are in this project. It has no keys and no name, it can't \
                     be deleted, and the configuration has its policy (unmatched)."
                }
            } @else { (self.key_part()) }
            (usage::render(self.id(), &self.usage))
            @if !is_unnamed && self.is_admin { (self.settings()) }
            @if !is_unnamed && self.is_admin_of_all { (self.deletion()) }
        };
        let title = if is_unnamed { "Requests without an API key" } else { self.id() };
        self.frame.page(&format!("Project: {title}"), &content)
    }

    fn summary(&self) -> Markup {
        let (of, id) = (&self.project, self.id());
        html! {
            dl.card {
                @if !of.id.is_empty() {
                    dt { "Name" }
                    dd { @if of.display_name.is_empty() { span.muted { "none" } } @else { (foreign(&of.display_name)) } }
                }
                dt { "Id" } dd { (foreign(id)) }
                dt { "Requests without a rule" } dd { "are " (policy_text(of.unmatched())) }
                dt { "Rules" }
                dd {
                    a href=(Link::to("rules").with("project", id)) { "see them" }
                    ", " a href=(Link::to("change").with("project", id)) { "change them" }
                }
                dt { "Created" } dd { (created(of)) }
                @if of.updated_at != of.created_at { dt { "Changed" } dd { (time(of.updated_at.as_ref())) } }
                @if self.is_admin {
                    dt { "Audit" }
                    dd { a href=(Link::to("audit").with("project", id)) { "changes of this project" } }
                }
            }
        }
    }

    /// Returns what was typed beside what somebody else has saved meanwhile.
    fn comparison(&self) -> Markup {
        let typed = |name| self.value(ProjectForm::Settings, name, "");
        let policy = self.project.unmatched();
        let typed_policy = policy_named(typed("unmatched")).unwrap_or(policy);
        let table = PageTable {
            of: "values",
            caption: "The project now, and what you typed",
            columns: &["Property", "Now", "You typed"].map(PageColumn::Text),
        };
        table.with_rows(&html! {
            tr {
                th scope="row" { "Name" }
                td { (foreign(&self.project.display_name)) }
                td { (foreign(typed("name"))) }
            }
            tr {
                th scope="row" { "Requests without a rule" }
                td { (policy_text(policy)) }
                td { (policy_text(typed_policy)) }
            }
        })
    }

    fn settings(&self) -> Markup {
        let value = |name, first| self.value(ProjectForm::Settings, name, first);
        let name = Input {
            id: "name",
            name: "name",
            label: "Name",
            value: value("name", &self.project.display_name),
            hint: "For people; may be empty.",
            max: Some(128),
            ..Input::default()
        };
        html! {
            h2 #settings { "Name and policy" }
            form.card.stack.narrow-form method="post" action="project-update" {
                (hidden(&self.frame, ""))
                input type="hidden" name="project" value=(self.id());
                // A refused form may be sent again: its visitor has seen the project as it is.
                input type="hidden" name="etag" value=(self.project.etag);
                (name.render())
                (policy_input("unmatched", value("unmatched", policy_value(self.project.unmatched()))))
                (reason("settings-reason", value("reason", "")))
                button.primary { "Save" }
            }
        }
    }

    fn deletion(&self) -> Markup {
        let value = |name| self.value(ProjectForm::Delete, name, "");
        let confirm = Input {
            id: "confirm",
            name: "confirm",
            label: "Id to confirm",
            value: value("confirm"),
            hint: "Type the id of the project.",
            max: Some(63),
            ..Input::default()
        };
        html! {
            h2 #deletion { "Delete" }
            details #delete open[self.is_refused(ProjectForm::Delete)] {
                summary { "Delete the project" }
                form.card.stack.narrow-form method="post" action="project-delete" {
                    (hidden(&self.frame, self.request_id(ProjectForm::Delete)))
                    input type="hidden" name="project" value=(self.id());
                    p.hint {
                        "Its keys end within 2 s, its rules and its usage are lost. The id is not given \
                         again for 366 days."
                    }
                    (confirm.render())
                    (reason("delete-reason", value("reason")))
                    button.danger { "Delete project" }
                }
            }
        }
    }
}
