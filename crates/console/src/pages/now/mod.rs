//! Decisions of now: the page that an operator opens first.

mod refused;
mod render;
mod tables;

pub(crate) use refused::refusal;
pub(super) use tables::{percent, share_refused};

use std::collections::HashMap;

use axum::http::StatusCode;
use axum::response::Response;
use maud::html;
use rlaas_proto::ratelimit::admin::v1::{
    Instance, RuleStats, TopKeysResponse, WatchStatsRequest, WatchStatsResponse,
};

use super::instances;
use crate::calls::{EVERY_PROJECT, id_of};
use crate::chart;
use crate::decisions::{Interval, PointsCoverage, history, interval};
use crate::fields::Link;
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::visit::Visit;

/// Most rules and projects that are shown by themselves.
const MAX_RULES: usize = 50;
const MAX_PROJECTS: usize = 20;

/// All that the page shows.
#[derive(Debug)]
struct NowPage {
    frame: Frame,
    /// The project that a visitor looks at; empty for all of theirs.
    project: String,
    traffic: Traffic,
    /// The keys that are refused most.
    refused: Result<TopKeysResponse, PageError>,
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
            Ok(page) => html! { (page.render()) (page.live_refusals()) (chart::script()) },
            Err(error) => failure(&error.problem),
        };
        frame.page("Now", &content)
    };
    visit.console.page(status, render).await
}

async fn gather(visit: &Visit) -> Result<NowPage, PageError> {
    let Visit { console, visitor, fields } = visit;
    fields.check()?;
    let chosen = fields.get("project").to_owned();
    let project = if chosen.is_empty() { EVERY_PROJECT } else { id_of(&chosen) };
    let project_id = project.to_owned();
    let request = WatchStatsRequest { project_id, ..WatchStatsRequest::default() };
    let instances = async {
        if !visitor.sees_instances() {
            return None;
        }
        Some(instances::list(visitor).await.map(|(instances, _)| instances))
    };
    let points = history(console, visitor, request);
    let (points, refused, instances) =
        tokio::join!(points, refused::read(visitor, project), instances);
    let traffic = Traffic::new(&points?);
    Ok(NowPage { frame: visit.frame("now"), project: chosen, traffic, refused, instances })
}

/// Returns the link to the page of a project; of all if it is empty.
fn link(project: &str) -> Link {
    Link::to("now").with("project", project)
}

/// Decisions of rules that a visitor may see.
#[derive(Clone, Debug, Default)]
struct Traffic {
    /// Intervals, oldest first, and the decisions in each.
    points: Vec<Interval>,
    counts: Vec<RuleStats>,
    /// All decisions.
    total: RuleStats,
    /// Those that refuse most, then the busiest.
    rules: Vec<RuleStats>,
    /// All other rules together.
    other_rules: Option<RuleStats>,
    /// In the same order, without a rule; empty is that of the rules in files.
    projects: Vec<RuleStats>,
    /// All other projects together, and the rules that are not known by themselves.
    other_projects: Option<RuleStats>,
    /// Instances of the points.
    coverage: PointsCoverage,
}

impl Traffic {
    /// Adds up points.
    fn new(points: &[WatchStatsResponse]) -> Self {
        let mut traffic = Self { coverage: PointsCoverage::new(points), ..Self::default() };
        let (mut rules, mut projects) = (SumsByName::new(), SumsByName::new());
        let mut unnamed: Option<RuleStats> = None;
        for point in points {
            for stats in &point.rules {
                rules.entry((&stats.project_id, &stats.rule)).or_default().add(stats);
                projects.entry((&stats.project_id, "")).or_default().add(stats);
            }
            if let Some(others) = &point.others {
                unnamed.get_or_insert_default().add(others);
            }
            let sum = point.sum();
            traffic.total.add(&sum);
            traffic.points.push(interval(point));
            traffic.counts.push(sum);
        }
        (traffic.rules, traffic.other_rules) = busiest(rules, MAX_RULES, unnamed.clone());
        (traffic.projects, traffic.other_projects) = busiest(projects, MAX_PROJECTS, unnamed);
        traffic
    }
}

/// Sums of decisions by project and rule; of whole projects without a rule.
type SumsByName<'a> = HashMap<(&'a str, &'a str), RuleStats>;

/// Returns those that refuse most, then the busiest of these, and the sum of all others.
fn busiest(
    sums: SumsByName<'_>,
    most: usize,
    mut others: Option<RuleStats>,
) -> (Vec<RuleStats>, Option<RuleStats>) {
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_unstable_by(|(name, stats), (other_name, other)| {
        let order = |stats: &RuleStats| (stats.denied, stats.decisions());
        order(other).cmp(&order(stats)).then_with(|| name.cmp(other_name))
    });
    for (_, stats) in all.drain(all.len().min(most)..) {
        others.get_or_insert_default().add(&stats);
    }
    let named = all.into_iter().map(|((project, rule), stats)| RuleStats {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        ..stats
    });
    (named.collect(), others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_rules_are_shown_in_fifty_and_all_decisions_count() {
        let stats = |rule: u64| RuleStats {
            project_id: format!("project-{}", rule % 30),
            rule: format!("rule-{rule}"),
            allowed: rule,
            denied: 1,
            ..RuleStats::default()
        };
        let rules = (1..=1_000).map(stats).collect();
        let others = Some(RuleStats { allowed: 5, ..RuleStats::default() });
        let point = WatchStatsResponse { rules, others, ..WatchStatsResponse::default() };
        let traffic = Traffic::new(&[point.clone(), point]);
        assert_eq!((traffic.points.len(), traffic.rules.len()), (2, MAX_RULES));
        assert_eq!(traffic.rules[0].rule, "rule-1000");
        let all = RuleStats { allowed: 2 * 500_505, denied: 2_000, ..RuleStats::default() };
        assert_eq!(traffic.total, all);
        for (shown, others) in
            [(&traffic.rules, &traffic.other_rules), (&traffic.projects, &traffic.other_projects)]
        {
            let mut sum = RuleStats::default();
            shown.iter().chain(others).for_each(|stats| sum.add(stats));
            assert_eq!(sum, all);
        }
        assert_eq!(traffic.projects.len(), MAX_PROJECTS);
    }
}
