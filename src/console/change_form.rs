//! Forms of changes: hidden fields, inputs with labels, the reason, and sentences that all of them have.

use maud::{Markup, html};
use prost_types::Timestamp;

use super::ConsoleContext;
use super::layout::{Frame, failure};
use super::page_error::PageError;
use super::sessions::random_text;
use super::text::time_text;
use super::visitor::ConsoleVisitor;
use crate::clock::Micros;

/// The field with the id of the change.
pub(super) const REQUEST_ID: &str = "request_id";
/// Most bytes of a reason.
const MAX_REASON: u32 = 1024;

/// An input with its label. Its name, id and label are always set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Input<'a> {
    /// Unique in the page.
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) label: &'a str,
    /// As HTML has it; empty for a text.
    pub(super) kind: &'a str,
    pub(super) value: &'a str,
    /// An example; may be empty.
    pub(super) example: &'a str,
    /// A remark below the input; empty if there is none.
    pub(super) hint: &'a str,
    /// Most characters.
    pub(super) max: Option<u32>,
}

/// Returns the input of a reason.
pub(super) fn reason(id: &str, value: &str) -> Markup {
    let hint = "For the audit; may be empty.";
    let max = Some(MAX_REASON);
    Input { id, name: "reason", label: "Why", value, hint, max, ..Input::default() }.render()
}

impl Input<'_> {
    /// Returns the input.
    pub(super) fn render(&self) -> Markup {
        let kind = if self.kind.is_empty() { "text" } else { self.kind };
        let example = Some(self.example).filter(|example| !example.is_empty());
        self.labelled(&html! {
            input id=(self.id) name=(self.name) type=(kind) value=(self.value) placeholder=[example]
                autocomplete="off" spellcheck="false" maxlength=[self.max]
                aria-describedby=[self.hint_id()];
        })
    }

    /// Returns a list of values to select from, each with its text.
    pub(super) fn select(&self, options: &[(&str, &str)]) -> Markup {
        self.labelled(&html! {
            select id=(self.id) name=(self.name) aria-describedby=[self.hint_id()] {
                @for (value, text) in options {
                    option value=(value) selected[*value == self.value] { (text) }
                }
            }
        })
    }

    fn labelled(&self, input: &Markup) -> Markup {
        html! {
            div.field {
                label for=(self.id) { (self.label) }
                (input)
                @if let Some(id) = self.hint_id() { p.hint id=(id) { (self.hint) } }
            }
        }
    }

    fn hint_id(&self) -> Option<String> {
        (!self.hint.is_empty()).then(|| format!("{}-hint", self.id))
    }
}

/// Returns the hidden fields: the secret of the visitor's forms, and the id of the change, so that a
/// form which is sent twice makes one change. A form that is shown again keeps its id, which is empty for
/// a new one, unless its change is none that can be made under it.
pub(super) fn hidden(frame: &Frame, request_id: &str) -> Markup {
    let new = if request_id.is_empty() { random_text().unwrap_or_default() } else { String::new() };
    html! {
        (frame.secret())
        input type="hidden" name=(REQUEST_ID) value={ (request_id) (new) };
    }
}

/// Shows why a change was refused. One that failed may have been made: its problem says so.
pub(super) fn refused(error: &PageError) -> Markup {
    let what =
        if error.status.is_client_error() { "Nothing was changed" } else { "The change failed" };
    failure(&format!("{what}: {}.", error.problem))
}

/// Reads the time until a change ends, from 1 s to `max`.
pub(super) fn ttl(text: &str, max: Micros) -> Result<Micros, PageError> {
    let parsed = humantime::parse_duration(text.trim()).ok().map(Micros::from);
    let parsed = parsed.filter(|ttl| (Micros::from_secs(1)..=max).contains(ttl));
    parsed.ok_or_else(|| {
        let days = max.as_secs_ceil() / 86_400;
        PageError::invalid(format!("ends after must be 1s to {days}d, such as 30m, 12h or 7d"))
    })
}

/// Says from when on every instance obeys a change; nothing if that is not known.
pub(super) fn everywhere(by: Option<&Timestamp>) -> String {
    by.map(|by| format!(" Everywhere by {}.", time_text(by))).unwrap_or_default()
}

impl ConsoleContext {
    /// Says how a change may be lost, if it may. Visitors of single projects are told it of overrides
    /// alone, and not why.
    pub(super) fn loss(&self, visitor: &ConsoleVisitor, is_override: bool) -> &'static str {
        let store = self.administrator.limiter().store();
        let is_lost = store.may_evict() || store.is_lost_at_restart();
        match (store.outlives_process(), is_override && is_lost) {
            (true, false) => "",
            _ if !visitor.sees_instances() && is_override => " It may be lost before it ends.",
            _ if !visitor.sees_instances() => "",
            (false, _) => " A restart of this instance loses it: set store.memory.journal.path.",
            (true, true) if !store.may_evict() => {
                " A restart of Redis loses it: set appendonly yes there."
            }
            (true, true) => {
                " Redis may evict keys when its memory is full: it may be lost before it ends."
            }
        }
    }
}

/// Says that a form was sent before, if so.
pub(super) const fn replayed(is_replayed: bool) -> &'static str {
    if is_replayed { "This form was sent before, and its change was made once: " } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_bounds() {
        let day = Micros::from_secs(86_400);
        assert_eq!(ttl(" 1h 30m ", day), Ok(Micros::from_secs(5_400)));
        assert_eq!(ttl("1d", day), Ok(day));
        for text in ["", "1", "0s", "25h", "-1h", "tomorrow", "999999999999999999999y", "<b>"] {
            let error = ttl(text, day).expect_err(text);
            assert_eq!(error.problem, "ends after must be 1s to 1d, such as 30m, 12h or 7d");
        }
    }
}
