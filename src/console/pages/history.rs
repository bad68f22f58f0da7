//! The last revisions of the rules of a project: who changed what, when and why, and the way back.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use crate::admin::projects::{ProjectCall, ProjectError, RevisionDiff};
use crate::clock::Deadline;
use crate::console::Console;
use crate::console::action::Action;
use crate::console::change_form::{hidden, reason};
use crate::console::fields::{FormFields, Link};
use crate::console::layout::{Frame, failure};
use crate::console::page_error::PageError;
use crate::console::project_access::{ADMIN, AccessError, OPERATE_OR_ADMIN, field_of};
use crate::console::rule_diff::RuleDiff;
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, number, time};
use crate::console::visitor::ConsoleVisitor;
use crate::projects::{History, ProjectId, Revision};
use crate::proto_values::timestamp;

/// Longest wait for the store.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Longest wait for a write.
const MAX_WRITE_TIME: Duration = Duration::from_secs(20);

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
    id: ProjectId,
    history: Result<History, String>,
    compared: Compared,
    diff: Option<Result<RevisionDiff, String>>,
    /// Revision of the project that a visitor of this page has seen.
    seen: u64,
    may_roll_back: bool,
    problem: Option<String>,
    reason: String,
}

/// Shows the revisions, and the differences between two.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes()).unwrap_or_default();
    let id = console.admitted(&visitor, query.one("project"), OPERATE_OR_ADMIN).await?;
    let frame = console.frame_after_change(&visitor, "projects", &query);
    let field = |name| query.one(name).unwrap_or_default().to_owned();
    let compared = Compared { revision: field("revision"), base: field("base") };
    Ok(respond(&console, &visitor, (id, frame, compared), None).await)
}

/// Makes the rules of a revision those of the project again.
pub(in crate::console) async fn roll_back(
    State(console): State<Console>,
    action: Action,
) -> Result<Response, Response> {
    let Action { visitor, fields, .. } = action;
    let id = console.admitted(&visitor, fields.one("project"), ADMIN).await?;
    Ok(match try_roll_back(&console, &visitor, &id, &fields).await {
        Ok(outcome) => {
            let link = Link::to("history").with("project", field_of(&id));
            console.done(&visitor, link, &outcome)
        }
        Err(error) => {
            let revision = fields.one("revision").unwrap_or_default().to_owned();
            let compared = Compared { revision, base: String::new() };
            let frame = console.frame(&visitor, "projects");
            respond(&console, &visitor, (id, frame, compared), Some((error, fields))).await
        }
    })
}

async fn try_roll_back(
    console: &Console,
    visitor: &ConsoleVisitor,
    id: &ProjectId,
    fields: &FormFields,
) -> Result<String, PageError> {
    let count = |name| {
        let text = fields.one(name).map_err(PageError::invalid)?;
        let valid = format!("{name} must be a whole number");
        text.parse::<u64>().map_err(|_| PageError::invalid(valid))
    };
    let (number, expected) = (count("revision")?, count("expected")?);
    let call = ProjectCall {
        actor: visitor.caller.actor().to_owned(),
        action: "Rollback",
        reason: fields.one("reason").map_err(PageError::invalid)?.to_owned(),
        // The revision lets a form be sent once.
        request_id: String::new(),
        scope: visitor.caller.scope(),
        deadline: Deadline::within(MAX_WRITE_TIME),
    };
    match console.projects.roll_back(&call, id, number, Some(expected)).await {
        Ok(written) if written.changes.is_empty() => {
            Ok(format!("The rules are those of revision {number} already: nothing was changed."))
        }
        Ok(written) => {
            let made = written.revision.map_or(0, |revision| revision.number);
            Ok(format!("The rules of revision {number} are in force again, as revision {made}."))
        }
        Err(ProjectError::StaleRevision) if is_in_force(console, id, number).await => Ok(format!(
            "The rules of revision {number} are in force already: nothing was left to change."
        )),
        Err(error @ ProjectError::StaleRevision) => {
            let text =
                "Others have changed the project since you loaded this page: nothing was rolled \
                        back. Compare again, and roll back if you still want to."
                    .to_owned();
            Err(PageError { problem: text, ..error.into() })
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns `true` if the rules in force are those of a revision: perhaps the form was sent twice.
async fn is_in_force(console: &Console, id: &ProjectId, number: u64) -> bool {
    let deadline = Deadline::within(MAX_TIME);
    let newest = console.projects.revision(id, 0, Some(number), deadline).await;
    newest.is_ok_and(|diff| diff.changes.is_empty())
}

async fn respond(
    console: &Console,
    visitor: &ConsoleVisitor,
    (id, frame, compared): (ProjectId, Frame, Compared),
    refused: Option<(PageError, FormFields)>,
) -> Response {
    let Ok(state) = console.projects.project(&id) else {
        return console.refuse_access(AccessError::NoProject).await;
    };
    let deadline = Deadline::within(MAX_TIME);
    let history = console.projects.revisions(&id, deadline).await;
    let diff = diff(console, &id, &compared, deadline).await;
    let status = match (&refused, &history, &diff) {
        (Some((error, _)), ..) | (None, Ok(_), Some(Err(error))) => error.status,
        (None, Err(error), _) => PageError::from(error.clone()).status,
        (None, Ok(_), _) => StatusCode::OK,
    };
    let (problem, fields) = refused.map(|(error, fields)| (error.sentence(), fields)).unzip();
    let field = |name| fields.as_ref().and_then(|fields| fields.one(name).ok()).unwrap_or_default();
    // Without the differences the visitor sees nothing that others have changed meanwhile.
    let seen = match &diff {
        Some(Err(_)) => field("expected").parse().unwrap_or_default(),
        _ => state.revision,
    };
    let page = HistoryPage {
        frame,
        history: history.map_err(|error| PageError::from(error).sentence()),
        compared,
        diff: diff.map(|diff| diff.map_err(|error| error.sentence())),
        seen,
        may_roll_back: visitor.caller.roles_in(&id).intersects(ADMIN),
        id,
        problem,
        reason: field("reason").to_owned(),
    };
    console.page(status, move || page.render()).await
}

/// Returns the differences that are asked for, if any are.
async fn diff(
    console: &Console,
    id: &ProjectId,
    Compared { revision, base }: &Compared,
    deadline: Deadline,
) -> Option<Result<RevisionDiff, PageError>> {
    if revision.is_empty() {
        return None;
    }
    let number = |name: &str, text: &str| {
        let invalid = || PageError::invalid(format!("{name} must be the number of a revision"));
        text.parse::<u64>().map_err(|_| invalid())
    };
    let base = Some(base).filter(|base| !base.is_empty());
    let numbers = number("Revision", revision)
        .and_then(|revision| Ok((revision, base.map(|base| number("Base", base)).transpose()?)));
    Some(match numbers {
        Ok((revision, base)) => {
            let diff = console.projects.revision(id, revision, base, deadline).await;
            diff.map_err(PageError::from)
        }
        Err(error) => Err(error),
    })
}

impl HistoryPage {
    fn render(&self) -> Markup {
        let id = field_of(&self.id);
        let content = html! {
            @if let Some(problem) = &self.problem { (failure(problem)) }
            p {
                a href=(Link::to("project").with("id", id)) { "Project " (foreign(id)) }
                " · " a href=(Link::to("change").with("project", id)) { "Change the rules" }
            }
            @match &self.diff {
                Some(Ok(diff)) => (self.diff(diff)),
                Some(Err(problem)) => {
                    (failure(problem))
                    @if let Some(revision) = self.refused_roll_back() { (self.roll_back_form(revision)) }
                }
                None => {}
            }
            h2 { "Revisions" }
            @match &self.history {
                Err(problem) => (failure(&format!("The history can't be read. {problem}"))),
                Ok(history) if history.iter().next().is_none() => {
                    p.notice { "The rules of the project were never changed at run time." }
                }
                Ok(history) => (self.table(history)),
            }
        };
        let of = if self.id.is_unnamed() { "requests without an API key" } else { id };
        self.frame.page(&format!("History of the rules: {of}"), &content)
    }

    /// Returns the revision of a form that was refused, whose reason stays.
    fn refused_roll_back(&self) -> Option<u64> {
        let is_refused = self.problem.is_some() && self.may_roll_back;
        self.compared.revision.parse().ok().filter(|_| is_refused)
    }

    fn link(&self, revision: u64) -> Link {
        Link::to("history")
            .with("project", field_of(&self.id))
            .with("revision", &revision.to_string())
    }

    fn table(&self, history: &History) -> Markup {
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
            @for Revision { number: of, at, actor, action, reason, changes } in history.iter() {
                tr {
                    th.right scope="row" { a href=(self.link(*of)) { (number(*of)) } }
                    td { (time(Some(&timestamp(*at)))) }
                    td { (foreign(actor)) }
                    td { (foreign(action)) }
                    td.wide { @if reason.is_empty() { span.muted { "–" } } @else { (foreign(reason)) } }
                    td.right { (number(changes.len() as u64)) }
                }
            }
        })
    }

    /// Shows a revision beside another one, with the form to go back to it.
    fn diff(&self, RevisionDiff { revision, changes }: &RevisionDiff) -> Markup {
        let Compared { base, .. } = &self.compared;
        let base_text =
            if base.is_empty() { "the one before".to_owned() } else { format!("revision {base}") };
        let caption = format!("Revision {} against {base_text}", revision.number);
        html! {
            h2 { "Revision " (revision.number) }
            p {
                (foreign(&revision.action)) " by " (foreign(&revision.actor)) ", "
                (time(Some(&timestamp(revision.at))))
                @if !revision.reason.is_empty() { ": " (foreign(&revision.reason)) }
            }
            @if let Ok(history) = &self.history { (self.base_form(history, revision.number)) }
            @if changes.is_empty() { p.notice { "No rule differs." } }
            @else { (RuleDiff { of: "differences", caption: &caption, changes }.render()) }
            @if self.is_newest(revision.number) {
                p.hint { "It is the newest revision: its rules are those of the project." }
            } @else if self.may_roll_back { (self.roll_back_form(revision.number)) }
        }
    }

    fn is_newest(&self, number: u64) -> bool {
        let newest = self.history.as_ref().ok().and_then(|history| history.iter().next());
        newest.is_some_and(|newest| newest.number == number)
    }

    fn base_form(&self, history: &History, shown: u64) -> Markup {
        let base = &self.compared.base;
        html! {
            form.row method="get" action="history" {
                input type="hidden" name="project" value=(field_of(&self.id));
                input type="hidden" name="revision" value=(shown);
                div {
                    label for="base" { "Compare with" }
                    select #base name="base" {
                        option value="" selected[base.is_empty()] { "the one before" }
                        @for Revision { number, .. } in history.iter().filter(|of| of.number != shown) {
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
                (reason("reason", &self.reason))
                button.danger { "Roll back to revision " (revision) }
            }
        }
    }
}
