//! Decisions of the past as the page shows them: in time, by rule and by project.

use std::collections::HashMap;
use std::sync::Arc;

use super::shown::PointsCoverage;
use crate::console::chart::Interval;
use crate::telemetry::stats::{DecisionCounts, StatsFilter, StatsKey, StatsPoint, StatsSum};

/// Most rules and projects that are shown by themselves.
pub(super) const MAX_RULES: usize = 50;
pub(super) const MAX_PROJECTS: usize = 20;

/// Decisions of rules that a visitor may see. Candidates are not counted: they decide nothing.
#[derive(Clone, Debug, Default)]
pub(in crate::console) struct Traffic {
    /// Intervals, oldest first, and the decisions in each.
    pub(super) points: Vec<Interval>,
    pub(super) counts: Vec<DecisionCounts>,
    /// All decisions.
    pub(super) total: DecisionCounts,
    /// Busiest first.
    pub(super) rules: Vec<(Arc<StatsKey>, DecisionCounts)>,
    /// All other rules together.
    pub(super) other_rules: Option<DecisionCounts>,
    /// Busiest first; empty is that of the rules in files.
    pub(super) projects: Vec<(Arc<str>, DecisionCounts)>,
    /// All other projects together.
    pub(super) other_projects: Option<DecisionCounts>,
    /// Instances of the points.
    pub(super) coverage: PointsCoverage,
}

impl Traffic {
    /// Adds up the points that a filter selects from.
    pub(in crate::console) fn new(points: &[Arc<StatsPoint>], filter: &StatsFilter) -> Self {
        let mut traffic = Self::default();
        let mut rules = StatsSum::default();
        let mut projects = HashMap::<Arc<str>, DecisionCounts>::new();
        for point in points {
            let mut sum = DecisionCounts::default();
            let mut add = |project: &Arc<str>, counts: &DecisionCounts| {
                sum = sum.plus(counts);
                let of_project = projects.entry(Arc::clone(project)).or_default();
                *of_project = of_project.plus(counts);
            };
            for (key, counts) in &point.rules {
                if key.candidate == 0 && filter.admits(key) {
                    add(&key.project, counts);
                    rules.add(key, counts);
                }
            }
            for (project, counts) in &point.others {
                if filter.admits_project(project) {
                    add(project, counts);
                    rules.add_others(project, counts);
                }
            }
            traffic.points.push((point.since, point.until));
            traffic.counts.push(sum);
            traffic.total = traffic.total.plus(&sum);
        }
        let (rules, others) = rules.into_bounded(MAX_RULES, usize::MAX);
        traffic.rules = rules;
        traffic.other_rules = sum_of(others.iter().map(|(_, counts)| counts));
        let mut projects: Vec<_> = projects.into_iter().collect();
        projects.sort_unstable_by(|(one, a), (other, b)| {
            b.decisions().cmp(&a.decisions()).then_with(|| one.cmp(other))
        });
        let rest = projects.split_off(projects.len().min(MAX_PROJECTS));
        traffic.other_projects = sum_of(rest.iter().map(|(_, counts)| counts));
        traffic.projects = projects;
        traffic.coverage = PointsCoverage::new(points);
        traffic
    }

    /// Returns one count of each point.
    pub(super) fn series(&self, count: impl Fn(&DecisionCounts) -> u64) -> Vec<u64> {
        self.counts.iter().map(count).collect()
    }
}

fn sum_of<'a>(counts: impl Iterator<Item = &'a DecisionCounts>) -> Option<DecisionCounts> {
    counts.copied().reduce(|sum, counts| sum.plus(&counts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Micros, Timestamp};

    const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

    fn counts(allowed: u64, denied: u64) -> DecisionCounts {
        DecisionCounts { allowed, denied, ..DecisionCounts::default() }
    }

    fn point(
        number: u64,
        rules: impl IntoIterator<Item = (StatsKey, DecisionCounts)>,
    ) -> Arc<StatsPoint> {
        let mut sum = StatsSum::default();
        for (key, counts) in rules {
            sum.add(&Arc::new(key), &counts);
        }
        let (rules, others) = sum.into_parts();
        let since = T0 + Micros::from_secs(10 * number);
        let until = since + Micros::from_secs(10);
        Arc::new(StatsPoint { number, since, until, rules, others, ..StatsPoint::default() })
    }

    #[test]
    fn ten_thousand_rules_are_shown_in_fifty_and_all_decisions_count() {
        let rules = |number| {
            let rule = move |rule: u64| {
                let project = format!("project-{}", rule % 30);
                (StatsKey::of_rule(&project, &format!("rule-{rule}")), counts(rule + number, 1))
            };
            point(number, (1..=10_000).map(rule))
        };
        let points = [rules(0), rules(1)];
        let traffic = Traffic::new(&points, &StatsFilter::default());
        assert_eq!((traffic.points.len(), traffic.rules.len()), (2, MAX_RULES));
        assert_eq!(&*traffic.rules[0].0.rule, "rule-10000");
        let all = counts(2 * 50_005_000 + 10_000, 20_000);
        assert_eq!(traffic.total, all);
        let of_rules = traffic.rules.iter().map(|(_, counts)| counts).chain(&traffic.other_rules);
        assert_eq!(sum_of(of_rules), Some(all));
        assert_eq!(traffic.projects.len(), MAX_PROJECTS);
        let of_projects =
            traffic.projects.iter().map(|(_, counts)| counts).chain(&traffic.other_projects);
        assert_eq!(sum_of(of_projects), Some(all));
        assert_eq!(traffic.series(|counts| counts.denied), [10_000, 10_000]);
    }

    #[test]
    fn other_projects_and_candidates_are_not_counted() {
        let pay = StatsKey::of_rule("shop", "pay");
        let points = [point(
            0,
            [
                (pay.clone(), counts(3, 1)),
                (pay.candidate(1), counts(2, 2)),
                (StatsKey::of_rule("blog", "read"), counts(9, 0)),
                (StatsKey::of_rule("", "file"), counts(9, 0)),
            ],
        )];
        let of =
            |project: &str| StatsFilter { projects: Some([project.to_owned()].into()), rule: None };
        let traffic = Traffic::new(&points, &of("shop"));
        assert_eq!((traffic.total, traffic.rules.len()), (counts(3, 1), 1));
        assert_eq!((traffic.projects.len(), traffic.other_rules), (1, None));
        assert_eq!(Traffic::new(&points, &of("")).total, counts(9, 0));
        assert_eq!(Traffic::new(&points, &of("none")).total, counts(0, 0));
        assert_eq!(Traffic::new(&points, &StatsFilter::default()).total, counts(21, 1));
    }
}
