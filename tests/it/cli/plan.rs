//! `rlaas plan`, and the pages that `plan` and `simulate` write.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{finish, rlaas, run};

const MAP: [&str; 4] = ["--format", "combined", "--map", "user_id=ip($remote_addr)"];

/// Returns a log: in each of 100 seconds a busy client makes three requests, and another one.
fn log() -> String {
    let mut log = String::new();
    for second in 0..100 {
        let stamp = format!("05/Jan/2026:12:{:02}:{:02} +0000", second / 60, second % 60);
        let other = format!("10.0.1.{second}");
        for client in ["10.0.0.1", "10.0.0.1", "10.0.0.1", &other] {
            let request = "\"GET / HTTP/1.1\" 200 5 \"-\" \"-\"";
            let _infallible = writeln!(log, "{client} - - [{stamp}] {request}");
        }
    }
    log
}

fn plan(folder: &TempDir, log: &str, options: &[&str]) -> (i32, String, String) {
    folder.write("access.log", log);
    let traffic = folder.path("access.log");
    let traffic = traffic.to_str().expect("UTF-8");
    run(&[&["plan", "--traffic", traffic], &MAP[..], options].concat())
}

#[test]
fn plan_prints_the_smallest_limits() {
    let folder = TempDir::new();
    let options = ["--algorithm", "fixed-window", "--window", "1s,1m", "--share", "0%,50%"];
    let (code, out, errors) = plan(&folder, &log(), &options);
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    let row = |window: &str, share: &str| {
        let line = out.lines().find(|line| line.contains(window) && line.contains(share));
        let cells: Vec<&str> = line.expect("a row").split_whitespace().collect();
        (cells[cells.len() - 2].to_owned(), cells[cells.len() - 1].to_owned())
    };
    let limits = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    assert_eq!(row(" 1s", " 0%"), limits("3", "3"), "{out}");
    // With one a second, half of the requests are refused, and one id of 101.
    assert_eq!(row(" 1s", "50%"), limits("1", "1"), "{out}");
    assert_eq!(row(" 1m", " 0%"), limits("180", "180"), "{out}");
    assert!(out.contains("open loop") && out.contains("each rule is looked at alone"), "{out}");
}

/// Runs `plan` with traffic on standard input.
fn plan_input(input: &str, options: &[&str]) -> (i32, String, String) {
    let mut child = rlaas(&[&["plan", "--traffic", "-"], options].concat());
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the program");
    // With an error the program ends before it has read everything.
    let _ended = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    finish(child.wait_with_output().expect("an end"))
}

#[test]
fn plan_reads_standard_input_once_for_all_its_passes() {
    let folder = TempDir::new();
    let options = ["--algorithm", "gcra,sliding-window-log", "--window", "1s,1m"];
    let from_file = plan(&folder, &log(), &options);
    assert_eq!(from_file.0, 0, "{}", from_file.2);
    assert_eq!(plan_input(&log(), &[&MAP[..], &options].concat()), from_file);
}

#[test]
fn traffic_above_spool_max_is_an_error() {
    // Each line takes about 13 bytes: five for the cost, seven for hours between two of them.
    let mut log = String::new();
    for line in 0_u64..100_000 {
        let at = line * 10_000;
        let _infallible = writeln!(log, "{{\"t\":{at},\"u\":\"a\",\"c\":4000000000}}");
    }
    let map = ["--map", "time=epoch_s(t)", "--map", "user_id=u", "--map", "cost=c"];
    let options = [&["--format", "jsonl", "--spool-max", "1"][..], &map].concat();
    let (code, out, errors) = plan_input(&log, &options);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert!(errors.contains("more temporary space than --spool-max"), "{errors}");
}

#[test]
fn fields_that_no_line_has_are_named_if_nothing_is_left() {
    let start = "\"start_time\":\"2026-01-05T12:00:00Z\",\"path\":\"/\"";
    let log =
        format!("{{{start},\"downstream_remote_address\":\"10.0.0.1:1\",\"response_code\":200}}\n");
    let options = ["--format", "envoy-json", "--where"];
    let (code, out, errors) = plan_input(&log, &[&options[..], &["response_code == 200"]].concat());
    assert_eq!(code, 0, "{out}{errors}");
    let (code, _, errors) = plan_input(&log, &[&options[..], &["status == 200"]].concat());
    assert_eq!(code, 2);
    let expected = "no request matched a rule: no line has a value for status";
    assert!(errors.contains(expected), "{errors}");
}

#[test]
fn plan_prints_json_and_writes_a_page() {
    let folder = TempDir::new();
    let page = folder.path("plan.html");
    let html = page.to_str().expect("UTF-8");
    let options = ["--json", "--html", html, "--share", "1%", "--of", "requests"];
    let (code, out, errors) = plan(&folder, &log(), &options);
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    let plan: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(plan["requests"], 400);
    let rule = &plan["rules"][0];
    assert_eq!((&rule["ids"], &rule["curves"][0]["windowSeconds"]), (&101.into(), &1.0.into()));
    let limit = &rule["curves"][0]["limits"][0];
    assert_eq!((&limit["found"], &limit["limit"]), (&"exactly".into(), &3.into()), "{out}");
    assert_eq!((&limit["of"], &limit["maxPercent"]), (&"requests".into(), &1.0.into()), "{out}");
    check_page(&std::fs::read_to_string(page).expect("a page"), "Limits that refuse few");
}

#[test]
fn plan_looks_at_the_rules_of_a_configuration() {
    let folder = TempDir::new();
    let rules = "rules:\n- {name: front, match: {resource: /}, key-by: [resource], limit: 5, window: 10s, algorithm: gcra}\n\
                 - {name: other, match: {resource: /x}, limit: 5, window: 10s}\n";
    folder.write("rules.yaml", rules);
    let config = folder.path("rules.yaml");
    let config = config.to_str().expect("UTF-8");
    let path = ["--map", "resource=path($uri)", "--config", config];
    let (code, out, errors) = plan(&folder, &log(), &path);
    assert_eq!(code, 0, "{out}{errors}");
    assert!(out.contains("front") && out.contains("gcra"), "{out}");
    let (code, out, _) = plan(&folder, &log(), &[&path[..], &["--rule", "other"]].concat());
    assert_eq!(code, 2, "{out}");
    let (code, _, errors) = plan(&folder, &log(), &[&path[..], &["--rule", "none"]].concat());
    assert_eq!(code, 64);
    assert!(errors.contains("--rule") && errors.contains("none"), "{errors}");
}

#[test]
fn plan_names_the_option_that_can_not_be() {
    let folder = TempDir::new();
    for (options, expected) in [
        (&["--algorithm", "gcra", "--burst", "5", "--window", "1s,1500us"][..], "--window"),
        (&["--algorithm", "fixed-window", "--burst", "5"], "--burst"),
    ] {
        let (code, _, errors) = plan(&folder, &log(), options);
        assert_eq!(code, 64, "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    for options in [&["--share", "1"][..], &["--algorithm", "fast"], &["--of", "all"]] {
        let (code, _, errors) = plan(&folder, &log(), options);
        assert_ne!(code, 0);
        assert!(errors.contains(options[0]), "{errors}");
    }
}

#[test]
fn simulate_writes_a_page() {
    let folder = TempDir::new();
    folder.write("access.log", &log());
    folder.write("new.yaml", "rate-limiter: {max-requests: 2, window-size: 1s}\n");
    folder.write("old.yaml", "rate-limiter: {max-requests: 4, window-size: 1s}\n");
    let [traffic, new, old, page] = ["access.log", "new.yaml", "old.yaml", "page.html"]
        .map(|name| folder.path(name).to_str().expect("UTF-8").to_owned());
    let command = ["simulate", "--config", &new, "--against", &old, "--traffic", &traffic];
    let options = ["--html", &page, "--max-new-denials", "1%"];
    let (code, out, errors) = run(&[&command, &MAP[..], &options].concat());
    assert_eq!(code, 1, "{out}{errors}");
    let html = std::fs::read_to_string(page).expect("a page");
    check_page(&html, "Simulation of rate limits");
    for expected in ["100 of 400 requests are refused", "Above --max-new-denials", "10.0.0.1"] {
        assert!(html.contains(expected), "{expected}");
    }
}

/// Checks that a page is complete and needs nothing else.
fn check_page(html: &str, title: &str) {
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert!(html.contains(&format!("<h1>{title}</h1>")) && html.contains("<svg class=\"plot\""));
    assert!(html.contains("default-src 'none'"));
    for loading in ["<script", "src=", "url(", "http://", "https://"] {
        assert!(!html.contains(loading), "{loading}");
    }
}
