//! Recordings of a running server: what is in them, samples, hashes, rotation, a full disk.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest};
use serde_json::{Value, json};

use rlaas_testkit::process::{Rlaas, check, program, request, run};
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);
const ENVOY: &str = "domain: shop\ndescriptors:\n  \
    - {key: user_id, rate_limit: {unit: hour, requests_per_unit: 1}}\n";

/// Stops a server, which ends its recording.
fn stop(mut server: Rlaas) {
    server.signal("TERM");
    assert!(server.wait().success(), "{}", server.log());
}

/// Reads a recording: the header and the other lines.
fn cat(file: &Path) -> (Value, Vec<Value>) {
    let bytes = std::fs::read(file).expect("a file");
    let is_zstd = file.to_string_lossy().contains(".zst");
    let bytes = if is_zstd { zstd::decode_all(&*bytes).expect("whole frames") } else { bytes };
    let text = String::from_utf8(bytes).expect("UTF-8");
    let mut lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    (lines.next().unwrap_or_default(), lines.collect())
}

fn set(file: &Path) -> String {
    format!("telemetry.record.file={}", file.display())
}

/// Removes times, which differ in each run.
fn timeless(lines: Vec<Value>) -> Vec<Value> {
    let remove = |mut line: Value| {
        let at = line.as_object_mut().expect("an object").remove("at_us").expect("a time");
        assert!(at.as_u64().expect("microseconds") > 1_700_000_000_000_000, "{at}");
        line
    };
    lines.into_iter().map(remove).collect()
}

#[tokio::test]
async fn decided_requests_of_all_protocols_are_recorded_and_no_others() {
    let dir = TempDir::new();
    let (file, envoy) = (dir.path("requests.rec"), dir.write("envoy.yaml", ENVOY));
    let envoy = format!("envoy.files={}", envoy.display());
    // One worker: then the recording is in the order of the calls.
    let settings = [&set(&file), &envoy, "server.workers=1", "rate-limiter.max-requests=1"];
    let server = Rlaas::start(&settings);
    let mut client = server.client().await;
    let attributes = [("plan", "free"), ("ip", "::1")];
    let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let full = CheckRequest { resource: "/pay".into(), attributes, ..request("alice") };
    client.check(full).await.expect("a decision");
    check(&mut client, "alice").await.expect("a decision");
    client.check(CheckRequest { dry_run: true, ..request("dry") }).await.expect("a decision");
    for _ in 0..2 {
        let again = CheckRequest { request_id: "one".into(), ..request("again") };
        client.check(again).await.expect("a decision");
    }
    client.check(request("")).await.expect_err("not valid");
    let requests = vec![CheckRequest { cost: Some(7), ..request("batch") }];
    client
        .check_batch(CheckBatchRequest { requests, ..Default::default() })
        .await
        .expect("decisions");
    let stream = futures_util::stream::iter([request("stream")]);
    let mut results = client.check_stream(stream).await.expect("a stream").into_inner();
    results.message().await.expect("a result");
    assert_eq!(server.post("/v1/check", r#"{"userId":"http"}"#).await.0, 200);
    let entries = r#"{"entries":[{"key":"user_id","value":"envoy"}]}"#;
    let body = format!(r#"{{"domain":"shop","descriptors":[{entries}],"hitsAddend":2}}"#);
    server.post("/json", &body).await;
    let explain = ["explain", "nobody", "--addr", server.grpc()];
    run(&explain);
    stop(server);
    let (header, lines) = cat(&file);
    assert_eq!(header["rlaas_recording"], 2);
    assert_eq!(header["keys"], "clear");
    assert_eq!(
        timeless(lines),
        [
            json!({"user_id": "alice", "resource": "/pay", "cost": 1,
                   "attributes": {"ip": "::1", "plan": "free"}}),
            json!({"user_id": "alice", "cost": 1, "refused": true}),
            json!({"user_id": "again", "cost": 1}),
            json!({"user_id": "batch", "cost": 7, "refused": true}),
            json!({"user_id": "stream", "cost": 1}),
            json!({"user_id": "http", "cost": 1}),
            json!({"domain": "shop", "refused": true, "descriptors": [
                {"entries": [{"key": "user_id", "value": "envoy"}], "hits": 2}]}),
        ]
    );
    let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_sample_has_all_requests_of_some_keys_and_none_of_the_others() {
    let dir = TempDir::new();
    let record = |file: &Path, users: std::ops::Range<u32>| {
        let settings = [
            set(file),
            "telemetry.record.sample.share=30%".to_owned(),
            "telemetry.record.sample.salt=fleet".to_owned(),
        ];
        async move {
            let server = Rlaas::start(&settings.each_ref().map(String::as_str));
            let mut client = server.client().await;
            for user in users.cycle().take(300) {
                check(&mut client, &user.to_string()).await.expect("a decision");
            }
            stop(server);
        }
    };
    let (one, other) = (dir.path("one.rec"), dir.path("other.rec"));
    record(&one, 0..100).await;
    record(&other, 0..50).await;
    let counts = |file: &Path| {
        let (header, lines) = cat(file);
        assert_eq!(
            header["sample"],
            json!({"share_ppm": 300_000, "by": ["user_id"], "salt": "fleet"})
        );
        let mut counts = std::collections::BTreeMap::<u32, u32>::new();
        for line in lines {
            let user = line["user_id"].as_str().expect("a user").parse().expect("a number");
            *counts.entry(user).or_default() += 1;
        }
        counts
    };
    let (one, other) = (counts(&one), counts(&other));
    assert!((10..60).contains(&one.len()), "{}", one.len());
    assert!(one.values().all(|count| *count == 3), "{one:?}");
    assert!(other.values().all(|count| *count == 6), "{other:?}");
    // Two instances select the same keys.
    let below: Vec<&u32> = one.keys().filter(|user| **user < 50).collect();
    assert_eq!(below, other.keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn hashed_recordings_have_no_value_in_clear() {
    let dir = TempDir::new();
    let (file, key) = (dir.path("requests.rec"), dir.write("key", &"k".repeat(32)));
    let key = format!("privacy.key-file={}", key.display());
    let hashed = "telemetry.record.keys=hashed";
    let settings = [&set(&file), &key, hashed, "privacy.hash=[attributes.token]"];
    let server = Rlaas::start(&settings);
    let mut client = server.client().await;
    for user in ["alice-the-user", "bob-the-user", "alice-the-user"] {
        let attributes = [("token", "token-of-somebody"), ("plan", "free")];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let asked = CheckRequest { attributes: attributes.into(), ..request(user) };
        client.check(asked).await.expect("a decision");
    }
    stop(server);
    let bytes = std::fs::read(&file).expect("a file");
    for clear in ["-the-user", "token-of"] {
        assert!(!bytes.windows(clear.len()).any(|part| part == clear.as_bytes()), "{clear}");
    }
    let (header, lines) = cat(&file);
    assert_eq!(header["keys"]["hashed"]["parts"], json!(["user_id", "attributes.token"]));
    assert_eq!(header["keys"]["hashed"]["key"].as_str().map(str::len), Some(32));
    let users: Vec<&str> =
        lines.iter().map(|line| line["user_id"].as_str().expect("a user")).collect();
    assert!(users[0] == users[2] && users[0] != users[1], "{users:?}");
    assert!(users[0].starts_with('#') && users[0].len() == 27, "{users:?}");
    assert_eq!(lines[0]["attributes"]["plan"], "free");

    let (code, _, error) =
        run(&["serve", "--set", &set(&file), "--set", "telemetry.record.keys=hashed"]);
    assert_eq!(code, 64);
    assert!(
        error.contains("telemetry.record.keys") && error.contains("privacy.key-file"),
        "{error}"
    );
}

#[tokio::test]
async fn files_rotate_when_they_are_full_and_when_a_server_starts() {
    let dir = TempDir::new();
    let file = dir.path("requests.rec");
    let numbered = |number: u32| PathBuf::from(format!("{}.{number}", file.display()));
    let settings = [set(&file), "telemetry.record.rotate.size=1MiB".to_owned()];
    let settings = [&settings[0], &settings[1], "telemetry.record.rotate.keep=2"];
    let server = Rlaas::start(&settings);
    let mut client = server.client().await;
    let mut sent = 0;
    // Each user is new, so each takes its bytes.
    while !numbered(1).exists() {
        let user = |number: u32| request(&format!("{number:0>1000}"));
        let requests = (sent..sent + 100).map(user).collect();
        client
            .check_batch(CheckBatchRequest { requests, ..Default::default() })
            .await
            .expect("decisions");
        sent += 100;
    }
    let second = Command::new(program()).args(["serve", "--set", settings[0]]).output();
    let error = String::from_utf8(second.expect("the program").stderr).expect("UTF-8");
    assert!(error.contains("is written by another process"), "{error}");
    stop(server);
    let count = |file: &Path| cat(file).1.len();
    assert_eq!(count(&numbered(1)) + count(&file), sent as usize);
    stop(Rlaas::start(&settings));
    assert_eq!(count(&numbered(2)) + count(&numbered(1)), sent as usize);
    assert_eq!(count(&file), 0);
    stop(Rlaas::start(&settings));
    assert!(!numbered(3).exists(), "two are kept");
}

#[tokio::test]
async fn a_killed_server_leaves_a_readable_recording() {
    let dir = TempDir::new();
    let file = dir.path("requests.jsonl.zst");
    let mut server = Rlaas::start(&[&set(&file)]);
    check(&mut server.client().await, "alice").await.expect("a decision");
    eventually("a block is written", TIMEOUT, async || cat(&file).1.len() == 1).await;
    server.signal("KILL");
    server.wait();
    assert_eq!(cat(&file).1.len(), 1);
}

/// Sets the size of the longest file that a process may write.
fn limit_files(server: &Rlaas, bytes: &str) {
    let pid = server.pid().to_string();
    let status =
        Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}")]).status();
    assert!(status.expect("prlimit").success());
}

#[tokio::test]
async fn a_full_disk_costs_requests_of_the_recording_and_no_decision() {
    let dir = TempDir::new();
    let file = dir.path("requests.rec");
    // A process that ignores the signal gets an error, as on a full disk.
    let mut shell = Command::new("sh");
    let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
    shell.args(["-c", script, &program().display().to_string(), "serve"]);
    let server = Rlaas::start_with(shell, &[&set(&file), "rate-limiter.max-requests=100000"]);
    let mut client = server.client().await;
    check(&mut client, "first").await.expect("a decision");
    eventually("a block is written", TIMEOUT, async || cat(&file).1.len() == 1).await;
    let len = std::fs::metadata(&file).expect("a file").len();
    limit_files(&server, &format!("{}:", len + 20));
    let mut sent = 0_u64;
    eventually("requests are dropped", TIMEOUT, async || {
        assert!(check(&mut client, "lost").await.expect("a decision").allowed);
        sent += 1;
        server.metric("rlaas_record_dropped_total").await > Some(0.0)
    })
    .await;
    assert_eq!(server.metric("rlaas_record_failing").await, Some(1.0));
    assert_eq!(std::fs::metadata(&file).expect("a file").len(), len, "whole blocks only");
    limit_files(&server, "unlimited:");
    eventually("the file is written again", TIMEOUT, async || {
        server.metric("rlaas_record_failing").await == Some(0.0)
    })
    .await;
    check(&mut client, "last").await.expect("a decision");
    let dropped = server.metric("rlaas_record_dropped_total").await;
    let log = server.log();
    assert_eq!(log.matches("recording can't be written").count(), 1, "{log}");
    assert_eq!(log.matches("recording can be written again").count(), 1, "{log}");
    stop(server);
    let (_, lines) = cat(&file);
    let users = |name: &str| lines.iter().filter(|line| line["user_id"] == name).count() as u64;
    let lost: u64 = lines.iter().filter_map(|line| line["lost"].as_u64()).sum();
    assert_eq!((users("first"), users("last")), (1, 1));
    assert_eq!(users("lost") + lost, sent, "{lines:?}");
    assert!(lost > 0);
    assert_eq!(dropped, Some(f64::from(u32::try_from(lost).expect("few"))));
}
