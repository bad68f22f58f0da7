//! Keys with counts: the page of each, and what it would get now.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{KeyState, TopKey};

use super::calls::field_of;
use super::fields::Link;
use super::rule_words::{key_text, refuses_nothing, units};
use super::text::time;
use super::visit::Visitor;

/// Returns the link to the page of a key, for those who may see it.
pub(super) fn key_page(visitor: &Visitor, top: &TopKey) -> Option<Link> {
    let key = top.key.as_ref().filter(|_| visitor.is_operator(&top.project_id))?;
    let link = Link::to("key").with("project", field_of(&top.project_id));
    Some(link.with("rule", &top.rule).with("id", &key.id))
}

/// Shows a key, with a link if there is one.
pub(super) fn linked_key(link: Option<&Link>, top: &TopKey) -> Markup {
    let text = key_text(&top.key.clone().unwrap_or_default());
    html! { @if let Some(link) = link { a href=(link) { (text) } } @else { (text) } }
}

/// Shows when a request of cost 1 passes.
pub(super) fn passes(state: &KeyState) -> Markup {
    let end = state.retry_words();
    html! { span class=(if end == "now" { "good" } else { "bad" }) { "passes " (end) } }
}

/// Shows what a request of a key would get.
pub(super) fn now(top: &TopKey) -> Markup {
    let Some(state) = &top.state else { return html! { span.muted { "not known" } } };
    let ban = state.ban();
    html! {
        @if let Some(why) = refuses_nothing(state.mode()) { span.warn { (why) } }
        @else if let Some(ban) = ban { span.bad { "banned" } " until " (time(ban.expires_at.as_ref())) }
        @else if state.limit == 0 { span.bad { "refused always" } }
        @else if state.limit == i64::MAX { span.good { "unlimited" } }
        @else { (state.use_words(units)) ", " (passes(state)) }
    }
}
