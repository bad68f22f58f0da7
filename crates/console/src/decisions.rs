//! Decisions of the past, as `WatchStats` sends them; and of when and of which instances they are shown.

use std::collections::{HashMap, HashSet};

use maud::{Markup, html};
use prost_types::{Duration, Timestamp};
use rlaas_proto::ratelimit::admin::v1::{
    Coverage, RequestStats, WatchStatsRequest, WatchStatsResponse,
};

use super::Console;
use super::calls::{READ_TIME, within};
use super::fields::Link;
use super::page_error::PageError;
use super::text::{number, time};
use super::visit::Visitor;

/// The time that is shown, in seconds.
pub(super) const SPAN: i64 = 15 * 60;
/// The same in words.
pub(super) const SPAN_NAME: &str = "15 minutes";
/// Most rules of a point.
const MAX_RULES: i32 = 1_000;

/// From a time, until another.
pub(super) type Interval = (Timestamp, Timestamp);

/// Instances that the points of a page cover.
#[derive(Clone, Debug, Default)]
pub(super) struct PointsCoverage {
    /// Those of the newest point.
    pub(super) newest: Coverage,
    /// Number of points that lack an instance.
    pub(super) incomplete: usize,
}

impl PointsCoverage {
    pub(super) fn new(points: &[WatchStatsResponse]) -> Self {
        let is_incomplete = |point: &&WatchStatsResponse| {
            point.coverage.as_ref().is_some_and(|coverage| !coverage.missing.is_empty())
        };
        Self {
            newest: points.last().and_then(|point| point.coverage.clone()).unwrap_or_default(),
            incomplete: points.iter().filter(is_incomplete).count(),
        }
    }

    /// Says of how many instances the newest point is, before what is said of it; nothing if it is of all.
    pub(super) fn part(&self, visitor: &Visitor) -> String {
        let (counted, missing) = (self.newest.instances.len(), self.newest.missing.len());
        let is_shown = missing > 0 && visitor.sees_instances();
        let part = || format!("{counted} of {} instances; ", counted + missing);
        is_shown.then(part).unwrap_or_default()
    }
}

/// Returns the interval of a point.
pub(super) fn interval(point: &WatchStatsResponse) -> Interval {
    (point.since.unwrap_or_default(), point.until.unwrap_or_default())
}

/// Returns the range of a chart that ends at the last interval.
pub(super) fn range(points: &[Interval]) -> Interval {
    let until = points.last().map(|(_, until)| *until).unwrap_or_default();
    (Timestamp { seconds: until.seconds - SPAN, ..until }, until)
}

/// Returns the points of the last 15 minutes, oldest first: of a project, and of a rule unless it is empty. There
/// may be 90,000 counters.
pub(super) async fn history(
    console: &Console,
    visitor: &Visitor,
    project: &str,
    rule: &str,
) -> Result<Vec<WatchStatsResponse>, PageError> {
    let request = WatchStatsRequest {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        history: Some(Duration { seconds: SPAN, nanos: 0 }),
        max_rules: MAX_RULES,
        past_only: true,
        ..WatchStatsRequest::default()
    };
    let mut client = visitor.admin();
    let read = async move {
        let stream = client.watch_stats(within(READ_TIME, request)).await?;
        let (mut stream, mut points) = (stream.into_inner(), Vec::new());
        while let Some(point) = stream.message().await? {
            points.push(point);
        }
        Ok(points)
    };
    console.in_background(read).await
}

/// Adds up the requests of each project.
pub(super) fn requests_by_project(points: &[WatchStatsResponse]) -> HashMap<&str, RequestStats> {
    let mut projects = HashMap::<_, RequestStats>::new();
    for stats in points.iter().flat_map(|point| &point.requests) {
        projects.entry(&*stats.project_id).or_default().add(stats);
    }
    projects
}

/// The requests of projects, where they are known.
pub(super) struct ProjectRequests<'a> {
    by_project: HashMap<&'a str, RequestStats>,
    /// Whether other projects had none. If not there is no point, an instance is missing, or others are busier.
    is_whole: bool,
    /// Those whose rules have decided. Without requests an instance is of an earlier version, which tells none.
    deciding: HashSet<&'a str>,
}

impl<'a> ProjectRequests<'a> {
    pub(super) fn new(points: &'a [WatchStatsResponse]) -> Self {
        let is_missing = |coverage: &Coverage| !coverage.missing.is_empty();
        let is_whole = |point: &WatchStatsResponse| {
            point.other_requests.is_none() && !point.coverage.as_ref().is_some_and(is_missing)
        };
        let stats = points.iter().flat_map(|point| &point.rules);
        let deciding = stats.filter(|stats| stats.decisions() > 0).map(|stats| &*stats.project_id);
        Self {
            by_project: requests_by_project(points),
            is_whole: !points.is_empty() && points.iter().all(is_whole),
            deciding: deciding.collect(),
        }
    }

    /// Returns the requests of a project; `None` if they are not known.
    pub(super) fn of_project(&self, id: &str) -> Option<RequestStats> {
        let is_none = self.is_whole && !self.deciding.contains(id);
        self.by_project.get(id).cloned().or_else(|| is_none.then(RequestStats::default))
    }
}

/// Says of when and of which instances the numbers are.
pub(super) fn as_of(
    visitor: &Visitor,
    points: &[Interval],
    coverage: &PointsCoverage,
    reload: &Link,
) -> Markup {
    let PointsCoverage { newest: Coverage { instances, missing }, incomplete } = coverage;
    let (counted, missing) = (instances.len() as u64, missing.len() as u64);
    html! {
        p.hint."as-of" {
            @match points.last() {
                Some((_, until)) => { "As of " (time(Some(until))) },
                None => "The first numbers come within 10 s",
            }
            @if !visitor.sees_instances() {}
            @else if visitor.store.kind == "memory" { ", of this instance only: the store is its memory" }
            @else if counted > 0 {
                ", of " (number(counted)) @if counted == 1 { " instance" } @else { " instances" }
                @if missing > 0 { "; " strong.bad { (number(missing)) " missing" } }
                @if *incomplete > 0 {
                    "; " (number(*incomplete as u64)) " of the points of 10 s lack an instance"
                }
            }
            ". Rates are of the last 10 s. " a href=(reload) { "Reload" }
        }
    }
}
