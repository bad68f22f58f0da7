//! The audit: who changed what, when and why, newest first.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use prost_types::Timestamp;
use rlaas_proto::limit_words;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State as Outcome;
use rlaas_proto::ratelimit::admin::v1::{
    AuditEntry, KeyState, ListAuditRequest, ListAuditResponse,
};

use crate::action_words::action_words;
use crate::calls::{EVERY_PROJECT, READ_TIME, id_of, within};
use crate::fields::{FormFields, Link, search_input};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_words::{key_text, project_name, rule_link, units};
use crate::table::Table;
use crate::text::{folded, foreign, number, time};
use crate::visit::{Visit, Visitor};

/// Seconds of a day.
const DAY: i64 = 24 * 60 * 60;
/// The fields of a search; empty ones limit nothing. Days are by UTC, such as 2026-11-23.
const SEARCH: [(&str, &str, &str); 5] = [
    ("project", "Project (_ for none)", "text"),
    ("actor", "Who", "text"),
    ("rule", "Rule or key", "text"),
    ("from", "From day (UTC)", "date"),
    ("to", "To day (UTC)", "date"),
];

/// Shows the changes that a visitor looks for.
pub(crate) async fn show(visit: Visit) -> Response {
    let frame = visit.frame("audit");
    let Visit { console, visitor, fields } = visit;
    let found = list(&visitor, &fields).await;
    let status = found.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    console.page(status, move || render(&frame, &fields, &found)).await
}

async fn list(visitor: &Visitor, search: &FormFields) -> Result<ListAuditResponse, PageError> {
    search.check()?;
    let project = search.get("project");
    let project = if project.is_empty() { EVERY_PROJECT } else { id_of(project) };
    let until = day("to", search.get("to"))?;
    let request = ListAuditRequest {
        project_id: project.to_owned(),
        page_token: search.get("page").to_owned(),
        target: search.get("rule").to_owned(),
        actor: search.get("actor").to_owned(),
        since: day("from", search.get("from"))?,
        until: until.map(|day| Timestamp { seconds: day.seconds + DAY, nanos: 0 }),
        ..ListAuditRequest::default()
    };
    Ok(visitor.admin().list_audit(within(READ_TIME, request)).await?.into_inner())
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
    search: &FormFields,
    found: &Result<ListAuditResponse, PageError>,
) -> Markup {
    let link = Link::like("audit", search, &SEARCH.map(|(name, ..)| name));
    let is_given = !link.query().is_empty();
    let content = html! {
        form.row method="get" action="audit" {
            @for (name, label, kind) in SEARCH { (search_input(name, label, kind, search.get(name))) }
            button.primary { "Show" }
        }
        @match found {
            Err(error) => (failure(&error.problem)),
            Ok(page) => {
                @if page.entries.is_empty() {
                    p.notice {
                        @if is_given { "No change fits." }
                        @else { "Nothing has been changed so far: changes of keys, rules and projects appear here." }
                    }
                } @else { (table(&page.entries)) }
                @if !page.next_page_token.is_empty() {
                    p { a href=(link.clone().with("page", &page.next_page_token)) { "Older changes" } }
                }
                @if !search.get("page").is_empty() { p { a href=(link) { "Newest changes" } } }
            }
        }
    };
    frame.page("Audit", &content)
}

/// Shows changes.
pub(super) fn table(entries: &[AuditEntry]) -> Markup {
    let table = Table::<AuditEntry>::new(
        "changes",
        "Changes, newest first. Ids are hashed, unless audit.keys is clear",
    )
    .text("When", |entry| time(entry.created_at.as_ref()))
    .text("Who", |entry| foreign(&entry.actor))
    .wide("What", |entry| {
        html! {
            strong { (action_words(&entry.action)) } " " (entry.old_and_new(units))
            br; (foreign(&entry.summary)) (keys(entry))
        }
    })
    .text("Project", |entry| project_name(&entry.project_id))
    .text("Rule or key", target)
    .wide("Why", |entry| folded(&entry.reason))
    .text("Outcome", outcome);
    table.rows(entries)
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
                            (rule_link(&entry.project_id, &before.rule)) ": " (key_text(&before.key.clone().unwrap_or_default())) ": "
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

fn used(state: &KeyState) -> String {
    match state.limit {
        0 | i64::MAX => limit_words(state.limit, units),
        _ => state.use_words(units),
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
