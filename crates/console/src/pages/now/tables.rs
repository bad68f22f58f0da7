//! The tables of the page: by rule, by project and by instance.

use std::collections::BTreeSet;

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{Coverage, Instance};

use super::traffic::{MAX_PROJECTS, MAX_RULES};
use super::{NowQuery, Traffic};
use crate::calls::field_of;
use crate::decisions::{DecisionSum, SPAN_NAME};
use crate::rule_words::rule_link;
use crate::table::{PageColumn, PageTable};
use crate::text::{foreign, number, span, time};

/// Most instances on the page.
const MAX_INSTANCES: usize = 50;

/// The columns of counts.
const COUNTS: [PageColumn; 6] = [
    PageColumn::Number("Decisions"),
    PageColumn::Number("Near the limit"),
    PageColumn::Number("Refused"),
    PageColumn::Number("Share refused"),
    PageColumn::Number("Refused in shadow mode"),
    PageColumn::Number("Without the store"),
];

/// Shows the busiest rules.
pub(super) fn rules(traffic: &Traffic) -> Markup {
    let caption = format!(
        "Decisions of the last {SPAN_NAME}, busiest rules first (at most {MAX_RULES}). A request counts once for \
         each rule that it meets."
    );
    let columns = [&[PageColumn::Text("Rule"), PageColumn::Text("Project")], &COUNTS[..]].concat();
    let rows = html! {
        @for ((project, name), counts) in &traffic.rules { (rule(project, name, counts)) }
        @if let Some(others) = &traffic.other_rules {
            tr { th scope="row" { "All other rules" } td {} (cells(others)) }
        }
    };
    html! {
        @if !traffic.rules.is_empty() || traffic.other_rules.is_some() {
            h2 { "Rules" }
            (PageTable { of: "rules", caption: &caption, columns: &columns }.with_rows(&rows))
        }
    }
}

fn rule(project: &str, name: &str, counts: &DecisionSum) -> Markup {
    html! {
        tr {
            th scope="row" { (rule_link(project, name)) }
            td { @if project.is_empty() { span.muted { "none" } } @else { (foreign(project)) } }
            (cells(counts))
        }
    }
}

/// Shows the busiest projects, unless all rules are of one.
pub(super) fn projects(query: &NowQuery, traffic: &Traffic) -> Markup {
    let is_shown =
        query.project.is_empty() && traffic.projects.iter().any(|(project, _)| !project.is_empty());
    let caption = format!(
        "Decisions of the last {SPAN_NAME}, busiest projects first (at most {MAX_PROJECTS})"
    );
    let columns = [&[PageColumn::Text("Project")], &COUNTS[..]].concat();
    let rows = html! {
        @for (project, counts) in &traffic.projects { (project_row(query, project, counts)) }
        @if let Some(others) = &traffic.other_projects {
            tr { th scope="row" { "All other projects" } (cells(others)) }
        }
    };
    html! {
        @if is_shown {
            h2 { "Projects" }
            (PageTable { of: "projects", caption: &caption, columns: &columns }.with_rows(&rows))
        }
    }
}

fn project_row(query: &NowQuery, project: &str, counts: &DecisionSum) -> Markup {
    let link = NowQuery::link(query.of_instance, field_of(project));
    html! {
        tr {
            th scope="row" {
                @if project.is_empty() { a href=(link) { "None (rules in files)" } }
                @else { a href=(link) { (foreign(project)) } }
            }
            (cells(counts))
        }
    }
}

fn cells(counts: &DecisionSum) -> Markup {
    let decisions = counts.decisions();
    let (denied, whole) = (u128::from(counts.denied), u128::from(decisions.max(1)));
    // A little is seen, too.
    let width = (denied * 100).div_ceil(whole);
    html! {
        td.right { (number(decisions)) }
        td.right { (number(counts.near_limit)) }
        td.right { (number(counts.denied)) }
        td.right {
            (percent(counts.denied, decisions))
            svg.share viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
                rect.whole width="100" height="10" {}
                rect.part width=(width) height="10" {}
            }
        }
        td.right { (number(counts.shadow_denied)) }
        td.right {
            @if counts.degraded > 0 { span.bad { (number(counts.degraded)) } } @else { "0" }
        }
    }
}

/// Returns a share as text.
pub(in crate::pages) fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1_000 / u128::from(whole.max(1));
    match tenths {
        0 if part > 0 => "< 0.1 %".to_owned(),
        _ if tenths % 10 == 0 => format!("{} %", tenths / 10),
        _ => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// Returns the ids of instances that do not report: to the fleet, or to the last point.
pub(super) fn missing<'a>(listed: &'a [Instance], coverage: &'a Coverage) -> BTreeSet<&'a str> {
    let of_list = listed.iter().filter(|instance| instance.missing).map(|instance| &*instance.id);
    of_list.chain(coverage.missing.iter().map(|id| &**id)).collect()
}

/// Returns how many instances are listed as reporting, but were not in the last point.
pub(super) fn silent(listed: &[Instance], coverage: &Coverage) -> usize {
    let is_silent =
        |instance: &&Instance| !instance.missing && coverage.missing.contains(&instance.id);
    listed.iter().filter(is_silent).count()
}

/// Shows the instances, those that are missing first.
pub(super) fn instances(listed: &[Instance], coverage: &Coverage) -> Markup {
    let missing = missing(listed, coverage);
    let known = |id: &str| listed.iter().find(|instance| instance.id == id);
    let present = listed.iter().filter(|instance| !missing.contains(&*instance.id));
    let shown = MAX_INSTANCES.saturating_sub(missing.len());
    let columns = [
        PageColumn::Text("Instance"),
        PageColumn::Text("State"),
        PageColumn::Number("Decisions/s"),
        PageColumn::Number("p50"),
        PageColumn::Number("p99"),
        PageColumn::Text("Its store"),
    ];
    let caption = "Each instance as it reported itself, every 10 s";
    let rows = html! {
        @for id in missing.iter().take(MAX_INSTANCES) {
            tr {
                th scope="row" { (foreign(id)) }
                td {
                    span.bad { "missing" }
                    @if let Some(reported) = known(id).and_then(|one| one.reported_at.as_ref()) {
                        ", last report " (time(Some(reported)))
                    }
                }
                @for _ in 0..3 { td.right { span.muted { "–" } } }
                td { span.muted { "–" } }
            }
        }
        @for instance in present.take(shown) { (instance_row(instance)) }
    };
    html! {
        h2 { "Instances" }
        (PageTable { of: "instances", caption, columns: &columns }.with_rows(&rows))
        p { a href="instances" { "Versions, revisions and Redis nodes of all instances" } }
    }
}

fn instance_row(instance: &Instance) -> Markup {
    html! {
        tr {
            th scope="row" { (foreign(&instance.id)) }
            td { span.good { @if instance.answering { "this one" } @else { "reporting" } } }
            td.right { (number(instance.decisions_per_second)) }
            td.right { (span(instance.check_p50.as_ref())) }
            td.right { (span(instance.check_p99.as_ref())) }
            td { (nodes(instance)) }
        }
    }
}

fn nodes(instance: &Instance) -> Markup {
    let nodes = &instance.store_nodes;
    let away = nodes.iter().filter(|node| !node.available).count();
    let open = nodes.iter().filter(|node| node.breaker() != Breaker::Closed).count();
    html! {
        @if nodes.is_empty() { span.muted { "memory" } }
        @else if away == 0 && open == 0 { span.good { "answers" } }
        @else {
            span.bad { (number(away as u64)) " of " (number(nodes.len() as u64)) " away" }
            @if open > 0 { ", " span.bad { (number(open as u64)) " breaker" @if open > 1 { "s" } " open" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_to_a_tenth() {
        for (part, whole, text) in [
            (0, 0, "0 %"),
            (0, 7, "0 %"),
            (1, 10_000, "< 0.1 %"),
            (1, 8, "12.5 %"),
            (1, 2, "50 %"),
            (u64::MAX, u64::MAX, "100 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }

    #[test]
    fn hostile_names_do_nothing() {
        let hostile = "<script>\u{202e}\0\"";
        let instance = Instance { id: hostile.to_owned(), ..Instance::default() };
        let coverage = Coverage { missing: vec![hostile.to_owned()], ..Coverage::default() };
        let html = html! {
            (rule(hostile, hostile, &DecisionSum::default()))
            (instance_row(&instance))
            (instances(&[], &coverage))
        };
        let html = html.into_string();
        assert!(!html.contains("<script>") && !html.contains(['\u{202e}', '\0']), "{html}");
        assert_eq!(html.matches("U+202E").count(), 4, "{html}");
    }

    #[test]
    fn an_instance_is_missing_if_either_source_says_so() {
        let instance =
            |id: &str, missing| Instance { id: id.to_owned(), missing, ..Instance::default() };
        let listed = [instance("a", false), instance("b", true), instance("c", false)];
        let coverage = Coverage {
            instances: vec!["a".to_owned()],
            missing: ["c", "d"].map(str::to_owned).into(),
        };
        assert_eq!(missing(&listed, &coverage), BTreeSet::from(["b", "c", "d"]));
        assert_eq!(silent(&listed, &coverage), 1);
        let html = instances(&listed, &coverage).into_string();
        assert_eq!(html.matches(">missing<").count(), 3, "{html}");
    }
}
