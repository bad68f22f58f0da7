//! One project: its requests and rules now, its API keys, its usage by day and its properties.
//!
//! | file | subject |
//! | --- | --- |
//! | `keys` | the part with the API keys |
//! | `usage` | the part with the usage, and its download |
//! | `forms` | changes |

mod forms;
pub(super) mod keys;
pub(super) mod usage;

pub(crate) use self::forms::{create_key, delete, revoke_key, rotate_key, update, update_key};
pub(crate) use self::usage::download;

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{DailyUsage, Project, RequestStats, UsageBy};

use self::forms::{DELETE, SETTINGS};
use self::keys::ListedKeys;
use super::now::{bad_unless_none, in_no_row, percent};
use super::projects::{created, policy_text, policy_value, typed_policy_text};
use super::rules::ListedRules;
use super::undo::Undo;
use crate::calls::{field_of, id_of_page, project};
use crate::chart::tile;
use crate::decisions::{ProjectRequests, SPAN_NAME, history};
use crate::fields::{Link, UNNAMED};
use crate::form::{Form, FormPlace, RefusedForm};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::table::Table;
use crate::text::{foreign, number, or_dash, time};
use crate::visit::Visit;

/// All that the page shows.
#[derive(Debug)]
struct ProjectPage {
    frame: Frame,
    project: Project,
    /// Its requests, if they are known, and its rules.
    requests: Option<RequestStats>,
    rules: Result<ListedRules, PageError>,
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
        let (points, keys, usage, undo) = tokio::join!(
            history(console, visitor, id, ""),
            keys::list(visitor, id),
            usage::list(visitor, id, by),
            Undo::of_last(visitor, &project)
        );
        let points = points.unwrap_or_default();
        let requests = ProjectRequests::new(&points).of_project(id);
        Ok::<_, PageError>(ProjectPage {
            frame: visit.frame("projects"),
            project,
            requests,
            rules: ListedRules::of_project(visit, id, points).await,
            keys: keys?,
            by,
            usage,
            undo,
            is_admin: visitor.is_admin(id),
            refused,
            shown_key: visit.fields.get("key").to_owned(),
        })
    };
    let page = match gathered.await {
        Ok(page) => page,
        Err(error) => return console.refuse(error).await,
    };
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
            @if !self.project.display_name.is_empty() { p.summary { (foreign(&self.project.display_name)) } }
            @if is_unnamed {
                p.notice {
                    "Requests without an API key are in this project. It has no keys and no name, it can't \
                     be deleted, and the configuration has its policy (unmatched)."
                }
            }
            (self.summary())
            h2 #rules { "Rules" }
            @match &self.rules {
                Ok(rules) => (rules.first(&self.frame.visitor)),
                Err(error) => (failure(&error.sentence())),
            }
            @if let Some(requests) = &self.requests { (in_no_row(requests)) }
            @if !is_unnamed { (self.key_part()) }
            (usage::render(self.id(), self.by, &self.usage))
            (self.settings())
        };
        let title = if is_unnamed { "Requests without an API key" } else { self.id() };
        self.frame.page(&format!("Project: {title}"), &content)
    }

    /// Shows the project at a glance, and what can be done.
    fn summary(&self) -> Markup {
        let (Project { keys, rules, .. }, id) = (&self.project, self.id());
        let requests = self.requests.as_ref();
        let policy = policy_text(self.project.unmatched());
        let refused = |stats: &RequestStats| html! { (percent(stats.denied, stats.requests())) };
        let in_time = html! { "in the last " (SPAN_NAME) ", " a href=(Link::to("now").with("project", id)) { "see them" } };
        let all = Link::to("rules").with("project", id);
        let button = |page: &str, name: &str| {
            html! { a.button href=(Link::to(page).with("project", id)) { (name) } }
        };
        html! {
            dl.tiles {
                (tile("Requests", &or_dash(requests.map(|stats| number(stats.requests()))), &in_time))
                (tile("Refused", &or_dash(requests.map(refused)), &html! {
                    @if let Some(stats) = requests { (number(stats.denied)) " in " (SPAN_NAME) }
                }))
                (tile("Failed", &or_dash(requests.map(|stats| bad_unless_none(stats.failed))), &html! {
                    "in the last " (SPAN_NAME)
                }))
                (tile("Rules", &number((*rules).into()), &html! {
                    "requests without one are " (policy) ", " a href=(all) { "see them" }
                }))
                @if id != UNNAMED { (tile("API keys", &number((*keys).into()), &html! { a href="#keys" { "see them" } })) }
            }
            p.actions {
                (button("change", "Edit all as YAML")) (button("history", "History")) (button("key", "Look an id up"))
                @if self.is_admin { (button("audit", "Audit")) }
            }
            @if let Some(undo) = &self.undo { (undo.render()) }
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

    /// Shows the properties, folded, with the forms that change them.
    fn settings(&self) -> Markup {
        let project = &self.project;
        let Project { display_name, etag, .. } = project;
        let [saved, deleted] = [&SETTINGS, &DELETE].map(|form| self.refused(form));
        // A refused form may be sent again: its visitor has seen the project as it is.
        let values = [
            ("project", self.id()),
            ("etag", etag),
            ("name", display_name),
            ("unmatched", policy_value(project.unmatched())),
        ];
        let form = |form: &Form, prefix, refused| {
            let place = FormPlace { frame: &self.frame, prefix, values: &values, refused };
            form.render("card narrow-form", &place)
        };
        let is_named = !project.id.is_empty();
        html! {
            details #settings open[saved.or(deleted).is_some()] {
                summary { "Settings" }
                dl.card.narrow-form {
                    dt { "Created" } dd { (created(project)) }
                    @if project.updated_at != project.created_at { dt { "Changed" } dd { (time(project.updated_at.as_ref())) } }
                }
                @if is_named && self.is_admin { (form(&SETTINGS, "", saved)) }
                @if is_named && self.frame.visitor.is_admin_of_all() { (form(&DELETE, "delete-", deleted)) }
            }
        }
    }
}
