//! What is decided, and the fields that can be expected.

use rlaas_testkit::TempDir;

use super::{Tested, assert_has, test_cases, test_in};

/// Asserts that every case passes.
fn assert_passes(tested: &Tested, passed: usize) {
    assert_eq!((tested.code, tested.errors.as_str()), (0, ""), "{}", tested.out);
    assert_has(&tested.out, &[&format!("ok: {passed} passed, 0 failed")]);
}

#[test]
fn each_algorithm_decides_as_documented() {
    // After a burst of 5 at the start: when one more passes, and when all 5 are back.
    let expected = [
        ("fixed-window", "30s", "30s", "5"),
        ("sliding-window-log", "60s", "60s", "5"),
        // Its windows begin with the first request, which counts in full until the next one is over.
        ("sliding-window-counter", "60.000001s", "60s", "4"),
        ("token-bucket", "12s", "60s", "5"),
        ("leaky-bucket", "12s", "60s", "5"),
        ("gcra", "12s", "60s", "5"),
    ];
    let dir = TempDir::new();
    for (algorithm, retry_after, idle, left) in expected {
        let rules =
            format!("rate-limiter: {{use-algo: {algorithm}, max-requests: 5, window-size: 60}}");
        dir.write("rules.yaml", &rules);
        let text = format!(
            "config: rules.yaml
cases:
  - name: {algorithm}
    start: 2026-01-31T12:00:30Z
    check: {{user_id: alice}}
    steps:
      - {{times: 5, expect: {{allowed: true, rule: default, reason: WITHIN_LIMIT, limit: 5}}}}
      - expect: {{denied: true, retry_after: {retry_after}, remaining: 0, reason: OVER_LIMIT}}
      - {{after: {retry_after}, expect: allowed}}
      - {{at: 5m}}
      - {{after: {idle}, check: {{cost: 0}}, expect: {{remaining: {left}}}}}
      - {{check: {{cost: 6}}, expect: {{denied: true, retry_after: none, reason: COST_ABOVE_LIMIT}}}}
"
        );
        dir.write("t.yaml", &text);
        assert_passes(&test_in(&dir, &["t.yaml"], &[]), 1);
    }
}

#[test]
fn leaky_bucket_has_delays_and_others_have_none() {
    let dir = TempDir::new();
    let rules = "rules:
  - { name: leaky, match: { resource: l }, algorithm: leaky-bucket, limit: 10, window: 1s }
  - { name: other, match: { resource: o }, algorithm: gcra, limit: 10, window: 1s, near-limit: 0.8 }
";
    dir.write("rules.yaml", rules);
    dir.write(
        "t.yaml",
        "config: rules.yaml
cases:
  - name: delays
    check: { user_id: alice }
    steps:
      - { check: { resource: l }, times: 2, every: 1ms }
      - { after: 1ms, check: { resource: l }, expect: { delay: 198ms, current_count: 3 } }
      - { check: { resource: o, cost: 7 }, expect: { delay: none, near_limit: false } }
      - { check: { resource: o }, expect: { near_limit: true, reset_after: 800ms } }
",
    );
    assert_passes(&test_in(&dir, &["t.yaml"], &[]), 1);
}

#[test]
fn cases_begin_empty_at_their_start() {
    // Windows are aligned to the epoch, which is the default start.
    let tested = test_cases(
        "
  - name: the epoch
    check: { user_id: a, resource: /pay }
    steps:
      - { times: 2, expect: { allowed: true, reset_after: 60s } }
      - { expect: denied }
  - name: seconds since the epoch
    start: 1769860830.5
    check: { user_id: a, resource: /pay }
    steps: [{ expect: { allowed: true, reset_after: 29.5s } }]
  - name: a time with an offset
    start: '2026-01-31T14:00:45+02:00'
    check: { user_id: a, resource: /pay }
    steps: [{ expect: { allowed: true, reset_after: 15s } }]
",
    );
    assert_passes(&tested, 3);
}

#[test]
fn requests_have_every_field_and_texts_are_as_written() {
    let dir = TempDir::new();
    let rules = "rules:
  - { name: odd, match: { user_id: '007', attributes: { on: 'true', v: '1.10' } }, limit: 5, window: 1s }
";
    dir.write("rules.yaml", rules);
    dir.write(
        "t.yaml",
        "config: rules.yaml
cases:
  - name: texts
    check: { user_id: 007, attributes: { on: true, v: 1.10 } }
    steps:
      - { expect: { rule: odd, remaining: 4 } }
      - { check: { cost: 3, dry_run: true }, expect: { allowed: true, remaining: 4 } }
      - { check: { cost: 2, request_id: one }, expect: { remaining: 2, replayed: false } }
      - { check: { cost: 2, request_id: one }, expect: { remaining: 2, replayed: true } }
      - { check: { request_id: one }, expect: { error: INVALID_ARGUMENT } }
      - { check: { user_id: bond }, expect: { rule: default, matched: [default] } }
",
    );
    assert_passes(&test_in(&dir, &["t.yaml"], &[]), 1);
}

#[test]
fn each_rule_can_be_expected() {
    let tested = test_cases(
        "
  - name: two rules
    check: { user_id: a, resource: /pay, attributes: { plan: free } }
    steps:
      - times: 2
        expect: { matched: [pay, free], rule: pay }
      - expect:
          denied: true
          rules:
            pay: { allowed: false, retry_after: 60s }
            free: { allowed: true, remaining: 8, reset_after: 2s, limit: 10, shadow: false }
",
    );
    assert_passes(&tested, 1);
}

#[test]
fn errors_can_be_expected() {
    let tested = test_cases(
        "
  - name: errors
    steps:
      - { check: { user_id: a }, expect: { error: NO_RULE } }
      - { check: { user_id: '' }, times: 2, expect: { error: INVALID_ARGUMENT } }
      - descriptors: { domain: '' }
        expect: { error: INVALID_ARGUMENT }
",
    );
    assert_passes(&tested, 1);
}

#[test]
fn envoy_rules_are_named_by_the_test_or_by_the_configuration() {
    let dir = TempDir::new();
    let file = "domain: edge
descriptors:
  - { key: path, value: /pay, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: user, detailed_metric: true, rate_limit: { unit: second, requests_per_unit: 1 } }
";
    dir.write("it's limits.yaml", file);
    dir.write("rlaas.yaml", "envoy: { files: [\"it's limits.yaml\"] }\n");
    let cases = "cases:
  - name: descriptors
    descriptors: { domain: edge }
    steps:
      - descriptors: { descriptors: [{ entries: [[path, /pay]] }, { entries: [{ key: user, value: 7 }] }] }
        expect: { ok: true, rule: edge.user_7, statuses: [{ remaining: 1 }, { code: OK, remaining: 0 }] }
      - { descriptors: { entries: { path: /pay }, hits_addend: 2 }, expect: over_limit }
      - at: 1s
        descriptors: { descriptors: [{ entries: { path: /pay } }, { entries: { user: 7 } }] }
        expect: { ok: true, matched: [edge.path_/pay, edge.user_7] }
";
    for head in ["envoy: \"it's limits.yaml\"\n", "config: rlaas.yaml\n"] {
        dir.write("t.yaml", &format!("{head}{cases}"));
        assert_passes(&test_in(&dir, &["t.yaml"], &[]), 1);
    }
}

#[test]
fn settings_of_the_test_override_those_of_the_files() {
    let dir = TempDir::new();
    dir.write("rules.yaml", super::RULES);
    dir.write(
        "t.yaml",
        "config: [rules.yaml]
set: { unmatched: allow, rate-limiter.max-requests: 1 }
cases:
  - name: unmatched requests are allowed
    steps: [{ check: { user_id: a }, expect: { allowed: true, matched: [], reason: NO_RULE } }]
",
    );
    assert_passes(&test_in(&dir, &["t.yaml"], &[]), 1);
}
