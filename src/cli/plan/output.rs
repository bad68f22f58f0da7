//! The limits as text and as JSON.

use std::fmt::Write;

use rlaas_simulation::chart::{count_text, length_text};
use rlaas_simulation::limits::{LimitCurve, LimitReport, RefusalMeasure, RuleLimits};
use rlaas_simulation::simulation::{MaxShare, ReportNote, time_text};
use rlaas_simulation::traffic::TrafficCounts;
use serde::Serialize;

use crate::cli::printable::printable;
use crate::cli::table::{Column, Table};

/// The limits that were found. The JSON form is for scripts.
#[derive(Debug, Serialize)]
pub(super) struct PlanOutput<'a> {
    #[serde(flatten)]
    pub(super) report: &'a LimitReport,
    pub(super) traffic: &'a TrafficCounts,
    pub(super) notes: Vec<ReportNote>,
}

impl PlanOutput<'_> {
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and booleans are JSON")
    }

    /// Returns the lines, without a line feed at the end.
    pub(super) fn to_text(&self) -> String {
        let LimitReport { requests, from, to, ref rules, .. } = *self.report;
        let mut text = format!("{} requests", count_text(requests));
        if requests > 0 {
            let (length, from) = (length_text(to.since(from)), time_text(from));
            let _infallible = write!(text, " in {length} from {from}");
        }
        text.push_str("\n\nsmallest limits such that they and all larger ones refuse at most\n");
        text.push_str(&table(rules));
        text.push_str("\nnotes\n");
        for note in &self.notes {
            for (number, line) in note.text.lines().enumerate() {
                let mark = if number == 0 { "-" } else { "   " };
                let _infallible = writeln!(text, "{mark} {}", printable(line));
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// Returns a row for each rule, algorithm, window and share.
fn table(rules: &[RuleLimits]) -> String {
    let mut columns = vec![
        Column::text("RULE"),
        Column::number("REQUESTS"),
        Column::number("IDS"),
        Column::word("ALGORITHM"),
        Column::number("WINDOW"),
        Column::number("SHARE"),
    ];
    let sought = || rules.iter().flat_map(|rule| &rule.curves).flat_map(|curve| &curve.limits);
    for measure in RefusalMeasure::ALL {
        if sought().any(|limit| limit.of == measure) {
            columns.push(Column::number(match measure {
                RefusalMeasure::Requests => "OF REQUESTS",
                RefusalMeasure::Ids => "OF IDS",
            }));
        }
    }
    let mut table = Table::new(&columns);
    for rule in rules {
        for curve in &rule.curves {
            for share in shares(curve) {
                table.push(row(rule, curve, share));
            }
        }
    }
    table.lines()
}

fn shares(curve: &LimitCurve) -> Vec<MaxShare> {
    let mut shares: Vec<MaxShare> = curve.limits.iter().map(|limit| limit.share).collect();
    shares.sort_unstable();
    shares.dedup();
    shares
}

fn row(rule: &RuleLimits, curve: &LimitCurve, share: MaxShare) -> Vec<String> {
    let mut row = vec![printable(&rule.rule), count_text(rule.requests), count_text(rule.ids)];
    row.push(curve.algorithm.name().to_owned());
    row.extend([length_text(curve.window), share.to_string()]);
    let found = curve.limits.iter().filter(|limit| limit.share == share);
    row.extend(found.map(|limit| limit.found.to_string()));
    row
}
