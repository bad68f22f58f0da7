//! The report as JUnit XML: a suite for each file, a test case for each case.
//!
//! **Source:** <https://github.com/testmoapp/junitxml>, which documents what its readers take.

use std::fmt::Write;

use super::case_run::CaseResult;
use super::file::{TestCase, TestFile};
use super::report::failure_lines;
use crate::clock::Micros;

/// The report while it is written.
#[derive(Debug, Default)]
pub(super) struct JunitReport {
    suites: Vec<JunitSuite>,
}

/// The cases of one file.
#[derive(Debug, Default)]
struct JunitSuite {
    name: String,
    cases: String,
    tests: usize,
    failures: usize,
    time: Micros,
}

impl JunitReport {
    /// Adds a case that ran for `time`.
    pub(super) fn add(
        &mut self,
        file: &TestFile,
        case: &TestCase,
        result: &CaseResult,
        time: Micros,
    ) {
        if self.suites.last().is_none_or(|suite| suite.name != file.path) {
            self.suites.push(JunitSuite { name: file.path.clone(), ..JunitSuite::default() });
        }
        let suite = self.suites.last_mut().expect("pushed above");
        suite.tests += 1;
        suite.failures += usize::from(!result.is_ok());
        suite.time = suite.time + time;
        let (file, name) = (escaped(&file.path), escaped(&case.name));
        let (line, time) = (case.line, seconds(time));
        let open = format!(
            r#"<testcase name="{name}" classname="{file}" file="{file}" line="{line}" time="{time}""#
        );
        let _infallible = match result.failures.first() {
            None => writeln!(suite.cases, "    {open}/>"),
            Some(first) => {
                let message = escaped(&format!("line {}: {}", first.line, first.place));
                let text = escaped(&failure_lines(&suite.name, result));
                writeln!(
                    suite.cases,
                    "    {open}>\n      <failure message=\"{message}\" type=\"failed\">{text}</failure>\n    \
                     </testcase>"
                )
            }
        };
    }

    /// Returns the document.
    pub(super) fn document(&self) -> String {
        let sum = |of: fn(&JunitSuite) -> usize| self.suites.iter().map(of).sum::<usize>();
        let (tests, failures) = (sum(|suite| suite.tests), sum(|suite| suite.failures));
        let time = self.suites.iter().fold(Micros::ZERO, |time, suite| time + suite.time);
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let _infallible =
            writeln!(xml, r#"<testsuites name="rlaas test" {}>"#, counts(tests, failures, time));
        for JunitSuite { name, cases, tests, failures, time } in &self.suites {
            let (name, counts) = (escaped(name), counts(*tests, *failures, *time));
            let _infallible =
                writeln!(xml, "  <testsuite name=\"{name}\" {counts}>\n{cases}  </testsuite>");
        }
        xml + "</testsuites>\n"
    }
}

fn counts(tests: usize, failures: usize, time: Micros) -> String {
    let time = seconds(time);
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
