//! Logs as text and JSON, their filters, and what they must not contain.

use std::time::Duration;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest};
use serde_json::Value;

use rlaas_testkit::process::{self, Rlaas, check, finish, rlaas, run};
use rlaas_testkit::redis::free_port;
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Parses every line as a JSON object.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| -> Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    let objects: Vec<Value> = log.lines().map(object).collect();
    for object in &objects {
        for name in ["timestamp", "level", "target"] {
            assert!(object[name].is_string(), "{name}: {object}");
        }
    }
    objects
}

#[tokio::test]
async fn json_log_has_one_object_per_line() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let mut server = Rlaas::start(&["telemetry.format=json", "store.backend=redis", &url]);
    let logged = async || server.log().contains("redis connection failed");
    eventually("the outage is logged", TIMEOUT, logged).await;
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let all = objects(&server.log());
    let of = |message: &str| {
        let found = all.iter().find(|object| object["message"] == message);
        found.unwrap_or_else(|| panic!("no {message} in {all:?}"))
    };
    let serving = of("serving");
    assert_eq!(serving["level"], "INFO");
    assert_eq!(serving["target"], "rlaas::run::serve");
    assert_eq!(serving["grpc"], server.grpc());
    assert_eq!(serving["rules"], 1, "numbers are JSON numbers");
    assert_eq!(of("redis connection failed")["level"], "WARN");
    of("drained");
}

#[tokio::test]
async fn request_contents_do_not_reach_the_log() {
    let forged = "x\n2026-01-01T00:00:00Z  INFO forged\r\n{\"message\":\"forged\"}\u{1b}[2J\u{85}";
    for format in ["text", "json"] {
        let format = format!("telemetry.format={format}");
        let server = Rlaas::start(&[&format, "telemetry.log=trace"]);
        let mut client = server.client().await;
        check(&mut client, forged).await.expect("any id is valid");
        check(&mut client, &"forged".repeat(1_000)).await.expect_err("a long id is rejected");
        server.get("/livez?forged").await;
        // Below debug only libraries log, and they must not log request contents either.
        let log = server.log();
        assert!(log.lines().count() > 10 && !log.contains("forged"), "{log}");
    }
}

#[tokio::test]
async fn log_level_changes_on_reload() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", "telemetry: {log: info}\n");
    let mut server = Rlaas::start_from(&file, &[]);
    let reload = async |text: &str, until: &str| {
        dir.write("rlaas.yaml", text);
        server.signal("HUP");
        let logged = async || server.log().matches(until).count() > 0;
        eventually(until, TIMEOUT, logged).await;
    };
    let debug = "connection closed before its first byte";
    let silent = async || {
        let connection = tokio::net::TcpStream::connect(server.grpc()).await;
        drop(connection.expect("a running server"));
        server.log().contains(debug)
    };
    assert!(!silent().await);
    reload("telemetry: {log: 'warn,rlaas=debug'}\n", "configuration reloaded").await;
    eventually("debug events are logged", TIMEOUT, silent).await;
    reload("telemetry: {log: loud}\n", "telemetry.log: must be off, error, warn").await;
    reload("telemetry: {log: warn, format: json}\n", r#"key="telemetry.format""#).await;
    dir.write("rlaas.yaml", "telemetry: {log: warn}\nrate-limiter: {max-requests: 7}\n");
    server.signal("HUP");
    let taken = async || server.metric("rlaas_config_revision").await == Some(2.0);
    eventually("the configuration is reloaded", TIMEOUT, taken).await;
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let log = server.log();
    assert_eq!(
        log.matches("configuration reloaded").count(),
        1,
        "nothing is logged at warn: {log}"
    );
    assert!(!log.contains("drained"), "{log}");
}

#[tokio::test]
async fn debug_log_has_each_decision_and_rejection() {
    let dir = TempDir::new();
    let rules = "
rules:
  - {name: pay, match: {resource: /s3cret}, limit: 1, window: 1m}
  - {name: trial, match: {resource: /s3cret}, limit: 1, window: 1m, shadow: true}
envoy: {files: [FILE]}
";
    let envoy = "domain: shop
descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 3}}]
";
    let envoy = dir.write("shop.yaml", envoy).display().to_string();
    let file = dir.write("rlaas.yaml", &rules.replace("FILE", &envoy));
    let settings = ["telemetry.log=rlaas=debug", "telemetry.format=json"];
    let server = Rlaas::start_from(&file, &settings);
    let silent = Rlaas::start_from(&file, &["telemetry.log=rlaas=info"]);
    for server in [&server, &silent] {
        let mut client = server.client().await;
        let asked =
            CheckRequest { resource: "/s3cret".to_owned(), ..process::request("s3cret-id") };
        for _ in 0..2 {
            client.check(asked.clone()).await.expect("a response");
        }
        let batch = CheckBatchRequest {
            requests: vec![process::request("s3cret-id")],
            ..Default::default()
        };
        client.check_batch(batch).await.expect("a response");
        check(&mut client, "").await.expect_err("an empty id is rejected");
        assert_eq!(server.post("/v1/check", r#"{"userId":"s3cret-id"}"#).await.0, 200);
        assert_eq!(server.post("/v1/check", r#"{"s3cret":1}"#).await.0, 400);
        let mut envoy = RateLimitServiceClient::new(server.channel().await);
        let entry = Entry { key: "k".to_owned(), value: "s3cret-id".to_owned() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let descriptors = vec![descriptor];
        let domain = "shop".to_owned();
        let asked = RateLimitRequest { domain, descriptors, ..Default::default() };
        envoy.should_rate_limit(asked).await.expect("a response");
        envoy.should_rate_limit(RateLimitRequest::default()).await.expect_err("no domain");
    }
    let logged = |message: &str| {
        let all = objects(&server.log());
        all.into_iter().filter(|object| object["message"] == message).collect::<Vec<_>>()
    };
    let all_logged =
        async || logged("decision").len() >= 7 && logged("request rejected").len() >= 3;
    eventually("everything is logged", TIMEOUT, all_logged).await;
    let decisions: Vec<String> = logged("decision")
        .iter()
        .map(|one| {
            let of = |name: &str| one[name].as_str().expect(name).to_owned();
            let shadow = if one["shadow"] == true { " shadow" } else { "" };
            [of("api"), of("request"), of("rule") + shadow, of("reason")].join(" ")
        })
        .collect();
    assert_eq!(
        decisions,
        [
            "grpc allowed pay WITHIN_LIMIT",
            "grpc allowed trial shadow WITHIN_LIMIT",
            "grpc denied pay OVER_LIMIT",
            "grpc denied trial shadow OVER_LIMIT",
            "grpc allowed default WITHIN_LIMIT",
            "http allowed default WITHIN_LIMIT",
            "envoy allowed shop.k WITHIN_LIMIT",
        ]
    );
    assert_eq!(logged("decision")[2]["retry_after_seconds"], 60);
    assert_eq!(logged("decision")[0]["remaining"], 0);
    let rejected: Vec<_> = logged("request rejected")
        .iter()
        .map(|one| {
            ["api", "field", "problem"].map(|name| one[name].as_str().expect(name).to_owned())
        })
        .collect();
    assert_eq!(rejected[0][..2], ["grpc", "user_id"]);
    assert!(rejected[0][2].contains("1 to 1024 bytes"), "{rejected:?}");
    assert_eq!(rejected[1], ["http", "body", "unknown field"]);
    assert_eq!(rejected[2][..2], ["envoy", "domain"]);
    assert!(!server.log().contains("s3cret"), "{}", server.log());
    assert!(!silent.log().contains("decision"), "{}", silent.log());
}

#[tokio::test]
async fn text_log_quotes_values_with_spaces() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start(&["store.backend=redis", &url]);
    let logged = async || server.log().contains("redis connection failed");
    eventually("the outage is logged", TIMEOUT, logged).await;
    // After the message each word is a field or part of a quoted value.
    let log = server.log();
    let line = log.lines().find(|line| line.contains("redis connection failed")).expect("a line");
    let (_, fields) = line.split_once("redis connection failed ").expect("fields");
    let mut quoted = false;
    for word in fields.split(' ') {
        assert!(quoted || word.contains('='), "{line}");
        quoted ^= word.matches('"').count() % 2 == 1;
    }
    assert!(line.contains('"') && !quoted, "{line}");
}

#[test]
fn open_server_without_auth_logs_a_warning() {
    let open = "reachable from other machines without auth";
    let everywhere = ["server.listen=0.0.0.0:0", "server.http=[::]:0"];
    let token = format!("{{name: shop, sha256: '{}', roles: [check]}}", "0".repeat(64));
    let guarded = format!("auth: {{tokens: [{token}]}}");
    for (settings, auth, warnings) in
        [(&everywhere[..], "{}", 2), (&[], "{}", 0), (&everywhere[..], guarded.as_str(), 0)]
    {
        let dir = TempDir::new();
        let server = Rlaas::start_from(&dir.write("rlaas.yaml", auth), settings);
        let log = server.log();
        assert_eq!(log.matches(open).count(), warnings, "{log}");
        assert_eq!(log.contains("key=\"server.listen\" address=0.0.0.0:0"), warnings > 0, "{log}");
        let local = "administration=\"local callers only\"";
        assert_eq!(log.matches(local).count(), warnings, "{log}");
    }
}

#[test]
fn log_filter_comes_from_file_environment_or_command_line() {
    let effective = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = rlaas(&["config"]);
        command.args(arguments).envs(environment.iter().copied());
        let (code, out, error) = finish(command.output().expect("the program"));
        assert_eq!(code, 0, "{error}");
        out.lines().find(|line| line.contains(" log: ")).expect("a filter").trim().to_owned()
    };
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", "telemetry: {log: warn}\n").display().to_string();
    let from_file = ["--config", &file];
    assert_eq!(effective(&[], &[]), "log: info  # default");
    assert_eq!(effective(&from_file, &[("RUST_LOG", "")]), format!("log: warn  # {file}"));
    let rust_log = ("RUST_LOG", "debug");
    let by_rust_log = "log: debug  # environment variable RUST_LOG";
    assert_eq!(effective(&from_file, &[rust_log]), by_rust_log);
    let ours = ("RLAAS_TELEMETRY__LOG", "error");
    let by_ours = "log: error  # environment variable RLAAS_TELEMETRY__LOG";
    assert_eq!(effective(&from_file, &[rust_log, ours]), by_ours);
    let off = dir.write("off.yaml", "telemetry: {log: off}\n").display().to_string();
    assert_eq!(effective(&["--config", &off], &[]), format!("log: off  # {off}"));
    let set = ["--set", "telemetry.log=off"];
    assert_eq!(effective(&set, &[rust_log, ours]), "log: off  # command line");
}

#[test]
fn invalid_log_filter_or_format_is_rejected() {
    for (setting, valid) in [
        ("telemetry.log=inof", "telemetry.log: must be off, error, warn, info, debug or trace"),
        ("telemetry.format=xml", "telemetry.format: must be text or json"),
    ] {
        let (code, _, error) = run(&["serve", "--set", setting]);
        assert_eq!(code, 64);
        assert!(error.contains(valid), "{error}");
    }
}
