//! The parts of its limit that keys of a rule have used, as they were told.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{ListThresholdEventsRequest, ThresholdEvent};

use super::RulePage;
use crate::calls::{READ_TIME, within};
use crate::rule_words::{key_text, share};
use crate::table::Table;
use crate::text::{number, time};
use crate::visit::Visitor;

/// Most events of a page.
const SHOWN: usize = 10;

/// Returns the newest events of a rule, newest first; nothing if they can't be read.
pub(super) async fn read(visitor: &Visitor, project: &str, rule: &str) -> Vec<ThresholdEvent> {
    let request = ListThresholdEventsRequest {
        project_id: project.to_owned(),
        page_size: 1_000,
        ..ListThresholdEventsRequest::default()
    };
    let listed = visitor.admin().list_threshold_events(within(READ_TIME, request)).await;
    let events = listed.map(|listed| listed.into_inner().events).unwrap_or_default();
    events.into_iter().rev().filter(|event| event.rule == rule).take(SHOWN).collect()
}

impl RulePage {
    /// Shows the events; nothing of rules without `notify-at`.
    pub(super) fn reached(&self) -> Markup {
        let table = Table::<ThresholdEvent>::new("events", "The last events, newest first")
            .cards()
            .text("Time", |event| html! { (time(event.time.as_ref())) })
            .text("Key", |event| html! { @if let Some(key) = &event.key { (key_text(key)) } })
            .right("Reached", |event| html! { (share(event.threshold_ppm)) })
            .right(
                "Used",
                |event| html! { (number(event.count)) " of " (number(event.limit.unsigned_abs())) },
            )
            .text("Until", |event| html! { (time(event.window_ends_at.as_ref())) });
        html! {
            @if !self.rule.notify_at_ppm.is_empty() && self.is_operator {
                h2 id="events" { "Told to " code { "rlaas events" } }
                @if self.events.is_empty() { p.notice { "No key has reached a threshold yet." } }
                @else { (table.rows(&self.events)) }
            }
        }
    }
}
