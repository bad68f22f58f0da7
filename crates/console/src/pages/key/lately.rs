//! What refused a user id in the last hour, or was near the limit for it: rules of every project of the
//! visitor, or of one, as the top keys have them.

use maud::{Markup, html};
use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::{TopKey, TopKeysRequest, TopKeysResponse, TopKind};

use crate::calls::{EVERY_PROJECT, id_of};
use crate::fields::FormFields;
use crate::key_states::{StateOfKey, key_page, linked_key, now, with_states};
use crate::page_error::PageError;
use crate::rule_words::{project_name, refuses_nothing, rule_link};
use crate::table::Table;
use crate::text::{foreign, number};
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

/// A key with its state, and how often it was refused and near the limit.
#[derive(Debug)]
struct LatelyKey {
    key: StateOfKey,
    refused: u64,
    near: u64,
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
    let keys = lately.keys.iter().map(|key| key.key.0.clone()).collect();
    let states = with_states(visitor, keys).await;
    for (key, with_state) in lately.keys.iter_mut().zip(states) {
        key.key = with_state;
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
        let (refused, near) = if is_refused { (top.count, 0) } else { (0, top.count) };
        let is_same = |known: &&mut LatelyKey| {
            let (of, _) = &known.key;
            (&of.project_id, &of.rule, &of.key) == (&top.project_id, &top.rule, &top.key)
        };
        if let Some(known) = self.keys.iter_mut().find(is_same) {
            known.refused += refused;
            known.near += near;
        } else {
            self.keys.push(LatelyKey { key: (top, None), refused, near });
        }
    }

    /// Returns the search for the key to look at first: of those that were refused most, one that is refused
    /// now.
    pub(super) fn worst(&self, visitor: &Visitor) -> Option<FormFields> {
        let can_refuse = |of: &&LatelyKey| {
            let state = of.key.1.as_ref().filter(|_| of.refused > 0);
            state.is_some_and(|state| refuses_nothing(state.mode()).is_none())
        };
        let is_refused = |of: &&LatelyKey| {
            of.key.1.as_ref().is_some_and(|state| state.limit == 0 || state.retry_after.is_some())
        };
        let mut keys = self.keys.iter().filter(can_refuse);
        let worst = keys.clone().find(is_refused).or_else(|| keys.next())?;
        let link = key_page(visitor, &worst.key.0)?;
        FormFields::parse(link.query().as_bytes()).ok()
    }

    pub(super) fn render(&self, visitor: &Visitor, user_id: &str) -> Markup {
        let TopKeysResponse { coverage, keyed_otherwise, keyed_otherwise_left_out, .. } =
            &self.denied;
        let missing = coverage.as_ref().map_or(0, |coverage| coverage.missing.len());
        let left_out = u64::from(*keyed_otherwise_left_out);
        let mut caption = vec!["Follow a key to change it".to_owned()];
        if missing > 0 {
            caption.push(format!("Instances that were not counted: {missing}"));
        }
        if self.error > 0 {
            caption.push(format!("Counts are at most {} too high", self.error));
        }
        let caption = caption.join(". ");
        let table = Table::<LatelyKey>::new("keys of the id", &caption)
            .cards()
            .text("Rule", |of| rule_link(&of.key.0.project_id, &of.key.0.rule))
            .text("Key", |of| {
                let link = key_page(visitor, &of.key.0).map(|link| link.with("user_id", user_id));
                linked_key(link.as_ref(), &of.key.0)
            })
            .text("Now", |of| now(&of.key))
            .right("Refused", |of| number(of.refused))
            .right("Near the limit", |of| number(of.near))
            .text("Project", |of| project_name(&of.key.0.project_id));
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
                            li { (rule_link(&of.project_id, &of.rule)) ", project " (project_name(&of.project_id)) }
                        }
                        @if left_out > 0 { li.muted { "and " (number(left_out)) " more" } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::KeyRef;

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
        let rows = lately.keys.iter().map(|of| (&*of.key.0.rule, of.refused, of.near));
        assert_eq!(rows.collect::<Vec<_>>(), [("b", 5, 0), ("a", 1, 9)]);
        assert_eq!((lately.error, lately.left_out), (2, 0));
        assert_eq!(Lately::new(denied, near, "a").keys.len(), 1);
        let many = (0..30).map(|number| key(&number.to_string(), 1, 0)).collect();
        let lately = Lately::new(of(many), of(Vec::new()), "");
        assert_eq!((lately.keys.len(), lately.left_out), (MAX_SHOWN, 10));
    }
}
