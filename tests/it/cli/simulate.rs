//! `simulate`: exit codes, the text and the JSON form, on requests that can be counted by hand.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::run;
use serde_json::{Value, json};

/// A minute after the begin of a minute.
const START_US: u64 = 1_700_000_040_000_000;

/// A folder with rules and traffic.
struct SimulateFiles(TempDir);

impl SimulateFiles {
    /// One rule by user, of `limit` a minute, and another one that matches nothing.
    fn new(limit: u32) -> Self {
        let files = Self(TempDir::new());
        files.rules("rules.yaml", limit);
        files
    }

    fn rules(&self, name: &str, limit: u32) {
        let rules = format!(
            "unmatched: allow\nrules:\n- {{ name: login, limit: {limit}, window: 1m, \
             algorithm: fixed-window }}\n- {{ name: idle, match: {{ resource: /none }}, limit: 1, \
             window: 1h }}\n"
        );
        self.0.write(name, &rules);
    }

    /// Writes requests of users at seconds.
    fn requests(&self, name: &str, requests: impl IntoIterator<Item = (&'static str, u64)>) {
        let mut lines = String::new();
        for (user, second) in requests {
            let at = START_US + second * 1_000_000;
            let line = json!({ "time": at, "request": { "userId": user } });
            lines.extend([&*line.to_string(), "\n"]);
        }
        self.0.write(name, &lines);
    }

    fn path(&self, name: &str) -> String {
        self.0.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Runs `simulate` with these rules and this traffic.
    fn simulate(&self, options: &[&str]) -> (i32, String, String) {
        let (rules, traffic) = (self.path("rules.yaml"), self.path("traffic"));
        let command = ["simulate", "--config", &rules, "--traffic", &traffic];
        run(&[&command[..], options].concat())
    }

    fn json(&self, options: &[&str]) -> (i32, Value) {
        let (code, out, error) = self.simulate(&[&["--json"], options].concat());
        let json = serde_json::from_str(&out);
        (code, json.unwrap_or_else(|_| panic!("{out}{error}")))
    }
}

fn five() -> [(&'static str, u64); 5] {
    [("a", 0), ("a", 1), ("b", 2), ("a", 3), ("a", 4)]
}

#[test]
fn simulate_prints_what_would_happen() {
    let files = SimulateFiles::new(2);
    files.requests("traffic", five());
    let (code, out, error) = files.simulate(&[]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(
        out.starts_with("5 requests in 4s from 2023-11-14T22:14:00Z\n2 refused (40.0 %)\n"),
        "{out}"
    );
    let table: Vec<Vec<&str>> =
        out.lines().skip(3).take(4).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(table[0][..5], ["RULE", "ALGORITHM", "REQUESTS", "REFUSED", "SHARE"]);
    assert_eq!(table[1][..4], ["idle", "sliding-window-log", "0", "0"]);
    let login = ["login", "fixed-window", "5", "2", "40.0", "%", "2", "1"];
    assert_eq!(table[2], login);
    assert_eq!(table[3][..4], ["(all)", "5", "2", "40.0"]);
    assert!(out.contains("\nrefused most often\nRULE   ID  REQUESTS  REFUSED\n"), "{out}");
    assert!(out.contains("\nlogin  a          4        2\n"), "{out}");
    assert!(out.contains("- open loop: "), "{out}");
    assert!(out.contains("- no request matched: idle\n"), "{out}");
    assert!(out.contains("which is 4s: login (1m)"), "{out}");
}

#[test]
fn simulate_writes_a_page() {
    let files = SimulateFiles::new(2);
    files.requests("traffic", five());
    let page = files.path("report.html");
    let (code, out, error) = files.simulate(&["--html", &page]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.to_lowercase().starts_with("<!doctype html>"), "{html}");
    assert!(html.contains("login") && html.contains("2 per 1m, fixed-window"), "{html}");
    let (code, _, error) = files.simulate(&["--html", "/nowhere/report.html"]);
    assert_eq!(code, 64);
    assert!(error.contains("--html: can't write /nowhere/report.html"), "{error}");
}

#[test]
fn json_has_the_report_the_gate_the_traffic_and_the_notes() {
    let files = SimulateFiles::new(2);
    files.requests("traffic", five());
    files.rules("old.yaml", 3);
    let old = files.path("old.yaml");
    let (code, json) = files.json(&["--against", &old, "--max-new-denials", "25%"]);
    assert_eq!(code, 0, "{json}");
    let (all, login) = (&json["all"], &json["rules"][1]);
    for counts in [all, login] {
        assert_eq!(counts["requests"], 5);
        assert_eq!(counts["refused"], 2);
        assert_eq!(counts["refusedBefore"], 1);
        assert_eq!(counts["allowedToRefused"], 1);
        assert_eq!(counts["refusedToAllowed"], 0);
    }
    assert_eq!(login["rule"], "login");
    assert_eq!((&login["candidate"]["limit"], &login["inForce"]["limit"]), (&json!(2), &json!(3)));
    let check = json!({
        "rule": null, "matched": 5, "newDenials": 1, "maxPercent": 25.0, "isWithin": true,
    });
    assert_eq!((&json["gate"]["isWithin"], &json["gate"]["checks"][0]), (&json!(true), &check));
    assert_eq!(json["traffic"]["arrivals"], 5);
    assert_eq!(json["hardestHit"][0]["id"], "a");
    let buckets = json["overTime"]["buckets"].as_array().expect("buckets");
    assert_eq!(buckets.iter().filter_map(|counts| counts["requests"].as_u64()).sum::<u64>(), 5);
    let notes = json["notes"].to_string();
    assert!(notes.contains("open loop") && notes.contains("which is 4s: login (1m)"), "{notes}");
}

#[test]
fn gate_decides_the_exit_code() {
    let files = SimulateFiles::new(2);
    files.requests("traffic", five());
    files.rules("old.yaml", 3);
    let old = files.path("old.yaml");
    for (options, expected) in [
        (&["--max-new-denials", "40%"][..], 0),
        (&["--max-new-denials", "39.9999%"], 1),
        (&["--max-new-denials", "20%", "--against", &old], 0),
        (&["--max-new-denials", "0%", "--against", &old], 1),
    ] {
        let (code, out, _) = files.simulate(options);
        assert_eq!(code, expected, "{options:?}: {out}");
        assert_eq!(out.contains("above --max-new-denials: "), expected == 1, "{out}");
    }
}

#[test]
fn wrong_rules_and_options_are_exit_code_64() {
    let files = SimulateFiles::new(2);
    files.requests("traffic", five());
    files.0.write("bad.yaml", "rules:\n- { name: a, limit: many, window: 1m }\n");
    let (bad, missing) = (files.path("bad.yaml"), files.path("missing"));
    for (options, text) in [
        (&["--max-new-denials", "login=1%"][..], "must be 0% to 100% with at most 4"),
        (&["--max-new-denials", "1"], "must be 0% to 100%"),
        (&["--against", &bad], "rules[0].limit"),
        (&["--set", "rate-limiter.limit=x"], "rate-limiter.limit"),
        (&["--warm-up", "x"], "--warm-up"),
        (&["--nothing"], "--nothing"),
        (&["--traffic", &missing], "missing"),
    ] {
        let (code, out, error) = files.simulate(options);
        assert_eq!((code, out.as_str()), (64, ""), "{options:?}: {error}");
        assert!(error.contains(text), "{options:?}: {error}");
    }
    assert_eq!(run(&["simulate"]).0, 64);
    assert_eq!(run(&["simulate", "--help"]).0, 0);
}

#[test]
fn traffic_that_cannot_be_judged_is_exit_code_2() {
    let files = SimulateFiles::new(2);
    files.requests("traffic", []);
    let (code, _, error) = files.simulate(&[]);
    assert_eq!((code, error.as_str()), (2, "rlaas: nothing was decided\n"));
    let line = |second: u32| {
        format!("10.0.0.1 - ann [14/Nov/2023:22:14:{second:02} +0000] \"GET / HTTP/1.1\" 200 5\n")
    };
    let lines: String = (0..50).map(line).collect();
    files.0.write("traffic", &format!("{lines}garbage\n"));
    let format = ["--format", "common", "--map", "user_id=user"];
    let (code, out, error) = files.simulate(&format);
    assert_eq!(code, 2, "{out}{error}");
    assert!(
        error.contains("1 of 51 lines could not be read, more than --max-unreadable 1%"),
        "{error}"
    );
    assert!(out.contains(":51: "), "{out}");
    let (code, _, error) = files.simulate(&[&format[..], &["--max-unreadable", "2%"]].concat());
    assert_eq!((code, error.as_str()), (0, ""));
}

#[test]
fn a_warm_up_is_left_out_and_fewer_keys_are_listed() {
    let files = SimulateFiles::new(2);
    files.requests("traffic", five());
    let (_, json) = files.json(&["--warm-up", "3s"]);
    assert_eq!((&json["warmUpRequests"], &json["all"]["requests"]), (&json!(3), &json!(2)));
    assert_eq!(json["all"]["refused"], 2);
    let (_, json) = files.json(&["--top", "0"]);
    assert_eq!(json["hardestHit"], json!([]));
}

#[test]
fn lines_are_messages_of_the_service() {
    let files = SimulateFiles::new(2);
    let line = |request: Value| json!({ "time": START_US, "request": request }).to_string();
    let attributes = json!({ "plan": "free" });
    let lines = [
        line(json!({ "userId": "a", "resource": "/pay", "attributes": attributes, "cost": "2" })),
        line(json!({ "user_id": "a", "requestId": "one" })),
        line(json!({ "userId": "a", "dryRun": true })),
        line(json!({ "userId": "a", "costs": { "each": 1 } })),
        line(json!({ "user": "a" })),
        line(json!({ "userId": "" })),
    ];
    files.0.write("traffic", &(lines.join("\n") + "\n"));
    let (code, json) = files.json(&["--max-unreadable", "100%"]);
    assert_eq!((code, &json["all"]["requests"]), (0, &json!(2)), "{json}");
    assert_eq!(json["all"]["refused"], 1, "{json}");
    let reasons = json["traffic"]["firstUnread"].to_string();
    for reason in ["dry_run and costs must be left out", "'user'", "user_id must be 1 to"] {
        assert!(reasons.contains(reason), "{reason}: {reasons}");
    }
    assert_eq!(json["traffic"]["unread"], 4);
    let (code, out, error) = files.simulate(&["--project", "a/b"]);
    assert_eq!((code, out.as_str()), (64, ""));
    assert!(error.contains("lower case letters"), "{error}");
}

#[test]
fn envoys_rules_are_those_of_the_configuration() {
    let files = SimulateFiles::new(2);
    let envoy = "domain: web\ndescriptors:\n- key: ip\n  rate_limit: { unit: minute, requests_per_unit: 1 }\n";
    files.0.write("web.yaml", envoy);
    let web = files.path("web.yaml");
    files.0.write("rules.yaml", &format!("envoy: {{ files: [{web}] }}\n"));
    let entries = json!([{ "entries": [{ "key": "ip", "value": "::1" }] }]);
    let request = json!({ "domain": "web", "descriptors": entries });
    let line = json!({ "time": START_US, "request": request });
    files.0.write("traffic", &format!("{line}\n{line}\n"));
    let (code, json) = files.json(&["--max-new-denials", "50%"]);
    assert_eq!(code, 0, "{json}");
    let rule =
        json["rules"].as_array().expect("rules").iter().find(|rule| rule["rule"] == "web.ip");
    let rule = rule.expect("the rule");
    assert_eq!((&rule["requests"], &rule["refused"]), (&json!(2), &json!(1)));
    assert_eq!(json["hardestHit"][0]["id"], "ip:%3A%3A1");
}
