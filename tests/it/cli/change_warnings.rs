//! Warnings of changes that may be lost, as the commands and HTTP show them.

use std::time::Duration;

use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, run};
use rlaas_testkit::redis::RedisServer;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_secs(20);
const REASON: [&str; 2] = ["--reason", "a test"];

/// Runs a change as text and as JSON, and returns the standard error of the first, and the member
/// `warning` of the second.
fn warnings_of(server: &Rlaas, command: &[&str]) -> (String, Option<String>) {
    let command = [command, &REASON, &["--addr", server.grpc()]].concat();
    let (code, out, error) = run(&command);
    assert!(code == 0 && out.starts_with("RULE"), "{command:?}: {out}{error}");
    assert!(!out.contains("warning"), "{out}");
    // The second time there may be nothing to change.
    let again = if command[1] == "set" { &["--json"][..] } else { &["--json", "--missing-ok"] };
    let (code, out, none) = run(&[&command[..], again].concat());
    assert_eq!((code, &*none), (0, ""), "{command:?}");
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert!(json["change"]["after"].is_array(), "{json}");
    (error, json.get("warning").map(|warning| warning.as_str().expect("text").to_owned()))
}

async fn post(server: &Rlaas, method: &str, body: &str) -> String {
    let request = format!(
        "POST /v1/admin/keys:{method} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(server.http()).await.expect("a running server");
    connection.write_all(request.as_bytes()).await.expect("a server that reads the request");
    let mut response = String::new();
    connection.read_to_string(&mut response).await.expect("a response");
    response
}

#[tokio::test]
async fn overrides_that_redis_may_evict_are_told_in_every_face() {
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = RedisServer::start_with(&evicting);
    let server = Rlaas::on_redis(&redis, &["rate-limiter.overridable=true"]);
    let is_known = async || server.metric("rlaas_redis_may_evict").await == Some(1.0);
    eventually("the policy is known", SOON, is_known).await;
    let grant = ["override", "set", "alice", "--limit", "9", "--for", "1h"];
    for command in [&["ban", "alice", "--for", "1h"][..], &grant] {
        let (error, member) = warnings_of(&server, command);
        let member = member.expect("a warning");
        assert!(member.starts_with("redis may evict keys"), "{member}");
        assert_eq!(error, format!("rlaas: warning: {member}\n"));
    }
    // Changes that leave nothing behind have none.
    for command in [
        &["unban", "alice", "--rule", "default"][..],
        &["override", "clear", "alice"],
        &["reset", "alice"],
    ] {
        assert_eq!(warnings_of(&server, command), (String::new(), None), "{command:?}");
    }
    let body = r#"{"selector": {"request": {"userId": "alice"}}, "reason": "a test",
        "grant": {"banned": true}, "ttl": "60s"}"#;
    let response = post(&server, "override", body).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\r\nrlaas-warning: redis may evict keys"), "{response}");
}

#[tokio::test]
async fn overrides_that_a_restart_of_redis_loses_are_told_in_every_face() {
    let log = "redis loses counts, overrides and bans when it restarts";
    let told = "redis loses the override when it restarts: set appendonly yes";
    let ban = ["ban", "alice", "--for", "1h"];
    for (save, expected) in [("", Some(told)), ("3600 1", None)] {
        let redis = RedisServer::start_with(&["--save", save]);
        let server = Rlaas::on_redis(&redis, &["rate-limiter.overridable=true"]);
        let is_up = async || server.log().contains("redis connected");
        eventually("redis is connected", SOON, is_up).await;
        assert_eq!(server.log().contains(log), expected.is_some(), "{}", server.log());
        let (error, member) = warnings_of(&server, &ban);
        assert_eq!(member.as_deref(), expected);
        let line = member.map(|member| format!("rlaas: warning: {member}\n"));
        assert_eq!(error, line.unwrap_or_default());
        assert_eq!(
            warnings_of(&server, &["unban", "alice", "--rule", "default"]),
            (String::new(), None)
        );
    }
}
