//! The page: tiles for a glance, charts, and what they are made of.

use maud::{Markup, html};
use prost_types::Timestamp;
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{Instance, RequestStats};

use super::tables::{projects, rules};
use super::{NowPage, Traffic, link, refused, tables};
use crate::changes::changes_line;
use crate::chart::{Chart, Series, Shape, Tone, per_second, rate_text, tile};
use crate::decisions::{Interval, SPAN_NAME, as_of, range};
use crate::fields::{Link, UNNAMED};
use crate::layout::{Frame, empty};
use crate::text::{foreign, number, span};

/// What no count of requests has.
const NOT_COUNTED: &str = "Not counted: looks, dry runs and retries that were answered before; charges after a \
     response, but for those of Envoy by limits that are not all post-paid, which can't be told apart; and what \
     client packages refuse by themselves.";

impl NowPage {
    /// Returns what the page shows.
    pub(super) fn render(&self) -> Markup {
        let Self { frame, project, traffic, changes, refused: top, instances: listed } = self;
        let known = listed.as_ref().and_then(|listed| listed.as_ref().ok());
        let part = &*traffic.coverage.part(&frame.visitor);
        html! {
            div #live data-events="now-events" {
                @if !project.is_empty() {
                    p {
                        @if project == UNNAMED { "No project" } @else { "Project " (foreign(project)) }
                        " · " a href=(link("")) { "All projects" }
                    }
                }
                (as_of(&frame.visitor, &traffic.points, &traffic.coverage, &link(project)))
                dl.tiles {
                    (requested(traffic, part))
                    (without_store(traffic, part))
                    @if frame.visitor.sees_instances() { (store_tile(frame, known.map(|listed| &**listed))) }
                    @if let Some(listed) = known { (latency(listed)) (fleet(frame, listed, traffic)) }
                }
                @if traffic.is_empty() { (self.empty()) } @else { (charts(traffic)) }
                (changes_line(changes, &Link::to("audit").with("project", project)))
                (refused::render(&frame.visitor, top))
                (rules(traffic))
                (projects(project, traffic))
                @if let Some(Err(error)) = listed {
                    p.problem { "The instances are not known: " (foreign(&error.problem)) }
                }
            }
        }
    }

    fn empty(&self) -> Markup {
        empty(&html! {
            "No request in the last " (SPAN_NAME) ". Requests appear here within 10 s"
            @if self.frame.visitor.sees_instances() { "; for one, run " code { "rlaas check alice" } }
            "."
        })
    }
}

fn charts(traffic: &Traffic) -> Markup {
    let range = range(&traffic.points);
    let requests = Series::requests(&traffic.requests);
    let by_policy = [
        Series::new("Allowed (fail-open)", Tone::Refused, &traffic.counts, |stats| stats.fail_open),
        Series::new("By another policy", Tone::Policy, &traffic.counts, |stats| {
            stats.degraded.saturating_sub(stats.fail_open)
        }),
    ];
    let chart = |id, title, shape, series| {
        let points: &[Interval] = &traffic.points;
        Chart { id, title, shape, range, points, series }.render()
    };
    html! {
        (chart("requests", "Requests", Shape::Stacked, &requests))
        p.hint { (NOT_COUNTED) }
        @if traffic.total.degraded > 0 {
            (chart("policy", "Decisions of rules without the store", Shape::Lines, &by_policy))
        }
    }
}

fn requested(traffic: &Traffic, part: &str) -> Markup {
    let (interval, last) = last_point(traffic);
    let rate = |count| rate_text(per_second(count, interval));
    let during = |all: fn(&RequestStats) -> u64| {
        html! { (part) (number(all(&traffic.all))) " in " (SPAN_NAME) (change(traffic, all)) }
    };
    html! {
        (tile("Requests", &html! { (rate(last.requests())) "/s" }, &html! {
            (during(RequestStats::requests))
            @if traffic.all.rejected > 0 { "; " (number(traffic.all.rejected)) " more not valid" }
        }))
        (tile(
            "Refused",
            &html! { (tables::percent(last.denied, last.requests())) },
            &html! { "of allowed, refused and failed; " (rate(last.denied)) "/s; " (during(|counts| counts.denied)) },
        ))
        (tile(
            "Failed",
            &html! { span class=(good_if_none(last.failed)) { (rate(last.failed)) "/s" } },
            &html! { (during(|counts| counts.failed)) },
        ))
    }
}

fn without_store(traffic: &Traffic, part: &str) -> Markup {
    let (interval, last) = last_point(traffic);
    let rate = rate_text(per_second(last.fail_open, interval));
    tile(
        "Let through (fail-open)",
        &html! { span class=(good_if_none(last.fail_open)) { (rate) "/s" } },
        &html! {
            (part) (number(traffic.all.fail_open)) " in " (SPAN_NAME) "; rules decided "
            (number(traffic.total.degraded)) " times without the store"
        },
    )
}

fn good_if_none(count: u64) -> &'static str {
    if count > 0 { "bad" } else { "good" }
}

/// Compares a count of the last minute with that of the minute before; nothing if neither has any.
fn change(traffic: &Traffic, count: fn(&RequestStats) -> u64) -> Markup {
    let until = traffic.points.last().map_or(0, |(_, until)| until.seconds);
    let minute = |ago: i64| {
        let counts = traffic.points.iter().zip(&traffic.requests);
        let counts = counts.filter(|((_, end), _)| (until - end.seconds) / 60 == ago);
        counts.map(|(_, stats)| count(stats)).fold(0, u64::saturating_add)
    };
    let (last, before) = (minute(0), minute(1));
    let length = (Timestamp::default(), Timestamp { seconds: 60, nanos: 0 });
    let rate = |count| rate_text(per_second(count, length));
    html! {
        @match (last, before) {
            (0, 0) => {},
            (_, 0) => "; none in the minute before",
            _ if last / 2 >= before => { "; from " (rate(before)) " to " (rate(last)) " per s in a minute" },
            _ if last >= before => { "; +" (tables::percent(last - before, before)) " on the minute before" },
            _ => { "; −" (tables::percent(before - last, before)) " on the minute before" },
        }
    }
}

/// Returns the newest interval, and its requests.
fn last_point(traffic: &Traffic) -> (Interval, RequestStats) {
    let interval = traffic.points.last().copied().unwrap_or_default();
    (interval, traffic.requests.last().cloned().unwrap_or_default())
}

fn store_tile(frame: &Frame, listed: Option<&[Instance]>) -> Markup {
    let seen = listed.into_iter().flatten().filter(|instance| !instance.missing);
    let nodes = seen.flat_map(|instance| &instance.store_nodes);
    let open = nodes.filter(|node| node.breaker() != Breaker::Closed).count();
    let state = html! {
        @if frame.visitor.store.is_away { span.bad { "does not answer" } }
        @else if open > 0 { span.bad { "breaker open" } }
        @else { span.good { "answers" } }
    };
    let more = html! {
        (frame.visitor.store.kind)
        @if open > 0 { ", " strong.bad { "circuit breakers open: " (number(open as u64)) } }
    };
    tile("Store", &state, &more)
}

/// Shows the slowest instance.
fn latency(listed: &[Instance]) -> Markup {
    let seen = || listed.iter().filter(|instance| !instance.missing);
    let nanos = |time: &prost_types::Duration| (time.seconds, time.nanos);
    let slowest =
        seen().filter_map(|instance| instance.check_p99.as_ref()).max_by_key(|time| nanos(time));
    let median =
        seen().filter_map(|instance| instance.check_p50.as_ref()).max_by_key(|time| nanos(time));
    tile(
        "Latency, p99",
        &span(slowest),
        &html! { "p50 " (span(median)) "; of the slowest instance" },
    )
}

/// Shows how many instances report: to the fleet, and to the last point.
fn fleet(frame: &Frame, listed: &[Instance], traffic: &Traffic) -> Markup {
    let silent = &traffic.coverage.newest.missing;
    let is_missing = |instance: &&Instance| instance.missing || silent.contains(&instance.id);
    let missing = listed.iter().filter(is_missing).count();
    let more = html! {
        @if missing > 0 { strong.bad { (number(missing as u64)) " missing" } }
        @else if !frame.visitor.store.is_away { "none missing" }
        @else { span.warn { "others are not known" } }
        ", " a href="instances" { "see them" }
    };
    tile("Instances", &number((listed.len() - missing) as u64), &more)
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::{Coverage, StoreNode, WatchStatsResponse};

    use super::*;
    use crate::visit::tests::visitor;

    #[test]
    fn a_jump_is_from_a_rate_to_a_rate_and_a_part_of_the_fleet_is_named() {
        let point = |seconds, allowed| WatchStatsResponse {
            since: Some(Timestamp { seconds: seconds - 10, nanos: 0 }),
            until: Some(Timestamp { seconds, nanos: 0 }),
            requests: vec![RequestStats { allowed, ..RequestStats::default() }],
            coverage: Some(Coverage {
                instances: vec!["here".to_owned()],
                missing: vec!["there".to_owned()],
            }),
            ..WatchStatsResponse::default()
        };
        let mut visitor = visitor();
        visitor.operate.everywhere = true;
        for (last, words) in [(4_200, "; from 3 to 70 per s in a minute"), (200, "; +11.1 % on")] {
            let traffic = Traffic::new(&[point(60, 180), point(120, last)]);
            let tiles = requested(&traffic, &traffic.coverage.part(&visitor)).into_string();
            assert!(tiles.contains(words) && tiles.contains("1 of 2 instances; <"), "{tiles}");
        }
    }

    #[test]
    fn a_store_that_is_not_asked_does_not_answer() {
        let mut visitor = visitor();
        visitor.store.is_away = false;
        let frame = Frame { page: "now", visitor, outcome: None };
        let shown = |breaker: Breaker| {
            let node = StoreNode { breaker: breaker.into(), ..StoreNode::default() };
            let instance = Instance { store_nodes: vec![node], ..Instance::default() };
            store_tile(&frame, Some(&[instance])).into_string()
        };
        assert!(shown(Breaker::Closed).contains(">answers<"));
        for breaker in [Breaker::Open, Breaker::HalfOpen] {
            let open = shown(breaker);
            assert!(open.contains("breaker open") && !open.contains("good"), "{open}");
        }
    }
}
