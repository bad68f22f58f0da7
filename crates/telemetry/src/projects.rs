//! Requests by project: counted for the usage of every project, and shown as metrics, with a bound
//! on the projects that have series of their own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rlaas_limiter::observer::ProjectObserver;

use super::labels::ProjectLabels;
use super::sharded::{RequestCounters, RequestCounts};

/// Label of all projects without series of their own.
const OTHER: &str = "other";
/// Outcomes of requests; those with a verdict come first.
const OUTCOMES: [&str; 4] = ["allowed", "denied", "failed", "rejected"];
const VERDICTS: usize = 2;

/// Requests by outcome.
type Outcomes = [u64; OUTCOMES.len()];

/// Counts the requests of projects. Clones share the counts.
#[derive(Clone, Debug)]
pub(super) struct ProjectMetrics(Arc<Mutex<CountedProjects>>);

#[derive(Debug)]
struct CountedProjects {
    /// Most projects with series of their own.
    max: usize,
    /// Projects with series of their own.
    series: usize,
    by_id: HashMap<Arc<str>, CountedProject>,
    /// Requests that count as those of other projects whatever becomes of the project.
    other: Option<Outcomes>,
    /// Requests of projects that were removed.
    removed: RequestCounts,
}

#[derive(Debug)]
struct CountedProject {
    counters: Arc<RequestCounters>,
    /// Requests at the beginning of its series. `None`: it has no series of its own.
    series_from: Option<Outcomes>,
}

impl ProjectMetrics {
    /// Default of `telemetry.projects`.
    const DEFAULT_MAX: usize = 1_000;

    pub(super) fn new() -> Self {
        let (by_id, removed) = (HashMap::new(), RequestCounts::default());
        let (max, series, other) = (Self::DEFAULT_MAX, 0, None);
        Self(Arc::new(Mutex::new(CountedProjects { max, series, by_id, other, removed })))
    }

    /// Sets how many projects have series of their own, before the first is observed.
    pub(super) fn set_max(&self, max: usize) {
        self.lock().max = max;
    }

    /// Returns what counts the requests of a project. The first projects have series of their own;
    /// one that is removed leaves its place to the next whose rules are put in force.
    pub(super) fn observer(&self, project: &str) -> Arc<dyn ProjectObserver> {
        self.lock().counters(project)
    }

    /// Returns the same counts, with all projects as others.
    pub(super) fn unnamed(&self) -> UnnamedProjects {
        UnnamedProjects(self.clone())
    }

    /// Removes a project and its series.
    pub(super) fn forget(&self, project: &str) {
        let mut projects = self.lock();
        let Some(CountedProject { counters, series_from }) = projects.by_id.remove(project) else {
            return;
        };
        projects.removed = projects.removed.plus(&counters.counts());
        match series_from {
            Some(_) => projects.series -= 1,
            None => projects.count_as_other(by_outcome(&counters)),
        }
    }

    /// Returns the requests of all projects so far, and of those without one.
    pub(super) fn total(&self) -> RequestCounts {
        let projects = self.lock();
        let counts = projects.by_id.values().map(|project| project.counters.counts());
        counts.fold(projects.removed, |sum, counts| sum.plus(&counts))
    }

    /// Returns the counters of all projects, those of requests without a project too.
    pub(super) fn counters(&self) -> Vec<(Arc<str>, Arc<RequestCounters>)> {
        let projects = self.lock();
        let by_id = projects.by_id.iter();
        by_id.map(|(id, project)| (Arc::clone(id), Arc::clone(&project.counters))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, CountedProjects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CountedProjects {
    fn counters(&mut self, id: &str) -> Arc<RequestCounters> {
        // Requests without a project have series by rule. `other` is the label of all others.
        let may_be_named = self.series < self.max && !id.is_empty() && id != OTHER;
        let Some(project) = self.by_id.get_mut(id) else {
            let counters = Arc::<RequestCounters>::default();
            let series_from = may_be_named.then(Outcomes::default);
            self.series += usize::from(may_be_named);
            if series_from.is_none() && !id.is_empty() {
                self.count_as_other(Outcomes::default());
            }
            self.by_id
                .insert(id.into(), CountedProject { counters: Arc::clone(&counters), series_from });
            return counters;
        };
        let counters = Arc::clone(&project.counters);
        if project.series_from.is_none() && may_be_named {
            let so_far = by_outcome(&counters);
            project.series_from = Some(so_far);
            self.series += 1;
            self.count_as_other(so_far);
        }
        counters
    }

    fn count_as_other(&mut self, more: Outcomes) {
        add(self.other.get_or_insert_default(), more);
    }

    /// Returns the requests of each series of projects.
    fn series(&self) -> Vec<(String, Outcomes)> {
        let (mut series, mut other) = (Vec::new(), self.other);
        for (id, project) in self.by_id.iter().filter(|(id, _)| !id.is_empty()) {
            let counts = by_outcome(&project.counters);
            match (project.series_from, &mut other) {
                (Some(from), _) => {
                    let since = std::array::from_fn(|at| counts[at].wrapping_sub(from[at]));
                    series.push((id.to_string(), since));
                }
                (None, Some(other)) => add(other, counts),
                (None, None) => {}
            }
        }
        series.extend(other.map(|counts| (OTHER.to_owned(), counts)));
        series
    }

    /// Returns the requests without a project.
    fn unnamed(&self) -> Option<(String, Outcomes)> {
        self.by_id.get("").map(|project| (String::new(), by_outcome(&project.counters)))
    }
}

fn by_outcome(counters: &RequestCounters) -> Outcomes {
    let RequestCounts { allowed, denied, failed, rejected, .. } = counters.counts();
    [allowed, denied, failed, rejected]
}

fn add(sum: &mut Outcomes, more: Outcomes) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.wrapping_add(more);
    }
}

impl Collector for ProjectMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let projects = self.lock();
        encode(&projects.series(), projects.unnamed(), encoder)
    }
}

/// The requests of all projects together.
#[derive(Debug)]
pub(super) struct UnnamedProjects(ProjectMetrics);

impl Collector for UnnamedProjects {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let projects = self.0.lock();
        let all = projects.series().into_iter().map(|(_, counts)| (OTHER.to_owned(), counts));
        let sum = all.reduce(|(other, mut sum), (_, counts)| {
            add(&mut sum, counts);
            (other, sum)
        });
        encode(sum.as_slice(), projects.unnamed(), encoder)
    }
}

/// Encodes the series of projects, and of requests without one: these have their decisions by rule.
fn encode(
    series: &[(String, Outcomes)],
    unnamed: Option<(String, Outcomes)>,
    mut encoder: DescriptorEncoder<'_>,
) -> fmt::Result {
    let decided = ("rlaas_project_decisions", "Decided requests of projects", VERDICTS, None);
    let all = ("rlaas_requests", "Requests by project and outcome", OUTCOMES.len(), unnamed);
    for (name, help, outcomes, unnamed) in [decided, all] {
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (project, counts) in series.iter().chain(&unnamed) {
            for (outcome, count) in OUTCOMES.into_iter().zip(*counts).take(outcomes) {
                let labels = ProjectLabels { project: project.clone(), outcome };
                ConstCounter::new(count).encode(encoder.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rlaas_limiter::observer::DecidedRequest;

    use super::*;

    fn series(projects: &ProjectMetrics) -> Vec<(String, Outcomes)> {
        let mut series = projects.lock().series();
        series.sort();
        series
    }

    fn allow(projects: &ProjectMetrics, id: &str, times: usize) {
        let observer = projects.observer(id);
        (0..times).for_each(|_| observer.decided(DecidedRequest::Allowed { units: 1 }));
    }

    #[test]
    fn series_never_fall_and_count_each_request_once() {
        let projects = ProjectMetrics::new();
        projects.set_max(1);
        for (id, times) in [("", 9), ("other", 1), ("a", 2), ("b", 3)] {
            allow(&projects, id, times);
        }
        assert_eq!(
            series(&projects),
            [("a".to_owned(), [2, 0, 0, 0]), ("other".to_owned(), [4, 0, 0, 0])]
        );
        projects.forget("a");
        // The place is taken by a project that was among the others.
        allow(&projects, "b", 5);
        assert_eq!(
            series(&projects),
            [("b".to_owned(), [5, 0, 0, 0]), ("other".to_owned(), [4, 0, 0, 0])]
        );
        projects.forget("other");
        assert_eq!(
            series(&projects),
            [("b".to_owned(), [5, 0, 0, 0]), ("other".to_owned(), [4, 0, 0, 0])]
        );
    }

    #[test]
    fn another_project_of_the_same_id_has_counters_of_its_own() {
        let projects = ProjectMetrics::new();
        allow(&projects, "a", 2);
        let before = projects.counters();
        projects.forget("a");
        allow(&projects, "a", 1);
        let after = projects.counters();
        assert!(!Arc::ptr_eq(&before[0].1, &after[0].1));
        assert_eq!(series(&projects), [("a".to_owned(), [1, 0, 0, 0])]);
    }
}
