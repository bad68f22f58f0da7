//! The tables of the page: by rule, by project and by instance.

use std::collections::BTreeSet;

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::store_node::Breaker;
use rlaas_proto::ratelimit::admin::v1::{Coverage, Instance};

use super::{MAX_PROJECTS, MAX_RULES, NowQuery, Traffic};
use crate::calls::field_of;
use crate::decisions::{DecisionSum, SPAN_NAME};
use crate::rule_words::{project_name, rule_link};
use crate::table::Table;
use crate::text::{foreign, number, span, time};

/// Most instances on the page.
const MAX_INSTANCES: usize = 50;

/// Shows rules: those that refuse most, then the busiest.
pub(super) fn rules(traffic: &Traffic) -> Markup {
    type Row<'a> = (Option<&'a (String, String)>, &'a DecisionSum);
    let caption = format!(
        "Decisions of the last {SPAN_NAME}, most refused first (at most {MAX_RULES} rules). A request counts \
         once for each rule that it meets."
    );
    let busiest = traffic.rules.iter().map(|(rule, counts)| (Some(rule), counts));
    let rows: Vec<Row<'_>> =
        busiest.chain(traffic.other_rules.iter().map(|others| (None, others))).collect();
    let table = Table::<Row<'_>>::new("rules", &caption).text("Rule", |(rule, _)| {
        let others = || html! { "All other rules" };
        rule.map_or_else(others, |(project, name)| rule_link(project, name))
    });
    let table = if traffic.rules.iter().all(|((project, _), _)| project.is_empty()) {
        table
    } else {
        table.text("Project", |(rule, _)| {
            html! { @if let Some((project, _)) = rule { (project_name(project)) } }
        })
    };
    let table = with_counts(table, &traffic.total, |(_, counts)| **counts);
    html! {
        @if !rows.is_empty() {
            h2 { "Rules" }
            (table.rows(&rows))
        }
    }
}

/// Shows projects, unless all rules are of one.
pub(super) fn projects(query: &NowQuery, traffic: &Traffic) -> Markup {
    type Row<'a> = (Option<&'a String>, &'a DecisionSum);
    let is_shown =
        query.project.is_empty() && traffic.projects.iter().any(|(project, _)| !project.is_empty());
    let caption = format!(
        "Decisions of the last {SPAN_NAME}, most refused first (at most {MAX_PROJECTS} projects)"
    );
    let busiest = traffic.projects.iter().map(|(project, counts)| (Some(project), counts));
    let rows: Vec<Row<'_>> =
        busiest.chain(traffic.other_projects.iter().map(|others| (None, others))).collect();
    let table = Table::<Row<'_>>::new("projects", &caption).text("Project", |(project, _)| {
        let link = |project: &str| NowQuery::link(query.of_instance, field_of(project));
        html! {
            @match project {
                Some(project) if project.is_empty() => a href=(link(project)) { "None (rules in files)" },
                Some(project) => a href=(link(project)) { (foreign(project)) },
                None => "All other projects"
            }
        }
    });
    let table = with_counts(table, &traffic.total, |(_, counts)| **counts);
    html! {
        @if is_shown {
            h2 { "Projects" }
            (table.rows(&rows))
        }
    }
}

/// Adds the columns of counts, for rows that have them. Of the unusual ones those that some row has.
fn with_counts<'a, T>(
    table: Table<'a, T>,
    total: &DecisionSum,
    of: impl Fn(&T) -> DecisionSum + Copy + 'a,
) -> Table<'a, T> {
    let mut table = table
        .right("Decisions", move |row| number(of(row).decisions()))
        .right("Refused", move |row| number(of(row).denied))
        .right("Share refused", move |row| share_refused(&of(row)));
    if total.near_limit > 0 {
        table = table.right("Near the limit", move |row| number(of(row).near_limit));
    }
    if total.shadow_denied > 0 {
        table = table.right("Refused in shadow mode", move |row| number(of(row).shadow_denied));
    }
    if total.degraded > 0 {
        table = table.right("Without the store", move |row| {
            let degraded = of(row).degraded;
            html! { @if degraded > 0 { span.bad { (number(degraded)) } } @else { "0" } }
        });
    }
    table
}

pub(in crate::pages) fn share_refused(counts: &DecisionSum) -> Markup {
    let decisions = counts.decisions();
    let (denied, whole) = (u128::from(counts.denied), u128::from(decisions.max(1)));
    // A little is seen, too.
    let width = (denied * 100).div_ceil(whole);
    html! {
        (percent(counts.denied, decisions))
        svg.share viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            rect.whole width="100" height="10" {}
            rect.part width=(width) height="10" {}
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
    type Row<'a> = (&'a str, Option<&'a Instance>, bool);
    let missing = missing(listed, coverage);
    let known = |id: &str| listed.iter().find(|instance| instance.id == id);
    let present = listed.iter().filter(|instance| !missing.contains(&*instance.id));
    let present = present.map(|instance| (&*instance.id, Some(instance), false));
    let rows = missing.iter().map(|id| (*id, known(id), true)).chain(present);
    let rows: Vec<Row<'_>> = rows.take(MAX_INSTANCES).collect();
    let reported = |(_, instance, is_missing): &Row<'_>, shown: fn(&Instance) -> Markup| {
        let instance = instance.filter(|_| !is_missing);
        instance.map_or_else(|| html! { span.muted { "–" } }, shown)
    };
    let caption = "Each instance as it reported itself, every 10 s";
    let table = Table::<Row<'_>>::new("instances", caption)
        .text("Instance", |(id, ..)| foreign(id))
        .text("State", |(_, instance, is_missing)| {
            let last = instance.and_then(|one| one.reported_at.as_ref());
            let is_here = instance.is_some_and(|one| one.answering);
            html! {
                @if *is_missing {
                    span.bad { "missing" }
                    @if last.is_some() { ", last report " (time(last)) }
                } @else { span.good { @if is_here { "this one" } @else { "reporting" } } }
            }
        })
        .right("Decisions/s", |row| reported(row, |one| number(one.decisions_per_second)))
        .right("p50", |row| reported(row, |one| span(one.check_p50.as_ref())))
        .right("p99", |row| reported(row, |one| span(one.check_p99.as_ref())))
        .text("Its store", |row| reported(row, nodes));
    html! {
        h2 { "Instances" }
        (table.rows(&rows))
        p { a href="instances" { "Versions, revisions and Redis nodes of all instances" } }
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
        let rule = (hostile.to_owned(), hostile.to_owned());
        let traffic = Traffic { rules: vec![(rule, DecisionSum::default())], ..Traffic::default() };
        let html = html! {
            (rules(&traffic))
            (instances(&[instance], &Coverage::default()))
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
