//! The report for people.

use std::fmt::Write;
use std::path::PathBuf;

use super::FileRun;
use super::case_run::{CaseResult, StepFailure};
use super::rule_names::RuleSources;
use rlaas_cli::printable;
use rlaas_cli::text::{count, value as shown_value};

/// Steps whose failure is shown, of one case.
const MAX_SHOWN: usize = 10;

/// Returns the lines about cases that failed.
pub(super) fn failures(runs: &[FileRun<'_>]) -> String {
    let mut lines = String::new();
    for (run, (case, result, _)) in
        runs.iter().flat_map(|run| run.cases.iter().map(move |case| (run, case)))
    {
        if !result.failures.is_empty() {
            let _infallible = writeln!(lines, "\nFAILED  {}", printable(&case.value.name));
            lines.push_str(&failure_lines(&run.file.path, result));
        }
    }
    lines
}

/// Returns the lines about the steps of a case that failed.
pub(super) fn failure_lines(file: &str, result: &CaseResult) -> String {
    let mut lines = String::new();
    for failure in result.failures.values().take(MAX_SHOWN) {
        let StepFailure { line, place, differences, failed, explanation, .. } = failure;
        let _infallible = writeln!(lines, "  {}:{line}: {place}", printable(file));
        for difference in differences {
            let field = printable(&difference.field);
            let _infallible = writeln!(
                lines,
                "    {field}: expected {}, got {}",
                difference.expected, difference.got
            );
        }
        if *failed > 1 {
            let more = count(failed - 1, "more request");
            let _infallible = writeln!(lines, "    and {more} of this step");
        }
        lines.push_str("    just before it:\n");
        for line in explanation.lines() {
            let indent = if line.is_empty() { "" } else { "      " };
            let _infallible = writeln!(lines, "{indent}{line}");
        }
    }
    if let more @ 1.. = result.failures.len().saturating_sub(MAX_SHOWN) {
        let more = count(more as u64, "more step");
        let _infallible = writeln!(lines, "  … and {more} in this case");
    }
    lines
}

/// Returns the lines about rules that no case reached.
pub(super) fn unreached(sources: &RuleSources, names: &[String]) -> String {
    let files = sources.config.iter().chain(&sources.envoy);
    let files = files.map(|path: &PathBuf| printable(&path.display().to_string()));
    let set = sources.set.iter();
    let set = set.map(|(key, value)| format!("{}={}", printable(key), shown_value(value)));
    let sources: Vec<_> = files.chain(set).collect();
    let mut lines = format!("\nRules that no case reached, of {}:\n", sources.join(", "));
    for name in names {
        let _infallible = writeln!(lines, "  {}", printable(name));
    }
    lines
}
