//! What refused a user id in the last hour, or was near the limit for it: rules of every project of the
//! visitor, or of one, as the top keys have them.

use futures_util::future::join_all;
use maud::{Markup, html};
use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::selector::Whose;
use rlaas_proto::ratelimit::admin::v1::{
    InspectRequest, KeyRef, KeyState, Selector, TopKey, TopKeysRequest, TopKeysResponse, TopKind,
};

use crate::calls::{EVERY_PROJECT, TOP_KEYS_TIME, field_of, id_of, within};
use crate::fields::{FormFields, Link};
use crate::page_error::PageError;
use crate::pages::exceptions::is_ban;
use crate::rule_words::{key_text, rule_link};
use crate::table::Table;
use crate::text::{foreign, number, time, wait};
use crate::visit::Visitor;

/// Time of the counts, in seconds.
const WINDOW: i64 = 3_600;
/// Most keys of each kind that are read, and most that are shown.
const MAX_READ: i32 = 128;
const MAX_SHOWN: usize = 20;

/// The keys of a user id with counts.
#[derive(Debug)]
pub(super) struct Lately {
    keys: Vec<LatelyKey>,
    /// Number of further ones.
    left_out: usize,
    /// Most by which a count may be too high.
    error: u64,
    /// The answer of those that were refused, without its keys.
    denied: TopKeysResponse,
}

/// A key with what happened in the time, and its state.
#[derive(Debug)]
struct LatelyKey {
    project: String,
    rule: String,
    key: KeyRef,
    refused: u64,
    near: u64,
    /// `None` if it is not known.
    state: Option<KeyState>,
}

/// Reads the keys of the user id of a search.
pub(super) async fn read(visitor: &Visitor, search: &FormFields) -> Result<Lately, PageError> {
    let top = async |kind: TopKind| {
        let project = search.get("project");
        let project = if project.is_empty() { EVERY_PROJECT } else { id_of(project) };
        let request = TopKeysRequest {
            project_id: project.to_owned(),
            kind: kind.into(),
            window: Some(Duration { seconds: WINDOW, nanos: 0 }),
            max_keys: MAX_READ,
            value: search.get("user_id").to_owned(),
            ..TopKeysRequest::default()
        };
        visitor.top_keys(request).await
    };
    let (denied, near) = tokio::try_join!(top(TopKind::Denied), top(TopKind::NearLimit))?;
    let mut lately = Lately::new(denied, near, search.get("rule"));
    if !visitor.store.is_away {
        let states = join_all(lately.keys.iter().map(|key| key.inspect(visitor))).await;
        for (key, state) in lately.keys.iter_mut().zip(states) {
            key.state = state;
        }
    }
    Ok(lately)
}

impl Lately {
    /// Merges the counts of keys: of one rule, or of all if its name is empty.
    fn new(mut denied: TopKeysResponse, near: TopKeysResponse, rule: &str) -> Self {
        let refused = std::mem::take(&mut denied.keys).into_iter().map(|key| (key, true));
        let mut lately = Self { keys: Vec::new(), left_out: 0, error: 0, denied };
        for (key, is_refused) in refused.chain(near.keys.into_iter().map(|key| (key, false))) {
            if rule.is_empty() || key.rule == rule {
                lately.error = lately.error.max(key.error);
                lately.add(key, is_refused);
            }
        }
        lately.keys.sort_by_key(|key| std::cmp::Reverse((key.refused, key.near)));
        lately.left_out = lately.keys.len().saturating_sub(MAX_SHOWN);
        lately.keys.truncate(MAX_SHOWN);
        lately
    }

    fn add(&mut self, top: TopKey, is_refused: bool) {
        let TopKey { key, count, project_id: project, rule, .. } = top;
        let key = key.unwrap_or_default();
        let (refused, near) = if is_refused { (count, 0) } else { (0, count) };
        let is_same =
            |of: &&mut LatelyKey| (&of.project, &of.rule, &of.key.id) == (&project, &rule, &key.id);
        if let Some(known) = self.keys.iter_mut().find(is_same) {
            known.refused += refused;
            known.near += near;
        } else {
            self.keys.push(LatelyKey { project, rule, key, refused, near, state: None });
        }
    }

    pub(super) fn render(&self, user_id: &str) -> Markup {
        let TopKeysResponse { coverage, keyed_otherwise, keyed_otherwise_left_out, .. } =
            &self.denied;
        let missing = coverage.as_ref().map_or(0, |coverage| coverage.missing.len());
        let left_out = u64::from(*keyed_otherwise_left_out);
        let mut caption = vec!["Follow a key to change it".to_owned()];
        if missing > 0 {
            caption.push(format!("{missing} instances were not counted"));
        }
        if self.error > 0 {
            caption.push(format!("Counts are at most {} too high", self.error));
        }
        let caption = caption.join(". ");
        let table = Table::<LatelyKey>::new("keys of the id", &caption)
            .text("Rule", |key| rule_link(&key.project, &key.rule))
            .text("Project", |key| foreign(field_of(&key.project)))
            .text("Key", |key| key.link(user_id))
            .right("Refused", |key| number(key.refused))
            .right("Near the limit", |key| number(key.near))
            .text("Now", LatelyKey::now);
        html! {
            @if self.keys.is_empty() {
                p.notice {
                    "No rule that knows users has refused " (foreign(user_id))
                    ", or was near its limit for it, in the last hour."
                }
            } @else { (table.rows(&self.keys)) }
            @if self.left_out > 0 { p.hint { "And " (number(self.left_out as u64)) " more keys with lower counts." } }
            @if !keyed_otherwise.is_empty() {
                details id="keyed-otherwise" {
                    summary {
                        "Rules that do not know users: not looked at ("
                        (number(keyed_otherwise.len() as u64 + left_out)) ")"
                    }
                    ul {
                        @for of in keyed_otherwise {
                            li { (rule_link(&of.project_id, &of.rule)) " of " (foreign(field_of(&of.project_id))) }
                        }
                        @if left_out > 0 { li.muted { "and " (number(left_out)) " more" } }
                    }
                }
            }
        }
    }
}

impl LatelyKey {
    async fn inspect(&self, visitor: &Visitor) -> Option<KeyState> {
        // A long key has no parts, and can't be found by its id.
        if self.key.parts.is_empty() {
            return None;
        }
        let whose = Whose::Key(KeyRef { id: self.key.id.clone(), ..KeyRef::default() });
        let (rule, project_id) = (self.rule.clone(), self.project.clone());
        let selector = Some(Selector { whose: Some(whose), rule, project_id });
        let request = within(TOP_KEYS_TIME, InspectRequest { selector });
        visitor.admin().inspect(request).await.ok()?.into_inner().keys.into_iter().next()
    }

    fn link(&self, user_id: &str) -> Markup {
        let link = Link::to("key").with("project", field_of(&self.project));
        let link = link.with("user_id", user_id).with("rule", &self.rule).with("id", &self.key.id);
        let text = key_text(&self.key);
        html! { @if self.key.parts.is_empty() { (text) } @else { a href=(link) { (text) } } }
    }

    fn now(&self) -> Markup {
        let Some(state) = &self.state else { return html! { span.muted { "not known" } } };
        let ban = state.overrides.iter().find(|one| is_ban(one));
        let count = |units: i64| number(u64::try_from(units).unwrap_or_default());
        html! {
            @if let Some(ban) = ban {
                span.bad { "banned" } " until " (time(ban.expires_at.as_ref()))
            } @else if state.limit == 0 {
                span.bad { "refused always" }
            } @else if state.limit == i64::MAX {
                span.good { "unlimited" }
            } @else {
                (count(state.used)) " of " (count(state.limit)) " used, "
                @if state.retry_after.is_some() {
                    span.bad { "passes in " (wait(state.retry_after.as_ref())) }
                } @else { span.good { "passes now" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_key_are_merged_and_the_most_refused_come_first() {
        let key = |rule: &str, count, error| TopKey {
            key: Some(KeyRef { id: "alice".to_owned(), ..KeyRef::default() }),
            rule: rule.to_owned(),
            count,
            error,
            ..TopKey::default()
        };
        let of = |keys| TopKeysResponse { keys, ..TopKeysResponse::default() };
        let (denied, near) = (of(vec![key("a", 1, 0), key("b", 5, 2)]), of(vec![key("a", 9, 0)]));
        let lately = Lately::new(denied.clone(), near.clone(), "");
        let rows = lately.keys.iter().map(|key| (&*key.rule, key.refused, key.near));
        assert_eq!(rows.collect::<Vec<_>>(), [("b", 5, 0), ("a", 1, 9)]);
        assert_eq!((lately.error, lately.left_out), (2, 0));
        assert_eq!(Lately::new(denied, near, "a").keys.len(), 1);
        let many = (0..30).map(|number| key(&number.to_string(), 1, 0)).collect();
        let lately = Lately::new(of(many), of(Vec::new()), "");
        assert_eq!((lately.keys.len(), lately.left_out), (MAX_SHOWN, 10));
    }
}
