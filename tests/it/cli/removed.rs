//! Names that were removed: each says so, and what to use instead.

use rlaas::config::{Config, REMOVED, RemovedKind, RemovedName, Sources};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;

fn names(kind: RemovedKind) -> impl Iterator<Item = &'static RemovedName> {
    REMOVED.iter().filter(move |removed| removed.kind == kind)
}

fn problems(sources: &Sources) -> String {
    Config::load(sources).expect_err("a removed setting").to_string()
}

#[test]
fn removed_settings_are_named_from_files_the_environment_and_the_command_line() {
    let dir = TempDir::new();
    let settings = names(RemovedKind::Setting).filter(|removed| !removed.name.contains("[]"));
    for RemovedName { name, instead, .. } in settings {
        // A section and a value are the same.
        for (key, value) in [((*name).to_owned(), "[1]"), (format!("{name}.some-key"), "1")] {
            let parts: Vec<&str> = key.split('.').collect();
            let lines = parts.iter().enumerate().map(|(depth, part)| {
                let end = if depth + 1 == parts.len() { value } else { "" };
                format!("{}{part}: {end}\n", "  ".repeat(depth))
            });
            let file = dir.write("old.yaml", &lines.collect::<String>());
            let line = name.split('.').count();
            let found = problems(&Sources { files: vec![file.clone()], ..Sources::default() });
            let origin = file.display();
            assert_eq!(found, format!("{origin}: {name} was removed: {instead} (line {line})"));
            let variable = key.replace('.', "__").replace('-', "_").to_uppercase();
            let variable = format!("RLAAS_{variable}");
            let environment = vec![(variable.clone(), value.to_owned())];
            let found = problems(&Sources { environment, ..Sources::default() });
            let told = format!("{name} was removed: {instead}");
            assert_eq!(found, format!("environment variable {variable}: {told}"));
            let arguments = vec![(key, value.to_owned())];
            let found = problems(&Sources { arguments, ..Sources::default() });
            assert_eq!(found, format!("command line: {told}"));
        }
    }
    assert!(names(RemovedKind::Setting).count() > 0);
}

#[test]
fn removed_settings_of_the_items_of_lists_are_named() {
    let dir = TempDir::new();
    let in_lists = names(RemovedKind::Setting).filter(|removed| removed.name.contains("[]"));
    let mut found = 0;
    for RemovedName { name, instead, .. } in in_lists {
        let (list, key) = name.split_once("[].").expect("a key of an item");
        let text = format!(
            "{list}:\n- {{name: a, limit: 1, window: 1s}}\n- {{name: b, limit: 1, window: 1s,\n   {key}: [{{limit: 2}}]}}\n"
        );
        let file = dir.write("old.yaml", &text);
        let origin = file.display().to_string();
        let problem = problems(&Sources { files: vec![file], ..Sources::default() });
        let told = format!("{origin}: {list}[1].{key} was removed: {instead} (line 4)");
        assert_eq!(problem, told);
        found += 1;
    }
    assert!(found > 0);
}

#[test]
fn server_does_not_start_with_a_removed_setting() {
    let (code, out, error) = run(&["serve", "--set", "telemetry.preview.keep=15m"]);
    assert_eq!((code, &*out), (64, ""));
    assert!(error.starts_with("command line: telemetry.preview was removed: see "), "{error}");
}

#[test]
fn removed_commands_and_options_are_named() {
    let all = names(RemovedKind::Command).chain(names(RemovedKind::Flag));
    for RemovedName { name, instead, .. } in all {
        let words: Vec<&str> = name.split(' ').collect();
        for more in [&[][..], &["--file", "x"], &["x"]] {
            let (code, out, error) = run(&[&words[..], more].concat());
            let expected = format!("rlaas {name} was removed: {instead}\n");
            assert_eq!((code, out, error), (64, String::new(), expected));
        }
    }
    let (code, _, error) = run(&["rule", "preview", "-f", "x", "--window", "5m"]);
    assert_eq!((code, error.lines().count()), (64, 1), "{error}");
    let (code, _, error) = run(&["rule", "previw"]);
    assert_eq!(code, 2, "{error}");
}
