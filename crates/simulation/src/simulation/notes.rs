//! What a report says of itself: how far its numbers can be trusted.

use std::fmt::Write;

use rlaas_core::clock::Micros;
use rlaas_core::rules::Rule;
use serde::Serialize;

use super::report::{RuleReport, SimulationReport};
pub use crate::chart::length_text;
use crate::traffic::{TrafficCounts, UnreadLine};

/// A remark on a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportNote {
    /// What the remark is about.
    pub kind: NoteKind,
    /// The remark, for people. May contain texts of the traffic.
    pub text: String,
}

/// What a remark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NoteKind {
    /// Callers do not react to refusals.
    OpenLoop,
    /// Requests were refused when they were recorded.
    RecordedRefusals,
    /// A window is longer than the traffic.
    LongWindow,
    /// A limit is finer than the times of the log.
    Resolution,
    /// Requests were left out of the counts.
    WarmUp,
    /// Lines could not be read.
    Unread,
    /// Lines are no requests, or were left out as the options say.
    LeftOut,
    /// Parts of the requests were chosen by the format, not by options.
    Mapped,
    /// Times are not certain.
    Times,
    /// An input ends too early or is corrupt.
    Damaged,
    /// The service would not accept requests.
    Invalid,
    /// Keys were dropped.
    KeysDropped,
    /// A service may have overrides of keys, which a simulation has not.
    Overridable,
    /// Rules matched no request, or requests no rule.
    Unmatched,
    /// Each rule was looked at alone.
    RulesAlone,
    /// A recording has a share of the keys only.
    Sampled,
    /// A recording has hashed values, by which rules can't be decided.
    Hashed,
    /// Requests are missing, because a server did not record them.
    NotRecorded,
    /// A limit is known as a range only.
    NotExact,
}

impl SimulationReport {
    /// Returns the remarks on this report of the traffic that `traffic` counts.
    pub fn notes(&self, traffic: &TrafficCounts) -> Vec<ReportNote> {
        let mut notes = Notes::default();
        notes.add(
            NoteKind::OpenLoop,
            "open loop: every request comes as it was recorded, whether an earlier one was \
             refused or not; a refused caller would have come again, or not",
        );
        self.note_requests(&mut notes);
        self.note_rules(traffic, &mut notes);
        notes.0.extend(traffic_notes(traffic));
        notes.0
    }

    fn note_requests(&self, notes: &mut Notes) {
        notes.count(NoteKind::RecordedRefusals, self.recorded_refusals, |count| {
            format!(
                "{count} were refused when they were recorded, so that their callers may have come \
                 again"
            )
        });
        notes.count(NoteKind::WarmUp, self.warm_up.requests, |count| {
            let length = length_text(self.warm_up.seconds);
            format!("{count} within the warm-up of {length} were decided and are not counted")
        });
        notes.count(NoteKind::Invalid, self.invalid, |count| {
            let reasons = self.invalid_reasons.iter();
            let reasons: Vec<_> =
                reasons.map(|(reason, count)| format!("{reason} ({count})")).collect();
            format!("{count} would not be accepted: {}", reasons.join(", "))
        });
        if self.keys_dropped > 0 {
            let dropped = self.keys_dropped;
            let text =
                format!("{dropped} keys were dropped for others (--max-keys): they began afresh");
            notes.add(NoteKind::KeysDropped, text);
        }
        if !self.keys_are_exact {
            let text = "counts of keys are incomplete: there were more of them than --max-keys";
            notes.add(NoteKind::KeysDropped, text);
        }
    }

    fn note_rules(&self, traffic: &TrafficCounts, notes: &mut Notes) {
        let length = self.span.map_or(Micros::ZERO, |span| span.length);
        let rules: Vec<&RuleReport> = self.rules.iter().filter(|rule| rule.is_candidate).collect();
        notes.rules(NoteKind::Unmatched, "no request matched", &rules, |rule| {
            (rule.counts.requests == 0 && rule.rule != Rule::DEFAULT).then(String::new)
        });
        let text = format!("windows are longer than the traffic, which is {}", length_text(length));
        notes.rules(NoteKind::LongWindow, &text, &rules, |rule| {
            rule.longest_window.filter(|window| *window > length).map(length_text)
        });
        if let Some(resolution) = traffic.resolution {
            let text = format!(
                "requests seem to come at once, because the log has times of {} and limits are \
                 finer: more are refused here",
                length_text(resolution)
            );
            notes.rules(NoteKind::Resolution, &text, &rules, |rule| {
                rule.shortest_time.filter(|time| *time < resolution).map(length_text)
            });
        }
        let text = "overrides and bans of single keys at run time are not known here";
        notes.rules(NoteKind::Overridable, text, &rules, |rule| {
            (rule.overridable && rule.counts.requests > 0).then(String::new)
        });
    }
}

/// Returns the remarks on what became of the lines of traffic.
pub fn traffic_notes(traffic: &TrafficCounts) -> Vec<ReportNote> {
    let mut notes = Notes::default();
    note_lines(traffic, &mut notes);
    note_times(traffic, &mut notes);
    notes.0
}

fn note_lines(traffic: &TrafficCounts, notes: &mut Notes) {
    if traffic.unread > 0 {
        let mut text = format!(
            "{} of {} lines could not be read; the first of them:",
            traffic.unread,
            traffic.readable()
        );
        for line in &traffic.first_unread {
            let UnreadLine { input, line, reason, excerpt } = line;
            let _infallible = write!(text, "\n{input}:{line}: {reason}: {excerpt}");
        }
        notes.add(NoteKind::Unread, text);
    }
    if !traffic.absent_fields.is_empty() {
        let fields = traffic.absent_fields.join(", ");
        notes.add(NoteKind::Mapped, format!("no line has a value for: {fields}"));
    }
    if !traffic.default_mappings.is_empty() {
        let mappings = traffic.default_mappings.join(", ");
        notes.add(NoteKind::Mapped, format!("mapped as the format says: {mappings}"));
    }
    for damaged in &traffic.damaged {
        notes.add(NoteKind::Damaged, format!("{}: {}", damaged.input, damaged.reason));
    }
    notes.count(NoteKind::NotRecorded, traffic.lost, |count| {
        format!("{count} are missing: the server that recorded them dropped them")
    });
    for (count, why) in [
        (traffic.anonymous, "without a user id"),
        (traffic.skipped_by_project, "of other projects, left out by --project"),
    ] {
        if count > 0 {
            notes.add(NoteKind::LeftOut, format!("{} {why}", counted(count, "line")));
        }
    }
}

fn note_times(traffic: &TrafficCounts, notes: &mut Notes) {
    for (count, why) in [
        (traffic.late, "more than 10 s behind others, moved to the oldest open time"),
        (traffic.left_early, "decided before older ones could be read: too many came within 10 s"),
    ] {
        notes.count(NoteKind::Times, count, |count| format!("{count} {why}"));
    }
}

/// The remarks so far.
#[derive(Debug, Default)]
struct Notes(Vec<ReportNote>);

impl Notes {
    fn add(&mut self, kind: NoteKind, text: impl Into<String>) {
        self.0.push(ReportNote { kind, text: text.into() });
    }

    /// Adds a remark on a number of requests, unless it is 0.
    fn count(&mut self, kind: NoteKind, count: u64, text: impl FnOnce(&str) -> String) {
        if count > 0 {
            self.add(kind, text(&counted(count, "request")));
        }
    }

    /// Adds a remark that lists the rules for which `detail` returns a text.
    fn rules(
        &mut self,
        kind: NoteKind,
        text: &str,
        rules: &[&RuleReport],
        detail: impl Fn(&RuleReport) -> Option<String>,
    ) {
        let listed = rules.iter().filter_map(|rule| {
            let detail = detail(rule)?;
            let name = &rule.rule;
            Some(if detail.is_empty() { name.clone() } else { format!("{name} ({detail})") })
        });
        let listed: Vec<String> = listed.collect();
        if !listed.is_empty() {
            self.add(kind, format!("{text}: {}", listed.join(", ")));
        }
    }
}

fn counted(count: u64, of: &str) -> String {
    if count == 1 { format!("1 {of}") } else { format!("{count} {of}s") }
}
