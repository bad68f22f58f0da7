//! The instances of the fleet.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{Instance, ListInstancesRequest, StoreNode};
use tonic::Status;

use crate::calls::{READ_TIME, within};
use crate::layout::Frame;
use crate::page_error::PageError;
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, number, span, time};
use crate::visit::Visitor;
use crate::{Console, layout};

/// Most instances on a page.
const MAX_SHOWN: i32 = 1_000;

/// The first instances, and whether there are more.
type ListedInstances = (Vec<Instance>, bool);

/// Shows the instances.
pub(crate) async fn show(State(console): State<Console>, visitor: Visitor) -> Response {
    let frame = visitor.frame("instances");
    match list(&visitor).await {
        Ok(list) => console.page(StatusCode::OK, move || render(&frame, list)).await,
        Err(status) => {
            let error = PageError::from(status);
            let status = error.status;
            let render = move || frame.page("Instances", &layout::failure(&error.sentence()));
            console.page(status, render).await
        }
    }
}

/// Lists the instances.
pub(super) async fn list(visitor: &Visitor) -> Result<ListedInstances, Status> {
    let request = ListInstancesRequest { page_size: MAX_SHOWN, page_token: String::new() };
    let listed = visitor.admin().list_instances(within(READ_TIME, request)).await?.into_inner();
    Ok((listed.instances, !listed.next_page_token.is_empty()))
}

fn render(frame: &Frame, (instances, has_more): ListedInstances) -> Markup {
    let missing = instances.iter().filter(|instance| instance.missing).count();
    let here = instances.iter().find(|instance| instance.answering);
    let newest = instances.iter().map(|instance| instance.catalogue_revision).max();
    let content = html! {
        p.summary {
            (number(instances.len() as u64))
            @if instances.len() == 1 { " instance" } @else { " instances" }
            @if missing > 0 { ", " strong.bad { (number(missing as u64)) " missing" } }
            @else if !frame.visitor.store.is_away { ", all reporting" }
            @if frame.visitor.store.is_away { ", " strong.warn { "other instances are not known" } }
        }
        @if frame.visitor.store.kind == "memory" {
            p.notice { "The store is this instance's memory: other instances do not share its counts, and are not listed." }
        }
        (table(&instances, newest))
        @if has_more {
            p.notice { "Only the first " (number(instances.len() as u64)) " are shown." }
        }
        @if let Some(here) = here { (nodes(&here.store_nodes)) }
    };
    frame.page("Instances", &content)
}

fn table(instances: &[Instance], newest: Option<u64>) -> Markup {
    let table = PageTable {
        of: "instances",
        caption: "Each instance as it reported itself, every 10\u{a0}s; this one as it is now",
        columns: &[
            PageColumn::Text("Instance"),
            PageColumn::Text("State"),
            PageColumn::Text("Version"),
            PageColumn::Text("Started"),
            PageColumn::Number("Decisions/s"),
            PageColumn::Number("p50"),
            PageColumn::Number("p99"),
            PageColumn::Number("Connections"),
            PageColumn::Number("Configuration"),
            PageColumn::Number("Catalogue"),
        ],
    };
    table.with_rows(&html! { @for instance in instances { (row(instance, newest)) } })
}

fn row(instance: &Instance, newest: Option<u64>) -> Markup {
    let is_behind = newest.is_some_and(|newest| instance.catalogue_revision < newest);
    html! {
        tr {
            th scope="row" { (foreign(&instance.id)) }
            td {
                @if instance.answering { span.good { "this one" } }
                @else if instance.missing { span.bad { "missing" } " since " (time(instance.reported_at.as_ref())) }
                @else { span.good { "reporting" } }
            }
            td { (foreign(&instance.version)) }
            td { (time(instance.started_at.as_ref())) }
            td.right { (number(instance.decisions_per_second)) }
            td.right { (span(instance.check_p50.as_ref())) }
            td.right { (span(instance.check_p99.as_ref())) }
            td.right { (number(instance.connections.into())) }
            td.right { (number(instance.revision)) }
            td.right {
                @if instance.catalogue_revision == 0 { span.muted { "none" } }
                @else {
                    (number(instance.catalogue_revision))
                    @if is_behind { " " span.warn { "behind" } }
                    @if let Some(age) = &instance.catalogue_age { " " span.muted { "(" (span(Some(age))) " old)" } }
                }
            }
        }
    }
}

/// Shows the servers of the store, as this instance sees them.
fn nodes(nodes: &[StoreNode]) -> Markup {
    let table = PageTable {
        of: "Redis nodes",
        caption: "A node whose circuit breaker is open is not asked until a probe succeeds",
        columns: &["Address", "Answers", "Circuit breaker"].map(PageColumn::Text),
    };
    let rows = html! {
        @for node in nodes {
            tr {
                th scope="row" { (foreign(&node.address)) }
                td { @if node.available { span.good { "yes" } } @else { span.bad { "no" } } }
                td { (breaker(node.breaker())) }
            }
        }
    };
    html! {
        @if !nodes.is_empty() {
            h2 { "Redis nodes, as this instance sees them" }
            (table.with_rows(&rows))
        }
    }
}

fn breaker(breaker: Breaker) -> Markup {
    html! {
        @match breaker {
            Breaker::Closed => span.good { "closed" },
            Breaker::HalfOpen => span.warn { "half open: probing" },
            Breaker::Open => span.bad { "open" },
            Breaker::Unspecified => span.muted { "unknown" },
        }
    }
}
