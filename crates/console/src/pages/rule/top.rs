//! The keys of a rule with the highest counts: in clear with the role `operate`, else hashed.

use std::collections::HashSet;

use maud::{Markup, html};
use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::{TopKey, TopKeysRequest, TopKeysResponse, TopKind};

use super::{RulePage, link_with};
use crate::calls::TOP_KEYS_TIME;
use crate::fields::{FormFields, Link};
use crate::page_error::PageError;
use crate::pages::exceptions;
use crate::pages::now::percent;
use crate::rule_words::key_text;
use crate::table::Table;
use crate::text::{foreign, number};
use crate::visit::Visitor;

/// Most keys.
const MAX_KEYS: i32 = 20;

/// The kinds of keys, with their fields and names. The first is the default.
const KINDS: [(TopKind, &str, &str); 3] = [
    (TopKind::Denied, "denied", "Refused most"),
    (TopKind::NearLimit, "near", "Near the limit"),
    (TopKind::Used, "used", "Use most"),
];
/// The times of counts, with their fields and names. The first is the default.
const WINDOWS: [(i64, &str, &str); 2] =
    [(3_600, "1h", "Last hour"), (900, "15m", "Last 15 minutes")];

/// The keys that a visitor looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownTop {
    kind: TopKind,
    /// The time of their counts, in seconds.
    window: i64,
}

/// The keys with the highest counts, and the ids of those that are banned, as far as the visitor may know.
#[derive(Debug)]
pub(super) struct CountedKeys {
    top: TopKeysResponse,
    banned: HashSet<String>,
}

impl ShownTop {
    pub(super) fn parse(query: &FormFields) -> Result<Self, PageError> {
        let kind = chosen(&KINDS, query, "top")?;
        Ok(Self { kind, window: chosen(&WINDOWS, query, "window")? })
    }

    /// Counts the keys of a rule.
    pub(super) async fn read(
        self,
        visitor: &Visitor,
        project: &str,
        rule: &str,
    ) -> Result<CountedKeys, PageError> {
        let request = TopKeysRequest {
            project_id: project.to_owned(),
            rule: rule.to_owned(),
            kind: self.kind.into(),
            window: Some(Duration { seconds: self.window, nanos: 0 }),
            max_keys: MAX_KEYS,
            ..TopKeysRequest::default()
        };
        let bans = async {
            let read =
                tokio::time::timeout(TOP_KEYS_TIME, exceptions::bans(visitor, project, rule));
            if visitor.is_admin(project) { read.await.ok()?.ok() } else { None }
        };
        let (top, bans) = tokio::join!(visitor.top_keys(request), bans);
        let banned = bans.into_iter().flatten().filter_map(|ban| Some(ban.key?.id)).collect();
        Ok(CountedKeys { top: top?, banned })
    }
}

/// Returns the value that a visitor has chosen; the first one if they have not.
fn chosen<T: Copy>(
    all: &[(T, &str, &str)],
    query: &FormFields,
    name: &str,
) -> Result<T, PageError> {
    let field = query.get(name);
    let found = all.iter().find(|(_, of, _)| field.is_empty() || *of == field);
    found.map(|(value, ..)| *value).ok_or_else(|| {
        let valid: Vec<_> = all.iter().map(|(_, of, _)| *of).collect();
        PageError::invalid(format!("{name} must be {}", valid.join(" or ")))
    })
}

impl RulePage {
    /// Shows the keys, with links to the other kinds and times.
    pub(super) fn top(&self) -> Markup {
        let ShownTop { kind: shown_kind, window: shown_window } = self.shown_top;
        let tab = |name: &str, (field, value): (&str, &str), is_chosen: bool| {
            let link = link_with(&self.query, field, value);
            html! { li { a href=(link) aria-current=[is_chosen.then_some("true")] { (name) } } }
        };
        html! {
            h2 id="top" { "Keys hit hardest" }
            nav.tabs aria-label="Keys and time" {
                ul {
                    @for (kind, value, name) in KINDS {
                        (tab(name, ("top", value), kind == shown_kind))
                    }
                }
                ul {
                    @for (window, value, name) in WINDOWS {
                        (tab(name, ("window", value), window == shown_window))
                    }
                }
            }
            @match &self.top {
                Err(_) if !self.frame.visitor.sees_instances() => p.notice { "Keys are not known." },
                Err(error) => p.notice { "Keys are not known: " (foreign(&error.problem)) "." },
                Ok(counted) => {
                    (self.keys(counted))
                    @if self.frame.visitor.sees_instances() { (coverage(&counted.top)) }
                }
            }
        }
    }

    fn keys(&self, CountedKeys { top, banned }: &CountedKeys) -> Markup {
        let count = match self.shown_top.kind {
            TopKind::NearLimit => "Allowed near the limit",
            TopKind::Used => "Units taken",
            TopKind::Denied | TopKind::Unspecified => "Refused",
        };
        let caption = match top.keys.iter().map(|key| key.error).max() {
            None | Some(0) => "Keys with the highest counts, which are exact".to_owned(),
            Some(error) => {
                format!("Keys with the highest counts, which are at most {error} too high")
            }
        };
        let table = Table::<TopKey>::new("keys", &caption)
            .text("Key", |key| {
                let is_banned = key.key.as_ref().is_some_and(|key| banned.contains(&key.id));
                html! { (self.key(key)) @if is_banned { " " span.bad { "banned" } } }
            })
            .right(count, |key| number(key.count))
            .right("Share", |key| html! { (percent(key.count.min(top.total), top.total)) });
        html! {
            @if top.keys.is_empty() { p.notice { "No key has any in this time." } }
            @else { (table.rows(&top.keys)) }
        }
    }

    fn key(&self, key: &TopKey) -> Markup {
        let key = key.key.clone().unwrap_or_default();
        let text = key_text(&key);
        let link = Link::to("key").with("project", self.query.get("project"));
        html! {
            // A long key has no parts, and can't be found by its id.
            @if self.is_operator && !key.parts.is_empty() {
                a href=(link.with("rule", &self.rule.name).with("id", &key.id)) { (text) }
            } @else { (text) }
        }
    }
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
