//! What is known of a user id: the answer, and the keys that it rests on, under rules of every project of the
//! visitor, or of one.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{LookUpRequest, LookUpResponse, TopKey, UserKey};

use crate::calls::{EVERY_PROJECT, READ_TIME, id_of, within};
use crate::fields::FormFields;
use crate::key_states::{StateOfKey, key_page, linked_key, now};
use crate::page_error::PageError;
use crate::rule_words::{project_name, refuses_nothing, rule_link};
use crate::table::Table;
use crate::text::{foreign, number};
use crate::visit::Visitor;

/// Most keys that are shown.
const MAX_SHOWN: usize = 20;

/// What is known of a user id.
#[derive(Debug)]
pub(super) struct Lately {
    /// Those that refuse first.
    keys: Vec<LatelyKey>,
    /// Number of further ones.
    left_out: usize,
    /// All of the answer but its keys.
    found: LookUpResponse,
}

/// A key with its state, and how often it was refused.
#[derive(Debug)]
struct LatelyKey {
    key: StateOfKey,
    refused: u64,
}

/// Looks up the user id of a search.
pub(super) async fn read(visitor: &Visitor, search: &FormFields) -> Result<Lately, PageError> {
    let (user_id, project) = (search.get("user_id").to_owned(), search.get("project"));
    let project_id = if project.is_empty() { EVERY_PROJECT } else { id_of(project) }.to_owned();
    let request = within(READ_TIME, LookUpRequest { user_id, project_id });
    let mut found = visitor.admin().look_up(request).await?.into_inner();
    let keys = std::mem::take(&mut found.keys).into_iter().map(LatelyKey::from);
    let rule = search.get("rule");
    let mut keys: Vec<_> = keys.filter(|of| rule.is_empty() || of.key.0.rule == rule).collect();
    let left_out = keys.len().saturating_sub(MAX_SHOWN);
    keys.truncate(MAX_SHOWN);
    Ok(Lately { keys, left_out, found })
}

impl From<UserKey> for LatelyKey {
    fn from(of: UserKey) -> Self {
        let UserKey { project_id, state, refused, .. } = of;
        let state = state.unwrap_or_default();
        let (rule, key) = (state.rule.clone(), state.key.clone());
        let key = (TopKey { project_id, rule, key, ..TopKey::default() }, Some(state));
        Self { key, refused }
    }
}

impl Lately {
    /// Returns the search for the key to look at first: one that is refused now, or else was refused most.
    pub(super) fn worst(&self, visitor: &Visitor) -> Option<FormFields> {
        let state = |of: &LatelyKey| of.key.1.clone().unwrap_or_default();
        let can_refuse = |of: &&LatelyKey| refuses_nothing(state(of).mode()).is_none();
        let is_refused = |of: &&LatelyKey| state(of).limit == 0 || state(of).retry_after.is_some();
        let keys = self.keys.iter().filter(can_refuse);
        let was_refused = || keys.clone().filter(|of| of.refused > 0).max_by_key(|of| of.refused);
        let worst = keys.clone().find(is_refused).or_else(was_refused)?;
        let link = key_page(visitor, &worst.key.0)?;
        FormFields::parse(link.query().as_bytes()).ok()
    }

    pub(super) fn render(&self, visitor: &Visitor, user_id: &str) -> Markup {
        let LookUpResponse { coverage, keyed_otherwise, keyed_otherwise_left_out, .. } =
            &self.found;
        let missing = coverage.as_ref().map_or(0, |coverage| coverage.missing.len());
        let left_out = u64::from(*keyed_otherwise_left_out);
        let mut caption = vec!["Follow a key to change it".to_owned()];
        if missing > 0 {
            caption.push(format!("Instances that were not counted: {missing}"));
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
            .text("Project", |of| project_name(&of.key.0.project_id));
        html! {
            p.summary { strong { (foreign(&self.found.answer)) } }
            h2 { "Keys of this id" }
            @if self.keys.is_empty() {
                p.notice {
                    "No rule that knows users has refused " (foreign(user_id)) " in the last hour, or has it in use."
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
