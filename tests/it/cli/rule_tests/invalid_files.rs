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
fn what_is_not_of_the_form_is_reported_with_line_and_column() {
    let step =
        |step: &str| format!("  - name: a\n    check: {{ user_id: a }}\n    steps: [{step}]\n");
    for (cases, expected) in [
        (step("{ chek: 1 }"), "unknown field `chek`, expected one of at, after"),
        (step("{ check: { resorce: b } }"), "unknown field `resorce`, expected one of user_id"),
        (step("{ check: { cost: -1 } }"), "invalid u64"),
        (step("{ check: { user_id: [a] } }"), "expected string scalar"),
        (step("{ times: many }"), "invalid u64"),
        (step("{ descriptors: { entries: [b] } }"), "must be [KEY, VALUE] or {key"),
        (step("{ descriptors: { entries: [[b, c, d]] } }"), "has too many items"),
        (step("{ at: 36501d }"), "must be a duration of whole microseconds, up to 36500d"),
        (step("7"), "expected mapping start"),
        ("  - { name: a, start: yesterday, steps: [{}] }\n".to_owned(), "must be a time such as"),
        ("  - { name: a, chek: {}, steps: [{}] }\n".to_owned(), "unknown field `chek`"),
        ("  - { steps: [{}] }\n".to_owned(), "missing field `name`"),
        ("  - { name: a, steps: 7 }\n".to_owned(), "expected sequence start"),
        (format!("{}extra: 1\n", step("{}")), "unknown field `extra`"),
        ("  - 7\n".to_owned(), "expected mapping start"),
    ] {
        let tested = test_cases(&cases);
        assert_eq!((tested.code, tested.out.as_str()), (64, ""), "{cases}");
        assert_eq!(tested.errors.lines().count(), 1, "{}", tested.errors);
        assert_has(&tested.errors, &["t.yaml: ", expected, " at line ", ", column "]);
    }
}

#[test]
fn what_is_not_valid_is_reported_all_at_once_with_line_and_column() {
    let tested = test_cases(
        "
  - name: a
    steps:
      - { check: { user_id: a, cost: 5000000000 } }
      - { check: { user_id: a }, times: 0 }
      - { check: { user_id: a }, expect: { remaning: 1 } }
      - { check: { user_id: a }, expect: { rule: pays } }
      - { at: 13s }
      - { at: 13s, after: 1s, check: { user_id: a } }
      - { check: { user_id: a }, tolerance: 1x }
      - { check: { user_id: a }, expect: { allowed: maybe } }
      - { check: { user_id: a }, expect: { error: NO_RULES } }
      - { check: { user_id: a }, expect: { error: NO_RULE, denied: true } }
      - { check: { user_id: a }, expect: { reason: over } }
      - { check: { user_id: a }, expect: { rules: { fre: {} } } }
      - { check: { user_id: a }, expect: { rules: { free: { x: 1 } } } }
      - { check: { user_id: a }, expect: { matched: [pay, x] } }
      - { check: { user_id: a }, expect: { statuses: [ok] } }
      - { check: { user_id: a }, expect: maybe }
      - { check: { user_id: a }, expect: { remaining: [1] } }
      - { check: { user_id: a }, descriptors: { domain: a } }
      - { repeat: 2, steps: [{}], check: { user_id: a } }
      - { descriptors: { domain: a, descriptors: [], entries: { b: c } } }
  - name: a
    steps: []
",
    );
    let of_steps = [
        "cost must be 0 to 4294967295",
        "times, repeat: must be at least 1",
        "expect: remaning: unknown field",
        "expect: rule: no rule is named \"pays\", did you mean pay?",
        "check, descriptors or repeat is missing",
        "after: must not be given with at",
        "tolerance: must be a duration, a count, or both by name",
        "expect: allowed: must be true or false, or a count",
        "expect: error: must be one of INVALID_ARGUMENT, NO_RULE, FAILED_PRECONDITION",
        "expect: error: must be alone: there is no decision then",
        "expect: reason: must be one of WITHIN_LIMIT, OVER_LIMIT, COST_ABOVE_LIMIT, BANNED, UNLIMITED, NO_RULE",
        "expect: no rule is named \"fre\", did you mean free?",
        "expect: rules.free.x: unknown field",
        "expect: no rule is named \"x\"",
        "expect: statuses: must have one entry for each descriptor",
        "expect: maybe: unknown field",
        "expect: remaining: must be a single value",
        "descriptors: must not be given with check",
        "repeat: must have steps, and no request beside them",
        "entries: must not be given with descriptors",
    ];
    let of_steps = of_steps.iter().enumerate();
    let lines = of_steps
        .map(|(at, problem)| format!("t.yaml:{}:9: cases[0].steps[{at}]: {problem}", at + 6))
        .chain([
            "t.yaml:26:5: cases[1].name: another case has it".to_owned(),
            "t.yaml:26:5: cases[1].steps: must have at least one step".to_owned(),
        ]);
    let lines: Vec<String> = lines.collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_problems(&tested, &lines);
}

#[test]
fn time_never_goes_back() {
    for (steps, expected) in [
        (
            "[{ at: 10s, times: 3, every: 2s }, { at: 13.999999s }]",
            "t.yaml:6:47: cases[0]: must not go back in time, from 14s to 13.999999s",
        ),
        (
            "[{ repeat: 2, every: 1s, steps: [{}, { after: 2s }] }]",
            "t.yaml:6:13: cases[0]: must not go back in time, from 2s to 1s",
        ),
        (
            "[{ at: 1h, repeat: 2, steps: [{ at: 1s }, { at: 0.5s }] }]",
            "t.yaml:6:54: cases[0]: must not go back in time, from 3601s to 3600.5s",
        ),
        (
            "[{ at: 36500d, times: 2, every: 1s }]",
            "t.yaml:6:13: cases[0]: must end within 36500d of the start",
        ),
    ] {
        let case = format!(
            "\n  - name: a\n    check: {{ user_id: a, resource: /pay }}\n    steps: {steps}\n"
        );
        assert_problems(&test_cases(&case), &[expected]);
    }
}

#[test]
fn loops_are_bounded_for_the_whole_file() {
    let tested = test_cases(
        "
  - name: as many as can be
    check: { user_id: a, resource: /pay }
    steps: [{ repeat: 1000, steps: [{ times: 10000 }] }]
  - name: one more
    check: { user_id: a, resource: /pay }
    steps: [{}]
",
    );
    assert_problems(&tested, &["t.yaml:7:5: cases[1]: more than 10000000 requests of the file"]);
    let deep = "{ repeat: 9, steps: [".repeat(9) + "{}" + &"] }".repeat(9);
    let tested =
        test_cases(&format!("  - {{ name: deep, check: {{ user_id: a }}, steps: [{deep}] }}\n"));
    assert_problems(&tested, &["t.yaml:3:5: cases[0]: more than 10000000 requests of the file"]);
}

#[test]
fn problems_of_the_rules_are_reported_too() {
    let dir = TempDir::new();
    dir.write("rules.yaml", RULES);
    dir.write(
        "t.yaml",
        "config: [rules.yaml, none.yaml]\nset: {unmatched: sometimes}\ncases: [{name: a, steps: [{}]}]\n",
    );
    dir.write("u.yaml", "cases: [{name: a, steps: [{check: {user_id: a}}]}]\n");
    let tested = test_in(&dir, &["t.yaml", "u.yaml", "v.yaml"], &[]);
    assert_problems(
        &tested,
        &[
            "t.yaml:3:27: cases[0].steps[0]: check, descriptors or repeat is missing",
            "none.yaml: can't be read: No such file or directory (os error 2)",
            "t.yaml: set: unmatched: must be default, allow or deny (found sometimes)",
            "u.yaml: config or envoy is missing: the files with the rules",
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
        ("config: a\nconfig: b\ncases: []\n", "duplicate"),
        ("a: \u{0}", "t.yaml: "),
        ("- a", "t.yaml: expected mapping start at line 1, column 1"),
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
    let steps = "      - { at: 1s }\n".repeat(500);
    let tested = test_cases(&format!("  - name: many\n    steps:\n{steps}"));
    assert_eq!(tested.errors.lines().count(), 101);
    assert_has(&tested.errors, &["t.yaml: … and 400 more\n"]);
}
