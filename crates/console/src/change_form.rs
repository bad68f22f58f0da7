//! Forms of changes: hidden fields, inputs with labels, the reason, and sentences that all of them have.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::{Markup, html};
use prost_types::{Duration, Timestamp};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use tonic::metadata::MetadataMap;

use super::layout::{Frame, failure};
use super::page_error::{PageError, sentence};
use super::text::time_text;
use super::visit::Visitor;

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
    let new = if request_id.is_empty() { random_id().unwrap_or_default() } else { String::new() };
    html! {
        (frame.secret())
        input type="hidden" name=(REQUEST_ID) value={ (request_id) (new) };
    }
}

/// Returns 256 random bits as text.
fn random_id() -> Result<String, Unspecified> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Shows why a change was refused. One that failed may have been made: its problem says so.
pub(super) fn refused(error: &PageError) -> Markup {
    let what =
        if error.status.is_client_error() { "Nothing was changed" } else { "The change failed" };
    failure(&format!("{what}: {}.", error.problem))
}

/// Reads the time until a change ends, from 1 s to so many days.
pub(super) fn ttl(text: &str, max_days: u64) -> Result<Duration, PageError> {
    let max = std::time::Duration::from_secs(max_days * 86_400);
    let parsed = humantime::parse_duration(text.trim()).ok();
    let parsed = parsed.filter(|ttl| (std::time::Duration::from_secs(1)..=max).contains(ttl));
    let ttl = parsed.and_then(|ttl| Duration::try_from(ttl).ok());
    ttl.ok_or_else(|| {
        PageError::invalid(format!("ends after must be 1s to {max_days}d, such as 30m, 12h or 7d"))
    })
}

/// Returns what the service warns of, as a further sentence. It is about instances and their store, which
/// visitors of single projects do not see.
pub(super) fn warning(visitor: &Visitor, metadata: &MetadataMap) -> String {
    let text = metadata.get("rlaas-warning").and_then(|text| text.to_str().ok());
    let text = text.filter(|_| visitor.sees_instances());
    text.map(|text| format!(" {}", sentence(text))).unwrap_or_default()
}

/// Says from when on every instance obeys a change; nothing if that is not known.
pub(super) fn everywhere(by: Option<&Timestamp>) -> String {
    by.map(|by| format!(" Everywhere by {}.", time_text(by))).unwrap_or_default()
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
        let seconds = |seconds| Ok(Duration { seconds, nanos: 0 });
        assert_eq!(ttl(" 1h 30m ", 1), seconds(5_400));
        assert_eq!(ttl("1d", 1), seconds(86_400));
        for text in ["", "1", "0s", "25h", "-1h", "tomorrow", "999999999999999999999y", "<b>"] {
            let error = ttl(text, 1).expect_err(text);
            assert_eq!(error.problem, "ends after must be 1s to 1d, such as 30m, 12h or 7d");
        }
    }
}
