//! Decisions by project, with a bound on the projects that have series of their own.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::family::Family;

use super::labels::ProjectLabels;
use super::sharded::ShardedCounter;
use crate::observer::ProjectObserver;

/// Label of all projects without series of their own.
const OTHER: &str = "other";
const ALLOWED: &str = "allowed";
const DENIED: &str = "denied";

/// Counts the decisions of projects.
#[derive(Debug)]
pub(super) struct ProjectMetrics {
    decisions: Family<ProjectLabels, ShardedCounter>,
    /// Most projects with series of their own.
    max: usize,
    /// Projects with series of their own.
    named: Mutex<HashSet<String>>,
}

impl ProjectMetrics {
    /// Default of `telemetry.projects`.
    pub(super) const DEFAULT_MAX: usize = 1_000;

    pub(super) fn new(decisions: Family<ProjectLabels, ShardedCounter>, max: usize) -> Self {
        Self { decisions, max, named: Mutex::default() }
    }

    /// Returns this with another bound.
    pub(super) fn with_max(self, max: usize) -> Self {
        Self { max, ..self }
    }

    /// Returns what counts the decisions of a project. The first projects have series of their own;
    /// one that is removed leaves its place to the next whose rules are put in force.
    pub(super) fn observer(&self, project: &str) -> Arc<dyn ProjectObserver> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let is_named =
            named.contains(project) || (named.len() < self.max && named.insert(project.to_owned()));
        let project = if is_named { project } else { OTHER };
        let counter = |outcome| {
            let project = project.to_owned();
            self.decisions.get_or_create_owned(&ProjectLabels { project, outcome })
        };
        Arc::new(ProjectCounters { allowed: counter(ALLOWED), denied: counter(DENIED) })
    }

    /// Removes the series of a project.
    pub(super) fn forget(&self, project: &str) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.remove(project) && project != OTHER {
            for outcome in [ALLOWED, DENIED] {
                let project = project.to_owned();
                self.decisions.remove(&ProjectLabels { project, outcome });
            }
        }
    }
}

/// The counters of one project, or of all others.
#[derive(Debug)]
struct ProjectCounters {
    allowed: ShardedCounter,
    denied: ShardedCounter,
}

impl ProjectObserver for ProjectCounters {
    fn decided(&self, is_allowed: bool) {
        if is_allowed {
            self.allowed.inc()
        } else {
            self.denied.inc()
        };
    }
}
