//! The report as text for people.

use std::fmt::Write;

use rlaas_simulation::simulation::{
    CountsReport, GateCheck, HitKey, ReportNote, RuleReport, SimulationReport, length_text,
    time_text,
};

use super::output::SimulateOutput;
use crate::cli::printable::printable;
use crate::cli::table::{Column, Table};
use crate::clock::Micros;

/// Returns the lines, without a line feed at the end.
pub(super) fn text(output: &SimulateOutput<'_>) -> String {
    let SimulateOutput { gate, report, notes, .. } = output;
    let mut text = summary(report);
    if let Some(gate) = gate {
        for check in gate.checks.iter().filter(|check| !check.is_within) {
            let _infallible = writeln!(text, "{}", beyond(check));
        }
        if gate.is_within {
            text.push_str("new denials are within --max-new-denials\n");
        }
    }
    let _infallible = write!(text, "\n{}", rules(report));
    if !report.hardest_hit.is_empty() {
        let _infallible = write!(text, "\nrefused most often\n{}", hardest_hit(report));
    }
    let _infallible = write!(text, "\nnotes\n{}", notes_text(notes));
    text.truncate(text.trim_end().len());
    text
}

fn summary(report: &SimulationReport) -> String {
    let SimulationReport { all, span, .. } = report;
    let mut text = format!("{} requests", all.requests);
    if let Some(span) = span {
        let (length, from) = (length_text(span.length), time_text(span.from));
        let _infallible = write!(text, " in {length} from {from}");
    }
    let _infallible = writeln!(
        text,
        "\n{} refused ({}){}",
        all.refused,
        percent(all.refused, all.requests),
        if report.is_compared { format!(", {} before", all.refused_before) } else { String::new() }
    );
    if report.is_compared {
        let CountsReport { allowed_to_refused, refused_to_allowed, .. } = all;
        let _infallible = writeln!(
            text,
            "{allowed_to_refused} newly refused ({}), {refused_to_allowed} no longer refused",
            percent(*allowed_to_refused, all.requests)
        );
    }
    text
}

fn beyond(check: &GateCheck) -> String {
    let GateCheck { rule, matched, new_denials, max_percent, .. } = check;
    let of =
        rule.as_ref().map_or("all rules".to_owned(), |rule| format!("rule {}", printable(rule)));
    let share = percent(*new_denials, *matched);
    format!(
        "above --max-new-denials: {of}: {new_denials} of {matched} requests ({share}), at most \
         {max_percent}"
    )
}

/// A column of numbers in the table of rules.
struct CountColumn {
    title: &'static str,
    of_counts: fn(&CountsReport) -> String,
    /// Whether the column is shown although no rule has a number above 0 in it.
    is_basic: bool,
}

const COUNT_COLUMNS: [CountColumn; 9] = [
    CountColumn { title: "REQUESTS", of_counts: |of| of.requests.to_string(), is_basic: true },
    CountColumn { title: "REFUSED", of_counts: |of| of.refused.to_string(), is_basic: true },
    CountColumn {
        title: "SHARE",
        of_counts: |of| percent(of.refused, of.requests),
        is_basic: true,
    },
    CountColumn { title: "BEFORE", of_counts: |of| of.refused_before.to_string(), is_basic: false },
    CountColumn {
        title: "NEW",
        of_counts: |of| of.allowed_to_refused.to_string(),
        is_basic: false,
    },
    CountColumn {
        title: "GONE",
        of_counts: |of| of.refused_to_allowed.to_string(),
        is_basic: false,
    },
    CountColumn { title: "SHADOW", of_counts: |of| of.shadow_denied.to_string(), is_basic: false },
    CountColumn { title: "NEVER", of_counts: |of| of.never_pass.to_string(), is_basic: false },
    CountColumn {
        title: "LONGEST WAIT",
        of_counts: |of| of.longest_wait.map_or("-".to_owned(), length_text),
        is_basic: true,
    },
];

/// Returns a row for each rule, one for requests without a rule, and one for all. Columns that only
/// some reports need are shown in these.
fn rules(report: &SimulationReport) -> String {
    let all_counts = || report.rules.iter().map(|rule| &rule.counts).chain([&report.all]);
    let is_shown = |column: &&CountColumn| {
        let is_change = ["BEFORE", "NEW", "GONE"].contains(&column.title);
        let is_used = || all_counts().any(|counts| (column.of_counts)(counts) != "0");
        column.is_basic || (is_change && report.is_compared) || (!is_change && is_used())
    };
    let shown: Vec<&CountColumn> = COUNT_COLUMNS.iter().filter(is_shown).collect();
    let has_units = report.rules.iter().any(|rule| rule.units.asked != rule.counts.requests);
    let mut columns = vec![Column::text("RULE"), Column::word("ALGORITHM")];
    columns.extend(shown.iter().map(|column| Column::number(column.title)));
    columns
        .extend(["UNITS", "GRANTED"].iter().filter(|_| has_units).map(|name| Column::number(name)));
    columns.extend(["IDS", "REFUSED IDS"].map(Column::number));
    let mut table = Table::new(&columns);
    let mut push = |name: String, algorithm: &str, cells: Vec<String>| {
        let mut row = vec![name, algorithm.to_owned()];
        row.extend(cells);
        row.resize(columns.len(), String::new());
        table.push(row);
    };
    let cells = |counts: &CountsReport| -> Vec<String> {
        shown.iter().map(|column| (column.of_counts)(counts)).collect()
    };
    for rule in &report.rules {
        let mut row = cells(&rule.counts);
        if has_units {
            row.extend([rule.units.asked, rule.units.granted].map(|units| units.to_string()));
        }
        row.extend([rule.keys, rule.keys_refused].map(|keys| keys.to_string()));
        push(name(rule), rule.algorithm.name(), row);
    }
    let (allowed, refused) = (report.unmatched.allowed, report.unmatched.refused);
    let unmatched = allowed + refused;
    if unmatched > 0 {
        let row = [unmatched.to_string(), refused.to_string(), percent(refused, unmatched)];
        push("(no rule)".to_owned(), "", row.into());
    }
    push("(all)".to_owned(), "", cells(&report.all));
    table.lines()
}

/// Returns the name of a rule, with its mode unless it is enforced.
fn name(rule: &RuleReport) -> String {
    rule.labelled(&printable(&rule.rule))
}

fn hardest_hit(report: &SimulationReport) -> String {
    let mut columns = vec![Column::text("RULE"), Column::text("ID")];
    columns.extend(["REQUESTS", "REFUSED"].map(Column::number));
    if report.is_compared {
        columns.push(Column::number("NEW"));
    }
    columns.push(Column::number("LONGEST WAIT"));
    let mut table = Table::new(&columns);
    for key in &report.hardest_hit {
        let HitKey { rule, id, requests, refused, allowed_to_refused, longest_wait } = key;
        let mut row = vec![printable(rule), printable(id)];
        row.extend([requests, refused].map(u64::to_string));
        if report.is_compared {
            row.push(allowed_to_refused.to_string());
        }
        let waits = *longest_wait != Micros::ZERO;
        row.push(if waits { length_text(*longest_wait) } else { "-".to_owned() });
        table.push(row);
    }
    table.lines()
}

fn notes_text(notes: &[ReportNote]) -> String {
    let mut text = String::new();
    for note in notes {
        for (number, line) in note.text.lines().enumerate() {
            let mark = if number == 0 { "-" } else { "   " };
            let _infallible = writeln!(text, "{mark} {}", printable(line));
        }
    }
    text
}

/// Returns a part of a whole as a percentage.
#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn percent(part: u64, whole: u64) -> String {
    match (part, whole) {
        (_, 0) => "-".to_owned(),
        (0, _) => "0 %".to_owned(),
        _ => {
            let percent = part as f64 * 100.0 / whole as f64;
            if percent < 0.01 { "<0.01 %".to_owned() } else { format!("{percent:.2} %") }
        }
    }
}
