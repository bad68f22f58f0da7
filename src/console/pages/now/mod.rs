//! Decisions of now: the page that an operator opens first.

mod render;
mod shown;
mod tables;
mod traffic;
mod view;

pub(super) use shown::{PointsCoverage, SPAN, SPAN_NAME, Shown, scope_field, scope_of};
pub(super) use tables::percent;

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::html;

use self::traffic::Traffic;
use self::view::View;
use crate::admin::{AdminError, InstanceList};
use crate::clock::Deadline;
use crate::console::Console;
use crate::console::chart;
use crate::console::layout::failure;
use crate::console::visitor::ConsoleVisitor;

const TITLE: &str = "Now";
/// Longest wait for the list of instances.
const MAX_TIME: Duration = Duration::from_secs(2);

/// The instances, or why they are not known.
type ListedInstances = Result<InstanceList, String>;

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
            let administrator = &console.administrator;
            let store = administrator.limiter().store();
            let (health, name) = (*store.health().borrow(), store.name());
            let points = administrator.stats().recent(view.scope, 0);
            let instances = if view.has_instances {
                let listed = administrator.instances().list(Deadline::within(MAX_TIME)).await;
                Some(listed.map_err(|error| AdminError::Store(error).to_string()))
            } else {
                None
            };
            let render = move || {
                let traffic = Traffic::new(&points, &view.filter);
                let view = view.render(&traffic, instances.as_ref(), health, name);
                frame.page(TITLE, &html! { (view) (chart::script()) })
            };
            console.page(StatusCode::OK, render).await
        }
        Err(error) => {
            console.page(error.status, move || frame.page(TITLE, &failure(&error.problem))).await
        }
    }
}
