//! `rlaas test`: unit tests of rules.

mod decisions;
mod examples;
mod failures;
mod invalid_files;
mod junit;
mod loops;
mod selection;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;

/// Rules that most tests use.
const RULES: &str = "
rules:
  - { name: pay, match: { resource: /pay }, algorithm: fixed-window, limit: 2, window: 60s }
  - { name: free, match: { attributes: { plan: free } }, algorithm: gcra, limit: 10, window: 10s }
unmatched: deny
";

/// What `rlaas test` printed, with the paths of the folder left out.
#[derive(Debug)]
struct Tested {
    code: i32,
    out: String,
    errors: String,
}

/// Runs the cases, with [`RULES`] as the configuration.
fn test_cases(cases: &str) -> Tested {
    test_file(&format!("config: rules.yaml\ncases:\n{cases}"), &[])
}

/// Runs one test file beside `rules.yaml`.
fn test_file(text: &str, options: &[&str]) -> Tested {
    let dir = TempDir::new();
    dir.write("rules.yaml", RULES);
    dir.write("t.yaml", text);
    test_in(&dir, &["t.yaml"], options)
}

/// Runs test files of a folder.
fn test_in(dir: &TempDir, files: &[&str], options: &[&str]) -> Tested {
    let paths: Vec<String> =
        files.iter().map(|file| dir.path(file).display().to_string()).collect();
    let mut arguments = vec!["test"];
    arguments.extend(paths.iter().map(String::as_str));
    arguments.extend(options);
    let (code, out, errors) = run(&arguments);
    let folder = format!("{}/", dir.path(".").display());
    let folder = folder.replace("/./", "/");
    Tested { code, out: out.replace(&folder, ""), errors: errors.replace(&folder, "") }
}

/// Asserts that each text is in the output.
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}
