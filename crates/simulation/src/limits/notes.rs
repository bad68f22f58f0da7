//! What a report of limits says of itself.

use rlaas_core::clock::Micros;

use super::report::{FoundLimit, LimitCurve, LimitReport};
use crate::chart::{count_text, length_text};
use crate::simulation::{NoteKind, ReportNote, traffic_notes};
use crate::traffic::TrafficCounts;

/// Curves that a remark names.
const MAX_NAMED: usize = 10;

impl LimitReport {
    /// Returns the remarks on this report of the traffic that `traffic` counts.
    pub fn notes(&self, traffic: &TrafficCounts) -> Vec<ReportNote> {
        let mut notes = vec![
            remark(
                NoteKind::OpenLoop,
                "open loop: every request comes as it was recorded, whether an earlier one was \
                 refused or not; a refused caller would have come again, or not",
            ),
            remark(
                NoteKind::RulesAlone,
                "each rule is looked at alone: a request that another rule refuses takes units \
                 here, and would take none",
            ),
        ];
        for (kind, count, why) in [
            (NoteKind::Unmatched, self.unmatched, "matched none of the rules"),
            (NoteKind::Invalid, self.invalid, "would not be accepted by the service"),
            (
                NoteKind::LeftOut,
                self.left_out,
                "of a match are left out: an override or a limit of the request decides them, or \
                 they return or read units",
            ),
            (
                NoteKind::RecordedRefusals,
                traffic.refused_before,
                "were refused when they were recorded, so that their callers may have come again \
                 (--skip-status 429 leaves them out)",
            ),
        ] {
            if count > 0 {
                notes.push(remark(kind, &format!("{} requests {why}", count_text(count))));
            }
        }
        let length = self.to.since(self.from);
        let text = format!("windows are longer than the traffic, which is {}", length_text(length));
        notes.extend(
            self.named(NoteKind::LongWindow, &text, |curve| curve.is_window_longer_than_traffic),
        );
        if let Some(resolution) = traffic.resolution {
            let text = format!(
                "requests seem to come at once, because the log has times of {} and limits are \
                 finer: a smaller limit may be enough",
                length_text(resolution)
            );
            let is_finer = |curve: &LimitCurve| shortest_time(curve) < resolution;
            notes.extend(self.named(NoteKind::Resolution, &text, is_finer));
        }
        let text = "the passes over the traffic were used up before every limit was exact; the \
                    larger number is enough, from the smaller one on it may be";
        notes.extend(self.named(NoteKind::NotExact, text, |curve| {
            let found = curve.limits.iter().map(|limit| limit.found);
            found.into_iter().any(|found| matches!(found, FoundLimit::Between { .. }))
        }));
        notes.extend(traffic_notes(traffic));
        notes
    }

    /// Returns a remark that names the curves of which it is true, if there are any.
    fn named(
        &self,
        kind: NoteKind,
        text: &str,
        is_true: impl Fn(&LimitCurve) -> bool,
    ) -> Option<ReportNote> {
        let curves =
            self.rules.iter().flat_map(|rule| rule.curves.iter().map(move |it| (rule, it)));
        let named = curves.filter(|(_, curve)| is_true(curve)).map(|(rule, curve)| {
            let (algorithm, window) = (curve.algorithm.name(), length_text(curve.window));
            format!("{} ({algorithm}, {window})", rule.rule)
        });
        let named: Vec<String> = named.collect();
        let more = match named.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {} more", count_text(more as u64)),
        };
        let first = &named[..named.len().min(MAX_NAMED)];
        (!named.is_empty()).then(|| remark(kind, &format!("{text}: {}{more}", first.join(", "))))
    }
}

/// Returns the shortest time that matters to a limit of the curve: the window, or for buckets the
/// time between two units of the largest limit that was found.
fn shortest_time(curve: &LimitCurve) -> Micros {
    let limits = curve.limits.iter().filter_map(|limit| match limit.found {
        FoundLimit::Exactly { limit } | FoundLimit::Between { at_most: limit, .. } => Some(limit),
        FoundLimit::Unreachable => None,
    });
    let largest = limits.max().filter(|_| curve.algorithm.has_burst()).unwrap_or(1);
    Micros::from_micros(curve.window.as_micros() / largest)
}

fn remark(kind: NoteKind, text: &str) -> ReportNote {
    ReportNote { kind, text: text.to_owned() }
}
