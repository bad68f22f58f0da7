//! The keys that are refused most, over all rules: in clear with the role `operate`, else hashed.

use maud::{Markup, html};
use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::{DecisionEvent, TopKey, TopKeysRequest, TopKeysResponse};
use serde_json::{Value, json};

use super::NowPage;
use crate::calls::EVERY_PROJECT;
use crate::decisions::{SPAN, SPAN_NAME};
use crate::fields::Link;
use crate::key_states::{key_page, linked_key, now};
use crate::layout::empty;
use crate::page_error::PageError;
use crate::rule_words::{project_name, refuses_nothing, rule_link};
use crate::table::{Table, table_with_rows};
use crate::text::{foreign, number, visible};
use crate::visit::Visitor;

/// Most keys.
const MAX_KEYS: usize = 10;
/// Most keys that are read, of which those of rules that refuse nothing come last.
const MAX_READ: i32 = 40;
/// The part of a key that names a user.
const USER_ID: &str = "user_id";

/// Counts the keys of a project, or of all projects of the visitor.
pub(super) async fn read(visitor: &Visitor, project: &str) -> Result<TopKeysResponse, PageError> {
    let request = TopKeysRequest {
        project_id: project.to_owned(),
        window: Some(Duration { seconds: SPAN, nanos: 0 }),
        max_keys: MAX_READ,
        with_state: true,
        ..TopKeysRequest::default()
    };
    let mut top = visitor.top_keys(request).await?;
    let keys = &mut top.denied.get_or_insert_default().keys;
    keys.sort_by_key(|key| refuses_nothing(key.mode()).is_some());
    keys.truncate(MAX_KEYS);
    Ok(top)
}

/// Shows the keys.
pub(super) fn render(visitor: &Visitor, top: &Result<TopKeysResponse, PageError>) -> Markup {
    html! {
        h2 #refused { "Who is refused" }
        @match top {
            Err(_) if !visitor.sees_instances() => (empty(&html! { "Keys are not known." })),
            Err(error) => (empty(&html! { "Keys are not known: " (foreign(&error.problem)) "." })),
            Ok(top) if top.denied.as_ref().is_none_or(|list| list.keys.is_empty()) => {
                (empty(&html! { "No key was refused in the last " (SPAN_NAME) "." }))
            }
            Ok(top) => (table(visitor, top)),
        }
    }
}

fn table(visitor: &Visitor, top: &TopKeysResponse) -> Markup {
    let keys = top.denied.as_ref().map(|list| &*list.keys).unwrap_or_default();
    let error = keys.iter().map(|key| key.error).max().unwrap_or_default();
    let missing = top.coverage.as_ref().map_or(0, |coverage| coverage.missing.len());
    let exact = match error {
        0 => "which are exact".to_owned(),
        _ => format!("which are at most {error} too high"),
    };
    let counted = match missing {
        1.. if visitor.sees_instances() => format!(". Instances missing: {missing}"),
        _ => String::new(),
    };
    let caption = format!(
        "Keys with the most refusals in the last 14 to 15 minutes, those of rules in shadow last, {exact}{counted}"
    );
    let table = Table::<TopKey>::new("refused keys", &caption)
        .cards()
        .text("Key", |key| linked_key(link(visitor, key).as_ref(), key))
        .right("Refused", |key| number(key.count))
        .text("Rule", |key| rule_link(&key.project_id, &key.rule));
    let is_known = keys.iter().any(|key| key.state.is_some());
    let table = if is_known { table.text("Now", now) } else { table };
    let has_project = keys.iter().any(|key| !key.project_id.is_empty());
    let by_project = |key: &TopKey| project_name(&key.project_id);
    if has_project { table.text("Project", by_project) } else { table }.rows(keys)
}

/// Returns the link to all that the user of a key has used, or to its state, for those who may see it.
fn link(visitor: &Visitor, top: &TopKey) -> Option<Link> {
    let of_key = key_page(visitor, top)?;
    let mut parts = top.key.iter().flat_map(|key| &key.parts);
    let user = parts.find(|part| part.name == USER_ID).and_then(|part| part.value.as_ref());
    Some(user.map_or(of_key, |user| Link::to("key").with("user_id", user)))
}

/// Returns a refusal as the script shows it: when, the key, its link, the rule and the project.
pub(crate) fn refusal(visitor: &Visitor, event: DecisionEvent) -> Value {
    let DecisionEvent { key, project_id, verdict, decided_at, .. } = event;
    let rule = verdict.unwrap_or_default().rule;
    let top = TopKey { key, project_id, rule, ..TopKey::default() };
    let link = link(visitor, &top);
    let key = top.key.unwrap_or_default().words(visible);
    let at = decided_at.map(|at| at.to_string());
    let link = link.as_ref().map(Link::as_str);
    json!([at, key, link, visible(&top.rule), visible(&top.project_id)])
}

impl NowPage {
    /// Shows refusals as they happen, once the reader opens them: few may watch at a time.
    pub(super) fn live_refusals(&self) -> Markup {
        let project = Some(&*self.project).filter(|project| !project.is_empty());
        let events = Link::to("now-events").with("refusals", project.unwrap_or(EVERY_PROJECT));
        let columns = [("Time", false), ("Key", false), ("Rule", false), ("Project", false)];
        let part = if self.frame.visitor.sees_instances() { "of this instance" } else { "not all" };
        let caption = format!("Refusals, newest first: at most 20 a second, {part}");
        html! {
            details #refusals data-events=(events) {
                summary { "Live refusals" }
                p.hint role="status" { "They need scripts; without them, run " code { "rlaas tail --outcome denied" } "." }
                (table_with_rows("live refusals", &caption, &columns, &html! {}))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::{KeyPart, KeyRef, KeyState, TopKeyList};
    use rlaas_proto::ratelimit::v1::{CheckResponse, RuleMode};

    use super::*;
    use crate::visit::tests::visitor;

    fn top_key(project: &str, parts: &[(&str, &str)]) -> TopKey {
        let part = |(name, value): &(&str, &str)| KeyPart {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
        };
        let parts = parts.iter().map(part).collect();
        let key = Some(KeyRef { parts, id: "a:b".to_owned(), ..KeyRef::default() });
        let (project_id, rule) = (project.to_owned(), "pay".to_owned());
        TopKey { key, count: 7, project_id, rule, ..TopKey::default() }
    }

    #[test]
    fn keys_are_links_for_those_who_may_see_them() {
        let mut visitor = visitor();
        visitor.operate.projects.insert("shop".to_owned());
        let second = prost_types::Duration { seconds: 1, nanos: 0 };
        let mode = RuleMode::Shadow.into();
        let keys = vec![
            top_key("shop", &[("user_id", "<script>\u{202e}"), ("resource", "/")]),
            top_key("shop", &[("attributes.ip", "1.2.3.4")]),
            TopKey { mode, ..top_key("blog", &[("user_id", "#5f3a")]) },
            top_key("shop", &[]),
        ];
        let key = keys.first().and_then(|top: &TopKey| top.key.clone());
        let state = KeyState { limit: 5, retry_after: Some(second), ..KeyState::default() };
        let with_state = |key: TopKey| {
            let state = Some(KeyState { mode: key.mode, ..state.clone() });
            TopKey { state, ..key }
        };
        let keys = keys.into_iter().map(with_state).collect();
        let denied = Some(TopKeyList { keys, total: 0 });
        let top = TopKeysResponse { denied, ..TopKeysResponse::default() };
        let html = render(&visitor, &Ok(top)).into_string();
        assert_eq!(html.matches(">passes in ").count(), 3, "{html}");
        assert_eq!(html.matches(">in shadow, refuses nothing<").count(), 1, "{html}");
        assert!(html.contains("href=\"key?user_id=%3Cscript%3E"), "{html}");
        assert!(html.contains("href=\"key?project=shop&amp;rule=pay&amp;id=a%3Ab\""), "{html}");
        assert_eq!(html.matches("href=\"key?").count(), 3, "{html}");
        assert!(!html.contains("<script>") && html.contains("U+202E"), "{html}");
        let none = render(&visitor, &Ok(TopKeysResponse::default())).into_string();
        assert!(none.contains("No key was refused"), "{none}");
        let verdict = Some(CheckResponse { rule: "pay".to_owned(), ..CheckResponse::default() });
        let project_id = "shop".to_owned();
        let event = DecisionEvent { key, project_id, verdict, ..DecisionEvent::default() };
        let json = refusal(&visitor, event).to_string();
        assert!(json.contains("user_id=<script>U+202E, resource=/"), "{json}");
        assert!(json.contains("\"key?user_id=%3Cscript%3E"), "{json}");
        let unknown = render(&visitor, &Err(PageError::invalid("why"))).into_string();
        assert!(unknown.contains("Keys are not known.") && !unknown.contains("why"), "{unknown}");
    }
}
