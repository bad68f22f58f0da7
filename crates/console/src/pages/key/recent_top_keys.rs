//! What is known of an id: the answer, and the keys that it rests on, under rules of every project of the visitor,
//! or of one.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{
    ApiKey, KeyState, LookUpRequest, LookUpResponse, TopKey, UserKey,
};
use rlaas_proto::ratelimit::v1::Algorithm;

use super::render::{KeyPage, key_override};
use super::{MatchingKey, written};
use crate::calls::{EVERY_PROJECT, READ_TIME, id_of, within};
use crate::decisions::SPAN_NAME;
use crate::fields::{FormFields, Link};
use crate::key_states::{key_page, linked_key, now};
use crate::page_error::PageError;
use crate::pages::project::keys::state_text;
use crate::pages::search::{key_link, key_with_id, typed_key};
use crate::rule_words::{project_name, refuses_nothing, rule_link};
use crate::table::Table;
use crate::text::{foreign, joined, number, or_dash};
use crate::visit::Visitor;

/// Most keys that are shown.
const MAX_SHOWN: usize = 20;
/// Most rules that are named for what they have refused to others.
const MAX_DENYING: usize = 5;

/// What is known of an id.
#[derive(Debug, Default)]
pub(super) struct RecentKeys {
    /// Those that refuse first, each with its counts.
    keys: Vec<RecentKey>,
    /// Number of further ones.
    left_out: usize,
    /// All of the answer but its keys.
    found: LookUpResponse,
    /// The API key that the id is, if it is one of a project of the visitor.
    api_key: Option<ApiKey>,
}

/// A key of the id.
#[derive(Debug)]
struct RecentKey {
    top: TopKey,
    /// Units that it used.
    taken: u64,
    /// The same, as its forms take it.
    matching: MatchingKey,
}

/// Looks up the id of a search.
pub(super) async fn read(visitor: &Visitor, search: &FormFields) -> Result<RecentKeys, PageError> {
    let (user_id, project) = (search.get("user_id"), search.get("project"));
    // Who may not look up ids may still revoke keys.
    // Of a longer text that is one nothing else is known.
    if let Some((_, Some(key))) = typed_key(visitor, user_id).await {
        return Ok(RecentKeys { api_key: Some(key), ..RecentKeys::default() });
    }
    let api_key = key_with_id(visitor, user_id).await;
    let project_id = if project.is_empty() { EVERY_PROJECT } else { id_of(project) }.to_owned();
    let request = LookUpRequest { user_id: user_id.to_owned(), project_id };
    let mut found = visitor.admin().look_up(within(READ_TIME, request)).await?.into_inner();
    let mut of_id = std::mem::take(&mut found.keys);
    let rule = search.get("rule");
    of_id.retain(|key| rule.is_empty() || key.state.as_ref().is_some_and(|key| key.rule == rule));
    let left_out = of_id.len().saturating_sub(MAX_SHOWN);
    let mut keys = Vec::new();
    for key in of_id.into_iter().take(MAX_SHOWN) {
        keys.push(RecentKey::new(visitor, user_id, key).await);
    }
    Ok(RecentKeys { keys, left_out, found, api_key })
}

impl RecentKey {
    async fn new(visitor: &Visitor, user_id: &str, key: UserKey) -> Self {
        let UserKey { project_id, state, refused: count, taken, .. } = key;
        let state = state.unwrap_or_default();
        let rule = written(visitor, &project_id, &state.rule).await;
        let KeyState { rule: name, key, .. } = state.clone();
        let shown = Some(state.clone());
        let top = TopKey { project_id, rule: name, key, count, state: shown, ..TopKey::default() };
        let link = key_page(visitor, &top).map(|link| link.with("user_id", user_id));
        let search = link.and_then(|link| FormFields::parse(link.query().as_bytes()).ok());
        let matching = MatchingKey::of_state(search.unwrap_or_default(), rule, state);
        Self { top, taken, matching }
    }

    fn refuses_nothing(&self) -> bool {
        refuses_nothing(self.matching.met.mode()).is_some()
    }

    /// Returns the units that it used, of which slots have none.
    fn units(&self) -> Option<Markup> {
        let has_slots = self.matching.rule.algorithm() == Algorithm::Concurrency;
        (!has_slots).then(|| number(self.taken))
    }
}

impl RecentKeys {
    /// Returns `true` if a key of the id is in use.
    pub(super) fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns `true` if a key that may refuse the id is in use, or it is an API key: the rules that it meets need
    /// not be looked for.
    pub(super) fn is_enough(&self) -> bool {
        self.api_key.is_some() || !self.keys.iter().all(RecentKey::refuses_nothing)
    }

    /// Shows the answer, and a row for each key.
    pub(super) fn render(&self, page: &KeyPage) -> Markup {
        let revoke = html! {
            @if let Some(key) = &self.api_key { p { a href=(key_link(key)) { "Revoke or replace it" } } }
        };
        if let Some(key) = self.api_key.as_ref().filter(|_| self.keys.is_empty()) {
            return html! {
                p.summary {
                    strong { "API key " (foreign(&key.id)) " of the project " (foreign(&key.project_id)) " is " (state_text(key)) }
                }
                (revoke)
            };
        }
        let user_id = page.search.get("user_id");
        let missing = self.found.coverage.as_ref().map_or(0, |coverage| coverage.missing.len());
        let left_out = u64::from(self.found.keyed_otherwise_left_out);
        let others = self.found.keyed_otherwise.len() as u64 + left_out;
        let in_shadow = self.keys.iter().filter(|key| key.refuses_nothing()).count();
        let request = Link::like("key", &page.search, &["user_id", "project"]).with("cost", "1");
        html! {
            p.summary { strong { (foreign(&self.found.answer)) } }
            (revoke)
            (self.denying())
            h2 { "Keys of this id" }
            @if self.keys.is_empty() {
                p.notice {
                    "No rule that knows users has refused " (foreign(user_id)) " in the last hour, or has it in use."
                }
            }
            @if in_shadow < self.keys.len() { (self.table(page, "keys of the id", false)) }
            @if missing > 0 { p.hint { "Instances that were not counted: " (number(missing as u64)) "." } }
            @if self.left_out > 0 { p.hint { "And " (number(self.left_out as u64)) " more keys with lower counts." } }
            @if others > 0 { p.hint { "Rules that do not know users, and are not looked at: " (number(others)) "." } }
            @if in_shadow > 0 {
                details #shadow {
                    summary { "In shadow, where nothing is refused: " (number(in_shadow as u64)) }
                    (self.table(page, "keys in shadow", true))
                }
            }
            @if page.found.is_none() && self.has_keys() {
                p { a href=(request) { "What a request without resource would get" } }
            }
        }
    }

    /// Names rules that may refuse a request of the id for another part of it, since they have refused others.
    fn denying(&self) -> Markup {
        let denying = self.found.keyed_otherwise.iter().filter(|rule| rule.denied > 0);
        let denying = denying.take(MAX_DENYING).collect::<Vec<_>>();
        html! {
            @if !denying.is_empty() {
                p.notice {
                    "Keyed otherwise, and refused requests in the last " (SPAN_NAME) ": "
                    (joined(denying, ", ", |rule| html! {
                        (rule_link(&rule.project_id, &rule.rule)) " (" (project_name(&rule.project_id)) ") " (number(rule.denied))
                    }))
                    ". A request with its resource and attributes shows whether they refuse it."
                }
            }
        }
    }

    /// Shows keys with their forms, unless cards with forms are below.
    fn table(&self, page: &KeyPage, subject: &str, in_shadow: bool) -> Markup {
        let (visitor, user_id) = (&page.frame.visitor, page.search.get("user_id"));
        let keys = self.keys.iter().enumerate();
        let keys = keys.filter(|(_, key)| key.refuses_nothing() == in_shadow).collect::<Vec<_>>();
        let caption = "Those that refuse first. Requests refused, and units used: in the last hour";
        let table = Table::<(usize, &RecentKey)>::new(subject, caption)
            .cards()
            .text("Rule", |(_, key)| rule_link(&key.top.project_id, &key.top.rule))
            .text("Key", |(_, key)| {
                let link = key_page(visitor, &key.top).map(|link| link.with("user_id", user_id));
                linked_key(link.as_ref(), &key.top)
            })
            .text("Now", |(_, key)| {
                let overrides = key.top.state.as_ref().map_or(&[][..], |state| &state.overrides);
                html! {
                    (now(&key.top))
                    @if !overrides.is_empty() {
                        dl { @for entry in overrides { (key_override(&key.matching, entry)) } }
                    }
                }
            })
            .right("Refused", |(_, key)| number(key.top.count))
            .right("Units used", |(_, key)| or_dash(key.units()))
            .text("Project", |(_, key)| project_name(&key.top.project_id));
        let forms = |(position, key): &(usize, &RecentKey)| page.forms(*position, &key.matching);
        let table = if page.found.is_none() { table.wide("Change", forms) } else { table };
        table.rows(&keys)
    }
}
