//! The commands that see and change keys, against real servers and without one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use rlaas_testkit::process::{Rlaas, rlaas, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);

const RULES: &str = "\
rate-limiter: {overridable: true}
rules:
  - {name: pay, match: {resource: /pay}, algorithm: gcra, limit: 3, window: 1h, overridable: true}
  - {name: search, match: {resource: /search/*}, limit: 20, window: 1s}
";

fn server() -> (TempDir, Rlaas) {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&file, &[]);
    (dir, server)
}

/// Runs a command that must succeed, and returns what it prints.
fn printed(server: &Rlaas, command: &[&str]) -> String {
    let (code, out, error) = run(&[command, &["--addr", server.grpc()]].concat());
    assert_eq!(code, 0, "{command:?}: {error}");
    out
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const PAY: [&str; 3] = ["alice", "--resource", "/pay"];

/// Runs a command at a terminal, with this answer typed.
fn at_terminal(server: &Rlaas, command: &str, typed: &str) -> (i32, String) {
    let program = env!("CARGO_BIN_EXE_rlaas");
    let command = format!("{program} {command} --addr {}", server.grpc());
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    let spawned = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut terminal = spawned.expect("script, of util-linux");
    terminal.stdin.take().expect("a pipe").write_all(typed.as_bytes()).expect("typed");
    let output = terminal.wait_with_output().expect("an output");
    let shown = String::from_utf8(output.stdout).expect("text");
    (output.status.code().expect("a code"), shown.replace('\r', ""))
}

#[test]
fn reset_asks_a_person_first() {
    let (_dir, server) = server();
    printed(&server, &["check", "alice"]);
    let used = || {
        let shown = json(&printed(&server, &["inspect", "alice", "--json"]));
        shown["keys"][0]["used"].clone()
    };
    let (code, shown) = at_terminal(&server, "reset alice --reason test", "n\n");
    assert_eq!((code, used()), (1, "1".into()), "{shown}");
    assert!(shown.contains("Reset 1 key? This cannot be undone. [y/N]"), "{shown}");
    assert!(shown.contains("nothing was changed"), "{shown}");
    let (code, shown) = at_terminal(&server, "reset alice --reason test", "y\n");
    assert_eq!((code, used()), (0, "0".into()), "{shown}");
    printed(&server, &["check", "alice"]);
    let (code, shown) = at_terminal(&server, "reset alice --reason test --yes", "");
    assert_eq!((code, used()), (0, "0".into()), "{shown}");
    assert!(!shown.contains("[y/N]"), "{shown}");
}

#[test]
fn explanation_by_files_equals_that_of_a_server() {
    let (dir, server) = server();
    let file = dir.write("again.yaml", RULES);
    let file = file.to_str().expect("a path");
    for request in [
        &["alice", "--resource", "/pay"][..],
        &["alice", "--resource", "/search/a", "--cost", "30"],
        &["bob", "--attribute", "plan=free"],
        &[""],
    ] {
        let by_server = printed(&server, &[&["explain"], request].concat());
        let (code, by_files, error) = run(&[&["explain", "--config", file], request].concat());
        assert_eq!(code, 0, "{error}");
        let by_files = by_files.strip_suffix(
            "Explained by the files alone, for keys of which nothing has been taken.\n",
        );
        assert_eq!(by_files, Some(&*by_server));
    }
    let (code, _, error) = run(&["explain", "alice", "--config", "nowhere.yaml"]);
    assert_eq!(code, 64, "{error}");
}

#[test]
fn explanation_without_the_store_has_the_rules() {
    let (dir, mut redis) = (TempDir::new(), RedisServer::start());
    let url = format!("store.redis.url={}", redis.url());
    let file = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&file, &["store.backend=redis", &url]);
    redis.kill();
    let explain = [&["explain"], &PAY[..]].concat();
    let shown = printed(&server, &explain);
    assert!(shown.starts_with("unknown  alice: store unavailable\n"), "{shown}");
    assert!(shown.contains("  pay  unknown, the store is away\n"), "{shown}");
    let shown = json(&printed(&server, &[&explain[..], &["--json"]].concat()));
    let error = &shown["storeError"];
    assert_eq!(error["message"], "store unavailable");
    assert_eq!(error["details"][0]["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
}

#[tokio::test]
async fn top_keys_are_listed_where_they_are_counted() {
    let (_dir, server) = server();
    let (code, _, error) = run(&["top", "--keys", "pay", "--addr", server.grpc()]);
    assert_eq!(code, 2);
    assert!(error.contains("telemetry.top-keys"), "{error}");
    let server = Rlaas::start(&["telemetry.top-keys=true"]);
    for _ in 0..7 {
        let _allowed_or_denied = run(&["check", "alice", "--addr", server.grpc()]);
    }
    // Counts become visible a few times per second.
    let top = ["top", "--keys", "default"];
    eventually("two denials are counted", TIMEOUT, async || {
        printed(&server, &top).contains("    2         2  user_id=alice  default  _ ")
    })
    .await;
    let used = [&top[..], &["--json"]].concat();
    eventually("five units are counted", TIMEOUT, async || {
        json(&printed(&server, &used))["used"]["keys"][0]["count"] == "5"
    })
    .await;
}

#[test]
fn tail_prints_decisions_as_they_are_made() {
    let (_dir, server) = server();
    let mut command = rlaas(&["tail", "--outcome", "denied", "--addr", server.grpc()]);
    let mut tail = command.stdout(Stdio::piped()).spawn().expect("the program");
    let mut lines = BufReader::new(tail.stdout.take().expect("a pipe")).lines();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _nobody_waits = send.send(lines.next());
    });
    // Decisions made before the stream begins are not in it.
    let line = loop {
        let _denied = run(&["check", "mallory", "--cost", "6", "--addr", server.grpc()]);
        if let Ok(line) = receive.try_recv() {
            break line.expect("a line").expect("text");
        }
    };
    assert!(line.contains("denied   user_id=mallory: a cost of 6 is above"), "{line}");
    tail.kill().expect("a signal");
    tail.wait().expect("an end");
}

#[test]
fn a_limit_is_lowered_only_by_a_person_or_with_yes() {
    let (_dir, server) = server();
    let limit =
        || json(&printed(&server, &["inspect", "alice", "--json"]))["keys"][0]["limit"].clone();
    let set = ["override", "set", "alice", "--for", "1h", "--reason", "vip", "--limit"];
    let raised = printed(&server, &[&set[..], &["9"]].concat());
    assert!(raised.contains("5 → 9"), "{raised}");
    let lower = [&set[..], &["8", "--addr", server.grpc()]].concat();
    let (code, out, error) = run(&lower);
    let text = "rlaas: grant.limit must not be below the limit in force: default 9 → 8; nothing was \
                changed, --yes lowers it\n";
    assert_eq!((code, &*out, &*error, limit()), (2, "", text, "9".into()));
    let command = "override set alice --for 1h --reason vip --limit 8";
    let (code, shown) = at_terminal(&server, command, "n\n");
    assert_eq!((code, limit()), (1, "9".into()), "{shown}");
    assert!(shown.contains("default 9 → 8. Lower it? [y/N]"), "{shown}");
    let (code, shown) = at_terminal(&server, command, "y\n");
    assert_eq!((code, limit()), (0, "8".into()), "{shown}");
    assert!(printed(&server, &[&set[..], &["2", "--yes"]].concat()).contains("8 → 2"));
    assert_eq!(limit(), "2");
}
