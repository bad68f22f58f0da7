//! The configuration: sources, problems, warnings and its printed form.

mod invalid_rules;
mod invalid_values;
mod joined_rules;
mod messages;
mod printing;
mod secrets;
mod sources;
mod warnings;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{finish, rlaas, run};

/// Runs `check-config` on an invalid file and returns its problems, without the path of the file.
fn problems(text: &str) -> Vec<String> {
    let dir = TempDir::new();
    let file = dir.write("bad.yaml", text);
    let (code, out, error) = run(&["check-config", &file.display().to_string()]);
    assert_eq!((code, out.as_str()), (64, ""), "{text}\n{error}");
    let prefix = format!("{}: ", file.display());
    let line = |line: &str| {
        let inside = line.strip_prefix(&prefix);
        inside.unwrap_or_else(|| panic!("no file name in {line}")).to_owned()
    };
    error.lines().map(line).collect()
}

/// Asserts that each configuration has one problem, which starts with this text and shows no secret.
fn assert_rejected(cases: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>) {
    for (text, expected) in cases {
        let (text, expected) = (text.as_ref(), expected.as_ref());
        let reported = problems(text);
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(expected), "{text}: {reported:?}");
        assert!(!reported[0].contains("s3cret"), "{reported:?}");
    }
}

/// Runs `config` and returns the effective configuration.
fn effective(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = rlaas(&["config"]);
    command.args(arguments).envs(environment.iter().copied());
    let (code, out, error) = finish(command.output().expect("the program"));
    assert_eq!(code, 0, "{error}");
    out
}
