//! Decisions of now: the page that an operator opens first.

mod render;
mod shown;
mod tables;
mod traffic;

pub(super) use shown::{Shown, of_field, of_instance};
pub(super) use tables::percent;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::html;
use rlaas_proto::ratelimit::admin::v1::{Instance, WatchStatsRequest};

use self::traffic::Traffic;
use super::instances;
use crate::Console;
use crate::calls::{EVERY_PROJECT, id_of};
use crate::chart;
use crate::decisions::history;
use crate::fields::{FormFields, Link};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::visit::Visitor;

const TITLE: &str = "Now";

/// What a visitor looks at: the fields of the query.
#[derive(Clone, Debug)]
struct NowQuery {
    /// Whether the decisions are those of this instance.
    of_instance: bool,
    /// Empty: every project of the visitor.
    project: String,
}

/// All that the page shows.
#[derive(Debug)]
struct NowPage {
    frame: Frame,
    query: NowQuery,
    traffic: Traffic,
    /// The instances, or why they are not known; `None` if the visitor may not see them.
    instances: Option<Result<Vec<Instance>, PageError>>,
}

/// Shows the decisions that a visitor may see.
pub(crate) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let frame = visitor.frame("now");
    let query = query.unwrap_or_default();
    match gather(&console, &visitor, frame.clone(), query.as_bytes()).await {
        Ok(page) => {
            let render =
                move || page.frame.page(TITLE, &html! { (page.render()) (chart::script()) });
            console.page(StatusCode::OK, render).await
        }
        Err(error) => {
            let status = error.status;
            console.page(status, move || frame.page(TITLE, &failure(&error.problem))).await
        }
    }
}

async fn gather(
    console: &Console,
    visitor: &Visitor,
    frame: Frame,
    query: &[u8],
) -> Result<NowPage, PageError> {
    let fields = FormFields::parse(query)?;
    let of_instance = of_instance(fields.one("of")?)? && visitor.sees_instances();
    let query = NowQuery { of_instance, project: fields.one("project")?.to_owned() };
    let project = if query.project.is_empty() { EVERY_PROJECT } else { id_of(&query.project) };
    let request = WatchStatsRequest {
        project_id: project.to_owned(),
        this_instance: of_instance,
        ..WatchStatsRequest::default()
    };
    let points = history(console, visitor, request).await?;
    let instances = if visitor.sees_instances() {
        let listed = instances::list(visitor).await;
        Some(listed.map(|(instances, _)| instances).map_err(PageError::from))
    } else {
        None
    };
    Ok(NowPage { frame, query, traffic: Traffic::new(&points), instances })
}

impl NowQuery {
    /// Returns the link to another view.
    fn link(of_instance: bool, project: &str) -> Link {
        Link::to("now").with("of", of_field(of_instance)).with("project", project)
    }
}
