//! Decisions of now: the page that an operator opens first.

mod render;
mod shown;
mod tables;
mod traffic;
mod view;

pub(super) use shown::{SPAN, SPAN_NAME, Shown, scope_field, scope_of};
pub(super) use tables::percent;
pub(in crate::console) use traffic::Traffic;
pub(in crate::console) use view::View;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{PreEscaped, html};

use crate::console::chart;
use crate::console::layout::failure;
use crate::console::visitor::ConsoleVisitor;
use crate::console::{Console, internal_error};

const TITLE: &str = "Now";

/// Shows the decisions that a visitor may see.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Response {
    let frame = console.frame(&visitor, "now");
    let limiter = console.administrator.limiter();
    let is_project = |id: &str| limiter.project_snapshot(id).is_some();
    let query = query.unwrap_or_default();
    match View::parse(query.as_bytes(), &visitor.caller, is_project) {
        Ok(view) => {
            let Some(html) = console.live_view(&view).await else { return internal_error() };
            let content = move || html! { (PreEscaped(&*html)) (chart::script()) };
            console.page(StatusCode::OK, move || frame.page(TITLE, &content())).await
        }
        Err(error) => {
            let status = error.status();
            console.page(status, move || frame.page(TITLE, &failure(&error.to_string()))).await
        }
    }
}
