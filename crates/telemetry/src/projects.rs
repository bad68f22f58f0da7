//! Requests by project: counted for the usage of every project, and shown as metrics, with a bound
//! on the projects that have series of their own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rlaas_limiter::observer::{DecidedRequest, ProjectObserver};

use super::labels::ProjectLabels;
use super::sharded::RequestCounters;

/// Label of all projects without series of their own.
const OTHER: &str = "other";
const OUTCOMES: [&str; 2] = ["allowed", "denied"];

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
    /// Requests, by outcome, that count as those of other projects whatever becomes of the project.
    other: Option<[u64; 2]>,
}

#[derive(Debug)]
struct CountedProject {
    counters: Arc<RequestCounters>,
    /// Requests, by outcome, at the beginning of its series. `None`: it has no series of its own.
    series_from: Option<[u64; 2]>,
}

impl ProjectMetrics {
    /// Default of `telemetry.projects`.
    const DEFAULT_MAX: usize = 1_000;

    pub(super) fn new() -> Self {
        let by_id = HashMap::new();
        let projects = CountedProjects { max: Self::DEFAULT_MAX, series: 0, by_id, other: None };
        Self(Arc::new(Mutex::new(projects)))
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
        match projects.by_id.remove(project) {
            Some(CountedProject { series_from: Some(_), .. }) => projects.series -= 1,
            Some(other) => projects.count_as_other(other.counters.by_outcome()),
            None => {}
        }
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
            let series_from = may_be_named.then_some([0; 2]);
            self.series += usize::from(may_be_named);
            if series_from.is_none() && !id.is_empty() {
                self.count_as_other([0; 2]);
            }
            self.by_id
                .insert(id.into(), CountedProject { counters: Arc::clone(&counters), series_from });
            return counters;
        };
        let counters = Arc::clone(&project.counters);
        if project.series_from.is_none() && may_be_named {
            let so_far = counters.by_outcome();
            project.series_from = Some(so_far);
            self.series += 1;
            self.count_as_other(so_far);
        }
        counters
    }

    fn count_as_other(&mut self, more: [u64; 2]) {
        let other = self.other.get_or_insert_default();
        for (count, more) in other.iter_mut().zip(more) {
            *count = count.wrapping_add(more);
        }
    }

    /// Returns the requests of each series, by outcome.
    fn series(&self) -> Vec<(String, [u64; 2])> {
        let (mut series, mut other) = (Vec::new(), self.other);
        for (id, project) in self.by_id.iter().filter(|(id, _)| !id.is_empty()) {
            let counts = project.counters.by_outcome();
            match (project.series_from, &mut other) {
                (Some(from), _) => {
                    let since = |at: usize| counts[at].wrapping_sub(from[at]);
                    series.push((id.to_string(), [since(0), since(1)]));
                }
                (None, Some(other)) => {
                    other.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                }
                (None, None) => {}
            }
        }
        series.extend(other.map(|counts| (OTHER.to_owned(), counts)));
        series
    }
}

impl Collector for ProjectMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let series = self.lock().series();
        encode(series, encoder)
    }
}

/// The requests of all projects together.
#[derive(Debug)]
pub(super) struct UnnamedProjects(ProjectMetrics);

impl Collector for UnnamedProjects {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let series = self.0.lock().series().into_iter().map(|(_, counts)| counts);
        let sum = series.reduce(|[allowed, denied], counts| {
            [allowed.wrapping_add(counts[0]), denied.wrapping_add(counts[1])]
        });
        encode(sum.map(|counts| (OTHER.to_owned(), counts)), encoder)
    }
}

fn encode(
    series: impl IntoIterator<Item = (String, [u64; 2])>,
    mut encoder: DescriptorEncoder<'_>,
) -> fmt::Result {
    let (name, help) = ("rlaas_project_decisions", "Decided requests of projects");
    let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (project, counts) in series {
        for (outcome, count) in OUTCOMES.into_iter().zip(counts) {
            let labels = ProjectLabels { project: project.clone(), outcome };
            ConstCounter::new(count).encode(encoder.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

impl ProjectObserver for RequestCounters {
    fn decided(&self, request: DecidedRequest) {
        match request {
            DecidedRequest::Allowed { units } => self.count_allowed(units),
            DecidedRequest::Denied => self.count_denied(),
        }
    }

    fn reported(&self, units: u64) {
        self.count_units(units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(projects: &ProjectMetrics) -> Vec<(String, [u64; 2])> {
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
        assert_eq!(series(&projects), [("a".to_owned(), [2, 0]), ("other".to_owned(), [4, 0])]);
        projects.forget("a");
        // The place is taken by a project that was among the others.
        allow(&projects, "b", 5);
        assert_eq!(series(&projects), [("b".to_owned(), [5, 0]), ("other".to_owned(), [4, 0])]);
        projects.forget("other");
        assert_eq!(series(&projects), [("b".to_owned(), [5, 0]), ("other".to_owned(), [4, 0])]);
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
        assert_eq!(series(&projects), [("a".to_owned(), [1, 0])]);
    }
}
