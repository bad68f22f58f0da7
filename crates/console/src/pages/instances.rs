//! The instances of the fleet.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{Instance, ListInstancesRequest, StoreNode};
use rlaas_proto::ratelimit::v1::{OnStoreFailure, Rule};

use super::rules;
use crate::calls::{READ_TIME, within};
use crate::fields::FormFields;
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_words::refuses_nothing;
use crate::table::Table;
use crate::text::{foreign, joined, number, span, time};
use crate::visit::{Visit, Visitor};

/// Most instances on a page.
const MAX_SHOWN: i32 = 1_000;

/// The policies of rules for the time that the store is away, with what one rule does, and several.
const POLICIES: [(OnStoreFailure, &str, &str); 4] = [
    (OnStoreFailure::Error, "answers errors", "answer errors"),
    (OnStoreFailure::Allow, "lets all pass", "let all pass"),
    (OnStoreFailure::Deny, "refuses all", "refuse all"),
    (OnStoreFailure::Local, "decides on each instance alone", "decide on each instance alone"),
];

/// The first instances, and whether there are more.
type ListedInstances = (Vec<Instance>, bool);

/// Shows the instances.
pub(crate) async fn show(visit: Visit) -> Response {
    let frame = visit.frame("instances");
    let listed = list(&visit.visitor).await;
    let has_nodes = |(instances, _): &ListedInstances| {
        instances.iter().any(|instance| instance.answering && !instance.store_nodes.is_empty())
    };
    let meanwhile = match &listed {
        Ok(listed) if has_nodes(listed) => meanwhile(&visit).await,
        _ => html! {},
    };
    let status = listed.as_ref().err().map_or(StatusCode::OK, |error| error.status);
    let render = move || {
        let content = match &listed {
            Ok((instances, has_more)) => content(&frame, instances, *has_more, &meanwhile),
            Err(error) => failure(&error.sentence()),
        };
        frame.page("Instances", &content)
    };
    visit.console.page(status, render).await
}

/// Says what the rules that a visitor may see do while a server is away; nothing if that is not known.
async fn meanwhile(Visit { console, visitor, .. }: &Visit) -> Markup {
    let listed = rules::list(visitor.clone(), FormFields::default());
    let rules = console.in_background(listed).await.unwrap_or_default();
    let refusing = rules.iter().map(|(_, rule)| rule);
    let refusing: Vec<_> = refusing.filter(|rule| refuses_nothing(rule.mode()).is_none()).collect();
    let used = POLICIES.map(|(policy, single, several)| {
        let has_policy = |rule: &&&Rule| {
            let opens = rule.breaker_opens_rule;
            policy == if opens { OnStoreFailure::Allow } else { rule.on_store_failure() }
        };
        (refusing.iter().filter(has_policy).count() as u64, single, several)
    });
    html! {
        @if !refusing.is_empty() {
            p {
                "While a node is away: "
                (joined(used.iter().filter(|(rules, ..)| *rules > 0), ", ", |(rules, single, several)| html! {
                    (number(*rules)) @if *rules == 1 { " rule " (single) } @else { " rules " (several) }
                }))
                "."
            }
        }
    }
}

/// Lists the instances.
pub(super) async fn list(visitor: &Visitor) -> Result<ListedInstances, PageError> {
    let request = ListInstancesRequest { page_size: MAX_SHOWN, page_token: String::new() };
    let listed = visitor.admin().list_instances(within(READ_TIME, request)).await?.into_inner();
    Ok((listed.instances, !listed.next_page_token.is_empty()))
}

fn content(frame: &Frame, instances: &[Instance], has_more: bool, meanwhile: &Markup) -> Markup {
    let missing = instances.iter().filter(|instance| instance.missing).count();
    let here = instances.iter().find(|instance| instance.answering);
    let store = &frame.visitor.store;
    html! {
        p.summary {
            (number(instances.len() as u64))
            @if instances.len() == 1 { " instance" } @else { " instances" }
            @if missing > 0 { ", " strong.bad { (number(missing as u64)) " missing" } }
            @else if !store.is_away { ", all reporting" }
            @if store.is_away { ", " strong.warn { "other instances are not known" } }
        }
        @if store.kind == "memory" {
            p.notice { "The store is this instance's memory: other instances do not share its counts, and are not listed." }
        }
        (table(instances))
        @if has_more {
            p.notice { "Only the first " (number(instances.len() as u64)) " are shown." }
        }
        @if let Some(here) = here { (nodes(&here.store_nodes, meanwhile)) }
    }
}

fn table(instances: &[Instance]) -> Markup {
    let newest = instances.iter().map(|instance| instance.catalogue_revision).max();
    let caption = "Each instance as it reported itself, every 10\u{a0}s; this one as it is now";
    let table = Table::<Instance>::new("instances", caption)
        .cards()
        .text("Instance", |instance| foreign(&instance.id))
        .text("State", |instance| {
            html! {
                @if instance.answering { span.good { "this one" } }
                @else if instance.missing { span.bad { "missing" } " since " (time(instance.reported_at.as_ref())) }
                @else { span.good { "reporting" } }
            }
        })
        .text("Version", |instance| foreign(&instance.version))
        .text("Started", |instance| time(instance.started_at.as_ref()))
        .right("Requests/s", |instance| {
            html! {
                @if let Some(requests) = instance.requests_per_second { (number(requests)) }
                @else { span.muted { "not told" } }
            }
        })
        .right("p50", |instance| span(instance.check_p50.as_ref()))
        .right("p99", |instance| span(instance.check_p99.as_ref()))
        .text("Its store", store_text)
        .right("Connections", |instance| number(instance.connections.into()))
        .right("Configuration", |instance| number(instance.revision))
        .right("Catalogue", |instance| catalogue(instance, newest));
    table.rows(instances)
}

/// Says whether an instance reaches its store.
fn store_text(Instance { store_nodes: nodes, missing, .. }: &Instance) -> Markup {
    let away = nodes.iter().filter(|node| !node.available).count();
    let open = nodes.iter().filter(|node| node.breaker() != Breaker::Closed).count();
    html! {
        @if *missing { span.muted { "–" } }
        @else if nodes.is_empty() { span.muted { "memory" } }
        @else if away == 0 && open == 0 { span.good { "answers" } }
        @else {
            span.bad { (number(away as u64)) " of " (number(nodes.len() as u64)) " nodes away" }
            @if open > 0 { ", " span.bad { "circuit breakers open: " (number(open as u64)) } }
        }
    }
}

fn catalogue(instance: &Instance, newest: Option<u64>) -> Markup {
    let revision = instance.catalogue_revision;
    html! {
        @if revision == 0 { span.muted { "none" } }
        @else {
            (number(revision))
            @if newest.is_some_and(|newest| revision < newest) { " " span.warn { "behind" } }
            @if let Some(age) = &instance.catalogue_age { " " span.muted { "(" (span(Some(age))) " old)" } }
        }
    }
}

/// Shows the servers of the store, as this instance sees them.
fn nodes(nodes: &[StoreNode], meanwhile: &Markup) -> Markup {
    let caption = "Times are of the last 512 calls and probes, errors and requests of this instance since \
                   its start; of outages the one that lasts, the longest of the last hour, or the last. A node whose circuit breaker is open is not asked until a probe succeeds";
    let table = Table::<StoreNode>::new("Redis nodes", caption)
        .cards()
        .text("Address", |node| foreign(&node.address))
        .text("Answers", |node| {
            html! { @if node.available { span.good { "yes" } } @else { span.bad { "no" } } }
        })
        .text("Circuit breaker", |node| breaker(node.breaker()))
        .text("Role", |node| word(&node.role))
        .right("p50", |node| span(node.p50.as_ref()))
        .right("p99", |node| span(node.p99.as_ref()))
        .right("Errors", |node| number(node.errors))
        .right("Memory", memory)
        .text("Eviction", |node| word(&node.eviction_policy))
        .wide("Outage", outage);
    html! {
        @if !nodes.is_empty() {
            h2 { "Redis nodes, as this instance sees them" }
            (table.rows(nodes))
            (meanwhile)
        }
    }
}

/// Shows a word of the server, which it may not have told.
fn word(word: &str) -> Markup {
    html! { @if word.is_empty() { span.muted { "not known" } } @else { (foreign(word)) } }
}

fn memory(node: &StoreNode) -> Markup {
    let mebibytes = |bytes: u64| html! { (number(bytes.div_ceil(1 << 20))) " MiB" };
    html! {
        @match (node.used_memory, node.max_memory) {
            (Some(used), Some(0)) => { (mebibytes(used)) ", no limit" },
            (Some(used), Some(max)) => { (mebibytes(used)) " of " (mebibytes(max)) },
            _ => span.muted { "not known" }
        }
    }
}

/// Says how long an outage lasted, and what it did to callers of this instance.
fn outage(node: &StoreNode) -> Markup {
    html! {
        @if node.outage_started_at.is_none() { span.muted { "none" } } @else {
            (span(node.outage.as_ref())) " from " (time(node.outage_started_at.as_ref()))
            @if !node.available { ", " strong.bad { "and still" } }
            ": " (number(node.outage_failed)) " failed, " (number(node.outage_allowed)) " let through"
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
