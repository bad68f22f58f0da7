//! Keys with counts: the page of each, and what it would get now.

use maud::{Markup, html};
use prost_types::{Duration, Timestamp};
use rlaas_proto::ratelimit::admin::v1::{KeyState, TopKey};

use super::calls::field_of;
use super::fields::Link;
use super::rule_words::{key_text, refuses_nothing, units};
use super::text::time;
use super::visit::Visitor;

/// Shortest wait in seconds that is shown by its end.
const AS_MOMENT: i64 = 3_601;

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
    let words = state.retry_words();
    html! {
        span class=(if words == "now" { "good" } else { "bad" }) {
            "passes "
            @if state.retry_after.is_some() { (end(state, state.retry_after.as_ref())) } @else { (words) }
        }
    }
}

/// Shows the end of a wait that began when the state was read. A moment is in the zone of a calendar, else in
/// that of the reader.
pub(super) fn end(state: &KeyState, wait: Option<&Duration>) -> Markup {
    let seconds = wait.map_or(0, |wait| wait.seconds);
    let read_at = state.reset_at.zip(state.reset_after);
    let read_at = read_at.map(|(at, after)| at.seconds - after.seconds);
    html! {
        @match read_at.filter(|_| seconds >= AS_MOMENT && state.zone.is_empty()) {
            // Rounded up: never too early.
            Some(read_at) => (time(Some(&Timestamp { seconds: read_at + seconds + 1, nanos: 0 }))),
            None => (state.end_words(wait)),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_in_the_zone_of_the_calendar_or_of_the_reader() {
        let shown = |zone: &str, wait| {
            let reset_after = Some(Duration { seconds: 9_000, nanos: 0 });
            let reset_at = Some(Timestamp { seconds: 1_700_009_000, nanos: 0 });
            let zone = zone.to_owned();
            let state = KeyState { reset_after, reset_at, zone, ..KeyState::default() };
            end(&state, Some(&Duration { seconds: wait, nanos: 0 })).into_string()
        };
        let time = "<time datetime=\"2023-11-14T23:30:01Z\">2023-11-14 23:30:01 UTC</time>";
        assert_eq!(shown("", 4_600), time);
        assert_eq!(shown("Europe/Berlin", 4_600), "15 Nov, 00:30 Europe/Berlin");
        assert_eq!(shown("", 60), "in 60s");
    }
}
