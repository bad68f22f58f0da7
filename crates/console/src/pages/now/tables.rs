//! The tables of the page: by rule and by project.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{RequestStats, RuleStats};

use super::{MAX_PROJECTS, MAX_RULES, Traffic, link};
use crate::calls::field_of;
use crate::decisions::SPAN_NAME;
use crate::rule_words::{project_name, rule_link};
use crate::table::Table;
use crate::text::number;

/// Shows rules: those that refuse most, then the busiest.
pub(super) fn rules(traffic: &Traffic) -> Markup {
    let caption = format!(
        "Decisions of the last {SPAN_NAME}, most refused first (at most {MAX_RULES} rules). A request counts \
         once for each rule that it meets."
    );
    let rows: Vec<&RuleStats> = traffic.rules.iter().chain(&traffic.other_rules).collect();
    // The others have no name.
    let table = Table::<&RuleStats>::new("rules", &caption).text("Rule", |RuleStats { project_id, rule, .. }| {
        html! { @if rule.is_empty() { "All other rules" } @else { (rule_link(project_id, rule)) } }
    });
    let table = if traffic.rules.iter().all(|stats| stats.project_id.is_empty()) {
        table
    } else {
        table.text("Project", |RuleStats { project_id, rule, .. }| {
            html! { @if !rule.is_empty() { (project_name(project_id)) } }
        })
    };
    let table = with_counts(table, &traffic.total);
    html! {
        @if !rows.is_empty() {
            h2 { "Rules" }
            (table.rows(&rows))
            (in_no_row(&traffic.all))
        }
    }
}

/// Says which requests are in no row of a table of rules.
pub(in crate::pages) fn in_no_row(requests: &RequestStats) -> Markup {
    html! {
        @if requests.no_rule > 0 || requests.failed > 0 {
            p.hint {
                "In no row, in the last " (SPAN_NAME) ": " (number(requests.no_rule))
                " requests refused without a rule, " (number(requests.failed)) " failed."
            }
        }
    }
}

/// Shows projects, unless no request has one.
pub(super) fn projects(shown: &str, traffic: &Traffic) -> Markup {
    type Row<'a> = (Option<&'a str>, &'a RequestStats);
    let is_shown =
        shown.is_empty() && traffic.projects.iter().any(|stats| !stats.project_id.is_empty());
    let caption = format!(
        "Requests of the last {SPAN_NAME}, most refused first (at most {MAX_PROJECTS} projects). Share refused: \
         of allowed, refused and failed."
    );
    let busiest = traffic.projects.iter().map(|stats| (Some(&*stats.project_id), stats));
    let rows: Vec<Row<'_>> =
        busiest.chain(traffic.other_projects.iter().map(|others| (None, others))).collect();
    let table = Table::<Row<'_>>::new("projects", &caption).text("Project", |(project, _)| {
        let link = |id: &str| link(field_of(id));
        html! {
            @match project {
                Some(project) => a href=(link(project)) { (project_name(project)) },
                None => "All other projects"
            }
        }
    });
    let mut table = table
        .right("Refused", |(_, stats)| number(stats.denied))
        .right("Share refused", |(_, stats)| share(stats.denied, stats.requests()))
        .right("Requests", |(_, stats)| number(stats.requests()));
    if traffic.all.failed > 0 {
        table = table.right("Failed", |(_, stats)| bad_unless_none(stats.failed));
    }
    if traffic.all.fail_open > 0 {
        table =
            table.right("Let through (fail-open)", |(_, stats)| bad_unless_none(stats.fail_open));
    }
    if traffic.all.rejected > 0 {
        table = table.right("Not valid", |(_, stats)| number(stats.rejected));
    }
    html! {
        @if is_shown {
            h2 { "Projects" }
            (table.rows(&rows))
        }
    }
}

/// Adds the columns of counts of rules. Of the unusual ones those that some rule has.
fn with_counts<'a>(table: Table<'a, &'a RuleStats>, total: &RuleStats) -> Table<'a, &'a RuleStats> {
    let mut table = table
        .right("Refused", |stats| number(stats.denied))
        .right("Share refused", |stats| share_refused(stats))
        .right("Decisions", |stats| number(stats.decisions()));
    if total.near_limit > 0 {
        table = table.right("Near the limit", |stats| number(stats.near_limit));
    }
    if total.shadow_denied > 0 {
        table = table.right("Would refuse", |stats| number(stats.shadow_denied));
    }
    if total.degraded > 0 {
        table = table.right("Without the store", |stats| bad_unless_none(stats.degraded));
    }
    table
}

pub(in crate::pages) fn bad_unless_none(count: u64) -> Markup {
    html! { @if count > 0 { span.bad { (number(count)) } } @else { "0" } }
}

pub(in crate::pages) fn share_refused(stats: &RuleStats) -> Markup {
    share(stats.denied, stats.decisions())
}

pub(in crate::pages) fn share(part: u64, whole: u64) -> Markup {
    // A little is seen, too.
    let width = (u128::from(part) * 100).div_ceil(whole.max(1).into());
    html! {
        (percent(part, whole))
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
        let (project_id, rule) = (hostile.to_owned(), hostile.to_owned());
        let rules = vec![RuleStats { project_id, rule, ..RuleStats::default() }];
        let traffic = Traffic { rules, ..Traffic::default() };
        let html = super::rules(&traffic).into_string();
        assert!(!html.contains("<script>") && !html.contains(['\u{202e}', '\0']), "{html}");
        assert_eq!(html.matches("U+202E").count(), 2, "{html}");
    }
}
