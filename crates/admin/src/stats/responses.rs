//! `WatchStats`: counters by rule and of requests, of the past and as they are made.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use rlaas_auth::{Caller, StreamAccess};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::values::{micros, timestamp};
use rlaas_telemetry::decisions::WatchError;
use rlaas_telemetry::stats::{StatsCoverage, StatsFilter, StatsPoint, StatsSum};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::Status;

use super::{
    FleetStats, STATS_INTERVAL, StatsReading, StatsScope, StatsWatch, counters, request_counters,
    request_stats, rule_stats,
};
use crate::Administrator;
use crate::decisions::{WatchedProjects, refused};
use crate::projects::OPERATE_OR_ADMIN;
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_proto::status::invalid_field;

/// Rules of a point if the request does not say how many, and the most.
const DEFAULT_RULES: usize = 100;
const MAX_RULES: usize = 1_000;
/// Longest time of the past.
const MAX_HISTORY: Duration = Duration::from_mins(15);
const SECOND: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_mins(1);

/// The responses of a watch.
pub(crate) type StatsResponses =
    Pin<Box<dyn Stream<Item = Result<proto::WatchStatsResponse, Status>> + Send>>;

/// The valid fields of a request that do not depend on its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatsQuery {
    scope: StatsScope,
    interval: Duration,
    max_rules: usize,
    history: Option<Duration>,
}

/// The rules that a request asks for, and that its caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelectedRules {
    project_id: String,
    filter: StatsFilter,
}

/// Who reads the responses, and which rules.
pub(crate) struct Reader {
    pub(crate) administrator: Administrator,
    /// What has opened the stream; may be taken away.
    pub(crate) access: Option<StreamAccess>,
    pub(crate) selected: SelectedRules,
}

impl StatsQuery {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT`, with the field.
    pub(crate) fn new(request: &proto::WatchStatsRequest) -> Result<Self, Status> {
        let proto::WatchStatsRequest { interval, this_instance, max_rules, history, .. } = request;
        let scope = if *this_instance { StatsScope::Instance } else { StatsScope::Fleet };
        let ten_seconds = Duration::from(STATS_INTERVAL);
        let least = if *this_instance { SECOND } else { ten_seconds };
        let interval = match interval.as_ref().map(micros).map(|time| time.map(Duration::from)) {
            None => ten_seconds,
            Some(Some(interval)) if (least..=MAX_INTERVAL).contains(&interval) => interval,
            Some(_) => {
                let problem = "must be 10s to 60s, or 1s to 60s with this_instance";
                return Err(invalid_field("interval", problem));
            }
        };
        let max_rules = match usize::try_from(*max_rules) {
            Ok(0) => DEFAULT_RULES,
            Ok(most) => most.min(MAX_RULES),
            Err(_) => return Err(invalid_field("max_rules", "must not be negative")),
        };
        let history = match history.as_ref().map(micros).map(|time| time.map(Duration::from)) {
            None => None,
            Some(Some(history)) if history <= MAX_HISTORY => {
                Some(history).filter(|history| !history.is_zero())
            }
            Some(_) => return Err(invalid_field("history", "must be 0s to 900s")),
        };
        Ok(Self { scope, interval, max_rules, history })
    }

    /// Returns the number of points of 10 s of an interval, rounded up; `None` for intervals of
    /// another length, of this instance.
    fn points(&self) -> Option<usize> {
        let (interval, length) = (Micros::from(self.interval), STATS_INTERVAL.as_micros());
        let is_whole = interval.as_micros().is_multiple_of(length);
        let points = usize::try_from(interval.as_micros().div_ceil(length)).unwrap_or(usize::MAX);
        (is_whole || self.scope == StatsScope::Fleet).then_some(points)
    }
}

/// Returns the rules that a caller may see of those that it asks for.
///
/// # Errors
///
/// `NOT_FOUND` if there is no such project, or the caller has no role in it.
pub(crate) fn selected(
    administrator: &Administrator,
    caller: &Caller,
    request: &proto::WatchStatsRequest,
) -> Result<SelectedRules, Status> {
    let proto::WatchStatsRequest { project_id, rule, .. } = request;
    let rule = Some(rule.clone()).filter(|rule| !rule.is_empty());
    let limiter = administrator.limiter();
    let projects = WatchedProjects::new(limiter, caller, project_id, OPERATE_OR_ADMIN)?;
    let projects = projects.ids().map(|ids| ids.iter().map(ToString::to_string).collect());
    let filter = StatsFilter { projects, rule };
    Ok(SelectedRules { project_id: project_id.clone(), filter })
}

/// Returns the responses of a watch: the past first, then a point each interval. They end when the
/// server drains, and when the reader may not see the rules any more.
pub(crate) async fn responses(
    watch: StatsWatch,
    query: StatsQuery,
    reader: Reader,
) -> StatsResponses {
    let stats = watch.stats();
    let newest = stats.subscribe();
    let (past, after) = query.past(stats);
    let source = if let Some(points) = query.points() {
        Source::Points { newest, after, points }
    } else {
        let last = match query.history {
            // It goes on where the past ends.
            Some(_) => stats.last_reading(),
            None => stats.read().await,
        };
        let mut ticks = interval(query.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Not at once: nothing has been counted since the last reading.
        ticks.reset();
        Source::Readings { last, ticks }
    };
    let watching = StatsStream { watch, query, reader, past: past.into(), source };
    Box::pin(stream::unfold(Some(watching), |watching| async move {
        let mut watching = watching?;
        let response = watching.next().await;
        let goes_on = response.is_ok();
        Some((response, goes_on.then_some(watching)))
    }))
}

/// Returns the points of the past alone.
pub(crate) fn past(
    administrator: &Administrator,
    query: StatsQuery,
    selected: &SelectedRules,
) -> StatsResponses {
    let (past, _) = query.past(administrator.stats());
    let responses: Vec<_> =
        past.iter().map(|point| Ok(response(selected, query.max_rules, point))).collect();
    Box::pin(stream::iter(responses))
}

/// A watch, and what it has not sent.
struct StatsStream {
    watch: StatsWatch,
    query: StatsQuery,
    reader: Reader,
    past: VecDeque<Arc<StatsPoint>>,
    source: Source,
}

/// Where the points of a watch come from.
enum Source {
    /// Points of 10 s with numbers above `after`, so many in one.
    Points { newest: tokio::sync::watch::Receiver<u64>, after: u64, points: usize },
    /// The counters of this instance.
    Readings { last: Arc<StatsReading>, ticks: Interval },
}

impl StatsQuery {
    /// Returns the points of the past, and the number of the point with which they end.
    fn past(&self, stats: &FleetStats) -> (Vec<Arc<StatsPoint>>, u64) {
        let history = self.history.unwrap_or_default();
        let mut past = stats.recent(self.scope, 0);
        let newest = past.last().map_or(0, |point| point.number);
        let until = past.last().map_or(Timestamp::EPOCH, |point| point.until);
        let from = until - history.into();
        past.retain(|point| point.until > from);
        (past, newest)
    }
}

impl StatsStream {
    /// Waits for the next point.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if the server drains, and as [`selected`] if the reader has lost its role.
    async fn next(&mut self) -> Result<proto::WatchStatsResponse, Status> {
        let point = if let Some(point) = self.past.pop_front() {
            point
        } else {
            let drained = self.watch.drained();
            tokio::select! {
                point = self.source.next(&self.watch, self.query.scope) => point,
                () = drained => return Err(refused(WatchError::Draining)),
            }
        };
        self.reader.follow()?;
        Ok(response(&self.reader.selected, self.query.max_rules, &point))
    }
}

fn response(
    selected: &SelectedRules,
    max_rules: usize,
    point: &StatsPoint,
) -> proto::WatchStatsResponse {
    let (rules, others) = point.select(&selected.filter, max_rules);
    let (requests, other_requests) = point.select_requests(&selected.filter, max_rules);
    let names = |ids: &BTreeSet<Arc<str>>| ids.iter().map(ToString::to_string).collect();
    proto::WatchStatsResponse {
        since: Some(timestamp(point.since)),
        until: Some(timestamp(point.until)),
        rules: rules.iter().map(|(key, counts)| rule_stats(key, counts)).collect(),
        others: others.as_ref().map(counters),
        coverage: Some(proto::Coverage {
            instances: names(&point.coverage.instances),
            missing: names(&point.coverage.missing),
        }),
        requests: requests.iter().map(|(id, counts)| request_stats(id, counts)).collect(),
        other_requests: other_requests.as_ref().map(request_counters),
    }
}

impl Source {
    /// Waits for the next point.
    async fn next(&mut self, watch: &StatsWatch, scope: StatsScope) -> Arc<StatsPoint> {
        let stats = watch.stats();
        match self {
            Self::Points { newest, after, points } => loop {
                // Its sender lives as long as the watch.
                let _now = newest.borrow_and_update().to_owned();
                let mut new = stats.recent(scope, *after);
                if new.len() >= *points {
                    new.truncate(*points);
                    let point = merged(&new);
                    *after = point.number;
                    return point;
                }
                if newest.changed().await.is_err() {
                    return std::future::pending().await;
                }
            },
            Self::Readings { last, ticks } => {
                ticks.tick().await;
                let reading = stats.read().await;
                let (rules, others, requests) = reading.since(last).into_parts();
                let (since, until) = (last.at, reading.at);
                *last = reading;
                let instances = [Arc::clone(stats.id())].into();
                let coverage = StatsCoverage { instances, ..StatsCoverage::default() };
                Arc::new(StatsPoint { number: 0, since, until, rules, others, requests, coverage })
            }
        }
    }
}

/// Returns points as one. There is at least one.
fn merged(points: &[Arc<StatsPoint>]) -> Arc<StatsPoint> {
    match points {
        [] => Arc::default(),
        [point] => Arc::clone(point),
        [first, .., last] => {
            let (mut sum, mut coverage) = (StatsSum::default(), StatsCoverage::default());
            for point in points {
                sum.add_point(point);
                coverage.instances.extend(point.coverage.instances.iter().cloned());
                coverage.missing.extend(point.coverage.missing.iter().cloned());
            }
            let (rules, others, requests) = sum.into_parts();
            let (number, since, until) = (last.number, first.since, last.until);
            Arc::new(StatsPoint { number, since, until, rules, others, requests, coverage })
        }
    }
}

impl Reader {
    /// Takes over the roles that the caller has by now.
    fn follow(&mut self) -> Result<(), Status> {
        let Some(access) = &self.access else { return Ok(()) };
        // A call that would not be admitted is ended by the server.
        let Some(caller) = access.caller() else { return Ok(()) };
        let SelectedRules { project_id, filter } = &self.selected;
        let request = proto::WatchStatsRequest {
            project_id: project_id.clone(),
            rule: filter.rule.clone().unwrap_or_default(),
            ..proto::WatchStatsRequest::default()
        };
        self.selected = selected(&self.administrator, &caller, &request)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_requests() {
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let query = |interval, this_instance, max_rules, history| {
            let query = StatsQuery::new(&proto::WatchStatsRequest {
                interval,
                this_instance,
                max_rules,
                history,
                ..proto::WatchStatsRequest::default()
            });
            query.map_err(|status| status.message().to_owned())
        };
        let default = query(None, false, 0, None).expect("a request");
        assert_eq!((default.interval, default.max_rules), (Duration::from_secs(10), 100));
        assert_eq!((default.points(), default.history), (Some(1), None));
        assert_eq!(query(seconds(15), false, 0, None).expect("a request").points(), Some(2));
        assert_eq!(query(seconds(15), true, 0, None).expect("a request").points(), None);
        assert_eq!(query(seconds(60), true, 0, None).expect("a request").points(), Some(6));
        assert_eq!(query(seconds(1), true, 0, None).expect("a request").points(), None);
        assert_eq!(query(None, false, 5_000, None).expect("a request").max_rules, 1_000);
        assert_eq!(query(None, false, 0, seconds(0)).expect("a request").history, None);
        let interval = "interval must be 10s to 60s, or 1s to 60s with this_instance";
        let history = "history must be 0s to 900s";
        for (refused, problem) in [
            (query(seconds(9), false, 0, None), interval),
            (query(seconds(61), true, 0, None), interval),
            (query(seconds(0), true, 0, None), interval),
            (query(seconds(-10), false, 0, None), interval),
            (query(seconds(i64::MAX), false, 0, None), interval),
            (query(seconds(i64::MIN), false, 0, None), interval),
            (query(None, false, -1, None), "max_rules must not be negative"),
            (query(None, false, 0, seconds(901)), history),
            (query(None, false, 0, seconds(-1)), history),
            (query(None, false, 0, seconds(i64::MIN)), history),
        ] {
            assert_eq!(refused, Err(problem.to_owned()));
        }
    }
}
