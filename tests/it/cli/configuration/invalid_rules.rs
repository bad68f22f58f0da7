//! Invalid rules: each problem names its key.

use super::problems;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;

#[test]
fn invalid_rules_are_rejected_by_key() {
    let with = |more: &str| format!("rules: [{{name: a, limit: 5, window: 1s{more}}}]");
    let cases = [
        ("rules: 5".to_owned(), "rules: must be a list of sections"),
        ("rules: [5]".to_owned(), "rules[0]: must be a section"),
        ("rules: [{limit: 5, window: 1s}]".to_owned(), "rules[0].name: missing"),
        ("rules: [{name: a, window: 1s}]".to_owned(), "rules[0].limit: missing"),
        ("rules: [{name: a, limit: 5}]".to_owned(), "rules[0].window: missing"),
        ("rules: [{name: a, limit: -1, window: 1}]".to_owned(), "rules[0].limit: must be"),
        ("rules: [{name: a, limit: 5, window: 0}]".to_owned(), "rules[0].window: must be"),
        ("rules: [{name: default, limit: 5, window: 1}]".to_owned(), "rules[0].name: must not be"),
        ("rules: [{name: 'a b', limit: 5, window: 1}]".to_owned(), "rules[0].name: must be"),
        (
            "rules: [{name: a, limit: 5, window: 1}, {name: a, limit: 5, window: 1}]".to_owned(),
            "rules[1].name: another rule has this name",
        ),
        (with(", windw: 1"), "rules[0].windw: unknown key, did you mean rules[0].window?"),
        (with(", limit_count: 6"), "rules[0].limit_count: the same as rules[0].limit"),
        (with(", strategy: magic"), "rules[0].strategy: must be fixed-window"),
        (with(", burst: 9"), "rules[0].burst: sliding-window-log has no burst"),
        (with(", key-by: []"), "rules[0].key-by: must be"),
        (with(", match: {user_id: 007}"), "rules[0].match.user_id: must be a string or a list"),
        (with(", key_by: [user_id, user_id]"), "rules[0].key_by: must not name"),
        (with(", match: {resourc: a}"), "rules[0].match.resourc: unknown key"),
        (with(", match: {resource: {a: 1}}"), "rules[0].match.resource: must be a string or"),
        (with(", match: {attributes: {plan: []}}"), "rules[0].match.attributes.plan: must be"),
        (with(", endpoint: /a, match: {resource: /b}"), "rules[0].endpoint: the same as"),
        (with(", fail-open: false, on-store-failure: allow"), "rules[0].fail-open: the same as"),
        (with(", on-store-failure: maybe"), "rules[0].on-store-failure: must be"),
        (with(", overrides: [{limit: 5}]"), "rules[0].overrides[0].match: missing"),
        (
            with(", overrides: [{match: {user_id: a}}]"),
            "rules[0].overrides[0].limit: give either limit or unlimited: true",
        ),
        (
            with(", overrides: [{match: {user_id: a}, limit: 5, unlimited: true}]"),
            "rules[0].overrides[0].limit: give either",
        ),
        (
            with(", overrides: [{match: {user_id: a}, limit: 100001}]"),
            "rules[0].overrides[0].limit: must be a whole number from 1 to 100000",
        ),
    ];
    for (text, expected) in cases {
        let reported = problems(&text);
        assert_eq!(reported.len(), 1, "{text}: {reported:?}");
        assert!(reported[0].starts_with(expected), "{text}: {reported:?}");
    }
    let reported = problems("rules: [a, b]");
    let expected = ["rules[0]: must be a section (line 1", "rules[1]: must be a section (line 1"];
    assert_eq!(reported.len(), 2, "{reported:?}");
    let is_named = |(text, expected): (&String, &str)| text.starts_with(expected);
    assert!(reported.iter().zip(expected).all(is_named), "{reported:?}");
}

#[test]
fn problems_of_every_rule_are_reported_once() {
    let mut reported = problems(
        "rules:\n  - 5\n  - {name: a, limit: many, burst: 0, window: 1s, shadow: 2}\n  \
         - {name: a, window: 1s, overrides: [6, {match: 7, limit: 1}, {match: {user: a}, limit: -1}]}\n  \
         - {name: b, limit: 1, window: 1s, match: {resource: {}}, version: 2}\n",
    );
    let line = |reported: &String| reported.split("(line ").nth(1).map(|line| line[..1].to_owned());
    assert!(reported.is_sorted_by_key(line), "{reported:#?}");
    reported.sort();
    assert_eq!(
        reported,
        [
            "rules[0]: must be a section (line 2: found 5)",
            "rules[1].burst: must be a whole number from 1 to 1000000000 (line 3: found 0)",
            "rules[1].limit: must be a whole number from 0 to 999999999999999 (line 3: found many)",
            "rules[1].shadow: must be true or false (line 3: found 2)",
            "rules[2].limit: missing (line 4)",
            "rules[2].name: another rule has this name (line 4: found a)",
            "rules[2].overrides[0]: must be a section (line 4: found 6)",
            "rules[2].overrides[1].match: must be a section with keys of its own (line 4)",
            "rules[2].overrides[2].limit: must be a whole number from 0 to 999999999999999 (line 4: found -1)",
            "rules[2].overrides[2].match.user: unknown key, did you mean \
             rules[2].overrides[2].match.user-id? (line 4)",
            "rules[3].match.resource: must be a string or a list of strings; quote numbers and \
             booleans (line 5: found a section)",
            "rules[3].version: must be 1 (line 5: found 2)",
        ]
    );
}

#[test]
fn problems_name_their_file() {
    let dir = TempDir::new();
    for text in ["rules: [{}]", "rules: [{name: a, limit: 1, window: 1s, overrides: [{}]}]"] {
        let file = dir.write("rules.yaml", text).display().to_string();
        let (code, _, error) = run(&["check-config", &file]);
        assert_eq!(code, 64);
        for line in error.lines() {
            assert!(line.starts_with(&format!("{file}: rules[0]")), "{text}: {line}");
        }
    }
}
