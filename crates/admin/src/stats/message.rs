//! The report of an instance: points of 10 s, as they lie in the fleet.

use std::sync::Arc;

use prost::Message;
use rlaas_limiter::fleet::MAX_VALUE_LEN;
use rlaas_proto::ratelimit::admin::v1::{RequestStats, RuleStats};
use rlaas_telemetry::sharded::RequestCounts;
use rlaas_telemetry::stats::{
    DecisionCounts, MAX_POINTS, MAX_RULES, StatsKey, StatsPoint, StatsSum,
};

use rlaas_core::clock::Timestamp;

/// Version of reports.
const VERSION: u32 = 3;
/// Most bytes of the name of a rule or a project.
const MAX_NAME: usize = 1_024;

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ReportMessage {
    #[prost(message, repeated, tag = "1")]
    points: Vec<PointMessage>,
    /// Last, so that a report that was cut has none.
    #[prost(uint32, tag = "2")]
    version: u32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct PointMessage {
    /// End of the point, in microseconds since 1970.
    #[prost(uint64, tag = "1")]
    until: u64,
    /// Rules; without a name all others of a project.
    #[prost(message, repeated, tag = "2")]
    rules: Vec<RuleStats>,
    /// Requests by project: at least one, so that a report of an older instance, which tells none, has none.
    #[prost(message, repeated, tag = "3")]
    requests: Vec<RequestStats>,
}

/// The points of a report.
pub(super) type ReportedPoints = Vec<ReportedPoint>;

/// A point of a report.
pub(super) struct ReportedPoint {
    pub(super) until: Timestamp,
    pub(super) sum: StatsSum,
    /// `false` for a point of an older instance: its requests are not known.
    pub(super) tells_requests: bool,
}

/// Returns a report of points. If it would be too long, the less busy rules are in it together.
pub(super) fn encode(points: &[Arc<StatsPoint>]) -> Vec<u8> {
    // Many points share the space.
    let mut most = 2 * MAX_RULES / points.len().max(2);
    loop {
        let report = report(points, most).encode_to_vec();
        if report.len() <= MAX_VALUE_LEN || most == 0 {
            return report;
        }
        most /= 2;
    }
}

fn report(points: &[Arc<StatsPoint>], most: usize) -> ReportMessage {
    let point = |point: &Arc<StatsPoint>| {
        let mut sum = StatsSum::default();
        sum.add_point(point);
        let (rules, others, mut requests) = sum.into_bounded(most, most.max(1));
        if requests.is_empty() {
            requests.push((Arc::from(""), RequestCounts::default()));
        }
        let rules = rules.iter().map(|(key, counts)| rule_stats(key, counts));
        let others = others.iter().map(|(project, counts)| RuleStats {
            project_id: project.to_string(),
            ..counters(counts)
        });
        PointMessage {
            until: point.until.as_micros(),
            rules: rules.chain(others).collect(),
            requests: requests.iter().map(|(id, counts)| request_stats(id, counts)).collect(),
        }
    };
    ReportMessage { points: points.iter().map(point).collect(), version: VERSION }
}

/// Reads a report. `None` if it is of another version, cut, or not what an instance writes.
/// `key` returns the shared key of a rule.
pub(super) fn decode(
    report: &[u8],
    mut key: impl FnMut(StatsKey) -> Arc<StatsKey>,
) -> Option<ReportedPoints> {
    if report.len() > MAX_VALUE_LEN {
        return None;
    }
    let ReportMessage { points, version } = ReportMessage::decode(report).ok()?;
    let is_valid =
        |rule: &RuleStats| rule.project_id.len() <= MAX_NAME && rule.rule.len() <= MAX_NAME;
    let is_id = |stats: &RequestStats| stats.project_id.len() <= MAX_NAME;
    let are_valid = points.iter().flat_map(|point| &point.rules).all(is_valid)
        && points.iter().flat_map(|point| &point.requests).all(is_id);
    if version != VERSION || points.len() > MAX_POINTS || !are_valid {
        return None;
    }
    let read = |point: PointMessage| {
        let (mut sum, tells_requests) = (StatsSum::default(), !point.requests.is_empty());
        for rule in point.rules {
            let counts = counts(&rule);
            let key = key(StatsKey::of_rule(&rule.project_id, &rule.rule));
            match &*key.rule {
                "" => sum.add_others(&key.project, &counts),
                _ => sum.add(&key, &counts),
            }
        }
        for stats in point.requests {
            let key = key(StatsKey::of_rule(&stats.project_id, ""));
            sum.add_requests(&key.project, &request_counts(&stats));
        }
        ReportedPoint { until: Timestamp::from_micros(point.until), sum, tells_requests }
    };
    Some(points.into_iter().map(read).collect())
}

/// Returns the message of the decisions of a rule.
pub(crate) fn rule_stats(key: &StatsKey, counts: &DecisionCounts) -> RuleStats {
    RuleStats {
        project_id: key.project.to_string(),
        rule: key.rule.to_string(),
        ..counters(counts)
    }
}

/// Returns the message of decisions, without a project and a rule.
pub(crate) fn counters(counts: &DecisionCounts) -> RuleStats {
    RuleStats {
        allowed: counts.allowed,
        near_limit: counts.near_limit,
        denied: counts.denied,
        shadow_denied: counts.shadow_denied,
        units: counts.units,
        degraded: counts.degraded,
        fail_open: counts.fail_open,
        not_asked: counts.not_asked,
        ..RuleStats::default()
    }
}

/// Returns the message of the requests of a project.
pub(crate) fn request_stats(project: &str, counts: &RequestCounts) -> RequestStats {
    RequestStats { project_id: project.to_owned(), ..request_counters(counts) }
}

/// Returns the message of requests, without a project.
pub(crate) fn request_counters(counts: &RequestCounts) -> RequestStats {
    let RequestCounts { allowed, denied, no_rule, failed, rejected, fail_open, .. } = *counts;
    let project_id = String::new();
    RequestStats { project_id, allowed, denied, failed, rejected, fail_open, no_rule }
}

fn request_counts(stats: &RequestStats) -> RequestCounts {
    let RequestStats { allowed, denied, failed, rejected, fail_open, no_rule, .. } = *stats;
    RequestCounts { allowed, denied, no_rule, failed, rejected, fail_open, units: 0 }
}

fn counts(stats: &RuleStats) -> DecisionCounts {
    DecisionCounts {
        allowed: stats.allowed,
        near_limit: stats.near_limit,
        denied: stats.denied,
        shadow_denied: stats.shadow_denied,
        units: stats.units,
        degraded: stats.degraded,
        fail_open: stats.fail_open,
        not_asked: stats.not_asked,
    }
}

#[cfg(test)]
mod tests {
    use rlaas_telemetry::stats::StatsFilter;

    use super::*;

    fn counts(allowed: u64) -> DecisionCounts {
        DecisionCounts { allowed, units: u64::MAX >> 8, ..DecisionCounts::default() }
    }

    fn point(number: u64, rules: usize, name: usize) -> Arc<StatsPoint> {
        let mut sum = StatsSum::default();
        for at in 0..rules {
            let key = StatsKey::of_rule(&format!("project-{at}"), &format!("{at:0>name$}"));
            let requests = RequestCounts { failed: 1, ..RequestCounts::default() };
            sum.add_requests(&key.project, &requests);
            sum.add(&Arc::new(key), &counts(at as u64 + 1));
        }
        let (rules, others, requests) = sum.into_parts();
        let until = Timestamp::from_micros(number);
        Arc::new(StatsPoint { number, until, rules, others, requests, ..StatsPoint::default() })
    }

    /// Returns the allowed decisions, and the failed requests.
    fn total(sum: &StatsSum) -> (u64, u64) {
        let (rules, others, requests) = sum.clone().into_parts();
        let point = StatsPoint { rules, others, requests, ..StatsPoint::default() };
        let (_, others) = point.select(&StatsFilter::default(), 0);
        let (_, requests) = point.select_requests(&StatsFilter::default(), 0);
        let allowed = others.map_or(0, |counts| counts.allowed);
        (allowed, requests.map_or(0, |counts| counts.failed))
    }

    #[test]
    fn report_of_many_rules_fits_and_counts_each_decision() {
        for (rules, name) in [(0, 1), (20, 20), (1_000, 20), (3_000, 20), (1_000, 256), (9, 9_000)]
        {
            let points = [1, 2].map(|number| point(number, rules, name));
            let report = encode(&points);
            assert!(report.len() <= MAX_VALUE_LEN, "{rules} rules: {} bytes", report.len());
            let read = decode(&report, Arc::new);
            if name > MAX_NAME {
                continue;
            }
            let read = read.expect("a report");
            let expected = (rules as u64 * (rules as u64 + 1) / 2, rules as u64);
            let totals: Vec<_> =
                read.iter().map(|point| (point.until.as_micros(), total(&point.sum))).collect();
            assert!(read.iter().all(|point| point.tells_requests), "{rules} rules");
            assert_eq!(totals, [1, 2].map(|number| (number, expected)));
            if rules == 20 {
                let StatsPoint { rules, requests, .. } = (*points[0]).clone();
                assert_eq!(read[0].sum.clone().into_parts(), (rules, vec![], requests));
            }
        }
    }

    #[test]
    fn report_of_an_older_instance_tells_no_requests() {
        let mut message = report(&[point(7, 9, 9)], 9);
        message.points[0].requests.clear();
        let read = decode(&message.encode_to_vec(), Arc::new).expect("a report");
        assert_eq!((read[0].tells_requests, total(&read[0].sum)), (false, (45, 0)));
    }

    #[test]
    fn report_that_was_cut_or_is_foreign_is_not_read() {
        let points = [point(7, 9, 9)];
        let bytes = encode(&points);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], Arc::new).is_none(), "cut to {len} bytes");
        }
        let message = report(&points, 9);
        let foreign = [
            ReportMessage { version: 2, ..message.clone() },
            ReportMessage { points: vec![message.points[0].clone(); MAX_POINTS + 1], ..message },
        ];
        for foreign in foreign {
            assert!(decode(&foreign.encode_to_vec(), Arc::new).is_none(), "{foreign:?}");
        }
        assert!(decode(&vec![b'x'; MAX_VALUE_LEN + 1], Arc::new).is_none());
    }
}
