//! The keys of a rule with the highest counts: in clear with the role `operate`, else hashed.

use maud::{Markup, html};
use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::{TopKeysRequest, TopKeysResponse, TopKind};

use super::{RulePage, link_with};
use crate::fields::FormFields;
use crate::key_states::{StateOfKey, key_page, linked_key, now, with_states};
use crate::page_error::PageError;
use crate::pages::now::percent;
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
/// The time of counts, in seconds.
const WINDOW: i64 = 3_600;

/// The keys that a visitor looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownTop(TopKind);

/// The keys with the highest counts, and the answer that had them.
#[derive(Debug)]
pub(super) struct CountedKeys {
    keys: Vec<StateOfKey>,
    top: TopKeysResponse,
}

impl ShownTop {
    pub(super) fn parse(query: &FormFields) -> Result<Self, PageError> {
        let field = query.get("top");
        let found = KINDS.iter().find(|(_, of, _)| field.is_empty() || *of == field);
        let invalid = || PageError::invalid("top must be denied, near or used");
        found.map(|(kind, ..)| Self(*kind)).ok_or_else(invalid)
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
            kind: self.0.into(),
            window: Some(Duration { seconds: WINDOW, nanos: 0 }),
            max_keys: MAX_KEYS,
            ..TopKeysRequest::default()
        };
        let mut top = visitor.top_keys(request).await?;
        let keys = with_states(visitor, std::mem::take(&mut top.keys)).await;
        Ok(CountedKeys { keys, top })
    }
}

impl RulePage {
    /// Shows the keys, with links to the other kinds.
    pub(super) fn top(&self) -> Markup {
        html! {
            h2 id="top" { "Keys hit hardest in the last hour" }
            nav.tabs aria-label="Keys" {
                ul {
                    @for (kind, value, name) in KINDS {
                        @let is_chosen = kind == self.shown_top.0;
                        li {
                            a href=(link_with(&self.query, "top", value)) aria-current=[is_chosen.then_some("true")] { (name) }
                        }
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

    fn keys(&self, CountedKeys { keys, top }: &CountedKeys) -> Markup {
        let count = match self.shown_top.0 {
            TopKind::NearLimit => "Allowed near the limit",
            TopKind::Used => "Units taken",
            TopKind::Denied | TopKind::Unspecified => "Refused",
        };
        let caption = match keys.iter().map(|(key, _)| key.error).max() {
            None | Some(0) => "Keys with the highest counts, which are exact".to_owned(),
            Some(error) => {
                format!("Keys with the highest counts, which are at most {error} too high")
            }
        };
        let visitor = &self.frame.visitor;
        let table = Table::<StateOfKey>::new("keys", &caption)
            .text("Key", |(key, _)| linked_key(key_page(visitor, key).as_ref(), key))
            .right(count, |(key, _)| number(key.count))
            .right("Share", |(key, _)| html! { (percent(key.count.min(top.total), top.total)) });
        let is_known = keys.iter().any(|(_, state)| state.is_some());
        let table = if is_known { table.text("Now", now) } else { table };
        html! {
            @if keys.is_empty() { p.notice { "No key has any in this time." } }
            @else { (table.rows(keys)) }
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
