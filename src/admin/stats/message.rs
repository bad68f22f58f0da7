//! The report of an instance: its last points of 10 s, as they lie in the fleet.

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;
use rlaas_limiter::fleet::MAX_VALUE_LEN;

use crate::rules::Candidate;
use crate::telemetry::stats::{DecisionCounts, MAX_RULES, StatsKey, StatsPoint, StatsSum};

/// Points of a report. One that is read a little late is still in the next.
pub(super) const KEPT_POINTS: usize = 3;
/// Version of reports.
const VERSION: u32 = 1;
/// Most bytes of the name of a rule or a project.
const MAX_NAME: usize = 1_024;
/// Most rules that a report can name: each point has others, and they may be other ones.
const MAX_NAMES: usize = 2 * MAX_RULES * KEPT_POINTS;

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ReportMessage {
    #[prost(message, repeated, tag = "1")]
    rules: Vec<RuleMessage>,
    #[prost(message, repeated, tag = "2")]
    points: Vec<PointMessage>,
    /// Last, so that a report that was cut has none.
    #[prost(uint32, tag = "3")]
    version: u32,
}

/// A rule; without a name all others of its project.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
struct RuleMessage {
    #[prost(string, tag = "1")]
    project: String,
    #[prost(string, tag = "2")]
    rule: String,
    #[prost(uint32, tag = "3")]
    candidate: u32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct PointMessage {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(message, repeated, tag = "2")]
    counts: Vec<CountsMessage>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct CountsMessage {
    /// Position in the rules of the report.
    #[prost(uint32, tag = "1")]
    rule: u32,
    #[prost(uint64, tag = "2")]
    allowed: u64,
    #[prost(uint64, tag = "3")]
    near_limit: u64,
    #[prost(uint64, tag = "4")]
    denied: u64,
    #[prost(uint64, tag = "5")]
    shadow_denied: u64,
    #[prost(uint64, tag = "6")]
    units: u64,
    #[prost(uint64, tag = "7")]
    degraded: u64,
    #[prost(uint64, tag = "8")]
    fail_open: u64,
}

/// The points of a report, each with its number.
pub(super) type ReportedPoints = Vec<(u64, StatsSum)>;

/// Returns a report of points. If it would be too long, the less busy rules are in it together.
pub(super) fn encode(points: &[Arc<StatsPoint>]) -> Vec<u8> {
    let mut most = MAX_RULES;
    loop {
        let report = report(points, most).encode_to_vec();
        if report.len() <= MAX_VALUE_LEN || most == 0 {
            return report;
        }
        most /= 2;
    }
}

fn report(points: &[Arc<StatsPoint>], most: usize) -> ReportMessage {
    let mut report = ReportMessage { version: VERSION, ..ReportMessage::default() };
    let mut positions = HashMap::new();
    for point in points {
        let mut sum = StatsSum::default();
        sum.add_point(point);
        let (rules, others) = sum.into_bounded(most, most.max(1));
        let rules = rules.into_iter().map(|(key, counts)| {
            let (project, rule) = (key.project.to_string(), key.rule.to_string());
            (RuleMessage { project, rule, candidate: key.candidate }, counts)
        });
        let others = others.into_iter().map(|(project, counts)| {
            (RuleMessage { project: project.to_string(), ..RuleMessage::default() }, counts)
        });
        let mut message = PointMessage { number: point.number, counts: Vec::new() };
        for (rule, counts) in rules.chain(others) {
            let position = *positions.entry(rule.clone()).or_insert_with(|| {
                report.rules.push(rule);
                report.rules.len() - 1
            });
            message.counts.push(CountsMessage::new(position, counts));
        }
        report.points.push(message);
    }
    report
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
    let ReportMessage { rules, points, version } = ReportMessage::decode(report).ok()?;
    let is_valid = |rule: &RuleMessage| {
        rule.project.len() <= MAX_NAME
            && rule.rule.len() <= MAX_NAME
            && rule.candidate as usize <= Candidate::MAX
    };
    if version != VERSION
        || points.len() > KEPT_POINTS
        || rules.len() > MAX_NAMES
        || !rules.iter().all(is_valid)
    {
        return None;
    }
    let keys: Vec<Arc<StatsKey>> = rules
        .into_iter()
        .map(|RuleMessage { project, rule, candidate }| {
            key(StatsKey { project: project.into(), rule: rule.into(), candidate })
        })
        .collect();
    let sum = |PointMessage { number, counts }| {
        let mut sum = StatsSum::default();
        for message in counts {
            let key = keys.get(usize::try_from(message.rule).ok()?)?;
            match &*key.rule {
                "" => sum.add_others(&key.project, &message.counts()),
                _ => sum.add(key, &message.counts()),
            }
        }
        Some((number, sum))
    };
    points.into_iter().map(sum).collect()
}

impl CountsMessage {
    fn new(position: usize, counts: DecisionCounts) -> Self {
        let DecisionCounts {
            allowed,
            near_limit,
            denied,
            shadow_denied,
            units,
            degraded,
            fail_open,
        } = counts;
        let rule = u32::try_from(position).unwrap_or(u32::MAX);
        Self { rule, allowed, near_limit, denied, shadow_denied, units, degraded, fail_open }
    }

    fn counts(self) -> DecisionCounts {
        let Self { allowed, near_limit, denied, shadow_denied, units, degraded, fail_open, .. } =
            self;
        DecisionCounts { allowed, near_limit, denied, shadow_denied, units, degraded, fail_open }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::stats::StatsFilter;

    fn counts(allowed: u64) -> DecisionCounts {
        DecisionCounts { allowed, units: u64::MAX >> 8, ..DecisionCounts::default() }
    }

    fn point(number: u64, rules: usize, name: usize) -> Arc<StatsPoint> {
        let mut sum = StatsSum::default();
        for at in 0..rules {
            let key = StatsKey::of_rule(&format!("project-{at}"), &format!("{at:0>name$}"));
            sum.add(&Arc::new(key), &counts(at as u64 + 1));
        }
        let (rules, others) = sum.into_parts();
        Arc::new(StatsPoint { number, rules, others, ..StatsPoint::default() })
    }

    fn total(sum: &StatsSum) -> u64 {
        let (rules, others) = sum.clone().into_parts();
        let point = StatsPoint { rules, others, ..StatsPoint::default() };
        let selected = point.select(&StatsFilter::default(), 0);
        selected.others.map_or(0, |counts| counts.allowed)
    }

    #[test]
    fn report_of_many_rules_fits_and_counts_each_decision() {
        for (rules, name) in [(0, 1), (20, 20), (1_000, 20), (3_000, 20), (1_000, 256), (9, 9_000)]
        {
            let points = [1, 2, 3].map(|number| point(number, rules, name));
            let report = encode(&points);
            assert!(report.len() <= MAX_VALUE_LEN, "{rules} rules: {} bytes", report.len());
            let read = decode(&report, Arc::new);
            if name > MAX_NAME {
                continue;
            }
            let read = read.expect("a report");
            let expected = rules as u64 * (rules as u64 + 1) / 2;
            let totals: Vec<_> = read.iter().map(|(number, sum)| (*number, total(sum))).collect();
            assert_eq!(totals, [1, 2, 3].map(|number| (number, expected)));
            if rules == 20 {
                let (all, others) = read[0].1.clone().into_parts();
                assert_eq!((all, others), (points[0].rules.clone(), vec![]));
            }
        }
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
            ReportMessage { rules: Vec::new(), ..message.clone() },
            ReportMessage { points: vec![message.points[0].clone(); 4], ..message.clone() },
            ReportMessage {
                rules: vec![RuleMessage { candidate: 9, ..message.rules[0].clone() }; 9],
                ..message
            },
        ];
        for foreign in foreign {
            assert!(decode(&foreign.encode_to_vec(), Arc::new).is_none(), "{foreign:?}");
        }
        assert!(decode(&vec![b'x'; MAX_VALUE_LEN + 1], Arc::new).is_none());
    }
}
