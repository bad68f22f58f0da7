//! The reports: for people, and as JUnit XML.
//!
//! **Source:** <https://github.com/testmoapp/junitxml>, which documents what its readers take.

use std::fmt::Write;
use std::path::PathBuf;

use super::FileRun;
use super::case_run::{CaseResult, StepFailure};
use super::rule_names::RuleSources;
use crate::clock::Micros;
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

/// Returns the document.
pub(super) fn document(runs: &[FileRun<'_>]) -> String {
    let suites: String = runs.iter().map(suite).collect();
    let counts = counts(runs);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites name=\"rlaas test\" {counts}>\n{suites}</testsuites>\n"
    )
}

fn suite(run: &FileRun<'_>) -> String {
    let (file, mut cases) = (escaped(&run.file.path), String::new());
    for (case, result, time) in &run.cases {
        let (name, line) = (escaped(&case.value.name), case.referenced.line());
        let failure = result.failures.values().next().map(|first| {
            let message = escaped(&format!("line {}: {}", first.line, first.place));
            let text = escaped(&failure_lines(&run.file.path, result));
            format!("<failure message=\"{message}\" type=\"failed\">{text}</failure>")
        });
        let (failure, time) = (failure.unwrap_or_default(), seconds(*time));
        let _infallible = writeln!(
            cases,
            "    <testcase name=\"{name}\" classname=\"{file}\" file=\"{file}\" line=\"{line}\" \
             time=\"{time}\">{failure}</testcase>"
        );
    }
    let counts = counts(std::slice::from_ref(run));
    format!("  <testsuite name=\"{file}\" {counts}>\n{cases}  </testsuite>\n")
}

fn counts(runs: &[FileRun<'_>]) -> String {
    let cases = || runs.iter().flat_map(|run| &run.cases);
    let failures = cases().filter(|(_, result, _)| !result.failures.is_empty()).count();
    let time = cases().fold(Micros::ZERO, |sum, (_, _, time)| sum + *time);
    let (tests, time) = (cases().count(), seconds(time));
    format!(r#"tests="{tests}" failures="{failures}" errors="0" skipped="0" time="{time}""#)
}

fn seconds(time: Micros) -> String {
    let micros = time.as_micros();
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// Escapes a text. XML 1.0 has no way to write most control characters: they become `?`.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            char if char.is_control() => escaped.push('?'),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(
            escaped("a<b> & \"c\"\n\u{0}\u{1b}\u{ffff}é"),
            "a&lt;b&gt; &amp; &quot;c&quot;\n???é"
        );
        assert_eq!(seconds(Micros::from_micros(1_000_020)), "1.000020");
    }
}
