//! The report for people, written while the cases run.

use std::fmt::Write;
use std::path::PathBuf;

use super::case_run::{CaseResult, StepFailure};
use super::file::{TestCase, TestFile};
use super::rule_names::RuleSources;
use crate::cli::admin::{count, shown_value};
use crate::cli::config::print;
use crate::cli::printable::printable;

/// Counts of all files.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// Left out by `--run`.
    pub(super) filtered_out: usize,
    pub(super) requests: u64,
}

/// A case that failed.
#[derive(Debug)]
pub(super) struct FailedCase<'a> {
    pub(super) file: &'a TestFile,
    pub(super) case: &'a TestCase,
    pub(super) result: CaseResult,
}

/// Begins the lines of a file.
pub(super) fn begin_file(file: &TestFile) {
    print(&format!("{}\n", printable(&file.path)));
}

/// Adds the line of a case.
pub(super) fn add_case(case: &TestCase, result: &CaseResult) {
    let word = if result.is_ok() { "ok    " } else { "FAILED" };
    print(&format!("  {word}  {}\n", printable(&case.name)));
}

/// Adds all that is said once the cases have run.
pub(super) fn finish(
    failed: &[FailedCase<'_>],
    unreached: &[(&RuleSources, Vec<String>)],
    counts: TestCounts,
) {
    let mut lines = String::new();
    for FailedCase { file, case, result } in failed {
        let _infallible = writeln!(lines, "\nFAILED  {}", printable(&case.name));
        lines.push_str(&failure_lines(&file.path, result));
    }
    for (sources, names) in unreached {
        let _infallible = writeln!(lines, "\nRules that no case reached, of {}:", listed(sources));
        for name in names {
            let _infallible = writeln!(lines, "  {}", printable(name));
        }
    }
    let TestCounts { passed, failed, filtered_out, requests } = counts;
    let word = match (passed, failed) {
        (0, 0) => "none",
        (_, 0) => "ok",
        _ => "FAILED",
    };
    let _infallible = write!(lines, "\n{word}: {passed} passed, {failed} failed");
    if filtered_out > 0 {
        let _infallible = write!(lines, ", {filtered_out} filtered out");
    }
    let _infallible = writeln!(lines, "; {}", count(requests, "request"));
    print(&lines);
}

/// Returns the lines about the steps of a case that failed.
pub(super) fn failure_lines(file: &str, result: &CaseResult) -> String {
    let mut lines = String::new();
    for failure in &result.failures {
        let StepFailure { line, place, request, differences, failed, explanation, .. } = failure;
        let _infallible = writeln!(lines, "  {}:{line}: {place}", printable(file));
        let _infallible = writeln!(lines, "    {request}");
        let width = differences.iter().map(|of| of.field.chars().count()).max().unwrap_or(0);
        for difference in differences {
            let field = format!("{}:", printable(&difference.field));
            let _infallible =
                writeln!(lines, "    - {field:w$} {}", difference.expected, w = width + 1);
            let _infallible = writeln!(lines, "    + {field:w$} {}", difference.got, w = width + 1);
        }
        if *failed > 1 {
            let more = count(failed - 1, "more request");
            let _infallible = writeln!(lines, "    and {more} of this step");
        }
        let _infallible = writeln!(lines, "    just before it:");
        for line in explanation.lines() {
            let indent = if line.is_empty() { "" } else { "      " };
            let _infallible = writeln!(lines, "{indent}{line}");
        }
    }
    if result.not_shown > 0 {
        let _infallible =
            writeln!(lines, "  … and {} in this case", count(result.not_shown, "more step"));
    }
    lines
}

fn listed(sources: &RuleSources) -> String {
    let paths = |paths: &[PathBuf]| -> Vec<String> {
        paths.iter().map(|path| printable(&path.display().to_string())).collect()
    };
    let mut parts = [paths(&sources.config), paths(&sources.envoy)].concat();
    let set = sources.set.iter();
    parts.extend(set.map(|(key, value)| format!("{}={}", printable(key), shown_value(value))));
    parts.join(", ")
}
