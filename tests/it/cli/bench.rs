//! `bench`: counts, options, output and signals. Speed is not tested.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, Stdio};

use serde_json::Value;

use rlaas_testkit::process::{Rlaas, finish, rlaas, run, signal};
use rlaas_testkit::redis::free_port;

/// Runs `bench --json` on this server.
fn bench(server: &Rlaas, options: &[&str]) -> Value {
    let command = [&["bench", "--json", "--addr", server.grpc()], options].concat();
    let (code, out, error) = run(&command);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    serde_json::from_str(&out).expect("JSON")
}

/// Like [`bench`], without a warm-up.
fn calls(server: &Rlaas, options: &[&str]) -> Value {
    bench(server, &[&["--warm-up", "0s"], options].concat())
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

fn errors(of: &Value) -> u64 {
    let by_code = of["errors"].as_object().expect("errors by code");
    by_code.values().map(|requests| requests.as_u64().expect("a number")).sum()
}

/// Returns the number of decisions that the server has counted.
async fn decisions(server: &Rlaas) -> u64 {
    let (_, metrics) = server.get("/metrics").await;
    let lines = metrics.lines().filter(|line| line.starts_with("rlaas_decisions_total{"));
    let counts = lines.map(|line| line.rsplit(' ').next().and_then(|count| count.parse().ok()));
    counts.map(|count: Option<u64>| count.expect("a number")).sum()
}

#[tokio::test]
async fn bench_counts_match_those_of_the_server() {
    let server = Rlaas::start(&[]);
    let shapes: [&[&str]; 3] = [
        &["--calls", "500", "--warm-up", "300ms"],
        &["--duration", "200ms", "--warm-up", "0s"],
        &["--calls", "50", "--rate", "500", "--warm-up", "300ms", "--connections", "1"],
    ];
    let mut before = 0;
    for options in shapes {
        let result = bench(&server, options);
        let answers = number(&result, "allowed") + number(&result, "denied");
        assert_eq!(answers, number(&result, "decisions"));
        assert_eq!(number(&result, "calls"), answers + errors(&result), "{result}");
        let warm_up = &result["warmUp"];
        let sent = answers + number(warm_up, "decisions");
        assert_eq!(number(warm_up, "calls"), number(warm_up, "decisions"));
        let after = decisions(&server).await;
        assert_eq!(after - before, sent, "{result}");
        before = after;
        if options.contains(&"--calls") {
            assert_eq!(result["calls"].to_string(), options[1]);
            assert!(sent > answers, "no warm-up: {result}");
        }
    }
}

#[test]
fn bench_seed_gives_the_same_calls() {
    let allowed = |options: &[&str]| {
        let server = Rlaas::start(&[]);
        let always = ["--calls", "300", "--ids", "1000", "--distribution", "zipf:1.2"];
        number(&calls(&server, &[&always[..], options].concat()), "allowed")
    };
    let once = allowed(&["--seed", "9"]);
    assert!((6..300).contains(&once), "{once}");
    assert_eq!(once, allowed(&["--seed", "9", "--connections", "3"]));
    let others = ["1", "2", "3"].map(|seed| allowed(&["--seed", seed]));
    assert!(others.iter().any(|other| *other != once), "{others:?}");
}

#[test]
fn bench_json_has_every_field() {
    let server = Rlaas::start(&[]);
    let result = calls(&server, &["--calls", "20", "--rate", "1000", "--resource", "/v1/pay"]);
    for name in ["elapsedSeconds", "warmUpSeconds", "callsPerSecond", "decisionsPerSecond"] {
        assert!(result[name].is_f64(), "{name}: {result}");
    }
    for name in ["connections", "streams", "ids", "seed", "unansweredCalls"] {
        number(&result, name);
    }
    for name in ["latencyUs", "startDelayUs"] {
        let at = |name_of: &str| result[name][name_of].as_f64().expect(name_of);
        let rising = ["min", "p50", "p90", "p99", "p999", "max"].map(at);
        assert!(rising.is_sorted(), "{name}: {rising:?}");
        assert!(at("mean") >= at("min") && at("mean") <= at("max"), "{result}");
    }
    assert_eq!(result["target"]["callsPerSecond"], 1000);
    assert_eq!(
        (&result["interrupted"], &result["distribution"]),
        (&false.into(), &"uniform".into())
    );
    for name in ["failedLatencyUs", "firstError"] {
        assert!(result.get(name).expect(name).is_null(), "{result}");
    }
}

#[test]
fn bench_open_loop_keeps_its_schedule() {
    let server = Rlaas::start(&[]);
    let result = calls(&server, &["--calls", "51", "--rate", "200"]);
    assert!(result["elapsedSeconds"].as_f64().expect("seconds") >= 0.25, "{result}");
    assert_eq!(number(&result["target"], "unsent"), 0);
    // One call in flight cannot reach ten million calls in a second.
    let options = ["--rate", "10000000", "--connections", "1", "--streams", "1"];
    let options = [&options[..], &["--duration", "100ms"]].concat();
    let result = calls(&server, &options);
    let target = &result["target"];
    assert_eq!(target["reached"], false, "{result}");
    assert_eq!(number(target, "unsent") + number(&result, "calls"), 1_000_000);
    let command = ["bench", "--addr", server.grpc(), "--warm-up", "300ms"];
    let (code, out, _) = run(&[&command[..], &options].concat());
    assert_eq!(code, 0);
    assert!(out.contains("target: NOT reached") && out.contains("never sent"), "{out}");
}

#[test]
fn bench_text_reports_the_measurement() {
    let server = Rlaas::start(&[]);
    let command = ["bench", "--addr", server.grpc(), "--warm-up", "0", "--calls", "40"];
    let (code, out, error) = run(&[&command[..], &["--ids", "1"]].concat());
    assert_eq!((code, error.as_str()), (0, ""));
    let row = |name: &str| {
        let line = out.lines().find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {out}"));
        line.split_whitespace().nth(1).expect("a value").to_owned()
    };
    let shown = ["calls", "decisions", "allowed", "denied", "errors"].map(row);
    assert_eq!(shown, ["40", "40", "5", "35", "0"]);
    assert!(out.contains("p50       p90       p99     p99.9       max\nlatency"), "{out}");
    assert!(!out.contains("target") && !out.contains("start delay"), "{out}");
}

#[test]
fn bench_reports_mostly_denied_runs() {
    // Of one user id 5 requests are allowed: half of 10, less than half of 11.
    for (requests, mostly_denied) in [("10", false), ("11", true)] {
        let options = ["--ids", "1", "--calls", requests];
        let result = calls(&Rlaas::start(&[]), &options);
        assert_eq!(result["mostlyDenied"], mostly_denied, "{result}");
        let server = Rlaas::start(&[]);
        let command = ["bench", "--addr", server.grpc(), "--warm-up", "0s"];
        let (code, out, _) = run(&[&command[..], &options].concat());
        assert_eq!(code, 0);
        assert_eq!(out.contains("mostly denied: 6 of 11 decisions"), mostly_denied, "{out}");
    }
}

#[test]
fn bench_exits_2_without_answers() {
    let unreachable = format!("127.0.0.1:{}", free_port());
    let (code, out, error) = run(&["bench", "--addr", &unreachable]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.starts_with(&format!("rlaas: no server at {unreachable}")), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");

    let server = Rlaas::start(&[]);
    let long = "/".repeat(1_025);
    let command =
        ["bench", "--json", "--addr", server.grpc(), "--warm-up", "0s", "--resource", &long];
    let (code, out, _) = run(&[&command[..], &["--calls", "30"]].concat());
    let result: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, errors(&result)), (2, 30), "{result}");
    assert_eq!(number(&result["errors"], "INVALID_ARGUMENT"), 30);
    let first = result["firstError"].as_str().expect("a text");
    assert!(first.starts_with("INVALID_ARGUMENT: resource must be"), "{first}");
}

#[test]
fn bench_names_invalid_options() {
    for (option, value) in [
        ("--connections", "0"),
        ("--streams", "1001"),
        ("--rate", "0"),
        ("--rate", "fast"),
        ("--duration", "0s"),
        ("--duration", "2 fortnights"),
        ("--calls", "0"),
        ("--warm-up", "-1s"),
        ("--ids", "0"),
        ("--distribution", "normal"),
        ("--distribution", "zipf:0"),
        ("--cost", "4294967296"),
        ("--seed", "x"),
        ("--addr", "not an address"),
    ] {
        let argument = format!("{option}={value}");
        let (code, out, error) = run(&["bench", &argument]);
        assert_eq!((code, out.as_str()), (2, ""), "{argument}");
        assert!(error.contains(option), "{argument}: {error}");
    }
    let (code, _, error) = run(&["bench", "--duration", "1s", "--calls", "1"]);
    assert_eq!(code, 2);
    assert!(error.contains("--duration") && error.contains("--calls"), "{error}");
}

#[test]
fn bench_reports_its_measurement_after_a_signal() {
    for pace in [&["--connections", "2"][..], &["--rate", "500"]] {
        let server = Rlaas::start(&[]);
        let options = ["--duration", "1h", "--warm-up", "0s", "--progress", "--json"];
        let command = [&["bench", "--addr", server.grpc()], &options[..], pace].concat();
        let mut command = rlaas(&command);
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
        let (line, _unread) = first_progress(&mut process);
        assert!(line.contains(" calls/s, p50 ") && line.contains("left"), "{line}");
        signal(process.id(), "INT");
        let (code, out, _) = finish(process.wait_with_output().expect("its end"));
        let result: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!((code, &result["interrupted"]), (0, &true.into()), "{result}");
        assert!(number(&result, "calls") > 0, "{result}");
    }
}

#[test]
fn bench_ends_at_once_on_a_second_signal() {
    let server = Rlaas::start(&[]);
    server.signal("STOP");
    let options = ["--duration", "1h", "--warm-up", "0s", "--progress"];
    let mut command = rlaas(&[&["bench", "--addr", server.grpc()], &options[..]].concat());
    let mut process =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let (line, rest) = first_progress(&mut process);
    assert!(line.starts_with("0 calls/s"), "{line}");
    // Two equal pending signals may be delivered as one.
    signal(process.id(), "INT");
    signal(process.id(), "TERM");
    let last = rest.last().expect("a line").expect("a readable line");
    assert_eq!(last, "rlaas: no call was answered");
    let (code, out, _) = finish(process.wait_with_output().expect("its end"));
    assert_eq!((code, out.as_str()), (2, ""));
}

/// Returns the first line of standard error, and the lines that follow.
fn first_progress(process: &mut Child) -> (String, Lines<BufReader<ChildStderr>>) {
    let stderr = process.stderr.take().expect("a pipe");
    let mut lines = BufReader::new(stderr).lines();
    let first = lines.next().expect("a line of progress").expect("a readable line");
    (first, lines)
}
