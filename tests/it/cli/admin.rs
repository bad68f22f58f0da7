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

#[test]
fn key_is_inspected_refunded_and_reset() {
    let (_dir, server) = server();
    for _ in 0..3 {
        printed(&server, &[&["check"], &PAY[..]].concat());
    }
    let shown = printed(&server, &[&["inspect"], &PAY[..]].concat());
    assert!(shown.starts_with("RULE  LIMIT  USED  LEFT"), "{shown}");
    assert!(shown.contains("\npay       3     3     0"), "{shown}");
    assert!(shown.ends_with("pay: id alice, in the store pay:alice\n"), "{shown}");
    let reason = ["--reason", "a ticket"];
    let shown = printed(&server, &[&["refund", "--units", "2"], &PAY[..], &reason].concat());
    assert!(shown.contains("0 → 2") && shown.contains("in force here"), "{shown}");
    let again = ["--request-id", "one", "--json"];
    let reset = [&["reset"], &PAY[..], &reason, &again].concat();
    for replayed in [false, true] {
        let change = json(&printed(&server, &reset));
        assert_eq!(change["change"]["replayed"], replayed);
        assert_eq!(change["change"]["after"][0]["remaining"], "3");
    }
    for whose in [&["--id", "alice"][..], &["--part", "user_id=alice"]] {
        let shown =
            json(&printed(&server, &[&["inspect", "--rule", "pay", "--json"], whose].concat()));
        assert_eq!(shown["keys"][0]["used"], "0");
    }
}

#[test]
fn key_is_banned_and_let_through_again() {
    let (_dir, server) = server();
    let reason = ["--reason", "abuse of \"x\""];
    let shown = printed(&server, &[&["ban", "--for", "2h"], &PAY[..], &reason].concat());
    assert!(
        shown.contains("3 → banned") && shown.contains("on every other instance by"),
        "{shown}"
    );
    assert!(shown.contains("set by local: abuse of \"x\"\n"), "{shown}");
    let check = [&["check"], &PAY[..], &["--addr", server.grpc()]].concat();
    assert_eq!(run(&check).0, 1);
    let explained = printed(&server, &[&["explain"], &PAY[..]].concat());
    assert!(explained.contains("banned, gcra, by an override of this key\n"), "{explained}");
    let list = printed(&server, &["override", "list"]);
    assert!(list.contains("pay   banned"), "{list}");
    printed(&server, &[&["unban"], &PAY[..], &reason].concat());
    assert_eq!(run(&check).0, 0);

    let set = ["override", "set", "bob", "--limit", "50", "--for", "1d", "--reason", "a demo"];
    assert!(printed(&server, &set).contains("5 → 50"));
    let list = json(&printed(&server, &["override", "list", "--kind", "grant", "--json"]));
    assert_eq!(list["overrides"][0]["grant"]["limit"], "50");
    let shown = printed(&server, &["override", "clear", "bob", "--reason", "done"]);
    assert!(shown.contains("50 → 5"), "{shown}");
    assert_eq!(printed(&server, &["override", "list"]), "no overrides\n");
}

#[test]
fn wrong_options_and_refusals_exit_2() {
    let (_dir, server) = server();
    for (command, expected) in [
        (&["reset", "alice"][..], "--reason"),
        (&["inspect"], "USER"),
        (&["inspect", "alice", "--part", "user_id=alice"], "cannot be used"),
        (&["inspect", "--id", "alice"], "--rule"),
        (&["inspect", "--envoy", "edge", "path"], "KEY=VALUE"),
        (&["inspect", "alice", "--rule", "nothing"], "NOT_FOUND"),
        (&["ban", "alice", "--for", "0s", "--reason", "x"], "1s to 366d"),
        (
            &["ban", "alice", "--resource", "/search/a", "--for", "2h", "--reason", "x"],
            "overridable",
        ),
        (&["override", "set", "alice", "--for", "2h", "--reason", "x"], "--limit"),
        (&["refund", "alice", "--units", "0", "--reason", "x"], "--units"),
    ] {
        let (code, out, error) = run(&[command, &["--addr", server.grpc()]].concat());
        assert_eq!((code, &*out), (2, ""), "{command:?}");
        assert!(error.contains(expected), "{command:?}: {error}");
    }
}

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

#[test]
fn unban_of_a_rule_that_is_not_overridable_says_so() {
    let (_dir, server) = server();
    let unban = ["unban", "alice", "--resource", "/search/a", "--reason", "a ticket"];
    let (code, shown, error) = run(&[&unban[..], &["--addr", server.grpc()]].concat());
    assert_eq!(code, 1, "{error}");
    assert!(shown.starts_with("nothing was changed: no key was found; bans"), "{shown}");
}

#[test]
fn explanation_names_the_first_part_that_does_not_fit() {
    let (_dir, server) = server();
    let shown = printed(&server, &["explain", "alice", "--resource", "/pays"]);
    assert!(
        shown.starts_with("allowed  alice: 5 of 5 left (default)\n\nRules that apply:\n"),
        "{shown}"
    );
    assert!(shown.contains("  pay     resource must be /pay, not /pays\n"), "{shown}");
    assert!(shown.contains("  search  resource must be /search/*, not /pays\n"), "{shown}");
}

#[test]
fn hostile_keys_forge_no_line() {
    let (_dir, server) = server();
    let user = "a\nbanned by root\u{1b}[2J\u{202e}";
    for command in ["inspect", "explain"] {
        let shown = printed(&server, &[command, user]);
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
        assert!(!shown.lines().any(|line| line.starts_with("banned")), "{shown:?}");
    }
    let reason = "x\nRULE  forged\u{1b}[1m";
    printed(&server, &["ban", user, "--for", "2h", "--reason", reason]);
    for command in [&["override", "list"][..], &["inspect", user]] {
        let shown = printed(&server, command);
        assert!(shown.contains(r"x\nRULE  forged\u{1b}[1m"), "{shown:?}");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
}

#[test]
fn audit_lists_who_changed_what_and_why() {
    let (_dir, server) = server();
    printed(&server, &["reset", "alice", "--reason", "a ticket\nforged\u{1b}[1m"]);
    let shown = printed(&server, &["audit"]);
    assert_eq!(shown.lines().count(), 2, "{shown}");
    for text in ["done", "local", "Reset", r"a ticket\nforged\u{1b}[1m"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let list = json(&printed(&server, &["audit", "--json", "--max", "1", "--since", "1h"]));
    assert_eq!(list["entries"][0]["action"], "Reset");
    assert_eq!(printed(&server, &["audit", "--actor", "token:nobody"]), "no changes\n");
}

#[test]
fn rule_is_switched_for_a_time_and_back() {
    let (_dir, server) = server();
    let switch = |mode: &[&str]| {
        printed(&server, &[&["rule", "mode", "pay"], mode, &["--reason", "a test"]].concat())
    };
    let set = switch(&["off", "--for", "1h"]);
    assert!(set.starts_with("pay: off until 20"), "{set}");
    assert!(set.contains("; in force here, everywhere by 20"), "{set}");
    let explained = printed(&server, &[&["explain"], &PAY[..]].concat());
    assert!(explained.contains("  pay      it is off\n"), "{explained}");
    assert!(explained.contains("  default  another rule matches\n"), "{explained}");
    let ended = switch(&["configured"]);
    assert!(ended.starts_with("pay: mode of the configuration; in force here"), "{ended}");
    let set = json(&switch(&["shadow", "--for", "30d", "--json"]));
    assert_eq!(set["coverage"]["missing"].as_array().map(Vec::len), Some(0), "{set}");
    for (wrong, problem) in [
        (&["shadow"][..], "--for"),
        (&["shadow", "--for", "31d"], "must be a duration from 1s to 30d"),
        (&["sometimes", "--for", "1h"], "possible values: enforce, shadow, off, configured"),
    ] {
        let (code, _, error) =
            run(&[&["rule", "mode", "pay", "--reason", "a test"], wrong].concat());
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(problem), "{error}");
    }
    let nobody = ["rule", "mode", "nobody", "off", "--for", "1h", "--reason", "a test"];
    let (code, _, error) = run(&[&nobody[..], &["--addr", server.grpc()]].concat());
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("no such rule") || error.contains("rule must"), "{error}");
}

#[test]
fn instances_of_the_fleet_are_listed() {
    let (_dir, server) = server();
    let shown = printed(&server, &["top", "--instances"]);
    assert!(shown.starts_with("INSTANCE") && shown.contains("* "), "{shown}");
    assert!(shown.contains(env!("CARGO_PKG_VERSION")) && shown.contains("memory"), "{shown}");
    let list = json(&printed(&server, &["top", "--instances", "--json"]));
    assert_eq!(list["instances"][0]["answering"], true);
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
    let (code, _, error) = run(&["tail", "--sample", "0%", "--addr", server.grpc()]);
    assert_eq!(code, 2, "{error}");
}
