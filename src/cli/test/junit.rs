//! The report as JUnit XML: a suite for each file, a test case for each case.
//!
//! **Source:** <https://github.com/testmoapp/junitxml>, which documents what its readers take.

use std::fmt::Write;

use super::FileRun;
use super::report::failure_lines;
use crate::clock::Micros;

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
