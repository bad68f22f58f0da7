//! Files that are not valid: every problem at once, each with its place.

use std::fs::File;

use rlaas_testkit::TempDir;

use super::{RULES, Tested, assert_has, test_cases, test_file, test_in};

/// Asserts that nothing ran, and that these are the problems.
fn assert_problems(tested: &Tested, expected: &[&str]) {
    assert_eq!((tested.code, tested.out.as_str()), (64, ""), "{}", tested.errors);
    let lines: Vec<&str> = tested.errors.lines().collect();
    assert_eq!(lines, expected);
}

#[test]
fn all_problems_are_reported_with_line_and_column() {
    let tested = test_cases("
  - name: a
    start: yesterday
    chek: {}
    steps:
      - { at: 12s, check: { user_id: a, cost: 5000000000 }, times: 0, expct: 1 }
      - { at: 13s, check: { user_id: a, resorce: b }, expect: { remaning: 1, rule: pays } }
      - { at: 13s, chek: { user_id: a } }
      - { at: 13s, after: 1s, check: { user_id: [a] }, tolerance: 1x }
      - { check: { user_id: a }, expect: { allowed: maybe, error: NO_RULES, reason: over } }
      - { check: { user_id: a }, expect: { rules: { fre: { x: 1 } }, matched: [pay, x], statuses: [] } }
  - name: a
    steps: []
  - { steps: 7 }
extra: 1
");
    let lines = [
        "5:12: cases[0].start: must be a time such as 2026-01-31T12:00:00Z, or seconds since 1970, up to the year 9999",
        "6:11: cases[0].chek: unknown field, did you mean check?",
        "8:27: cases[0].steps[0].check: cost must be 0 to 4294967295",
        "8:68: cases[0].steps[0].times: must be a whole number from 1 to 10000000",
        "8:78: cases[0].steps[0].expct: unknown field, did you mean expect?",
        "9:50: cases[0].steps[1].check.resorce: unknown field, did you mean resource?",
        "9:75: cases[0].steps[1].expect.remaning: unknown field, did you mean remaining?",
        "9:84: cases[0].steps[1].expect.rule: no rule has this name, did you mean pay?",
        "10:9: cases[0].steps[2]: check, descriptors or repeat is missing",
        "10:26: cases[0].steps[2].chek: unknown field, did you mean check?",
        "11:27: cases[0].steps[3].after: must not be given with at",
        "11:49: cases[0].steps[3].check.user_id: must be a single value",
        "11:67: cases[0].steps[3].tolerance: must be a duration with a unit, a count, or a map of duration and count",
        "12:53: cases[0].steps[4].expect.allowed: must be true or false, or how many requests of the loop",
        "12:67: cases[0].steps[4].expect.error: must be one of INVALID_ARGUMENT, NO_RULE, FAILED_PRECONDITION",
        "12:85: cases[0].steps[4].expect.reason: must be one of WITHIN_LIMIT, OVER_LIMIT, COST_ABOVE_LIMIT, BANNED, UNLIMITED, NO_RULE",
    ];
    assert_eq!((tested.code, tested.out.as_str()), (64, ""));
    for line in lines {
        assert!(
            tested.errors.lines().any(|found| found == format!("t.yaml:{line}")),
            "no {line} in\n{}",
            tested.errors
        );
    }
    assert_has(
        &tested.errors,
        &[
            "cases[0].steps[5].expect.rules.fre: no rule has this name, did you mean free?\n",
            "cases[0].steps[5].expect.rules.fre.x: unknown field\n",
            "cases[0].steps[5].expect.matched[1]: no rule has this name\n",
            "cases[0].steps[5].expect.statuses: must not be given with check: only descriptors have statuses\n",
            "cases[1].steps: must have at least one step\n",
            "cases[2]: name is missing\n",
            "cases[2].steps: must be a list\n",
            ": extra: unknown field\n",
        ],
    );
}

#[test]
fn time_never_goes_back() {
    let tested = test_cases(
        "
  - name: time
    check: { user_id: a, resource: /pay }
    steps:
      - { at: 10s, times: 3, every: 2s }
      - { at: 13.999999s }
      - { at: 14s }
      - { repeat: 2, every: 1s, steps: [{}, { after: 2s }] }
      - { at: 1h, repeat: 2, steps: [{ at: 1s }, { at: 0.5s }] }
      - { at: 36501d }
      - { at: 36500d, times: 2, every: 1s }
",
    );
    assert_problems(
        &tested,
        &[
            "t.yaml:8:15: cases[0].steps[1].at: must not be before 14s, when the step before ends",
            "t.yaml:10:29: cases[0].steps[3].every: must be at least 2s, which its steps take",
            "t.yaml:11:56: cases[0].steps[4].steps[1].at: must not be before 1s, when the step before ends",
            "t.yaml:12:15: cases[0].steps[5].at: must be a duration of whole microseconds, up to 36500d, such as 1m30s or 1.5s; a number without a unit is in seconds",
            "t.yaml:13:9: cases[0].steps[6]: must end within 36500d of the start",
        ],
    );
}

#[test]
fn loops_are_bounded_for_the_whole_file() {
    let tested = test_cases("
  - name: as many as can be
    check: { user_id: a, resource: /pay }
    steps: [{ repeat: 1000, steps: [{ times: 10000 }] }]
  - name: one more
    check: { user_id: a, resource: /pay }
    steps: [{}]
  - name: deep
    check: { user_id: a }
    steps:
      - { repeat: 9, steps: [{ repeat: 9, steps: [{ repeat: 9, steps: [{ repeat: 9, steps: [{ repeat: 9, steps: [
        { repeat: 9, steps: [{ repeat: 9, steps: [{ repeat: 9, steps: [{ repeat: 9, steps: [{}] }] }] }] }] }] }] }] }] }
");
    assert_eq!(tested.code, 64);
    assert_has(
        &tested.errors,
        &[
            "t.yaml:7:5: cases[1]: must not make more than 10000000 requests of the file\n",
            ".repeat: must be at most 8 levels deep\n",
        ],
    );
}

#[test]
fn problems_of_the_rules_are_reported_too() {
    let dir = TempDir::new();
    dir.write("rules.yaml", RULES);
    dir.write(
        "t.yaml",
        "config: [rules.yaml, none.yaml]\nset: {unmatched: sometimes}\ncases: [{steps: [{}]}]\n",
    );
    dir.write("u.yaml", "cases: [{name: a, steps: [{check: {user_id: a}}]}]\n");
    let tested = test_in(&dir, &["t.yaml", "u.yaml", "v.yaml"], &[]);
    assert_problems(
        &tested,
        &[
            "t.yaml:3:9: cases[0]: name is missing",
            "t.yaml:3:18: cases[0].steps[0]: check, descriptors or repeat is missing",
            "none.yaml: can't be read: No such file or directory (os error 2)",
            "t.yaml: set: unmatched: must be default, allow or deny (found sometimes)",
            "u.yaml:1:1: config or envoy is missing: the files with the rules",
            "v.yaml: can't be read: No such file or directory (os error 2)",
        ],
    );
}

#[test]
fn hostile_files_are_refused() {
    let laughs = (1..12).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, of| {
        let before = vec![format!("*a{}", of - 1); 9].join(", ");
        format!("{text}a{of}: &a{of} [{before}]\n")
    });
    for (text, expected) in [
        (laughs.as_str(), "t.yaml: "),
        (&"[".repeat(100_000), "t.yaml: "),
        ("a: 1\na: 2\n", "duplicate"),
        ("a: \u{0}", "t.yaml: "),
        ("- a", "t.yaml:1:1: must be a map"),
        ("", "t.yaml:"),
    ] {
        let tested = test_file(text, &[]);
        assert_eq!((tested.code, tested.out.as_str()), (64, ""), "{}", tested.errors);
        assert_has(&tested.errors, &[expected]);
        assert!(tested.errors.len() < 1_000, "{}", tested.errors);
    }
}

#[test]
fn files_are_bounded_and_in_utf_8() {
    let dir = TempDir::new();
    let huge = File::create(dir.path("huge.yaml")).expect("a file");
    huge.set_len(1 << 40).expect("a file with a hole");
    std::fs::write(dir.path("latin.yaml"), b"cases: [{name: \xe9}]").expect("a file");
    let tested = test_in(&dir, &["huge.yaml", "latin.yaml", "."], &[]);
    assert_eq!(tested.code, 64);
    assert_has(
        &tested.errors,
        &[
            "huge.yaml: must have at most 8388608 bytes\n",
            "latin.yaml: can't be read: stream did not contain valid UTF-8\n",
            "can't be read: Is a directory (os error 21)\n",
        ],
    );
}

#[test]
fn only_a_hundred_problems_are_shown() {
    let steps = "      - { chek: 1 }\n".repeat(500);
    let tested = test_cases(&format!("  - name: many\n    steps:\n{steps}"));
    assert_eq!(tested.errors.lines().count(), 101);
    assert_has(&tested.errors, &["t.yaml: … and 900 more\n"]);
}
