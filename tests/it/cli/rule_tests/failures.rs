//! The texts of failures.

use rlaas_testkit::TempDir;

use super::{assert_has, test_cases, test_in};

#[test]
fn failures_have_place_difference_and_explanation() {
    let tested = test_cases(
        "
  - name: the third payment waits
    check: { user_id: a, resource: /pay, attributes: { plan: free } }
    steps:
      - { at: 12s, times: 4, every: 100ms, expect: { allowed: true, rule: pay, remaining: 1 } }
      - expect: { denied: true, retry_after: 47s, rules: { free: { remaining: 9 } } }
  - name: passes
    steps: [{ check: { user_id: a, resource: /pay }, expect: allowed }]
",
    );
    assert_eq!((tested.code, tested.errors.as_str()), (1, ""));
    let expected = "t.yaml
  FAILED  the third payment waits
  ok      passes

FAILED  the third payment waits
  t.yaml:7: steps[0] at 12.1s, request 2 of 4
    remaining: expected 1, got 0
    and 2 more requests of this step
    just before it:
      allowed  a: 1 of 2 left, all in 47.9s (pay)

      Rules that apply:
        free  allows: 9 of 10 left at once, 10 per 10s, resets now
          limit 10, gcra, by the rule
          key user_id=a, in the store free:a
        pay  allows: 1 of 2 used, resets in 47.9s
          limit 2, fixed-window, by the rule
          key user_id=a, in the store pay:a

      Rules that do not apply, the nearest first:
        default  another rule is enforced
  t.yaml:8: steps[1] at 12.3s
    retry_after: expected 47s, got 47.7s
    rules.free.remaining: expected 9, got 8
    just before it:
      denied   a: try again in 47.7s (pay)
";
    assert!(tested.out.starts_with(expected), "{}", tested.out);
    assert!(tested.out.ends_with("\nFAILED: 1 passed, 1 failed; 6 requests\n"), "{}", tested.out);
}

#[test]
fn counts_of_a_loop_fail_at_its_end() {
    let tested = test_cases(
        "
  - name: loop
    check: { user_id: a, resource: /pay }
    steps:
      - { times: 5, every: 1s, expect: { allowed: 3, denied: 2 } }
",
    );
    assert_eq!(tested.code, 1);
    assert_has(
        &tested.out,
        &[
            "t.yaml:7: steps[0] at 4s, request 5 of 5\n",
            "    allowed: expected 3 of 5, got 2 of 5\n    denied: expected 2 of 5, got 3 of 5\n",
            "      denied   a: try again in 56s (pay)\n",
        ],
    );
}

#[test]
fn errors_and_decisions_in_place_of_each_other_fail() {
    let tested = test_cases(
        "
  - name: errors
    steps:
      - { check: { user_id: a } }
      - { check: { user_id: a }, expect: denied }
      - { check: { user_id: a, resource: /pay }, expect: { error: NO_RULE } }
      - { check: { user_id: '' }, expect: { error: NO_RULE } }
",
    );
    assert_eq!(tested.code, 1);
    assert_has(
        &tested.out,
        &[
            "t.yaml:6: steps[0] at 0s\n    error: expected none, got NO_RULE: no rule matches\n",
            "t.yaml:7: steps[1] at 0s\n    error: expected none, got NO_RULE: no rule matches\n",
            "    error: expected NO_RULE, got none, allowed\n",
            "    error: expected NO_RULE, got INVALID_ARGUMENT: user_id must be 1 to 1024 bytes\n",
            "the setting `unmatched` is not `default`",
        ],
    );
}

#[test]
fn envoy_failures_explain_each_descriptor() {
    let dir = TempDir::new();
    let rules = "domain: edge
descriptors:
  - { key: path, value: /pay, rate_limit: { unit: minute, requests_per_unit: 2 } }
";
    dir.write("limits.yaml", rules);
    dir.write("t.yaml", "envoy: limits.yaml
cases:
  - name: over limit
    descriptors: { domain: edge }
    steps:
      - descriptors: { descriptors: [{ entries: { path: /pay }, hits_addend: 2 }, { entries: { path: /pays } }] }
        expect: { over_limit: true, statuses: [over_limit, { rule: edge.path_/pay }] }
");
    let tested = test_in(&dir, &["t.yaml"], &[]);
    assert_eq!(tested.code, 1, "{}", tested.errors);
    assert_has(
        &tested.out,
        &[
            "t.yaml:6: steps[0] at 0s\n",
            "    over_limit: expected true, got false\n",
            "    statuses[0].code: expected OVER_LIMIT, got OK\n",
            "    statuses[1].rule: expected edge.path_/pay, got none\n",
            "      OK  edge\n",
            "edge.path_/pay  allows: 0 of 2 used",
            "passes: path=/pays is not known",
            "known there: path=/pay\n",
        ],
    );
}

#[test]
fn only_the_first_ten_failed_steps_of_a_case_are_shown() {
    let steps =
        "      - { check: { user_id: a, resource: /pay }, expect: { limit: 7 } }\n".repeat(30);
    let tested = test_cases(&format!("  - name: many\n    steps:\n{steps}"));
    assert_eq!(tested.out.matches("just before it").count(), 10, "{}", tested.out);
    assert_has(&tested.out, &["  … and 20 more steps in this case\n"]);
}

#[test]
fn hostile_texts_do_not_reach_the_terminal() {
    let tested = test_cases(
        "
  - name: \"a\\u202Eb\"
    steps:
      - { check: { user_id: \"a\\e[2J\\nok\", resource: /pay }, expect: denied }
",
    );
    assert_eq!(tested.code, 1);
    assert!(!tested.out.contains(['\u{1b}', '\u{202e}']), "{}", tested.out);
    assert_has(&tested.out, &[r"FAILED  a\u{202e}b", r#""a\u{1b}[2J\nok""#]);
}
