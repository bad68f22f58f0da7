//! Requests and decisions of now: the page that an operator opens first.

mod refused;
mod render;
mod tables;

pub(crate) use refused::refusal;
pub(super) use tables::{bad_unless_none, in_no_row, percent, share, share_refused};

use std::collections::HashMap;

use axum::http::StatusCode;
use axum::response::Response;
use maud::html;
use rlaas_proto::ratelimit::admin::v1::{
    AuditEntry, Instance, RequestStats, RuleStats, TopKeysResponse, WatchStatsResponse,
};

use super::instances;
use crate::calls::{EVERY_PROJECT, id_of};
use crate::changes::changes;
use crate::chart;
use crate::decisions::{Interval, PointsCoverage, history, interval, range, requests_by_project};
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
    /// The changes in the time of the charts.
    changes: Vec<AuditEntry>,
    /// The keys that are refused most.
    refused: Result<TopKeysResponse, PageError>,
    /// The instances, or why they are not known; `None` if the visitor may not see them.
    instances: Option<Result<Vec<Instance>, PageError>>,
}

/// Shows the requests and decisions that a visitor may see.
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
    let instances = async {
        if !visitor.sees_instances() {
            return None;
        }
        Some(instances::list(visitor).await.map(|(instances, _)| instances))
    };
    let points = history(console, visitor, project, "");
    let (points, refused, instances) =
        tokio::join!(points, refused::read(visitor, project), instances);
    let traffic = Traffic::new(&points?);
    let changes = changes(visitor, project, "", range(&traffic.points)).await;
    let frame = visit.frame("now");
    Ok(NowPage { frame, project: chosen, traffic, changes, refused, instances })
}

/// Returns the link to the page of a project; of all if it is empty.
fn link(project: &str) -> Link {
    Link::to("now").with("project", project)
}

/// Requests, and decisions of rules, that a visitor may see.
#[derive(Clone, Debug, Default)]
struct Traffic {
    /// Intervals, oldest first, and the requests and decisions in each.
    points: Vec<Interval>,
    requests: Vec<RequestStats>,
    counts: Vec<RuleStats>,
    /// All requests.
    all: RequestStats,
    /// All decisions.
    total: RuleStats,
    /// Those that refuse most, then the busiest.
    rules: Vec<RuleStats>,
    /// All other rules together.
    other_rules: Option<RuleStats>,
    /// Requests of projects, in the same order; the empty one is that of requests without one.
    projects: Vec<RequestStats>,
    /// All other projects together.
    other_projects: Option<RequestStats>,
    /// Instances of the points.
    coverage: PointsCoverage,
}

impl Traffic {
    /// Adds up points.
    fn new(points: &[WatchStatsResponse]) -> Self {
        let mut traffic = Self { coverage: PointsCoverage::new(points), ..Self::default() };
        let mut rules = HashMap::new();
        for point in points {
            for stats in &point.rules {
                let name = (&*stats.project_id, &*stats.rule);
                rules.entry(name).or_insert_with(RuleStats::default).add(stats);
            }
            if let Some(others) = &point.others {
                traffic.other_rules.get_or_insert_default().add(others);
            }
            if let Some(others) = &point.other_requests {
                traffic.other_projects.get_or_insert_default().add(others);
            }
            let (sum, requests) = (point.sum(), point.request_sum());
            traffic.total.add(&sum);
            traffic.all.add(&requests);
            traffic.points.push(interval(point));
            traffic.counts.push(sum);
            traffic.requests.push(requests);
        }
        let mut rules = busiest(rules, |stats| (stats.denied, stats.decisions()));
        for (_, stats) in rules.drain(rules.len().min(MAX_RULES)..) {
            traffic.other_rules.get_or_insert_default().add(&stats);
        }
        let named = rules.into_iter().map(|((project, rule), stats)| RuleStats {
            project_id: project.to_owned(),
            rule: rule.to_owned(),
            ..stats
        });
        traffic.rules = named.collect();
        let mut projects =
            busiest(requests_by_project(points), |stats| (stats.denied, stats.requests()));
        for (_, stats) in projects.drain(projects.len().min(MAX_PROJECTS)..) {
            traffic.other_projects.get_or_insert_default().add(&stats);
        }
        let named = projects.into_iter();
        let named = named.map(|(id, stats)| RequestStats { project_id: id.to_owned(), ..stats });
        traffic.projects = named.collect();
        traffic
    }

    /// Returns `true` if nothing was asked. An instance of an earlier version tells no requests.
    fn is_empty(&self) -> bool {
        self.all.requests() == 0 && self.all.rejected == 0 && self.total.decisions() == 0
    }
}

/// Returns sums by their order, the highest first, and equal ones by their names.
fn busiest<N: Ord, S>(sums: HashMap<N, S>, order: impl Fn(&S) -> (u64, u64)) -> Vec<(N, S)> {
    let mut all: Vec<_> = sums.into_iter().collect();
    all.sort_unstable_by(|(name, stats), (other_name, other)| {
        order(other).cmp(&order(stats)).then_with(|| name.cmp(other_name))
    });
    all
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
        let of_project = |id: u64| RequestStats {
            project_id: format!("project-{id}"),
            denied: 1,
            failed: id,
            ..RequestStats::default()
        };
        let requests = (1..=30).map(of_project).collect();
        let other_requests = Some(RequestStats { allowed: 7, ..RequestStats::default() });
        let point =
            WatchStatsResponse { rules, others, requests, other_requests, ..Default::default() };
        let traffic = Traffic::new(&[point.clone(), point]);
        assert_eq!((traffic.points.len(), traffic.rules.len()), (2, MAX_RULES));
        assert_eq!(traffic.rules[0].rule, "rule-1000");
        let all = RuleStats { allowed: 2 * 500_505, denied: 2_000, ..RuleStats::default() };
        assert_eq!(traffic.total, all);
        let mut sum = RuleStats::default();
        traffic.rules.iter().chain(&traffic.other_rules).for_each(|stats| sum.add(stats));
        assert_eq!(sum, all);
        let all = RequestStats { allowed: 14, denied: 60, failed: 930, ..RequestStats::default() };
        let mut sum = RequestStats::default();
        traffic.projects.iter().chain(&traffic.other_projects).for_each(|stats| sum.add(stats));
        assert_eq!((&sum, &traffic.all), (&all, &all));
        assert_eq!(traffic.projects.len(), MAX_PROJECTS);
        assert_eq!(traffic.projects[0].project_id, "project-30");
    }
}
