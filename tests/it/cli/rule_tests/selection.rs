//! Several files and cases: which run, and the rules that none reached.

use rlaas_testkit::TempDir;

use super::{RULES, assert_has, test_in};

fn folder() -> TempDir {
    let dir = TempDir::new();
    dir.write("rules.yaml", RULES);
    let case = |name: &str, request: &str| {
        format!("config: rules.yaml\ncases: [{{name: {name}, steps: [{{check: {request}}}]}}]\n")
    };
    dir.write("pay.yaml", &case("payments", "{user_id: a, resource: /pay}"));
    dir.write("free.yaml", &case("the plan free", "{user_id: a, attributes: {plan: free}}"));
    dir
}

#[test]
fn rules_that_no_case_reached_are_listed_for_all_files_together() {
    let dir = folder();
    let tested = test_in(&dir, &["pay.yaml"], &[]);
    assert_eq!(tested.code, 0, "{}", tested.errors);
    assert_has(
        &tested.out,
        &["\nRules that no case reached, of rules.yaml:\n  free\n\nok: 1 passed"],
    );
    let tested = test_in(&dir, &["pay.yaml", "free.yaml"], &[]);
    assert_eq!(tested.code, 0);
    assert!(!tested.out.contains("no case reached"), "{}", tested.out);
}

#[test]
fn the_default_rule_is_listed_if_the_files_set_it() {
    let dir = TempDir::new();
    let case = "cases: [{name: a, steps: [{check: {user_id: a, resource: /pay}}]}]\n";
    let rule = "rules: [{name: pay, match: {resource: /pay}, limit: 1, window: 1s}]\n";
    dir.write("t.yaml", &format!("config: rules.yaml\n{case}"));
    for (more, is_listed) in [
        ("", false),
        ("rate-limiter: {max-requests: 7}\n", true),
        ("rate-limiter: {max-requests: 7}\nunmatched: allow\n", false),
    ] {
        dir.write("rules.yaml", &format!("{rule}{more}"));
        let tested = test_in(&dir, &["t.yaml"], &[]);
        assert_eq!(tested.out.contains("\n  default\n"), is_listed, "{more}: {}", tested.out);
    }
}

#[test]
fn unreached_rules_of_envoy_have_their_file() {
    let dir = TempDir::new();
    dir.write(
        "limits.yaml",
        "domain: edge
descriptors:
  - { key: path, value: /pay, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: path, rate_limit: { unit: minute, requests_per_unit: 2 } }
",
    );
    dir.write(
        "t.yaml",
        "envoy: limits.yaml
cases: [{name: a, steps: [{descriptors: {domain: edge, entries: {path: /}}}]}]
",
    );
    let tested = test_in(&dir, &["t.yaml"], &[]);
    assert_eq!(tested.code, 0, "{}", tested.errors);
    assert_has(
        &tested.out,
        &["no case reached, of limits.yaml:\n  edge.path_/pay (limits.yaml)\n"],
    );
    assert!(!tested.out.contains("default"), "{}", tested.out);
}

#[test]
fn run_selects_cases_by_name() {
    let dir = folder();
    let files = ["pay.yaml", "free.yaml"];
    let tested = test_in(&dir, &files, &["--run", "^the .*free$"]);
    assert_eq!(tested.code, 0, "{}", tested.errors);
    assert_has(
        &tested.out,
        &["  ok      the plan free\n", "ok: 1 passed, 0 failed, 1 filtered out; 1 request\n"],
    );
    assert!(!tested.out.contains("payments") && !tested.out.contains("no case reached"));

    let tested = test_in(&dir, &files, &["--run", "nothing"]);
    assert_eq!(
        (tested.code, tested.errors.as_str()),
        (2, "rlaas: no case has a name that --run matches\n")
    );
    assert_has(&tested.out, &["none: 0 passed, 0 failed, 2 filtered out; 0 requests\n"]);

    let tested = test_in(&dir, &files, &["--run", "("]);
    assert_eq!((tested.code, tested.out.as_str()), (64, ""));
    assert_has(&tested.errors, &["rlaas: --run: regex parse error"]);
    let tested = test_in(&dir, &[], &[]);
    assert_eq!(tested.code, 64, "{}", tested.errors);
}
