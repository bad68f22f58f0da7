//! The changes in the time of a chart: a line below it. The script of charts marks their times.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_proto::ratelimit::admin::v1::{AuditEntry, ListAuditRequest};

use super::action_words::{action_words, old_and_new};
use super::calls::{READ_TIME, within};
use super::decisions::Interval;
use super::fields::Link;
use super::text::{foreign, joined, number, time};
use super::visit::Visitor;

/// Most changes that are marked, and most that are shown.
const MAX_MARKED: i32 = 50;
const MAX_SHOWN: usize = 3;

/// Returns the changes from the beginning of an interval on, newest first, but those that failed: of a
/// project, and of a rule unless it is empty. None for visitors who may not see them, and while they are
/// not known.
pub(super) async fn changes(
    visitor: &Visitor,
    project: &str,
    rule: &str,
    (from, _): Interval,
) -> Vec<AuditEntry> {
    if visitor.store.is_away {
        return Vec::new();
    }
    let request = ListAuditRequest {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        since: Some(from),
        page_size: MAX_MARKED,
        ..ListAuditRequest::default()
    };
    let listed = visitor.admin().list_audit(within(READ_TIME, request)).await;
    let mut entries = listed.map(|listed| listed.into_inner().entries).unwrap_or_default();
    entries.retain(|entry| entry.state() != State::Failed);
    entries
}

/// Shows changes in one line, with a link to the audit for the others.
pub(super) fn changes_line(entries: &[AuditEntry], audit: &Link) -> Markup {
    let (shown, others) = entries.split_at(entries.len().min(MAX_SHOWN));
    html! {
        @if !shown.is_empty() {
            p {
                "Changed: "
                (joined(shown, "; ", |entry| html! {
                    span data-changed-at=[changed_at(entry)] {
                        (time(entry.created_at.as_ref())) " " (foreign(&entry.actor)) ": " (action_words(&entry.action))
                        @if !entry.target.is_empty() { " " (foreign(&entry.target)) }
                        " " (old_and_new(entry))
                    }
                }))
                @for entry in others { span data-changed-at=[changed_at(entry)] {} }
                @if !others.is_empty() { "; " a href=(audit) { "at least " (number(others.len() as u64)) " more" } }
            }
        }
    }
}

/// Returns the second of a change.
fn changed_at(entry: &AuditEntry) -> Option<i64> {
    entry.created_at.as_ref().map(|at| at.seconds)
}
