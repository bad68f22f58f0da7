//! `rlaas rule preview`, against real servers.

use std::time::Duration;

use rlaas_testkit::process::{Rlaas, check, run};
use rlaas_testkit::{TempDir, eventually};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(20);
const KEPT: [&str; 2] = ["telemetry.preview.keep=15m", "telemetry.preview.keys=clear"];
const STRICT: &str = "rules:\n  - {name: strict, limit: 1, window: 1h, algorithm: fixed-window}\n";

fn previewed(server: &Rlaas, file: &str, options: &[&str]) -> (i32, String, String) {
    let command = ["rule", "preview", "-f", file, "--addr", server.grpc(), "--timeout", "30s"];
    run(&[&command[..], options].concat())
}

/// Previews when the server keeps so many requests, and returns the answer as JSON.
async fn json(server: &Rlaas, file: &str, requests: &str) -> Value {
    let last = std::cell::RefCell::new(Value::Null);
    eventually("the workers record their requests", TIMEOUT, async || {
        let (code, out, error) = previewed(server, file, &["--json"]);
        assert_eq!((code, &*error), (0, ""));
        *last.borrow_mut() = serde_json::from_str(&out).expect("JSON");
        last.borrow()["requests"] == requests
    })
    .await;
    last.into_inner()
}

#[tokio::test]
async fn preview_shows_what_would_change_and_for_whom() {
    let server = Rlaas::start(&KEPT);
    let dir = TempDir::new();
    let file = dir.write("strict.yaml", STRICT).display().to_string();
    let (code, out, error) = previewed(&server, &file, &[]);
    assert_eq!((code, &*error), (0, ""));
    let nothing = "0 denied, 0 before: 0 newly denied, 0 newly allowed\n";
    assert_eq!(out, format!("project _: 0 requests\n{nothing}"));

    let mut client = server.client().await;
    for user in ["alice", "alice", "alice", "\u{202e}bob"] {
        assert!(check(&mut client, user).await.expect("an answer").allowed);
    }
    let answer = json(&server, &file, "4").await;
    assert_eq!(
        (&answer["total"]["newlyDenied"], &answer["total"]["denied"]),
        (&"2".into(), &"2".into())
    );
    let (code, out, error) = previewed(&server, &file, &["--window", "15m"]);
    assert_eq!((code, &*error), (0, ""));
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..4], ["project", "_:", "4", "requests,"], "{out}");
    assert_eq!(lines[1].join(" "), "2 denied, 0 before: 2 newly denied, 0 newly allowed");
    assert_eq!(lines[2][..4], ["RULE", "DECIDED", "DENIED", "BEFORE"], "{out}");
    let strict = lines.iter().find(|line| line.first() == Some(&"strict")).expect("the rule");
    assert_eq!(strict[..6], ["strict", "4", "2", "0", "2", "0"], "{out}");
    let hit = lines.iter().position(|line| line.last() == Some(&"KEY")).expect("a table of keys");
    assert_eq!(lines[hit + 1..], [["2", "strict", "user_id=alice"]], "{out}");
    // Nothing was changed.
    assert!(check(&mut client, "alice").await.expect("an answer").allowed);
    let (_, listed, _) = run(&["rule", "list", "--addr", server.grpc()]);
    assert_eq!(listed, "no rules\n");
}

#[test]
fn preview_tells_what_is_wrong() {
    let server = Rlaas::start(&KEPT);
    let dir = TempDir::new();
    let strict = dir.write("strict.yaml", STRICT).display().to_string();
    let wrong = dir.write("wrong.yaml", "rules: [{name: a, limit: -1, window: 1s}]\n");
    let (code, out, error) = previewed(&server, &wrong.display().to_string(), &[]);
    assert_eq!((code, &*out), (64, ""), "{error}");
    assert!(error.contains("rules[0].limit"), "{error}");
    for (options, expected, text) in [
        (&["--window", "a"][..], 2, "must be a duration"),
        (&["--window", "1s"], 2, "window must be"),
        (&["--window", "16m"], 2, "window must be"),
        (&["--project", "shop"], 2, "no such project"),
    ] {
        let (code, out, error) = previewed(&server, &strict, options);
        assert_eq!((code, &*out), (expected, ""), "{options:?}: {error}");
        assert!(error.contains(text), "{options:?}: {error}");
    }
    let off = Rlaas::start(&[]);
    let (code, out, error) = previewed(&off, &strict, &[]);
    assert_eq!((code, &*out), (2, ""));
    assert!(error.contains("telemetry.preview"), "{error}");
}
