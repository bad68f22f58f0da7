//! The report as text for people.

use std::fmt::Write;

use rlaas_simulation::simulation::{
    CountsReport, GateCheck, HitKey, RuleReport, SimulationReport, UnmatchedReport, length_text,
    share_text, time_text,
};

use super::SimulateOutput;
use rlaas_cli::printable;
use rlaas_cli::{Column, Table};

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
        let _infallible =
            write!(text, " in {} from {}", length_text(span.length), time_text(span.from));
    }
    let _infallible = writeln!(
        text,
        "\n{} refused ({}){}",
        all.refused,
        share_text(all.refused, all.requests),
        if report.is_compared { format!(", {} before", all.refused_before) } else { String::new() }
    );
    if report.is_compared {
        let CountsReport { allowed_to_refused, refused_to_allowed, .. } = all;
        let _infallible = writeln!(
            text,
            "{allowed_to_refused} newly refused ({}), {refused_to_allowed} no longer refused",
            share_text(*allowed_to_refused, all.requests)
        );
    }
    text
}

fn beyond(check: &GateCheck) -> String {
    let GateCheck { rule, matched, new_denials, max_percent, .. } = check;
    let rules =
        rule.as_ref().map_or("all rules".to_owned(), |rule| format!("rule {}", printable(rule)));
    let share = share_text(*new_denials, *matched);
    format!(
        "above --max-new-denials: {rules}: {new_denials} of {matched} requests ({share}), at most \
         {max_percent}"
    )
}

/// Returns a row for each rule, one for requests without a rule, and one for all. Columns that only
/// some reports need are shown in these.
fn rules(report: &SimulationReport) -> String {
    let has_shadow = report.all.shadow_denied > 0;
    let mut columns = vec![Column::text("RULE"), Column::word("ALGORITHM")];
    columns.extend(["REQUESTS", "REFUSED", "SHARE"].map(Column::number));
    if report.is_compared {
        columns.extend(["BEFORE", "NEW", "GONE"].map(Column::number));
    }
    if has_shadow {
        columns.push(Column::number("SHADOW"));
    }
    columns.extend(["IDS", "REFUSED IDS"].map(Column::number));
    let mut table = Table::new(&columns);
    let mut push = |name: String, algorithm: &str, counts: &CountsReport, ids: [String; 2]| {
        let mut row = vec![name, algorithm.to_owned()];
        row.extend([counts.requests, counts.refused].map(|count| count.to_string()));
        row.push(share_text(counts.refused, counts.requests));
        if report.is_compared {
            let CountsReport { refused_before, allowed_to_refused, refused_to_allowed, .. } =
                counts;
            let changes = [refused_before, allowed_to_refused, refused_to_allowed];
            row.extend(changes.map(ToString::to_string));
        }
        if has_shadow {
            row.push(counts.shadow_denied.to_string());
        }
        row.extend(ids);
        table.push(row);
    };
    for rule in &report.rules {
        let limit = rule.candidate.as_ref().or(rule.in_force.as_ref());
        let ids = [rule.keys, rule.keys_refused].map(|keys| keys.to_string());
        push(name(rule), limit.map_or("", |limit| limit.algorithm), &rule.counts, ids);
    }
    let UnmatchedReport { allowed, refused } = report.unmatched;
    if allowed + refused > 0 {
        let counts =
            CountsReport { requests: allowed + refused, refused, ..CountsReport::default() };
        push("(no rule)".to_owned(), "", &counts, Default::default());
    }
    push("(all)".to_owned(), "", &report.all, Default::default());
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
    let mut table = Table::new(&columns);
    for key in &report.hardest_hit {
        let HitKey { rule, id, requests, refused, allowed_to_refused } = key;
        let mut row = vec![printable(rule), printable(id)];
        row.extend([requests, refused].map(u64::to_string));
        if report.is_compared {
            row.push(allowed_to_refused.to_string());
        }
        table.push(row);
    }
    table.lines()
}

fn notes_text(notes: &[String]) -> String {
    let mut text = String::new();
    for note in notes {
        for (number, line) in note.lines().enumerate() {
            let mark = if number == 0 { "-" } else { "   " };
            let _infallible = writeln!(text, "{mark} {}", printable(line));
        }
    }
    text
}
