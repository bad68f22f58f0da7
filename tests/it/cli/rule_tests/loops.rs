//! Loops, rounds, times and tolerance.

use super::{assert_has, test_cases};

#[test]
fn loops_expect_of_each_request_or_of_all_together() {
    let tested = test_cases(
        "
  - name: loops
    check: { user_id: a, resource: /pay }
    steps:
      - { times: 5, expect: { allowed: 2, denied: 3 } }
      - { at: 50s, times: 10, every: 1s, expect: { denied: true, rule: pay } }
      - { at: 60s, times: 3, every: 29s, expect: allowed }
",
    );
    assert_eq!(tested.code, 1, "{}", tested.out);
    // The last request of the second loop is at 59s, that of the third at 119.999999s.
    let tested = test_cases(
        "
  - name: loops
    check: { user_id: a, resource: /pay }
    steps:
      - { times: 5, expect: { allowed: 2, denied: 3 } }
      - { at: 50s, times: 10, every: 1s, expect: { denied: true, rule: pay } }
      - { at: 60s, times: 3, every: 59.999999s, expect: { allowed: 3, denied: 0 } }
",
    );
    assert_eq!(tested.code, 0, "{}", tested.out);
}

#[test]
fn rounds_follow_each_other_or_begin_at_intervals() {
    let tested = test_cases(
        "
  - name: rounds
    check: { resource: /pay }
    steps:
      - repeat: 3
        every: 60s
        steps:
          - repeat: 2
            steps:
              - { check: { user_id: a }, expect: allowed }
              - { after: 10s, check: { user_id: b }, expect: allowed }
          - { at: 59s, check: { user_id: a }, times: 2, every: 1us, expect: denied }
      # The rounds end where the last request was: at 179.000001s.
      - { after: 0.999998s, check: { user_id: a }, expect: { denied: true, retry_after: 1us } }
      - { after: 1us, check: { user_id: a }, expect: allowed }
",
    );
    assert_eq!(tested.code, 0, "{}\n{}", tested.out, tested.errors);
    assert_has(&tested.out, &["; 20 requests"]);
}

#[test]
fn a_million_requests_are_no_problem() {
    let tested = test_cases(
        "
  - name: many
    check: { user_id: a, resource: /pay }
    steps:
      - { times: 100000, every: 30s, expect: allowed }
",
    );
    assert_eq!(tested.code, 0, "{}\n{}", tested.out, tested.errors);
}

#[test]
fn expectations_are_exact_without_a_tolerance() {
    let steps = |tolerance: &str| {
        test_cases(&format!(
            "
  - name: tolerance
    check: {{ user_id: a, resource: /pay }}
    steps:
      - {{ at: 10s, expect: {{ reset_after: 50.1s }}, {tolerance} }}
      - {{ times: 3, expect: {{ allowed: 2 }}, {tolerance} }}
"
        ))
    };
    for (tolerance, differences) in [
        ("", &["reset_after: expected 50.1s", "allowed: expected 2 of 3"][..]),
        ("tolerance: 99ms", &["reset_after: expected 50.1s", "allowed: expected 2 of 3"]),
        ("tolerance: 100ms", &["allowed: expected 2 of 3"]),
        ("tolerance: 1", &["reset_after: expected 50.1s"]),
        ("tolerance: { count: 1, duration: 0.1s }", &[]),
    ] {
        let tested = steps(tolerance);
        assert_eq!(tested.code, i32::from(!differences.is_empty()), "{tolerance}: {}", tested.out);
        assert_eq!(tested.out.matches(": expected ").count(), differences.len(), "{}", tested.out);
        assert_has(&tested.out, differences);
    }
}
