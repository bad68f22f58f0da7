//! Invalid rules: each problem names its key.

use super::{assert_rejected, problems};
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
        (
            "rules: [{name: a, limit: 5, calendar: {unit: month}}]".to_owned(),
            "rules[0].calendar: only with algorithm: fixed-window",
        ),
        (with(", window_from: first-use"), "rules[0].window_from: only with algorithm: fixed"),
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
            "rules[0].overrides[0].limit: give either limit or unlimited: true, or headroom alone",
        ),
        (
            with(", overrides: [{match: {user_id: a}, limit: 5, unlimited: true}]"),
            "rules[0].overrides[0].limit: give either",
        ),
        (
            with(", overrides: [{match: {user_id: a}, headroom: 0.5%}]"),
            "rules[0].overrides[0].headroom: must be 1% to 100%, such as 20%",
        ),
        (
            with(", overrides: [{match: {user_id: a}, limit: 100001}]"),
            "rules[0].overrides[0].limit: must be a whole number from 1 to 100000",
        ),
    ];
    assert_rejected(cases);
    let reported = problems("rules: [a, b]");
    let expected = ["rules[0]: must be a section (line 1", "rules[1]: must be a section (line 1"];
    assert_eq!(reported.len(), 2, "{reported:?}");
    let is_named = |(text, expected): (&String, &str)| text.starts_with(expected);
    assert!(reported.iter().zip(expected).all(is_named), "{reported:?}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn fields_that_do_not_belong_together_are_rejected_by_key() {
    for (fields, cases) in [
        (
            "limit: 1, window: 1s",
            &[
                ("reservable: true", "reservable: not with sliding-window-log, which can't be in"),
                ("algorithm: gcra, hold: 1s", "hold: only with reservable: true or concurrency"),
                ("algorithm: gcra, max-holds: 5", "max-holds: only with reservable: true"),
                (
                    "algorithm: gcra, limit-from: attributes.a",
                    "limit-from: only with fixed-window, sl",
                ),
                ("algorithm: token-bucket, limit-from: attributes.a", "limit-from: only with"),
                ("algorithm: leaky-bucket, limit_from: attributes.a", "limit_from: only with"),
                (
                    "limit-from: daily",
                    "limit-from: must be attributes.NAME, with a name of 1 to 64 bytes, or request",
                ),
                (
                    "limit-from: 5",
                    "limit-from: must be attributes.NAME, with a name of 1 to 64 bytes, or request",
                ),
                (
                    "limit-from: attributes.",
                    "limit-from: must be attributes.NAME, with a name of 1 to 64 bytes, or request",
                ),
                ("limit-from: attributes.a, on-change: reset", "limit-from: not with on-change"),
                (
                    "algorithm: fixed-window, post-paid: true, max-debt: 1, limit-from: attributes.a",
                    "limit-from: not with max-debt",
                ),
                ("algorithm: gcra, hold-share: 20%", "hold-share: only with reservable: true"),
                (
                    "algorithm: gcra, reservable: true, hold-share: 0.9999%",
                    "hold-share: must be 1% to 100%, such as 20%",
                ),
                ("algorithm: gcra, reservable: true, hold_share: 0.2", "hold_share: must be 1% to"),
                (
                    "algorithm: gcra, reservable: true, hold-share: 101%",
                    "hold-share: must be 1% to",
                ),
                ("algorithm: gcra, reservable: true, hold: 0s", "hold: must be 100ms to 24h"),
                ("algorithm: gcra, reservable: true, hold: 25h", "hold: must be 100ms to 24h"),
                (
                    "algorithm: gcra, reservable: true, max-holds: 10001",
                    "max-holds: must be a whole number from 1 to 10000",
                ),
                (
                    "post-paid: true",
                    "post-paid: not with sliding-window-log, which can't be in debt; use \
                     token-bucket or fixed-window",
                ),
                ("max-debt: 5, algorithm: gcra", "max-debt: only with post-paid: true"),
                (
                    "max-debt: -1, algorithm: gcra, post-paid: true",
                    "max-debt: must be a whole number from 0 to 9007199254739999",
                ),
                (
                    "max-debt: 40000000, algorithm: gcra, post-paid: true",
                    "max-debt: must be a whole number from 0 to 31622400",
                ),
                ("cost: 0", "cost: must be a whole number from 1 to 4294967295"),
                ("cost: 4294967296", "cost: must be a whole number from 1 to 4294967295"),
                ("post-paid: maybe", "post-paid: must be true or false"),
            ][..],
        ),
        (
            "window: 1h",
            &[
                (
                    "algorithm: gcra, limit: 1000000001",
                    "limit: must be a whole number from 1 to 1000000000 for gcra",
                ),
                (
                    "algorithm: fixed-window, limit: 1000000000000000",
                    "limit: must be a whole number from 0 to 999999999999999",
                ),
                (
                    "algorithm: fixed-window, limit: 1000000001, on-change: scale",
                    "on-change: must not be scale with a limit above 1000000000",
                ),
                (
                    "algorithm: token-bucket, limit: 5, burst: 1000000001",
                    "burst: must be a whole number from 1 to 1000000000",
                ),
            ],
        ),
        (
            "algorithm: concurrency",
            &[
                ("limit: 10001", "limit: "),
                ("limit: 0", "limit: must be a whole number from 1 to 10000 with concurrency"),
                ("limit: 0, mode: shadow", "limit: must be a whole number from 1 to 10000"),
                ("limit: 3, window: 1s", "window: not with concurrency"),
                ("limit: 3, burst: 5", "burst: "),
                ("limit: 3, hold: 99ms", "hold: must be 100ms to 24h"),
                ("limit: 3, max-holds: 5", "max-holds: not with concurrency"),
                ("limit: 3, hold-share: 20%", "hold-share: not with concurrency"),
                ("limit: 3, reservable: true", "reservable: not with concurrency"),
                ("limit: 3, post-paid: true", "post-paid: not with concurrency"),
                ("limit: 3, on-change: reset", "on-change: not with concurrency"),
                ("limit: 3, near-limit: 0.5", "near-limit: not with concurrency"),
                (
                    "limit: 3, on-store-failure: local",
                    "on-store-failure: must be error, allow or deny with concurrency",
                ),
            ],
        ),
        (
            "algorithm: fixed-window, limit: 5",
            &[
                ("calendar: {unit: month}, window: 30d", "window: not with calendar"),
                ("calendar: {unit: month}, on-change: reset", "on-change: not with calendar"),
                ("calendar: {unit: month}, burst: 9", "burst: "),
                ("calendar: {zone: UTC}", "calendar.unit: missing"),
                (
                    "calendar: {unit: month}, window-from: first-use",
                    "window-from: not with calendar",
                ),
                ("window: 5h, window-from: login", "window-from: must be epoch or first-use"),
                ("calendar: {unit: century}", "calendar.unit: must be day, week, month, quarter"),
                (
                    "calendar: {unit: month, zone: Europe/Berlim}",
                    "calendar.zone: must be the name of a time zone",
                ),
                (
                    "calendar: {unit: month, anchor: 32}",
                    "calendar.anchor: must be a whole number from 1 to 31",
                ),
                (
                    "calendar: {unit: week, anchor: 8}",
                    "calendar.anchor: must be a whole number from 1 (Monday) to 7",
                ),
                ("calendar: {unit: day, anchor: 2}", "calendar.anchor: must be left out with day"),
                (
                    "calendar: {unit: day, anchor-from: x}",
                    "calendar.anchor-from: must be left out with day",
                ),
            ],
        ),
    ] {
        assert_rejected(cases.iter().map(|(more, expected)| {
            (format!("rules: [{{name: a, {fields}, {more}}}]"), format!("rules[0].{expected}"))
        }));
    }
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
