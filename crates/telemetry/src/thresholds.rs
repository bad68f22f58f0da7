//! Parts of limits that keys have used, on their way to the log of events.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use rlaas_core::rules::Percentage;
use rlaas_limiter::observer::{OTHER_RULES, Reached};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;

use super::metrics::add;

/// Most events that wait for the log.
const QUEUE_CAPACITY: usize = 10_000;
/// Most events of a project in a second.
const MAX_PER_SECOND: u32 = 100;
/// Most projects that are labels.
const MAX_LABELS: usize = 100;

/// Those that were reached and are not in the log yet, and what became of the others.
#[derive(Debug, Default)]
pub struct Thresholds {
    /// Set once somebody reads.
    sender: OnceLock<Sender<Reached>>,
    /// Number of those that were reached, and are neither in the log nor lost.
    waiting: watch::Sender<usize>,
    projects: Mutex<HashMap<String, ProjectEvents>>,
    /// Events in the log, by rule and threshold.
    pub(super) told: Family<ThresholdLabels, Counter>,
    /// Events beyond what a project may have in a second, by project.
    pub(super) dropped: Family<DroppedLabels, Counter>,
    /// Events that the store did not take.
    pub lost: Counter,
}

/// Labels of the events of a rule.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ThresholdLabels {
    rule: String,
    threshold: String,
}

/// Label of events that were dropped.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct DroppedLabels {
    project: String,
}

/// The events of a project.
#[derive(Debug, Default)]
struct ProjectEvents {
    second: u64,
    in_second: u32,
    dropped: u64,
    is_label: bool,
}

impl Thresholds {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            told: add(
                registry,
                "rlaas_threshold_events",
                "Parts of limits that keys have used, in the log of events",
            ),
            dropped: add(
                registry,
                "rlaas_threshold_events_dropped",
                "Events of parts of limits beyond 100 a second of a project",
            ),
            lost: add(
                registry,
                "rlaas_threshold_events_lost",
                "Events of parts of limits that the store did not take",
            ),
            ..Self::default()
        }
    }

    /// Returns what is reached from now on. Of several callers the first gets it.
    pub fn read(&self) -> Option<Receiver<Reached>> {
        let (sender, receiver) = channel(QUEUE_CAPACITY);
        self.sender.set(sender).is_ok().then_some(receiver)
    }

    /// Counts an event that is in the log.
    pub fn count_told(&self, reached: &Reached) {
        let threshold = Percentage(reached.threshold).to_string();
        let labels = ThresholdLabels { rule: reached.observed_as.clone(), threshold };
        self.told.get_or_create(&labels).inc();
    }

    /// Counts an event that waits no more.
    pub fn count_ended(&self) {
        self.waiting.send_modify(|waiting| *waiting -= 1);
    }

    /// Completes when no event waits for the log.
    pub async fn none_waits(&self) {
        // The sender lives as long as this.
        drop(self.waiting.subscribe().wait_for(|waiting| *waiting == 0).await);
    }

    /// Returns the number of events of a project that were dropped.
    pub fn dropped(&self, project: &str) -> u64 {
        let projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        projects.get(project).map_or(0, |events| events.dropped)
    }

    pub(super) fn reached(&self, reached: Reached) {
        let Some(sender) = self.sender.get() else { return };
        let mut projects = self.projects.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_label, project) = (projects.len() < MAX_LABELS, reached.project.clone());
        let events = projects.entry(project.clone());
        let events = events.or_insert_with(|| ProjectEvents { is_label, ..Default::default() });
        let second = reached.at.as_micros() / 1_000_000;
        if events.second != second {
            (events.second, events.in_second) = (second, 0);
        }
        events.in_second += 1;
        self.waiting.send_modify(|waiting| *waiting += 1);
        let is_sent = events.in_second <= MAX_PER_SECOND && sender.try_send(reached).is_ok();
        if !is_sent {
            self.count_ended();
            events.dropped += 1;
            let project = if events.is_label { project } else { OTHER_RULES.to_owned() };
            self.dropped.get_or_create(&DroppedLabels { project }).inc();
        }
    }

    /// Creates every possible series.
    pub(super) fn declare_everything(&self) {
        let [rule, threshold, project] = ["rule", "80%", "project"].map(str::to_owned);
        drop(self.told.get_or_create(&ThresholdLabels { rule, threshold }));
        drop(self.dropped.get_or_create(&DroppedLabels { project }));
    }

    pub(super) fn forget(&self, project: &str) {
        self.projects.lock().unwrap_or_else(PoisonError::into_inner).remove(project);
        self.dropped.remove(&DroppedLabels { project: project.to_owned() });
    }
}
