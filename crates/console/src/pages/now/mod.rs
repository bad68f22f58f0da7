//! Decisions of now: the page that an operator opens first.

mod render;
mod tables;
mod traffic;

pub(super) use tables::percent;

use axum::http::StatusCode;
use axum::response::Response;
use maud::html;
use rlaas_proto::ratelimit::admin::v1::{Instance, WatchStatsRequest};

use self::traffic::Traffic;
use super::instances;
use crate::calls::{EVERY_PROJECT, id_of};
use crate::chart;
use crate::decisions::{history, of_field, of_instance};
use crate::fields::Link;
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::visit::Visit;

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
pub(crate) async fn show(visit: Visit) -> Response {
    let gathered = gather(&visit).await;
    let status = gathered.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    let frame = visit.frame("now");
    let render = move || {
        let content = match gathered {
            Ok(page) => html! { (page.render()) (chart::script()) },
            Err(error) => failure(&error.problem),
        };
        frame.page("Now", &content)
    };
    visit.console.page(status, render).await
}

async fn gather(visit: &Visit) -> Result<NowPage, PageError> {
    let Visit { console, visitor, fields } = visit;
    fields.check()?;
    let of_instance = of_instance(fields.get("of"))? && visitor.sees_instances();
    let query = NowQuery { of_instance, project: fields.get("project").to_owned() };
    let project = if query.project.is_empty() { EVERY_PROJECT } else { id_of(&query.project) };
    let request = WatchStatsRequest {
        project_id: project.to_owned(),
        this_instance: of_instance,
        ..WatchStatsRequest::default()
    };
    let points = history(console, visitor, request).await?;
    let instances = if visitor.sees_instances() {
        Some(instances::list(visitor).await.map(|(instances, _)| instances))
    } else {
        None
    };
    Ok(NowPage { frame: visit.frame("now"), query, traffic: Traffic::new(&points), instances })
}

impl NowQuery {
    /// Returns the link to another view.
    fn link(of_instance: bool, project: &str) -> Link {
        Link::to("now").with("of", of_field(of_instance)).with("project", project)
    }
}
