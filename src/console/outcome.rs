//! Outcomes of changes: a change leads to a page, which says what was done. A reload of that page repeats nothing.

use axum::response::Response;

use super::fields::{FormFields, Link};
use super::layout::Frame;
use super::seal::SealPurpose;
use super::visitor::ConsoleVisitor;
use super::{ConsoleContext, moved_to};
use crate::clock::Micros;

/// The field of the page's query.
const FIELD: &str = "done";
/// Longest text, in bytes: with its link it fits the address of a page.
const MAX_TEXT: usize = 1024;
/// Time after which the page does not say it any more.
const MAX_AGE: Micros = Micros::from_secs(5 * 60);

impl ConsoleContext {
    /// Redirects to a page, which says what was done.
    pub(super) fn done(&self, visitor: &ConsoleVisitor, page: Link, outcome: &str) -> Response {
        let text = &outcome[..outcome.floor_char_boundary(MAX_TEXT)];
        let sealed = self.sessions.seal().seal(purpose(visitor), text).unwrap_or_default();
        moved_to(page.with(FIELD, &sealed).as_str())
    }

    /// Returns what surrounds a page to which a change may have led.
    pub(super) fn frame_after_change(
        &self,
        visitor: &ConsoleVisitor,
        page: &'static str,
        query: &FormFields,
    ) -> Frame {
        let sealed = query.one(FIELD).unwrap_or_default();
        let outcome = self.sessions.seal().open(purpose(visitor), sealed);
        Frame { outcome, ..self.frame(visitor, page) }
    }
}

/// A link with an outcome says nothing to other visitors.
fn purpose(visitor: &ConsoleVisitor) -> SealPurpose<'_> {
    SealPurpose { name: "outcome", of: visitor.form_secret.as_str(), max_age: MAX_AGE }
}
