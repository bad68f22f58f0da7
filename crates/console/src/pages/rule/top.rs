//! The keys of a rule with the highest counts: in clear with the role `operate`, else hashed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use prost_types::Duration;
use rlaas_proto::csv;
use rlaas_proto::ratelimit::admin::v1::{
    KeyState, TopKey, TopKeyList, TopKeysRequest, TopKeysResponse,
};

use super::{RulePage, link_with};
use crate::calls::id_of;
use crate::fields::{FormFields, Link};
use crate::key_states::{end, key_page, linked_key, now};
use crate::page_error::PageError;
use crate::pages::now::percent;
use crate::pages::project::usage::file;
use crate::rule_words::units;
use crate::table::Table;
use crate::text::{foreign, grouped, number, visible};
use crate::visit::{Visit, Visitor};

/// Most keys.
const MAX_KEYS: i32 = 20;

/// The kinds of keys. The first is the default.
const KINDS: [Kind; 3] = [
    Kind {
        field: "denied",
        name: "Refused most",
        count: "Refused",
        list: |top| top.denied.as_ref(),
    },
    Kind {
        field: "near",
        name: "Near the limit",
        count: "Allowed near the limit",
        list: |top| top.near_limit.as_ref(),
    },
    Kind { field: "used", name: "Use most", count: "Units used", list: |top| top.used.as_ref() },
];
/// The time of counts, in seconds.
const WINDOW: i64 = 3_600;

/// A kind of keys, with the name of its count.
#[derive(Debug)]
pub(super) struct Kind {
    field: &'static str,
    name: &'static str,
    count: &'static str,
    list: fn(&TopKeysResponse) -> Option<&TopKeyList>,
}

/// Returns the kind of keys that a query asks for.
pub(super) fn kind(query: &FormFields) -> Result<&'static Kind, PageError> {
    let field = query.get("top");
    let found = KINDS.iter().find(|kind| field.is_empty() || kind.field == field);
    found.ok_or_else(|| PageError::invalid("top must be denied, near or used"))
}

/// Counts the keys of a rule.
pub(super) async fn read(
    visitor: &Visitor,
    project: &str,
    rule: &str,
) -> Result<TopKeysResponse, PageError> {
    let request = TopKeysRequest {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        window: Some(Duration { seconds: WINDOW, nanos: 0 }),
        max_keys: MAX_KEYS,
        with_state: true,
        ..TopKeysRequest::default()
    };
    visitor.top_keys(request).await
}

impl RulePage {
    /// Shows the keys, with links to the other kinds.
    pub(super) fn top(&self) -> Markup {
        html! {
            h2 id="top" { "Keys hit hardest in the last hour" }
            nav.tabs aria-label="Keys" {
                ul {
                    @for Kind { field, name, .. } in KINDS {
                        @let is_chosen = field == self.shown_top.field;
                        li {
                            a href=(link_with(&self.query, "top", field)) aria-current=[is_chosen.then_some("true")] { (name) }
                        }
                    }
                }
            }
            @match &self.top {
                Err(_) if !self.frame.visitor.sees_instances() => p.notice { "Keys are not known." },
                Err(error) => p.notice { "Keys are not known: " (foreign(&error.problem)) "." },
                Ok(top) => {
                    (self.keys((self.shown_top.list)(top)))
                    @if self.frame.visitor.sees_instances() { (coverage(top)) }
                }
            }
        }
    }

    /// Shows what keys have used of the current window of a calendar; nothing of other rules, or if no state is
    /// known.
    pub(super) fn window_use(&self) -> Markup {
        let top = self.top.as_ref().ok().filter(|_| self.rule.calendar.is_some());
        let keys = top.map(by_use).unwrap_or_default();
        let visitor = &self.frame.visitor;
        let caption = "Keys of the last hour, those that have used most first";
        let table = Table::<(&TopKey, &KeyState)>::new("use", caption)
            .cards()
            .text("Customer", |(key, _)| linked_key(key_page(visitor, key).as_ref(), key))
            .text("Used", |(_, state)| html! { (state.use_words(units)) })
            .right("Share", |(_, state)| {
                html! { (percent(state.used.unsigned_abs(), state.limit.unsigned_abs())) }
            })
            .text("Resets", |(_, state)| end(state, state.reset_after.as_ref()));
        html! {
            @if !keys.is_empty() {
                h2 id="use" { "Used of the current window" }
                (table.rows(&keys))
                p { a href=(Link::like("use.csv", &self.query, &["project", "name"])) download { "Download as CSV" } }
            }
        }
    }

    fn keys(&self, list: Option<&TopKeyList>) -> Markup {
        let keys = list.map(|list| &*list.keys).unwrap_or_default();
        let total = list.map_or(0, |list| list.total);
        let exact = match keys.iter().map(|key| key.error).max() {
            None | Some(0) => "which are exact".to_owned(),
            Some(error) => format!("which are at most {error} too high"),
        };
        let caption = format!(
            "Keys with the highest counts of the last 55 to 60 minutes, {exact}. All keys together: {}",
            grouped(total)
        );
        let visitor = &self.frame.visitor;
        let table = Table::<TopKey>::new("keys", &caption)
            .text("Key", |key| linked_key(key_page(visitor, key).as_ref(), key))
            .right(self.shown_top.count, |key| number(key.count))
            .right("Share", |key| html! { (percent(key.count.min(total), total)) });
        let is_known = keys.iter().any(|key| key.state.is_some());
        let table = if is_known { table.text("Now", now) } else { table };
        html! {
            @if keys.is_empty() { p.notice { "No key has any in this time." } }
            @else { (table.rows(keys)) }
        }
    }
}

/// Responds with what keys have used of the current window of a rule, as comma-separated values.
pub(crate) async fn download(visit: Visit) -> Response {
    let (project, rule) = (visit.fields.get("project"), visit.fields.get("name"));
    let top = read(&visit.visitor, id_of(project), rule).await;
    let lines = top.map(|top| {
        let line = |(key, state): (&TopKey, &KeyState)| {
            let KeyState { used, limit, reset_at, .. } = state;
            let customer = key.key.clone().unwrap_or_default().words(visible);
            let reset_at = reset_at.map_or(String::new(), |at| at.to_string());
            let share = percent(used.unsigned_abs(), limit.unsigned_abs());
            format!("{},{used},{limit},{share},{reset_at}\r\n", csv::quoted(&customer))
        };
        let lines: String = by_use(&top).into_iter().map(line).collect();
        "customer,used,limit,share,reset_at\r\n".to_owned() + &lines
    });
    file(&visit, "use", lines).await
}

/// Returns the keys with a limit and their states, those that have used the largest part of it first.
fn by_use(top: &TopKeysResponse) -> Vec<(&TopKey, &KeyState)> {
    let lists = [&top.used, &top.denied, &top.near_limit];
    let keys = lists.into_iter().flatten().flat_map(|list| &list.keys);
    let known = keys.filter_map(|key| Some((&*key.key.as_ref()?.id, (key, key.state.as_ref()?))));
    let mut keys: Vec<_> = known.collect::<BTreeMap<_, _>>().into_values().collect();
    keys.retain(|(_, state)| ![0, i64::MAX].contains(&state.limit));
    keys.sort_by_key(|(_, state)| {
        Reverse(i128::from(state.used) * 1_000_000 / i128::from(state.limit))
    });
    keys
}

/// Says which instances the counts are of.
fn coverage(top: &TopKeysResponse) -> Markup {
    let coverage = top.coverage.clone().unwrap_or_default();
    let (instances, missing) = (coverage.instances.len(), coverage.missing.len());
    html! {
        p.hint {
            "Of " (number(instances as u64)) @if instances == 1 { " instance" } @else { " instances" }
            @if missing > 0 { "; " strong.bad { (number(missing as u64)) " missing" } }
            "."
        }
    }
}
