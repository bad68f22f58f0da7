//! What a report says of itself: how far its numbers can be trusted.

use std::fmt::Write;

use rlaas_core::clock::Micros;
use rlaas_core::rules::Rule;

use super::report::{RuleReport, SimulationReport};
use super::text::length_text;
use crate::traffic::{TrafficCounts, UnreadLine};

impl SimulationReport {
    /// Returns the remarks on this report of the traffic that `traffic` counts. They may contain
    /// texts of the traffic.
    pub fn notes(&self, traffic: &TrafficCounts) -> Vec<String> {
        let mut notes = Notes::default();
        notes.0.push(
            "open loop: every request comes as it was recorded, whether an earlier one was \
             refused or not; a refused caller would have come again, or not"
                .to_owned(),
        );
        notes.count(
            self.recorded_refusals,
            "refused when they were recorded, so that their callers may have come again",
        );
        notes.count(self.warm_up_requests, "decided in the warm-up and not counted");
        if let Some(reason) = &self.invalid_reason {
            notes.count(self.invalid, &format!("would not be accepted (first: {reason})"));
        }
        self.note_rules(&mut notes);
        note_traffic(traffic, &mut notes);
        notes.0
    }

    fn note_rules(&self, notes: &mut Notes) {
        let length = self.span.map_or(Micros::ZERO, |span| span.length);
        let tried = || self.rules.iter().filter(|rule| rule.candidate.is_some());
        let is_idle = |rule: &&RuleReport| rule.counts.requests == 0 && rule.rule != Rule::DEFAULT;
        notes.list("no request matched", tried().filter(is_idle).map(|rule| rule.rule.clone()));
        let long = tried().filter_map(|rule| {
            let window = rule.candidate.as_ref()?.window;
            (window > length && rule.counts.requests > 0)
                .then(|| format!("{} ({})", rule.rule, length_text(window)))
        });
        let reason =
            format!("windows are longer than the traffic, which is {}", length_text(length));
        notes.list(&reason, long);
    }
}

/// Adds the remarks on what became of the lines of traffic.
fn note_traffic(traffic: &TrafficCounts, notes: &mut Notes) {
    if traffic.unread > 0 {
        let (unread, readable) = (traffic.unread, traffic.readable());
        let mut text = format!("{unread} of {readable} lines could not be read; the first:");
        for UnreadLine { input, line, reason, excerpt } in &traffic.first_unread {
            let _infallible = write!(text, "\n{input}:{line}: {reason}: {excerpt}");
        }
        notes.0.push(text);
    }
    notes.list("no line has a value for", traffic.absent_fields.iter().cloned());
    notes.list("mapped as the format says", traffic.default_mappings.iter().cloned());
    for damaged in &traffic.damaged {
        notes.0.push(format!("{}: {}", damaged.input, damaged.reason));
    }
    notes.count(traffic.anonymous, "left out, without a user id");
    notes.count(traffic.left_early, "decided before older ones: too many came within 10 s");
    notes.count(traffic.late, "more than 10 s behind others, decided at the oldest open time");
}

/// The remarks so far.
#[derive(Debug, Default)]
struct Notes(Vec<String>);

impl Notes {
    /// Adds a remark on a number of requests, unless it is 0.
    fn count(&mut self, count: u64, text: &str) {
        match count {
            0 => {}
            1 => self.0.push(format!("{text}: 1 request")),
            _ => self.0.push(format!("{text}: {count} requests")),
        }
    }

    /// Adds a remark that lists texts, unless there are none.
    fn list(&mut self, text: &str, listed: impl Iterator<Item = String>) {
        let listed: Vec<String> = listed.collect();
        if !listed.is_empty() {
            self.0.push(format!("{text}: {}", listed.join(", ")));
        }
    }
}
