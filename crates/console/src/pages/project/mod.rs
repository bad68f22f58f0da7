//! One project: its API keys, its usage by day and its properties.
//!
//! | file | subject |
//! | --- | --- |
//! | `keys` | the part with the API keys |
//! | `usage` | the part with the usage, and its download |
//! | `forms` | changes |

mod forms;
pub(super) mod keys;
mod usage;

pub(crate) use self::forms::{create_key, delete, revoke_key, rotate_key, update};
pub(crate) use self::usage::download;

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{DailyUsage, Project, UsageBy};

use self::forms::{DELETE, SETTINGS};
use self::keys::ListedKeys;
use super::projects::{created, policy_text, policy_value, typed_policy_text};
use super::undo::Undo;
use crate::calls::{field_of, id_of_page, project};
use crate::fields::Link;
use crate::form::{Form, FormPlace, RefusedForm};
use crate::layout::Frame;
use crate::page_error::PageError;
use crate::table::Table;
use crate::text::{foreign, time};
use crate::visit::Visit;

/// All that the page shows.
#[derive(Debug)]
struct ProjectPage {
    frame: Frame,
    project: Project,
    keys: ListedKeys,
    /// What the rows of `usage` are of.
    by: UsageBy,
    /// Rows of usage, oldest first; or why they can't be read.
    usage: Result<Vec<DailyUsage>, PageError>,
    /// The way back from the last change of its rules.
    undo: Option<Undo>,
    /// Whether the visitor may change the project.
    is_admin: bool,
    refused: Option<RefusedForm>,
    /// Id of the API key that the visitor looks for; empty without one.
    shown_key: String,
}

/// Shows a project.
pub(crate) async fn show(visit: Visit) -> Response {
    let id = visit.fields.get("id").to_owned();
    respond(&visit, &id, None).await
}

/// Responds with the page of a project that the visitor may see, given as fields have it.
async fn respond(visit: &Visit, field: &str, refused: Option<RefusedForm>) -> Response {
    let Visit { console, visitor, .. } = visit;
    let (id, by) = (id_of_page(field), usage::by(&visit.fields));
    let gathered = async {
        let project = project(visitor, id).await?;
        let (keys, usage, undo) = tokio::join!(
            keys::list(visitor, id),
            usage::list(visitor, id, by),
            Undo::of_last(visitor, &project)
        );
        Ok::<_, PageError>((project, keys?, usage, undo))
    };
    let (project, keys, usage, undo) = match gathered.await {
        Ok(gathered) => gathered,
        Err(error) => return console.refuse(error).await,
    };
    let (frame, is_admin) = (visit.frame("projects"), visitor.is_admin(id));
    let shown_key = visit.fields.get("key").to_owned();
    let page = ProjectPage { frame, project, keys, by, usage, undo, is_admin, refused, shown_key };
    let status = page.refused.as_ref().map_or(StatusCode::OK, |refused| refused.error.status);
    console.page(status, move || page.render()).await
}

impl ProjectPage {
    fn id(&self) -> &str {
        field_of(&self.project.id)
    }

    /// Returns what was refused of a form.
    fn refused(&self, form: &Form) -> Option<&RefusedForm> {
        self.refused.as_ref().and_then(|refused| refused.of_form(form))
    }

    fn render(&self) -> Markup {
        let is_unnamed = self.project.id.is_empty();
        let content = html! {
            @if let Some(refused) = &self.refused { (refused.notice()) }
            @if let Some(refused) = self.refused(&SETTINGS).filter(|refused| refused.error.reason == "STALE") {
                (self.comparison(refused))
            }
            (self.summary())
            @if is_unnamed {
                p.notice {
                    "Requests without an API key are in this project. It has no keys and no name, it can't \
                     be deleted, and the configuration has its policy (unmatched)."
                }
            } @else { (self.key_part()) }
            (usage::render(self.id(), self.by, &self.usage))
            @if !is_unnamed && self.is_admin { (self.settings()) }
            @if !is_unnamed && self.frame.visitor.is_admin_of_all() { (self.deletion()) }
        };
        let title = if is_unnamed { "Requests without an API key" } else { self.id() };
        self.frame.page(&format!("Project: {title}"), &content)
    }

    fn summary(&self) -> Markup {
        let (project, id) = (&self.project, self.id());
        html! {
            dl.card {
                @if !project.id.is_empty() {
                    dt { "Name" }
                    dd { @if project.display_name.is_empty() { span.muted { "none" } } @else { (foreign(&project.display_name)) } }
                }
                dt { "Id" } dd { (foreign(id)) }
                dt { "Requests without a rule" } dd { "are " (policy_text(project.unmatched())) }
                dt { "Rules" }
                dd {
                    a href=(Link::to("rules").with("project", id)) { "see them" }
                    ", " a href=(Link::to("key").with("project", id)) { "look an id up" }
                    ", " a href=(Link::to("change").with("project", id)) { "edit all as YAML" }
                    ", " a href=(Link::to("history").with("project", id)) { "history" }
                    @if let Some(undo) = &self.undo { (undo.render()) }
                }
                dt { "Created" } dd { (created(project)) }
                @if project.updated_at != project.created_at { dt { "Changed" } dd { (time(project.updated_at.as_ref())) } }
                @if self.is_admin {
                    dt { "Audit" }
                    dd { a href=(Link::to("audit").with("project", id)) { "changes of this project" } }
                }
            }
        }
    }

    /// Returns what was typed beside what somebody else has saved meanwhile.
    fn comparison(&self, refused: &RefusedForm) -> Markup {
        let typed = |name| refused.fields.get(name);
        let rows = [
            ("Name", foreign(&self.project.display_name), foreign(typed("name"))),
            (
                "Requests without a rule",
                html! { (policy_text(self.project.unmatched())) },
                html! { (typed_policy_text(typed("unmatched"))) },
            ),
        ];
        let caption = "The project now, and what you typed";
        let table = Table::<(&str, Markup, Markup)>::new("values", caption)
            .text("Property", |(name, ..)| html! { (name) })
            .text("Now", |(_, now, _)| now.clone())
            .text("You typed", |(.., typed)| typed.clone());
        table.rows(&rows)
    }

    fn settings(&self) -> Markup {
        let Project { display_name, etag, .. } = &self.project;
        // A refused form may be sent again: its visitor has seen the project as it is.
        let values = [
            ("project", self.id()),
            ("etag", etag),
            ("name", display_name),
            ("unmatched", policy_value(self.project.unmatched())),
        ];
        let refused = self.refused(&SETTINGS);
        let place = FormPlace { frame: &self.frame, prefix: "", values: &values, refused };
        html! {
            h2 #settings { "Name and policy" }
            (SETTINGS.render("card narrow-form", &place))
        }
    }

    fn deletion(&self) -> Markup {
        let (values, refused) = ([("project", self.id())], self.refused(&DELETE));
        let place = FormPlace { frame: &self.frame, prefix: "delete-", values: &values, refused };
        html! {
            h2 #deletion { "Delete" }
            details #delete open[refused.is_some()] {
                summary { "Delete the project" }
                (DELETE.render("card narrow-form", &place))
            }
        }
    }
}
