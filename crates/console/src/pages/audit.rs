//! The audit: who changed what, when and why, newest first.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use prost_types::Timestamp;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State as Outcome;
use rlaas_proto::ratelimit::admin::v1::{
    AuditEntry, KeyState, ListAuditRequest, ListAuditResponse,
};

use crate::Console;
use crate::calls::{EVERY_PROJECT, READ_TIME, id_of, within};
use crate::fields::{FormFields, Link};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_words::rule_link;
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, number, time};
use crate::visit::Visitor;

/// Seconds of a day.
const DAY: i64 = 24 * 60 * 60;

/// A search in the audit: the fields of the form. Empty ones limit nothing.
#[derive(Clone, Debug, Default)]
struct AuditSearch {
    project: String,
    actor: String,
    rule: String,
    /// Days by UTC, such as 2026-11-23.
    from: String,
    to: String,
    page: String,
}

/// Shows the changes that a visitor looks for.
pub(crate) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let frame = visitor.frame("audit");
    let search = AuditSearch::parse(query.unwrap_or_default().as_bytes());
    let found = match &search {
        Ok(search) => list(&visitor, search).await,
        Err(error) => Err(error.clone()),
    };
    let status = found.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    let search = search.unwrap_or_default();
    console.page(status, move || render(&frame, &search, &found)).await
}

async fn list(visitor: &Visitor, search: &AuditSearch) -> Result<ListAuditResponse, PageError> {
    let project = if search.project.is_empty() { EVERY_PROJECT } else { id_of(&search.project) };
    let until = day("to", &search.to)?;
    let request = ListAuditRequest {
        project_id: project.to_owned(),
        page_token: search.page.clone(),
        target: search.rule.clone(),
        actor: search.actor.clone(),
        since: day("from", &search.from)?,
        until: until.map(|day| Timestamp { seconds: day.seconds + DAY, nanos: 0 }),
        ..ListAuditRequest::default()
    };
    Ok(visitor.admin().list_audit(within(READ_TIME, request)).await?.into_inner())
}

impl AuditSearch {
    fn parse(query: &[u8]) -> Result<Self, PageError> {
        let fields = FormFields::parse(query)?;
        let field = |name| fields.one(name).map(str::to_owned);
        Ok(Self {
            project: field("project")?,
            actor: field("actor")?,
            rule: field("rule")?,
            from: field("from")?,
            to: field("to")?,
            page: field("page")?,
        })
    }

    fn is_given(&self) -> bool {
        [&self.project, &self.actor, &self.rule, &self.from, &self.to]
            .into_iter()
            .any(|field| !field.is_empty())
    }

    fn link(&self, page: &str) -> Link {
        Link::to("audit")
            .with("project", &self.project)
            .with("actor", &self.actor)
            .with("rule", &self.rule)
            .with("from", &self.from)
            .with("to", &self.to)
            .with("page", page)
    }
}

/// Reads the beginning of a day, which is in UTC.
fn day(field: &str, text: &str) -> Result<Option<Timestamp>, PageError> {
    if text.is_empty() {
        return Ok(None);
    }
    let invalid = || {
        PageError::invalid(format!("{field} must be a day from 1970 to 9999, such as 2026-11-23"))
    };
    let is_day = text.len() == 10 && text.is_ascii();
    let at = format!("{text}T00:00:00Z").parse::<Timestamp>();
    let at = at.ok().filter(|at| is_day && at.seconds >= 0);
    at.map(Some).ok_or_else(invalid)
}

fn render(
    frame: &Frame,
    search: &AuditSearch,
    found: &Result<ListAuditResponse, PageError>,
) -> Markup {
    let content = html! {
        (form(search))
        @match found {
            Err(error) => (failure(&error.problem)),
            Ok(page) => {
                @if page.entries.is_empty() {
                    p.notice {
                        @if search.is_given() { "No change fits." }
                        @else { "Nothing has been changed so far: changes of keys, rules and projects appear here." }
                    }
                } @else { (table(&page.entries)) }
                @if !page.next_page_token.is_empty() {
                    p { a href=(search.link(&page.next_page_token)) { "Older changes" } }
                }
                @if !search.page.is_empty() { p { a href=(search.link("")) { "Newest changes" } } }
            }
        }
    };
    frame.page("Audit", &content)
}

fn form(search: &AuditSearch) -> Markup {
    let fields = [
        ("project", "Project (_ for none)", "text", &search.project),
        ("actor", "Who", "text", &search.actor),
        ("rule", "Rule or key", "text", &search.rule),
        ("from", "From day (UTC)", "date", &search.from),
        ("to", "To day (UTC)", "date", &search.to),
    ];
    html! {
        form.row method="get" action="audit" {
            @for (name, label, kind, value) in fields {
                div {
                    label for=(name) { (label) }
                    input id=(name) name=(name) type=(kind) value=(value) autocomplete="off" spellcheck="false";
                }
            }
            button.primary { "Show" }
        }
    }
}

/// Shows changes.
pub(super) fn table(entries: &[AuditEntry]) -> Markup {
    let table = PageTable {
        of: "changes",
        caption: "Changes, newest first",
        columns: &["When", "Who", "What", "Project", "Rule or key", "Why", "Outcome"]
            .map(PageColumn::Text),
    };
    table.with_rows(&html! { @for entry in entries { (row(entry)) } })
}

fn row(entry: &AuditEntry) -> Markup {
    html! {
        tr {
            th scope="row" { (time(entry.created_at.as_ref())) }
            td { (foreign(&entry.actor)) }
            td.wide {
                strong { (foreign(&entry.action)) } br;
                (foreign(&entry.summary))
                (keys(entry))
            }
            td { @if entry.project_id.is_empty() { span.muted { "none" } } @else { (foreign(&entry.project_id)) } }
            td { (target(entry)) }
            td.wide { @if entry.reason.is_empty() { span.muted { "–" } } @else { (foreign(&entry.reason)) } }
            td { (outcome(entry)) }
        }
    }
}

/// Shows the object of a change: a rule as a link.
fn target(entry: &AuditEntry) -> Markup {
    let is_rule = matches!(&*entry.action, "SetMode" | "CreateRule" | "UpdateRule" | "DeleteRule");
    let is_of_rule = is_rule || entry.before.iter().any(|state| state.rule == entry.target);
    html! {
        @match &*entry.target {
            "" => span.muted { "–" },
            rule if is_of_rule && rule != "*" => (rule_link(&entry.project_id, rule)),
            other => (foreign(other)),
        }
    }
}

/// Shows the keys of a change, before and after.
fn keys(entry: &AuditEntry) -> Markup {
    html! {
        @if !entry.before.is_empty() {
            details {
                summary { "Keys before and after" }
                ul {
                    @for (position, before) in entry.before.iter().enumerate() {
                        li {
                            (rule_link(&entry.project_id, &before.rule)) ": " (key(before)) ": "
                            (used(before)) " → "
                            @match entry.after.get(position) {
                                Some(after) => (used(after)),
                                None => span.muted { "not changed or not known" }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn key(state: &KeyState) -> Markup {
    let parts = state.key.as_ref().map(|key| key.parts.as_slice()).unwrap_or_default();
    html! {
        @for (position, part) in parts.iter().enumerate() {
            @if position > 0 { ", " }
            (foreign(&part.name)) " = "
            @match &part.value {
                Some(value) => (foreign(value)),
                None => span.muted { "any" }
            }
        }
    }
}

fn used(state: &KeyState) -> Markup {
    html! {
        (number(u64::try_from(state.used).unwrap_or_default())) " of "
        @match state.limit {
            0 => strong { "banned" },
            i64::MAX => "unlimited",
            limit => (number(u64::try_from(limit).unwrap_or_default()))
        }
    }
}

fn outcome(entry: &AuditEntry) -> Markup {
    html! {
        @match entry.state() {
            Outcome::Done => span.good { "done" },
            Outcome::Failed => {
                span.bad { "failed" }
                @if let Some(error) = &entry.error { ": " (foreign(&error.message)) }
            }
            Outcome::Unknown | Outcome::Unspecified => span.warn { "unknown: it may have been made" },
        }
        @if entry.revision > 0 { br; span.muted.nowrap { "revision " (number(entry.revision)) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_begin_by_utc() {
        assert_eq!(day("from", ""), Ok(None));
        let second = Timestamp { seconds: DAY, nanos: 0 };
        assert_eq!(day("from", "1970-01-02"), Ok(Some(second)));
        for text in ["1970-1-2", "1969-12-31", "2026-13-01", "2026-11-23T00", "x", "２０２６-11-23"]
        {
            let problem = day("to", text).expect_err(text);
            assert!(problem.problem.starts_with("to must be a day"), "{problem:?}");
        }
    }
}
