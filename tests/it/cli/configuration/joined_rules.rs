//! The rules of several files, which are one list.

use super::effective;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;

const BASE: &str = "unmatched: deny\nrules:\n  - {name: pay, limit: 1, window: 1s, burst: 3, algorithm: gcra}\n  \
                    - {name: search, limit: 2, window: 2s}\n";

/// Writes files, and returns their paths.
fn write<const N: usize>(dir: &TempDir, texts: [&str; N]) -> [String; N] {
    let mut number = 0;
    texts.map(|text| {
        number += 1;
        dir.write(&format!("{number}.yaml"), text).display().to_string()
    })
}

/// Returns the lines of `rlaas config` that are about rules, without indentation.
fn rules(arguments: &[&str]) -> Vec<String> {
    let out = effective(arguments, &[]);
    let rules = out.split_once("\nrules:\n").map_or("", |(_, rules)| rules);
    rules
        .lines()
        .take_while(|line| line.starts_with(' '))
        .map(|line| line.trim().to_owned())
        .collect()
}

#[test]
fn rules_of_later_files_are_added_and_settings_win() {
    let dir = TempDir::new();
    let [one, two, none] = write(
        &dir,
        [BASE, "unmatched: allow\nrules: [{name: a, limit: 3, window: 3s}]\n", "rules:\n"],
    );
    let files = ["--config", &*one, "--config", &two, "--config", &none];
    let expected = [
        format!("- name: pay  # {one}"),
        format!("algorithm: gcra  # {one}"),
        format!("limit: 1  # {one}"),
        format!("window: 1s  # {one}"),
        format!("burst: 3  # {one}"),
        format!("- name: search  # {one}"),
        format!("limit: 2  # {one}"),
        format!("window: 2s  # {one}"),
        format!("- name: a  # {two}"),
        format!("limit: 3  # {two}"),
        format!("window: 3s  # {two}"),
    ];
    assert_eq!(rules(&files), expected);
    assert!(effective(&files, &[]).contains(&format!("unmatched: allow  # {two}")));
    assert_eq!(run(&["check-config", &one, &two, &none]).0, 0);
    let emptied = [&files[..], &["--set", "rules=[]"]].concat();
    assert!(rules(&emptied).is_empty());
    let set = [&files[..], &["--set", "rules=[{name: b, limit: 1, window: 1s}]"]].concat();
    assert_eq!(rules(&set)[0], "- name: b  # command line");
}

#[test]
fn same_name_is_a_problem_of_both_places_unless_the_later_rule_replaces() {
    let dir = TempDir::new();
    let again =
        "rules:\n\n  - {name: b, limit: 1, window: 1s}\n  - {name: pay, limit: 9, window: 9s}\n";
    let [one, two, replacing] =
        write(&dir, [BASE, again, &again.replace("pay,", "pay, replace: true,")]);
    let (code, out, error) = run(&["check-config", &one, &two]);
    let expected = format!(
        "{two}: rules[1].name: {one} has a rule of this name (rules[0]); with replace: true this one \
         stands in its place (line 4)\n"
    );
    assert_eq!((code, &*out, error), (64, "", expected));
    let replaced = rules(&["--config", &one, "--config", &replacing]);
    assert_eq!(replaced[0], format!("- name: pay  # {replacing}"));
    // Nothing is left of the earlier one.
    assert_eq!(replaced[1..4].iter().filter(|line| line.contains(&replacing)).count(), 3);
    assert!(replaced[4].starts_with("- name: search"), "{replaced:?}");
    assert!(replaced.iter().all(|line| !line.starts_with("burst")), "{replaced:?}");
    // By itself the later file is valid, too.
    assert_eq!(run(&["check-config", &replacing]), (0, "valid\n".to_owned(), String::new()));
}

#[test]
fn problems_have_the_places_of_their_own_files() {
    let dir = TempDir::new();
    let [one, two] = write(
        &dir,
        [
            "rules:\n  - {name: a, limit: -1, window: 1s}\n",
            "rules:\n\n  - {name: b, limit: -1, window: 1s}\n  - {name: c, limit: 1, windw: 1s}\n",
        ],
    );
    let (_, _, error) = run(&["check-config", &one, &two]);
    let limit = "must be a whole number from 0 to 999999999999999";
    let expected = [
        format!("{one}: rules[0].limit: {limit} (line 2: found -1)"),
        format!("{two}: rules[0].limit: {limit} (line 3: found -1)"),
        format!("{two}: rules[1].window: missing (line 4)"),
        format!("{two}: rules[1].windw: unknown key, did you mean rules[1].window? (line 4)"),
    ];
    let mut lines: Vec<&str> = error.lines().collect();
    lines.sort_unstable();
    let shown: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    assert_eq!(shown, expected);
    let [list, number] = write(&dir, [BASE, "rules: 5\n"]);
    for files in [[&list, &number], [&number, &list]] {
        let (code, _, error) = run(&["check-config", files[0], files[1]]);
        assert_eq!(
            (code, error),
            (64, format!("{number}: rules: must be a list of sections (line 1: found 5)\n"))
        );
    }
}

#[test]
fn files_of_a_project_are_joined_by_themselves() {
    let dir = TempDir::new();
    let [service, one, two] = write(
        &dir,
        [
            BASE,
            "project: shop\nrules: [{name: pay, limit: 1, window: 1s}]\n",
            "project: shop\nrules: [{name: cart, limit: 1, window: 1s}]\n",
        ],
    );
    let out = effective(&["--config", &service, "--config", &one, "--config", &two], &[]);
    let (_, shop) = out.split_once("---\n").expect("a project");
    for name in [format!("name: pay  # {one}"), format!("name: cart  # {two}")] {
        assert!(shop.contains(&name), "{out}");
    }
    assert!(out.contains(&format!("name: pay  # {service}")), "{out}");
}
