//! Outcomes of changes: a change leads to a page, which says what was done. A reload of that page repeats
//! nothing.

use axum::response::Response;

use super::fields::{FormFields, Link};
use super::layout::Frame;
use super::moved_to;
use super::visit::Visitor;

/// The field of the page's query.
const FIELD: &str = "done";
/// Longest text, in bytes: with its link it fits the address of a page.
const MAX_TEXT: usize = 1024;

impl Visitor {
    /// Redirects to a page, which says what was done. A link with an outcome says nothing to others.
    pub(super) fn done(&self, page: Link, outcome: &str) -> Response {
        let text = &outcome[..outcome.floor_char_boundary(MAX_TEXT)];
        let sealed = self.host.seal(text).unwrap_or_default();
        moved_to(page.with(FIELD, &sealed).as_str())
    }

    /// Returns what surrounds a page to which a change may have led.
    pub(super) fn frame_after_change(&self, page: &'static str, query: &FormFields) -> Frame {
        let outcome = self.host.open(query.one(FIELD).unwrap_or_default());
        Frame { outcome, ..self.frame(page) }
    }
}
