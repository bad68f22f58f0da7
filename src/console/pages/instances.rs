//! The instances of the fleet.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{Instance, StoreNode};

use crate::admin::{AdminError, InstanceList};
use crate::api::auth::Permission;
use crate::clock::Deadline;
use crate::console::layout::Frame;
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, number, span, time};
use crate::console::visitor::ConsoleVisitor;
use crate::console::{Console, layout};

/// Longest wait for the store.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Most instances on the page.
const MAX_SHOWN: usize = 1_000;

/// Shows the instances.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
) -> Response {
    if !visitor.sees_instances() {
        return console.lacks_role(Permission::OPERATE_OR_ADMIN.roles()).await;
    }
    let frame = console.frame(&visitor, "instances");
    let listed = console.administrator.instances().list(Deadline::within(MAX_TIME)).await;
    match listed {
        Ok(list) => console.page(StatusCode::OK, move || render(&frame, &list)).await,
        Err(error) => {
            let problem = AdminError::Store(error).to_string();
            let render = move || frame.page("Instances", &layout::failure(&problem));
            console.page(StatusCode::SERVICE_UNAVAILABLE, render).await
        }
    }
}

fn render(frame: &Frame, list: &InstanceList) -> Markup {
    let instances = &*list.instances;
    let missing = instances.iter().filter(|instance| instance.missing).count();
    let here = instances.iter().find(|instance| instance.answering);
    let newest = instances.iter().map(|instance| instance.catalogue_revision).max();
    let content = html! {
        p.summary {
            (number(instances.len() as u64))
            @if instances.len() == 1 { " instance" } @else { " instances" }
            @if missing > 0 { ", " strong.bad { (number(missing as u64)) " missing" } }
            @else if list.others_known { ", all reporting" }
            @if !list.others_known { ", " strong.warn { "other instances are not known" } }
        }
        @if frame.store == "memory" {
            p.notice { "The store is this instance's memory: other instances do not share its counts, and are not listed." }
        }
        (table(instances, newest))
        @if instances.len() > MAX_SHOWN {
            p.notice { "Only the first " (number(MAX_SHOWN as u64)) " are shown." }
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
    let shown = instances.iter().take(MAX_SHOWN);
    table.with_rows(&html! { @for instance in shown { (row(instance, newest)) } })
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
