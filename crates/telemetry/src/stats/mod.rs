//! Statistics in time: points of 10 s, of decisions by rule and of requests by project.
//!
//! Pure: it is given counts and times. What an instance counts is read from the counters of
//! metrics (`rule_counters`), not counted again; `admin` adds up the instances of a fleet.
//!
//! # Bounds
//!
//! A point has the 1,000 rules with the most decisions in its time. All others
//! are added up, by project for 1,000 projects. It has the requests of 1,000 projects, and those of all others
//! together. A history has 90 points (15 min). With 1,000 busy
//! rules or projects it takes 6 MB: 64 bytes for each in each point. A rule that decides nothing takes
//! nothing.

mod history;

pub use history::{MAX_POINTS, StatsHistory};

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rlaas_core::clock::Timestamp;

use super::sharded::RequestCounts;

/// Most rules of a point.
pub const MAX_RULES: usize = 1_000;
/// Most projects of which the other rules, and the requests, are added up by themselves.
const MAX_OTHERS: usize = 1_000;
/// Stands for the projects whose other rules, or requests, are added up together. No project has this id.
const ALL_OTHERS: &str = "-";

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatsKey {
    /// Project of the rule.
    pub project: Arc<str>,
    /// Name of the rule.
    pub rule: Arc<str>,
}

/// Decisions of one rule. A decision counts in one of the first four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Allowed, not near the limit.
    pub allowed: u64,
    /// Allowed, near the limit.
    pub near_limit: u64,
    /// Denied.
    pub denied: u64,
    /// Denied by a rule that is not enforced.
    pub shadow_denied: u64,
    /// Units taken.
    pub units: u64,
    /// Of all decisions: made by policy, without the store.
    pub degraded: u64,
    /// Of `degraded`: allowed because the store failed.
    pub fail_open: u64,
    /// Requests that met the rule without a decision of it: a remembered denial of another rule settled them.
    pub not_asked: u64,
}

/// Decisions in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsPoint {
    /// Number of the point in its history, from 1.
    pub number: u64,
    /// Start of the interval.
    pub since: Timestamp,
    /// End of the interval.
    pub until: Timestamp,
    /// The rules with the most decisions, busiest first: at most [`MAX_RULES`].
    pub rules: Vec<(Arc<StatsKey>, DecisionCounts)>,
    /// All other rules, added up by project.
    pub others: Vec<(Arc<str>, DecisionCounts)>,
    /// Requests by project, busiest first.
    pub requests: Vec<(Arc<str>, RequestCounts)>,
    /// Instances that were counted.
    pub coverage: StatsCoverage,
}

/// Instances that a point covers, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsCoverage {
    /// Those that are in it.
    pub instances: BTreeSet<Arc<str>>,
    /// Others that were known at its end and have not reported what they counted in it.
    pub missing: BTreeSet<Arc<str>>,
}

/// Selects rules of a point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsFilter {
    /// Only rules of these projects; `None` are all.
    pub projects: Option<BTreeSet<String>>,
    /// Only this rule.
    pub rule: Option<String>,
}

/// Decisions by rule, busiest first.
pub type CountsByRule = Vec<(Arc<StatsKey>, DecisionCounts)>;

/// Requests by project, busiest first.
pub type RequestsByProject = Vec<(Arc<str>, RequestCounts)>;

/// The rules of a point, its others by project, and its requests.
pub type StatsParts = (CountsByRule, Vec<(Arc<str>, DecisionCounts)>, RequestsByProject);

/// Adds up what a point has.
#[derive(Clone, Debug, Default)]
pub struct StatsSum {
    rules: HashMap<Arc<StatsKey>, DecisionCounts>,
    others: HashMap<Arc<str>, DecisionCounts>,
    requests: HashMap<Arc<str>, RequestCounts>,
}

impl StatsKey {
    /// Creates the key of a rule.
    pub fn of_rule(project: &str, rule: &str) -> Self {
        Self { project: project.into(), rule: rule.into() }
    }
}

impl DecisionCounts {
    /// Returns the number of decisions.
    pub fn decisions(&self) -> u64 {
        [self.near_limit, self.denied, self.shadow_denied]
            .into_iter()
            .fold(self.allowed, u64::saturating_add)
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combined(other, u64::saturating_add)
    }

    /// Returns what was counted since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combined(earlier, u64::wrapping_sub)
    }

    fn combined(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            allowed: with(self.allowed, other.allowed),
            near_limit: with(self.near_limit, other.near_limit),
            denied: with(self.denied, other.denied),
            shadow_denied: with(self.shadow_denied, other.shadow_denied),
            units: with(self.units, other.units),
            degraded: with(self.degraded, other.degraded),
            fail_open: with(self.fail_open, other.fail_open),
            not_asked: with(self.not_asked, other.not_asked),
        }
    }
}

impl StatsFilter {
    /// Returns `true` if a rule is selected.
    pub fn admits(&self, key: &StatsKey) -> bool {
        self.rule.as_deref().is_none_or(|rule| *key.rule == *rule)
            && self.admits_project(&key.project)
    }

    /// Returns `true` if rules of a project are selected.
    pub fn admits_project(&self, project: &str) -> bool {
        self.projects.as_ref().is_none_or(|projects| projects.contains(project))
    }
}

impl StatsPoint {
    /// Returns what a filter admits: the `max_rules` busiest rules, and the sum of the others. With
    /// a rule in the filter there are no others.
    pub fn select(
        &self,
        filter: &StatsFilter,
        max_rules: usize,
    ) -> (CountsByRule, Option<DecisionCounts>) {
        let mut admitted = self.rules.iter().filter(|(key, _)| filter.admits(key)).cloned();
        let rules = admitted.by_ref().take(max_rules).collect();
        let more = admitted.map(|(_, counts)| counts);
        let others = self
            .others
            .iter()
            .filter(|(project, _)| filter.rule.is_none() && filter.admits_project(project));
        let others =
            more.chain(others.map(|(_, counts)| *counts)).reduce(|sum, counts| sum.plus(&counts));
        (rules, others)
    }

    /// Returns the requests that a filter admits: of the `max_projects` busiest projects, and the sum of the
    /// others. None with a rule in the filter: requests are of no rule.
    pub fn select_requests(
        &self,
        filter: &StatsFilter,
        max_projects: usize,
    ) -> (RequestsByProject, Option<RequestCounts>) {
        let is_admitted = |project: &str| filter.rule.is_none() && filter.admits_project(project);
        let admitted = self.requests.iter().filter(|(project, _)| is_admitted(project)).cloned();
        let (others, mut requests): (Vec<_>, Vec<_>) =
            admitted.partition(|(project, _)| **project == *ALL_OTHERS);
        let more = requests.split_off(requests.len().min(max_projects));
        let others = others.into_iter().chain(more).map(|(_, counts)| counts);
        (requests, others.reduce(|sum, counts| sum.plus(&counts)))
    }
}

impl StatsSum {
    /// Adds the decisions of a rule.
    pub fn add(&mut self, key: &Arc<StatsKey>, counts: &DecisionCounts) {
        if *counts == DecisionCounts::default() {
            return;
        }
        match self.rules.get_mut(key) {
            Some(sum) => *sum = sum.plus(counts),
            None => _ = self.rules.insert(Arc::clone(key), *counts),
        }
    }

    /// Adds the decisions of other rules of a project.
    pub fn add_others(&mut self, project: &Arc<str>, counts: &DecisionCounts) {
        let sum = self.others.entry(Arc::clone(project)).or_default();
        *sum = sum.plus(counts);
    }

    /// Adds requests of a project.
    pub fn add_requests(&mut self, project: &Arc<str>, counts: &RequestCounts) {
        if *counts != RequestCounts::default() {
            let sum = self.requests.entry(Arc::clone(project)).or_default();
            *sum = sum.plus(counts);
        }
    }

    /// Adds a point.
    pub fn add_point(&mut self, point: &StatsPoint) {
        point.rules.iter().for_each(|(key, counts)| self.add(key, counts));
        point.others.iter().for_each(|(project, counts)| self.add_others(project, counts));
        point.requests.iter().for_each(|(project, counts)| self.add_requests(project, counts));
    }

    /// Adds what another sum has.
    pub fn add_sum(&mut self, other: &Self) {
        other.rules.iter().for_each(|(key, counts)| self.add(key, counts));
        other.others.iter().for_each(|(project, counts)| self.add_others(project, counts));
        other.requests.iter().for_each(|(project, counts)| self.add_requests(project, counts));
    }

    /// Returns the rules, busiest first, the others by project, and the requests: what is in a point.
    pub fn into_parts(self) -> StatsParts {
        self.into_bounded(MAX_RULES, MAX_OTHERS)
    }

    /// As [`StatsSum::into_parts`], with these bounds; `max_others` is at least 1.
    pub fn into_bounded(mut self, max_rules: usize, max_others: usize) -> StatsParts {
        let mut rules: Vec<_> = std::mem::take(&mut self.rules).into_iter().collect();
        sort(&mut rules);
        for (key, counts) in rules.drain(rules.len().min(max_rules)..) {
            self.add_others(&key.project, &counts);
        }
        let others =
            bounded(self.others, max_others, DecisionCounts::decisions, DecisionCounts::plus);
        let requests =
            bounded(self.requests, max_others, RequestCounts::requests, RequestCounts::plus);
        (rules, others, requests)
    }
}

/// Returns the counts of the `max` busiest projects; of more the last are the sum of all others.
fn bounded<T: Default>(
    by_project: HashMap<Arc<str>, T>,
    max: usize,
    size: impl Fn(&T) -> u64,
    plus: impl Fn(&T, &T) -> T,
) -> Vec<(Arc<str>, T)> {
    let mut projects: Vec<_> = by_project.into_iter().collect();
    projects.sort_unstable_by(|(left, a), (right, b)| {
        size(b).cmp(&size(a)).then_with(|| left.cmp(right))
    });
    if projects.len() > max {
        let rest = projects.drain(max.saturating_sub(1)..);
        let rest = rest.fold(T::default(), |sum, (_, counts)| plus(&sum, &counts));
        projects.push((ALL_OTHERS.into(), rest));
    }
    projects
}

/// Sorts rules: the busiest first, equal ones by name.
fn sort(rules: &mut [(Arc<StatsKey>, DecisionCounts)]) {
    rules.sort_unstable_by(|(left, a), (right, b)| {
        b.decisions().cmp(&a.decisions()).then_with(|| left.cmp(right))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(allowed: u64, denied: u64) -> DecisionCounts {
        DecisionCounts { allowed, denied, units: allowed, ..DecisionCounts::default() }
    }

    fn point(rules: impl IntoIterator<Item = (StatsKey, DecisionCounts)>) -> StatsPoint {
        let mut sum = StatsSum::default();
        for (key, counts) in rules {
            sum.add(&Arc::new(key), &counts);
        }
        let (rules, others, requests) = sum.into_parts();
        StatsPoint { rules, others, requests, ..StatsPoint::default() }
    }

    #[test]
    fn busiest_rules_stand_alone_and_nothing_is_lost() {
        let key = |number: u64| {
            let project = format!("p{}", number % 3);
            StatsKey::of_rule(&project, &format!("r{number}"))
        };
        let point = point((1..=1_500).map(|number| (key(number), counts(number, 1))));
        assert_eq!((point.rules.len(), point.others.len()), (MAX_RULES, 3));
        assert_eq!(point.rules[0], (Arc::new(key(1_500)), counts(1_500, 1)));
        let all = point.select(&StatsFilter::default(), 10);
        assert_eq!(all.0, point.rules[..10]);
        let sum = |(rules, others): &(CountsByRule, Option<DecisionCounts>)| {
            let rules = rules.iter().map(|(_, counts)| counts).chain(others);
            rules.fold(DecisionCounts::default(), |sum, counts| sum.plus(counts))
        };
        assert_eq!(sum(&all), counts(1_500 * 1_501 / 2, 1_500));
        let of = |project: &str| StatsFilter {
            projects: Some(BTreeSet::from([project.to_owned()])),
            rule: None,
        };
        let selected = ["p0", "p1", "p2"].map(|project| point.select(&of(project), 100));
        let each = selected.iter().map(sum).reduce(|one, other| one.plus(&other));
        assert_eq!(each, Some(sum(&all)), "each decision is one of a project");
        for (selected, project) in selected.iter().zip(["p0", "p1", "p2"]) {
            assert!(selected.0.iter().all(|(key, _)| &*key.project == project));
        }
        assert_eq!(point.select(&of("p3"), 100), (vec![], None));
    }

    #[test]
    fn rule_is_selected_by_its_name() {
        let pay = StatsKey::of_rule("shop", "pay");
        let of_other = StatsKey::of_rule("blog", "pay");
        let point = point([
            (StatsKey::of_rule("shop", "search"), counts(9, 0)),
            (pay.clone(), counts(5, 0)),
            (of_other, counts(4, 0)),
        ]);
        let projects = Some(BTreeSet::from(["shop".to_owned()]));
        let filter = StatsFilter { projects, rule: Some("pay".to_owned()) };
        let selected = point.select(&filter, 100);
        assert_eq!(selected, (vec![(Arc::new(pay), counts(5, 0))], None));
    }

    #[test]
    fn many_projects_are_bounded() {
        let mut sum = StatsSum::default();
        for number in 0..3_000 {
            let project = format!("p{number}").into();
            sum.add_others(&project, &counts(1, 0));
            sum.add_requests(&project, &RequestCounts { failed: 1, ..RequestCounts::default() });
        }
        let (rules, others, requests) = sum.into_parts();
        assert_eq!((rules.len(), others.len(), requests.len()), (0, MAX_OTHERS, MAX_OTHERS));
        let point = StatsPoint { requests, ..StatsPoint::default() };
        let (shown, more) = point.select_requests(&StatsFilter::default(), 10);
        let failed = |counts: &RequestCounts| counts.failed;
        let all: u64 =
            shown.iter().map(|(_, counts)| failed(counts)).chain(more.as_ref().map(failed)).sum();
        assert_eq!((shown.len(), all), (10, 3_000), "nothing is lost");
        let of_one = StatsFilter { projects: Some(BTreeSet::from(["p1".to_owned()])), rule: None };
        let (own, more) = point.select_requests(&of_one, 10);
        assert_eq!((own.len(), more), (1, None), "nothing of others");
        let of_rule = StatsFilter { rule: Some("r".to_owned()), ..StatsFilter::default() };
        assert_eq!(point.select_requests(&of_rule, 10), (vec![], None));
        assert_eq!(others.iter().map(|(_, counts)| counts.allowed).sum::<u64>(), 3_000);
        assert_eq!(&*others.last().expect("a sum").0, ALL_OTHERS);
    }
}
