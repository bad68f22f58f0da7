//! The last revisions of the rules of a project: who changed what, when and why, and the way back.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{GetRevisionRequest, GetRevisionResponse, Revision};

use super::undo::Undo;
use crate::action_words::revision_words;
use crate::calls::{CHANGE_TIME, READ_TIME, field_of, id_of_page, last_revisions, project, within};
use crate::fields::{FormFields, Link};
use crate::form::{Field, FieldKind, Form, FormPlace, RefusedForm};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_diff::RuleDiff;
use crate::rules_text::RulesFormat;
use crate::table::Table;
use crate::text::{folded, foreign, number, time};
use crate::visit::{Visit, Visitor};

/// Most revisions: all that are kept.
const MAX_REVISIONS: i32 = 1_000;
/// The value of `base` that compares with the revision before, in place of that in force.
const BEFORE: &str = "before";
const ROLL_BACK: Form = Form::new(
    "roll-back",
    "RollbackRequest",
    &[
        Field::PROJECT,
        Field::new("revision", "revision", FieldKind::HiddenNumber),
        // It lets a form be sent once.
        Field::new("expected", "expected_revision", FieldKind::HiddenNumber),
        Field::REASON,
    ],
    "Roll back to this revision",
)
.hint(
    "The rules of this revision come into force again, as a new revision; rules that were made since are \
     deleted.",
)
.tone("danger");

/// All that the page shows.
#[derive(Debug)]
struct HistoryPage {
    frame: Frame,
    format: RulesFormat,
    id: String,
    history: Result<Vec<Revision>, PageError>,
    /// The revision that a visitor looks at, and what it is compared with.
    query: FormFields,
    diff: Option<Result<GetRevisionResponse, PageError>>,
    /// Revision of the project that a visitor of this page has seen.
    seen: u64,
    /// The way back from the newest revision.
    undo: Option<Undo>,
    refused: Option<RefusedForm>,
}

/// Shows the revisions, and the differences between two.
pub(crate) async fn show(visit: Visit) -> Response {
    respond(&visit, None).await
}

/// Makes the rules of a revision those of the project again.
pub(crate) async fn roll_back(visit: Visit) -> Response {
    let Visit { console, visitor, fields } = &visit;
    match try_roll_back(visitor, fields).await {
        Ok(outcome) => visitor.done(Link::like("history", fields, &["project"]), &outcome),
        Err(error) if error.is_of_access() => console.refuse(error).await,
        Err(error) => respond(&visit, Some(ROLL_BACK.refused(fields.clone(), error))).await,
    }
}

async fn try_roll_back(visitor: &Visitor, fields: &FormFields) -> Result<String, PageError> {
    let id = visitor.admin_in(fields)?;
    let request = ROLL_BACK.message(fields)?;
    let number = fields.get("revision").parse().unwrap_or_default();
    let error = match visitor.projects().rollback(within(CHANGE_TIME, request)).await {
        Ok(written) if written.get_ref().changes.is_empty() => {
            return Ok(format!(
                "The rules are those of revision {number} already: nothing was changed."
            ));
        }
        Ok(written) => {
            let made = written.into_inner().revision.unwrap_or_default().revision;
            return Ok(format!(
                "The rules of revision {number} are in force again, as revision {made}."
            ));
        }
        Err(status) => PageError::from(status),
    };
    if error.reason != "STALE" {
        return Err(error);
    }
    // Perhaps the form was sent twice.
    if revision(visitor, id, 0, Some(number)).await.is_ok_and(|diff| diff.changes.is_empty()) {
        return Ok(format!(
            "The rules of revision {number} are in force already: nothing was left to change."
        ));
    }
    let problem = "Others have changed the project since you loaded this page: nothing was rolled \
                   back. Compare again, and roll back if you still want to."
        .to_owned();
    Err(PageError { problem, ..error })
}

/// Returns a revision with its differences from another; 0 is the newest one.
pub(super) async fn revision(
    visitor: &Visitor,
    id: &str,
    revision: u64,
    base_revision: Option<u64>,
) -> Result<GetRevisionResponse, PageError> {
    let request = GetRevisionRequest { project_id: id.to_owned(), revision, base_revision };
    Ok(visitor.projects().get_revision(within(READ_TIME, request)).await?.into_inner())
}

/// Returns the last revisions of the rules of a project, newest first.
pub(super) async fn revisions(visitor: &Visitor, id: &str) -> Result<Vec<Revision>, PageError> {
    last_revisions(visitor, id, MAX_REVISIONS).await
}

async fn respond(visit: &Visit, refused: Option<RefusedForm>) -> Response {
    let Visit { console, visitor, fields } = visit;
    let id = id_of_page(fields.get("project")).to_owned();
    let state = match project(visitor, &id).await {
        Ok(state) => state,
        Err(error) => return console.refuse(error).await,
    };
    let history = revisions(visitor, &id).await;
    let newest = history.as_ref().ok().and_then(|history| history.first());
    let newest = newest.map(|newest| newest.revision);
    let diff = match fields.get("revision") {
        "" => None,
        _ => Some(diff(visitor, &id, fields, newest).await),
    };
    let problem = refused.as_ref().map(|refused| &refused.error);
    let problem =
        problem.or(history.as_ref().err()).or(diff.as_ref().and_then(|diff| diff.as_ref().err()));
    let status = problem.map_or(StatusCode::OK, |error| error.status);
    // Without the differences the visitor sees nothing that others have changed meanwhile.
    let expected = refused.as_ref().map(|refused| refused.fields.get("expected"));
    let seen = match &diff {
        Some(Err(_)) => expected.and_then(|text| text.parse().ok()).unwrap_or_default(),
        _ => state.revision,
    };
    let (frame, format) = (visit.frame("projects"), console.rules_format);
    let query = fields.clone();
    let last = history.as_ref().map_or(&[][..], |history| history);
    let undo =
        Undo::from_revisions(visitor, &state, last).filter(|_| query.get("revision").is_empty());
    let page = HistoryPage { frame, format, id, history, query, diff, seen, undo, refused };
    console.page(status, move || page.render()).await
}

/// Returns the differences that are asked for: first of all those from the newest revision, which is in
/// force, and of that one those from the one before.
async fn diff(
    visitor: &Visitor,
    id: &str,
    query: &FormFields,
    newest: Option<u64>,
) -> Result<GetRevisionResponse, PageError> {
    let asked = query.get("revision").parse::<u64>();
    let asked =
        asked.map_err(|_| PageError::invalid("Revision must be the number of a revision"))?;
    let is_of_before = query.get("base") == BEFORE;
    let base = newest.filter(|newest| !is_of_before && *newest != asked);
    revision(visitor, id, asked, base).await
}

impl HistoryPage {
    fn render(&self) -> Markup {
        let id = field_of(&self.id);
        // The reason of a form that was refused stays.
        let refused_roll_back = self.query.get("revision").parse().ok();
        let refused_roll_back = refused_roll_back.filter(|_| self.refused.is_some());
        let content = html! {
            @if let Some(refused) = &self.refused { (refused.notice()) }
            p {
                a href=(Link::to("project").with("id", id)) { "Project " (foreign(id)) }
                " · " a href=(Link::to("rules").with("project", id)) { "Rules" }
                " · " a href=(Link::to("change").with("project", id)) { "Edit all as YAML" }
            }
            @if let Some(undo) = &self.undo { (undo.render()) }
            @match &self.diff {
                Some(Ok(diff)) => (self.diff(diff)),
                Some(Err(error)) => {
                    (failure(&error.sentence()))
                    @if let Some(revision) = refused_roll_back { (self.roll_back_form(revision)) }
                }
                None => {}
            }
            h2 { "Revisions" }
            @match &self.history {
                Err(error) => (failure(&format!("The history can't be read. {}", error.sentence()))),
                Ok(history) if history.is_empty() => {
                    p.notice { "The rules of the project were never changed at run time." }
                }
                Ok(history) => (self.table(history)),
            }
        };
        let project = if self.id.is_empty() { "requests without an API key" } else { id };
        self.frame.page(&format!("History of the rules: {project}"), &content)
    }

    fn link(&self, revision: u64) -> Link {
        let link = Link::to("history").with("project", field_of(&self.id));
        link.with("revision", &revision.to_string())
    }

    fn table(&self, history: &[Revision]) -> Markup {
        let table = Table::<Revision>::new("revisions", "The last 100, newest first")
            .cards()
            .right("Revision", |revision| {
                html! { a href=(self.link(revision.revision)) { (number(revision.revision)) } }
            })
            .text("When", |revision| time(revision.created_at.as_ref()))
            .text("Who", |revision| foreign(&revision.actor))
            .text("How", revision_words)
            .wide("Why", |revision| folded(&revision.reason))
            .right("Rules changed", |revision| number(revision.changed_rules.into()));
        table.rows(history)
    }

    /// Shows a revision beside another one, with the form to go back to it.
    fn diff(&self, GetRevisionResponse { revision, changes }: &GetRevisionResponse) -> Markup {
        let revision = revision.clone().unwrap_or_default();
        let is_newest = self.is_newest(revision.revision);
        let is_of_before = is_newest || self.query.get("base") == BEFORE;
        let base = if is_of_before { "the one before" } else { "the rules in force" };
        let caption = format!("Revision {} against {base}", revision.revision);
        html! {
            h2 { "Revision " (revision.revision) }
            p {
                (revision_words(&revision)) " by " (foreign(&revision.actor)) ", "
                (time(revision.created_at.as_ref()))
                @if !revision.reason.is_empty() { ": " (foreign(&revision.reason)) }
            }
            @if !is_newest {
                @let (other, name) = if is_of_before { ("", "the rules in force") } else { (BEFORE, "the one before") };
                p { a href=(self.link(revision.revision).with("base", other)) { "Compare with " (name) } }
            }
            @if changes.is_empty() { p.notice { "No rule differs." } }
            @else { (RuleDiff { subject: "differences", caption: &caption, changes, format: self.format }.render()) }
            @if is_newest {
                p.hint { "It is the newest revision: its rules are those of the project." }
            } @else if self.frame.visitor.is_admin(&self.id) { (self.roll_back_form(revision.revision)) }
        }
    }

    fn is_newest(&self, number: u64) -> bool {
        let newest = self.history.as_ref().ok().and_then(|history| history.first());
        newest.is_some_and(|newest| newest.revision == number)
    }

    fn roll_back_form(&self, revision: u64) -> Markup {
        let (revision, seen) = (revision.to_string(), self.seen.to_string());
        let values = [
            ("project", field_of(&self.id)),
            ("revision", &revision),
            ("expected", &seen),
            ("reason", self.query.get("reason")),
        ];
        let place = FormPlace {
            frame: &self.frame,
            prefix: "",
            values: &values,
            refused: self.refused.as_ref(),
        };
        ROLL_BACK.render("card narrow-form", &place)
    }
}
