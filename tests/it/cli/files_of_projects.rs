//! Rules files of projects, in the commands that try rules without a server.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;
use serde_json::Value;

const WARNING: &str = "warning: rules of files for projects are left out: ";
const BASE: &str = "rules: [{name: wide, limit: 9, window: 1h}]\n";
const SHOP: &str =
    "project: shop\nrules: [{name: login, limit: 1, window: 1h, algorithm: fixed-window}]\n";
const BLOG: &str = "project: blog\nrules: [{name: read, limit: 1, window: 1h}]\n";

/// A folder with the configuration, the files of two projects, and three requests of one client.
fn folder() -> TempDir {
    let dir = TempDir::new();
    for (name, text) in [("base.yaml", BASE), ("shop.yaml", SHOP), ("blog.yaml", BLOG)] {
        dir.write(name, text);
    }
    let line = |second| {
        format!(
            "10.0.0.1 - - [05/Jan/2026:12:00:0{second} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n"
        )
    };
    dir.write("access.log", &[0, 1, 2].map(line).concat());
    dir
}

/// Runs a command with all three files and the requests, and returns its output and its errors.
fn tried(dir: &TempDir, command: &str, options: &[&str]) -> (String, String) {
    let path = |name: &str| dir.path(name).display().to_string();
    let (base, shop, blog) = (path("base.yaml"), path("shop.yaml"), path("blog.yaml"));
    let (log, map) = (path("access.log"), "user_id=host");
    let files = ["--config", &base, "--config", &shop, "--config", &blog];
    let traffic = ["--traffic", &log, "--format", "combined", "--map", map];
    let (code, out, error) = run(&[&[command], &files[..], &traffic, options].concat());
    assert_eq!(code, 0, "{error}");
    (out, error)
}

/// Returns the names of the rules that decided, and the number of refusals.
fn simulated(dir: &TempDir, options: &[&str]) -> (Vec<String>, u64, String) {
    let (out, error) = tried(dir, "simulate", &[&["--json"], options].concat());
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let rules = json["rules"].as_array().expect("rules").iter();
    let decided = rules.filter(|rule| rule["requests"].as_u64().is_some_and(|count| count > 0));
    let names = decided.map(|rule| rule["rule"].as_str().expect("a name").to_owned()).collect();
    (names, json["all"]["refused"].as_u64().unwrap_or_else(|| panic!("{json}")), error)
}

#[test]
fn rules_of_the_project_are_simulated_and_the_others_are_named() {
    let dir = folder();
    let (rules, refused, error) = simulated(&dir, &[]);
    assert_eq!((&*rules, refused), (&["wide".to_owned()][..], 0));
    assert_eq!(error, format!("{WARNING}blog, shop\n"));
    let (rules, refused, error) = simulated(&dir, &["--project", "shop"]);
    assert_eq!((&*rules, refused), (&["login".to_owned()][..], 2));
    assert_eq!(error, format!("{WARNING}blog\n"));
    // No file is for this one: it is tried by the rules of the configuration.
    let (rules, refused, error) = simulated(&dir, &["--project", "other"]);
    assert_eq!((&*rules, refused), (&["wide".to_owned()][..], 0));
    assert_eq!(error, format!("{WARNING}blog, shop\n"));
}

#[test]
fn explanations_and_rule_tests_name_what_they_leave_out() {
    let dir = folder();
    let path = |name: &str| dir.path(name).display().to_string();
    let (base, shop) = (path("base.yaml"), path("shop.yaml"));
    let (code, out, error) = run(&["explain", "a", "--config", &base, "--config", &shop]);
    assert!(code == 0 && out.contains("wide") && !out.contains("login"), "{out}{error}");
    assert_eq!(error, format!("{WARNING}shop\n"));
    let cases = "config: [base.yaml, shop.yaml]\ncases: [{name: a, steps: [{check: {user_id: a}, \
                 expect: {allowed: true, rule: wide}}]}]\n";
    dir.write("a.test.yaml", cases);
    let (code, out, error) = run(&["test", &path("a.test.yaml")]);
    assert_eq!((code, &*error), (0, &*format!("{WARNING}shop\n")), "{out}");
    let (code, _, error) = run(&["check-config", &base, &shop]);
    assert_eq!((code, &*error), (0, ""), "it checks them all");
}
