//! The result of a run, as text and as JSON.

use rlaas_simulation::SimulationPage;
use rlaas_simulation::simulation::{GateResult, MaxShare, SimulationReport};
use rlaas_simulation::traffic::TrafficCounts;
use serde::Serialize;

use super::text;

/// The result of a run. Its JSON form is for scripts.
#[derive(Debug, Serialize)]
pub(super) struct SimulateOutput<'a> {
    /// What the gate found; `None` without `--max-new-denials`.
    pub(super) gate: Option<GateResult>,
    #[serde(flatten)]
    pub(super) report: SimulationReport,
    pub(super) traffic: &'a TrafficCounts,
    pub(super) notes: Vec<String>,
}

impl<'a> SimulateOutput<'a> {
    pub(super) fn new(
        report: SimulationReport,
        traffic: &'a TrafficCounts,
        max_new_denials: Option<MaxShare>,
    ) -> Self {
        let gate = max_new_denials.map(|max| GateResult::new(&report, max));
        Self { gate, notes: report.notes(traffic), report, traffic }
    }

    /// Adds remarks.
    pub(super) fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.notes.extend(notes);
        self
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and booleans are JSON")
    }

    pub(super) fn to_html(&self) -> String {
        let (report, gate, notes) = (&self.report, self.gate.as_ref(), &self.notes);
        SimulationPage { report, gate, notes }.html()
    }

    pub(super) fn to_text(&self) -> String {
        text::text(self)
    }
}
