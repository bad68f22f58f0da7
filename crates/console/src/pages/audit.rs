//! The audit: who changed what, when and why, newest first.

use std::time::SystemTime;

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use prost_types::Timestamp;
use rlaas_proto::limit_words;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State as Outcome;
use rlaas_proto::ratelimit::admin::v1::{
    AuditEntry, KeyState, ListAuditRequest, ListAuditResponse,
};

use super::key::choices::{self, Choices};
use crate::action_words::{action_words, old_and_new};
use crate::calls::{EVERY_PROJECT, READ_TIME, id_of, within};
use crate::fields::{FormFields, Link, search_input};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_words::{key_text, project_name, rule_link, units};
use crate::table::Table;
use crate::text::{folded, foreign, joined, time};
use crate::visit::{Visit, Visitor};

/// Seconds of a day.
const DAY: i64 = 24 * 60 * 60;
/// The fields of a search beside project and rule; empty ones limit nothing. Days are by UTC, such as
/// 2026-11-23.
const SEARCH: [(&str, &str, &str); 4] = [
    ("actor", "Who", "text"),
    ("key", "API key", "text"),
    ("from", "From day (UTC)", "date"),
    ("to", "To day (UTC)", "date"),
];
/// Ranges up to now: their values of `last`, names and seconds.
const RANGES: [(&str, &str, i64); 4] = [
    ("1h", "hour", 60 * 60),
    ("1d", "24 hours", DAY),
    ("7d", "7 days", 7 * DAY),
    ("30d", "30 days", 30 * DAY),
];

/// Shows the changes that a visitor looks for.
pub(crate) async fn show(visit: Visit) -> Response {
    let frame = visit.frame("audit");
    let choices = choices::read(&visit, visit.fields.get("project")).await;
    let Visit { console, visitor, fields } = visit;
    let found = list(&visitor, &fields).await;
    let status = found.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    console.page(status, move || render(&frame, &choices, &fields, &found)).await
}

async fn list(visitor: &Visitor, search: &FormFields) -> Result<ListAuditResponse, PageError> {
    search.check()?;
    let project = search.get("project");
    let project = if project.is_empty() { EVERY_PROJECT } else { id_of(project) };
    let (last, until) = (search.get("last"), day("to", search.get("to"))?);
    let since = match RANGES.iter().find(|(name, ..)| *name == last) {
        Some((.., seconds)) => Some(before_now(*seconds)),
        None if last.is_empty() => day("from", search.get("from"))?,
        None => return Err(PageError::invalid("last must be 1h, 1d, 7d or 30d")),
    };
    let request = ListAuditRequest {
        project_id: project.to_owned(),
        page_token: search.get("page").to_owned(),
        target: search.get("key").to_owned(),
        rule: search.get("rule").to_owned(),
        actor: search.get("actor").to_owned(),
        since,
        until: until.map(|day| Timestamp { seconds: day.seconds + DAY, nanos: 0 }),
        ..ListAuditRequest::default()
    };
    Ok(visitor.admin().list_audit(within(READ_TIME, request)).await?.into_inner())
}

#[expect(clippy::disallowed_methods, reason = "the audit has wall time, and the range ends now")]
fn before_now(seconds: i64) -> Timestamp {
    let now = Timestamp::from(SystemTime::now());
    Timestamp { seconds: now.seconds - seconds, nanos: 0 }
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
    choices: &Choices,
    search: &FormFields,
    found: &Result<ListAuditResponse, PageError>,
) -> Markup {
    let of_what = Link::like("audit", search, &["project", "rule", "actor", "key"]);
    let link = ["from", "to", "last"]
        .into_iter()
        .fold(of_what.clone(), |link, name| link.with(name, search.get(name)));
    let project = search.get("project");
    let is_given = !link.query().is_empty();
    let content = html! {
        form.row method="get" action="audit" {
            (choices.project(project))
            @if project.is_empty() { (search_input("rule", "Rule", "text", search.get("rule"))) }
            @else { (choices.rule(search.get("rule"))) }
            @for (name, label, kind) in SEARCH { (search_input(name, label, kind, search.get(name))) }
            button.primary { "Show" }
        }
        p {
            "The last "
            (joined(RANGES, " · ", |(range, name, _)| html! {
                a href=(of_what.clone().with("last", range)) aria-current=[(search.get("last") == range).then_some("true")] { (name) }
            }))
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
    let table = Table::<AuditEntry>::new("changes", "Changes, newest first. Ids are hashed, unless audit.keys is clear")
        .text("When", |entry| time(entry.created_at.as_ref()))
        .text("Who", |entry| foreign(&entry.actor))
        .wide("What", |entry| {
            html! { strong { (action_words(&entry.action)) } br; (foreign(&entry.summary)) (keys(entry)) }
        })
        .text("Project", |entry| project_name(&entry.project_id))
        .text("Rule or key", target)
        .text("Old → new", old_and_new)
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
