//! What forms that change something have in common: hidden fields, the reason, and inputs with labels.

use maud::{Markup, html};

use super::layout::Frame;
use super::sessions::random_text;

/// The field that names a change, so that a form which is sent twice makes it once.
pub(super) const REQUEST_ID: &str = "request_id";
/// Most bytes of a reason.
const MAX_REASON: u32 = 1024;

/// An input with its label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    /// Unique in the page.
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) label: &'a str,
    pub(super) kind: &'a str,
    pub(super) value: &'a str,
    /// A remark below the input; empty if there is none.
    pub(super) hint: &'a str,
}

/// Returns the secret of the visitor's forms and a new id of a change.
pub(super) fn hidden(frame: &Frame) -> Markup {
    html! {
        (frame.secret())
        // Without random numbers nothing can be changed anyway.
        input type="hidden" name=(REQUEST_ID) value=(random_text().unwrap_or_default());
    }
}

/// Returns the input of a reason.
pub(super) fn reason(id: &str, value: &str) -> Markup {
    let hint = "For the audit; may be empty.";
    let input = Input { id, name: "reason", label: "Why", kind: "text", value, hint };
    input.with_max(MAX_REASON)
}

impl Input<'_> {
    /// Returns the input.
    pub(super) fn render(&self) -> Markup {
        self.labelled(&html! {
            input id=(self.id) name=(self.name) type=(self.kind) value=(self.value) autocomplete="off"
                spellcheck="false" aria-describedby=[self.hint_id()];
        })
    }

    /// Returns the input, which takes at most so many characters.
    pub(super) fn with_max(&self, max: u32) -> Markup {
        self.labelled(&html! {
            input id=(self.id) name=(self.name) type=(self.kind) value=(self.value) autocomplete="off"
                spellcheck="false" maxlength=(max) aria-describedby=[self.hint_id()];
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
