//! The last revisions of the rules of a project: who changed what, when and why, and the way back.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{
    GetRevisionRequest, GetRevisionResponse, ListRevisionsRequest, Revision, RollbackRequest,
};

use super::project::project;
use crate::Console;
use crate::calls::{CHANGE_TIME, READ_TIME, field_of, id_of_page, within};
use crate::change_form::{hidden, reason};
use crate::fields::{FormFields, Link};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_diff::RuleDiff;
use crate::rules_text::RulesFormat;
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, number, time};
use crate::visit::Visitor;

/// Most revisions: all that are kept.
const MAX_REVISIONS: i32 = 1_000;

/// Revisions that a visitor compares, as the query has them.
#[derive(Clone, Debug, Default)]
struct Compared {
    revision: String,
    /// Empty: the one before.
    base: String,
}

/// All that the page shows.
#[derive(Debug)]
struct HistoryPage {
    frame: Frame,
    format: RulesFormat,
    id: String,
    history: Result<Vec<Revision>, PageError>,
    compared: Compared,
    diff: Option<Result<GetRevisionResponse, PageError>>,
    /// Revision of the project that a visitor of this page has seen.
    seen: u64,
    may_roll_back: bool,
    refused: Option<(PageError, FormFields)>,
}

/// Shows the revisions, and the differences between two.
pub(crate) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes()).unwrap_or_default();
    let frame = visitor.frame_after_change("projects", &query);
    let field = |name| query.one(name).unwrap_or_default().to_owned();
    let compared = Compared { revision: field("revision"), base: field("base") };
    respond(&console, &visitor, frame, &field("project"), compared, None).await
}

/// Makes the rules of a revision those of the project again.
pub(crate) async fn roll_back(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let project = fields.one("project").unwrap_or_default().to_owned();
    match try_roll_back(&visitor, &fields).await {
        Ok(outcome) => {
            let link = Link::to("history").with("project", &project);
            visitor.done(link, &outcome)
        }
        Err(error) if error.is_of_access() => console.refuse(error).await,
        Err(error) => {
            let revision = fields.one("revision").unwrap_or_default().to_owned();
            let compared = Compared { revision, base: String::new() };
            let frame = visitor.frame("projects");
            let refused = Some((error, fields));
            respond(&console, &visitor, frame, &project, compared, refused).await
        }
    }
}

async fn try_roll_back(visitor: &Visitor, fields: &FormFields) -> Result<String, PageError> {
    let id = visitor.admin_in(fields)?;
    let count = |name| {
        let valid = || PageError::invalid(format!("{name} must be a whole number"));
        fields.one(name)?.parse::<u64>().map_err(|_| valid())
    };
    let number = count("revision")?;
    let request = RollbackRequest {
        project_id: id.to_owned(),
        revision: number,
        // It lets a form be sent once.
        expected_revision: Some(count("expected")?),
        reason: fields.one("reason")?.to_owned(),
    };
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
    let (project_id, page_token) = (id.to_owned(), String::new());
    let request = ListRevisionsRequest { project_id, page_size: MAX_REVISIONS, page_token };
    let listed = visitor.projects().list_revisions(within(READ_TIME, request)).await?;
    Ok(listed.into_inner().revisions)
}

async fn respond(
    console: &Console,
    visitor: &Visitor,
    frame: Frame,
    field: &str,
    compared: Compared,
    refused: Option<(PageError, FormFields)>,
) -> Response {
    let id = id_of_page(field);
    let state = match project(visitor, id).await {
        Ok(state) => state,
        Err(error) => return console.refuse(error).await,
    };
    let history = revisions(visitor, id).await;
    let diff = diff(visitor, id, &compared).await;
    let status = match (&refused, &history, &diff) {
        (Some((error, _)), ..) | (None, Err(error), _) | (None, Ok(_), Some(Err(error))) => {
            error.status
        }
        (None, Ok(_), _) => StatusCode::OK,
    };
    // Without the differences the visitor sees nothing that others have changed meanwhile.
    let expected = refused.as_ref().and_then(|(_, fields)| fields.one("expected").ok());
    let seen = match &diff {
        Some(Err(_)) => expected.and_then(|text| text.parse().ok()).unwrap_or_default(),
        _ => state.revision,
    };
    let (id, may_roll_back) = (id.to_owned(), visitor.is_admin(id));
    let format = console.rules_format;
    let page =
        HistoryPage { frame, format, id, history, compared, diff, seen, may_roll_back, refused };
    console.page(status, move || page.render()).await
}

/// Returns the differences that are asked for, if any are.
async fn diff(
    visitor: &Visitor,
    id: &str,
    Compared { revision: asked, base }: &Compared,
) -> Option<Result<GetRevisionResponse, PageError>> {
    if asked.is_empty() {
        return None;
    }
    let number = |name: &str, text: &str| {
        let invalid = || PageError::invalid(format!("{name} must be the number of a revision"));
        text.parse::<u64>().map_err(|_| invalid())
    };
    let base = Some(base).filter(|base| !base.is_empty());
    let numbers = number("Revision", asked)
        .and_then(|asked| Ok((asked, base.map(|base| number("Base", base)).transpose()?)));
    Some(match numbers {
        Ok((asked, base)) => revision(visitor, id, asked, base).await,
        Err(error) => Err(error),
    })
}

impl HistoryPage {
    fn render(&self) -> Markup {
        let id = field_of(&self.id);
        let content = html! {
            @if let Some((error, _)) = &self.refused { (failure(&error.sentence())) }
            p {
                a href=(Link::to("project").with("id", id)) { "Project " (foreign(id)) }
                " · " a href=(Link::to("change").with("project", id)) { "Change the rules" }
            }
            @match &self.diff {
                Some(Ok(diff)) => (self.diff(diff)),
                Some(Err(error)) => {
                    (failure(&error.sentence()))
                    @if let Some(revision) = self.refused_roll_back() { (self.roll_back_form(revision)) }
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
        let of = if self.id.is_empty() { "requests without an API key" } else { id };
        self.frame.page(&format!("History of the rules: {of}"), &content)
    }

    /// Returns the revision of a form that was refused, whose reason stays.
    fn refused_roll_back(&self) -> Option<u64> {
        let is_refused = self.refused.is_some() && self.may_roll_back;
        self.compared.revision.parse().ok().filter(|_| is_refused)
    }

    fn link(&self, revision: u64) -> Link {
        Link::to("history")
            .with("project", field_of(&self.id))
            .with("revision", &revision.to_string())
    }

    fn table(&self, history: &[Revision]) -> Markup {
        let table = PageTable {
            of: "revisions",
            caption: "The last 100, newest first",
            columns: &[
                PageColumn::Number("Revision"),
                PageColumn::Text("When"),
                PageColumn::Text("Who"),
                PageColumn::Text("How"),
                PageColumn::Text("Why"),
                PageColumn::Number("Rules"),
            ],
        };
        table.with_rows(&html! {
            @for Revision { revision, created_at, actor, action, reason, changed_rules, .. } in history {
                tr {
                    th.right scope="row" { a href=(self.link(*revision)) { (number(*revision)) } }
                    td { (time(created_at.as_ref())) }
                    td { (foreign(actor)) }
                    td { (foreign(action)) }
                    td.wide { @if reason.is_empty() { span.muted { "–" } } @else { (foreign(reason)) } }
                    td.right { (number((*changed_rules).into())) }
                }
            }
        })
    }

    /// Shows a revision beside another one, with the form to go back to it.
    fn diff(&self, GetRevisionResponse { revision, changes }: &GetRevisionResponse) -> Markup {
        let revision = revision.clone().unwrap_or_default();
        let Compared { base, .. } = &self.compared;
        let base_text =
            if base.is_empty() { "the one before".to_owned() } else { format!("revision {base}") };
        let caption = format!("Revision {} against {base_text}", revision.revision);
        html! {
            h2 { "Revision " (revision.revision) }
            p {
                (foreign(&revision.action)) " by " (foreign(&revision.actor)) ", "
                (time(revision.created_at.as_ref()))
                @if !revision.reason.is_empty() { ": " (foreign(&revision.reason)) }
            }
            @if let Ok(history) = &self.history { (self.base_form(history, revision.revision)) }
            @if changes.is_empty() { p.notice { "No rule differs." } }
            @else { (RuleDiff { of: "differences", caption: &caption, changes, format: self.format }.render()) }
            @if self.is_newest(revision.revision) {
                p.hint { "It is the newest revision: its rules are those of the project." }
            } @else if self.may_roll_back { (self.roll_back_form(revision.revision)) }
        }
    }

    fn is_newest(&self, number: u64) -> bool {
        let newest = self.history.as_ref().ok().and_then(|history| history.first());
        newest.is_some_and(|newest| newest.revision == number)
    }

    fn base_form(&self, history: &[Revision], shown: u64) -> Markup {
        let base = &self.compared.base;
        html! {
            form.row method="get" action="history" {
                input type="hidden" name="project" value=(field_of(&self.id));
                input type="hidden" name="revision" value=(shown);
                div {
                    label for="base" { "Compare with" }
                    select #base name="base" {
                        option value="" selected[base.is_empty()] { "the one before" }
                        @for Revision { revision: number, .. } in history.iter().filter(|of| of.revision != shown) {
                            option value=(number) selected[*base == number.to_string()] { "revision " (number) }
                        }
                        option value="0" selected[base == "0"] { "no rules" }
                    }
                }
                button { "Compare" }
            }
        }
    }

    fn roll_back_form(&self, revision: u64) -> Markup {
        let typed = self.refused.as_ref().and_then(|(_, fields)| fields.one("reason").ok());
        html! {
            form.card.stack.narrow-form method="post" action="roll-back" {
                (hidden(&self.frame, ""))
                input type="hidden" name="project" value=(field_of(&self.id));
                input type="hidden" name="revision" value=(revision);
                input type="hidden" name="expected" value=(self.seen);
                p.hint {
                    "The rules of this revision come into force again, as a new revision; rules that were made \
                     since are deleted."
                }
                (reason("reason", typed.unwrap_or_default()))
                button.danger { "Roll back to revision " (revision) }
            }
        }
    }
}
