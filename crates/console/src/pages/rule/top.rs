//! The keys of a rule with the highest counts: in clear with the role `operate`, else hashed.

use maud::{Markup, html};
use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::{KeyRef, TopKey, TopKeysRequest, TopKeysResponse, TopKind};

use super::{KINDS, RulePage, RuleQuery, WINDOWS};
use crate::calls::within;
use crate::fields::Link;
use crate::page_error::PageError;
use crate::pages::now::percent;
use crate::rule_words::key_parts;
use crate::table::Table;
use crate::text::{foreign, number};
use crate::visit::Visitor;

/// Longest wait for the store and for other instances.
const MAX_TIME: std::time::Duration = std::time::Duration::from_secs(2);
/// Most keys.
const MAX_KEYS: i32 = 20;

/// Counts the keys.
pub(super) async fn read(
    visitor: &Visitor,
    project: &str,
    query: &RuleQuery,
) -> Result<TopKeysResponse, PageError> {
    let request = TopKeysRequest {
        project_id: project.to_owned(),
        rule: query.name.clone(),
        kind: query.top.into(),
        window: Some(Duration { seconds: query.window, nanos: 0 }),
        max_keys: MAX_KEYS,
    };
    Ok(visitor.admin().top_keys(within(MAX_TIME, request)).await?.into_inner())
}

impl RulePage {
    /// Shows the keys, with links to the other kinds and times.
    pub(super) fn top(&self) -> Markup {
        let query = &self.query;
        let tab = |name: &str, of: RuleQuery, is_chosen: bool| {
            html! { li { a href=(of.link()) aria-current=[is_chosen.then_some("true")] { (name) } } }
        };
        html! {
            h2 id="top" { "Keys hit hardest" }
            nav.tabs aria-label="Keys and time" {
                ul {
                    @for (kind, _, name) in KINDS {
                        (tab(name, RuleQuery { top: kind, ..query.clone() }, kind == query.top))
                    }
                }
                ul {
                    @for (window, _, name) in WINDOWS {
                        (tab(name, RuleQuery { window, ..query.clone() }, window == query.window))
                    }
                }
            }
            @match &self.top {
                Err(_) if !self.frame.visitor.sees_instances() => p.notice { "Keys are not known." },
                Err(error) => p.notice { "Keys are not known: " (foreign(&error.problem)) "." },
                Ok(top) => {
                    (self.keys(top))
                    @if self.frame.visitor.sees_instances() { (coverage(top)) }
                }
            }
        }
    }

    fn keys(&self, top: &TopKeysResponse) -> Markup {
        let count = match self.query.top {
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
            .text("Key", |key| self.key(key))
            .right(count, |key| number(key.count))
            .right("Share", |key| html! { (percent(key.count.min(top.total), top.total)) });
        html! {
            @if top.keys.is_empty() { p.notice { "No key has any in this time." } }
            @else { (table.rows(&top.keys)) }
        }
    }

    fn key(&self, key: &TopKey) -> Markup {
        let KeyRef { parts, id, .. } = key.key.clone().unwrap_or_default();
        let text = html! { @if parts.is_empty() { (foreign(&id)) } @else { (key_parts(&parts)) } };
        let link = Link::to("key").with("project", &self.query.project);
        html! {
            // A long key has no parts, and can't be found by its id.
            @if self.is_operator && !parts.is_empty() {
                a href=(link.with("rule", &self.query.name).with("id", &id)) { (text) }
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
