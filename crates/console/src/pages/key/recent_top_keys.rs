//! What is known of a user id: the answer, and the keys that it rests on, under rules of every project of the
//! visitor, or of one.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{KeyState, LookUpRequest, LookUpResponse, TopKey, UserKey};

use crate::calls::{EVERY_PROJECT, READ_TIME, id_of, within};
use crate::fields::FormFields;
use crate::key_states::{key_page, linked_key, now};
use crate::page_error::PageError;
use crate::rule_words::{project_name, refuses_nothing, rule_link};
use crate::table::Table;
use crate::text::{foreign, number};
use crate::visit::Visitor;

/// Most keys that are shown.
const MAX_SHOWN: usize = 20;

/// What is known of a user id.
#[derive(Debug)]
pub(super) struct RecentKeys {
    /// Those that refuse first, each with the number of refusals.
    keys: Vec<TopKey>,
    /// Number of further ones.
    left_out: usize,
    /// All of the answer but its keys.
    found: LookUpResponse,
}

/// Looks up the user id of a search.
pub(super) async fn read(visitor: &Visitor, search: &FormFields) -> Result<RecentKeys, PageError> {
    let (user_id, project) = (search.get("user_id").to_owned(), search.get("project"));
    let project_id = if project.is_empty() { EVERY_PROJECT } else { id_of(project) }.to_owned();
    let request = within(READ_TIME, LookUpRequest { user_id, project_id });
    let mut found = visitor.admin().look_up(request).await?.into_inner();
    let keys = std::mem::take(&mut found.keys).into_iter().map(counted);
    let rule = search.get("rule");
    let mut keys: Vec<_> = keys.filter(|key| rule.is_empty() || key.rule == rule).collect();
    let left_out = keys.len().saturating_sub(MAX_SHOWN);
    keys.truncate(MAX_SHOWN);
    Ok(RecentKeys { keys, left_out, found })
}

/// Returns a key with its state, and the number of its refusals.
fn counted(user_key: UserKey) -> TopKey {
    let UserKey { project_id, state, refused: count, .. } = user_key;
    let KeyState { rule, key, .. } = state.clone().unwrap_or_default();
    TopKey { project_id, rule, key, count, state, ..TopKey::default() }
}

impl RecentKeys {
    /// Returns the search for the key to look at first: one that is refused now, or else was refused most.
    pub(super) fn worst(&self, visitor: &Visitor) -> Option<FormFields> {
        // They are in this order.
        let worst = self.keys.iter().find(|key| {
            let state = key.state.clone().unwrap_or_default();
            let is_refused = state.limit == 0 || state.retry_after.is_some() || key.count > 0;
            is_refused && refuses_nothing(state.mode()).is_none()
        })?;
        let link = key_page(visitor, worst)?;
        FormFields::parse(link.query().as_bytes()).ok()
    }

    pub(super) fn render(&self, visitor: &Visitor, user_id: &str) -> Markup {
        let missing = self.found.coverage.as_ref().map_or(0, |coverage| coverage.missing.len());
        let left_out = u64::from(self.found.keyed_otherwise_left_out);
        let others = self.found.keyed_otherwise.len() as u64 + left_out;
        let table = Table::<TopKey>::new("keys of the id", "Follow a key to change it")
            .cards()
            .text("Rule", |key| rule_link(&key.project_id, &key.rule))
            .text("Key", |key| {
                let link = key_page(visitor, key).map(|link| link.with("user_id", user_id));
                linked_key(link.as_ref(), key)
            })
            .text("Now", now)
            .right("Refused", |key| number(key.count))
            .text("Project", |key| project_name(&key.project_id));
        html! {
            p.summary { strong { (foreign(&self.found.answer)) } }
            h2 { "Keys of this id" }
            @if self.keys.is_empty() {
                p.notice {
                    "No rule that knows users has refused " (foreign(user_id)) " in the last hour, or has it in use."
                }
            } @else { (table.rows(&self.keys)) }
            @if missing > 0 { p.hint { "Instances that were not counted: " (number(missing as u64)) "." } }
            @if self.left_out > 0 { p.hint { "And " (number(self.left_out as u64)) " more keys with lower counts." } }
            @if others > 0 { p.hint { "Rules that do not know users, and are not looked at: " (number(others)) "." } }
        }
    }
}
