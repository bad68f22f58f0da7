//! `WatchDecisions`: decisions of all protocols as they are made.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest};
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::{TempDir, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::{Code, Streaming};

use super::top_keys::{get, with_token, with_tokens};
use super::{AdminClient, admin};
use crate::envoy::client as envoy;

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
rules:
  - {name: pay, endpoint: /pay, limit: 5, window: 1h, near-limit: 0.8}
  - {name: trial, endpoint: /pay, limit: 1, window: 1h, shadow: true}
";
const ENVOY: &str = "\
domain: shop
descriptors: [{key: ip, rate_limit: {unit: hour, requests_per_unit: 1}}]
";

type Events = Streaming<proto::WatchDecisionsResponse>;

fn all() -> proto::WatchDecisionsRequest {
    proto::WatchDecisionsRequest::default()
}

async fn watch(client: &mut AdminClient, request: proto::WatchDecisionsRequest) -> Events {
    client.watch_decisions(request).await.expect("a stream").into_inner()
}

/// Returns the next `count` events, which must be all that come.
async fn next(events: &mut Events, count: usize) -> Vec<proto::DecisionEvent> {
    let mut found: Vec<proto::DecisionEvent> = Vec::new();
    while found.len() < count {
        let response = timeout(TIMEOUT, events.message()).await;
        let response = response.unwrap_or_else(|_elapsed| panic!("only {found:#?}"));
        let response = response.expect("an event").expect("no end");
        assert_eq!(response.dropped, 0);
        found.extend(response.events);
    }
    assert_eq!(found.len(), count, "{found:?}");
    found
}

fn pay(user: &str) -> CheckRequest {
    CheckRequest { resource: "/pay".to_owned(), ..request(user) }
}

fn serve(dir: &TempDir, rules: &str) -> Rlaas {
    let file = dir.write("envoy.yaml", ENVOY);
    let envoy = format!("envoy.files={}", file.display());
    Rlaas::start_from(&dir.write("rlaas.yaml", rules), &[&envoy])
}

#[tokio::test]
async fn decisions_of_all_protocols_are_sent() {
    let dir = TempDir::new();
    let server = serve(&dir, RULES);
    let mut client = admin(&server).await;
    let mut events = watch(&mut client, all()).await;
    let mut checks = server.client().await;
    checks.check(pay("alice")).await.expect("a decision");
    let requests = vec![pay("bob"), CheckRequest { cost: Some(3), ..pay("bob") }];
    checks
        .check_batch(CheckBatchRequest { requests, ..Default::default() })
        .await
        .expect("decisions");
    let stream = tokio_stream::iter([request("carol")]);
    let mut streamed = checks.check_stream(stream).await.expect("a stream").into_inner();
    streamed.message().await.expect("a decision");
    server.post("/v1/check", r#"{"userId": "dave", "resource": "/pay"}"#).await;
    server.get("/check?userId=erin").await;
    let mut calls = envoy::client(&server).await;
    envoy::check(&mut calls, "shop: ip=10.0.0.1").await;
    envoy::check(&mut calls, "shop: other=1").await;
    let mut events = next(&mut events, 8).await;
    // Threads have an order of their own.
    events.sort_by_key(key);
    let seen: Vec<String> = events.iter().map(summary).collect();
    assert_eq!(
        seen,
        [
            "envoy ShouldRateLimit - cost 0: allowed by ",
            "envoy ShouldRateLimit ip=10.0.0.1 cost 1: allowed by shop.ip",
            "grpc Check user_id=alice cost 1: allowed by pay",
            "grpc CheckBatch user_id=bob cost 1: allowed by pay",
            "grpc CheckBatch user_id=bob cost 3: allowed by pay",
            "grpc CheckStream user_id=carol cost 1: allowed by default",
            "http Check user_id=dave cost 1: allowed by pay",
            "http Check user_id=erin cost 1: allowed by default",
        ]
    );
    let of_envoy = events.swap_remove(1);
    assert_eq!(of_envoy.key.expect("a key").id, "ip:10.0.0.1");
    let now = std::time::UNIX_EPOCH.elapsed().expect("a time after 1970");
    let decided_at = of_envoy.decided_at.expect("a time").seconds.unsigned_abs();
    assert!(now.as_secs() - decided_at < 60, "{decided_at}");
}

fn key(event: &proto::DecisionEvent) -> (Option<String>, u64) {
    (event.key.as_ref().map(|key| key.parts[0].value.clone().unwrap_or_default()), event.cost)
}

fn summary(event: &proto::DecisionEvent) -> String {
    let verdict = event.verdict.as_ref().expect("a verdict");
    let part =
        |part: &proto::KeyPart| format!("{}={}", part.name, part.value.as_ref().expect("a value"));
    let key = event.key.as_ref().map_or("-".to_owned(), |key| part(&key.parts[0]));
    let outcome = if verdict.allowed { "allowed" } else { "denied" };
    format!(
        "{} {} {key} cost {}: {outcome} by {}",
        event.api, event.method, event.cost, verdict.rule
    )
}

#[tokio::test]
async fn filter_selects_by_rule_outcome_user_and_sample() {
    use proto::Outcome::{Allowed, Denied, NearLimit, ShadowDenied};

    let dir = TempDir::new();
    let server = serve(&dir, RULES);
    let mut client = admin(&server).await;
    let with = |rule: &str, outcomes: &[proto::Outcome], user_id: &str| {
        let outcomes = outcomes.iter().map(|outcome| i32::from(*outcome)).collect();
        let (rule, user_id) = (rule.to_owned(), user_id.to_owned());
        proto::WatchDecisionsRequest { rule, outcomes, user_id, ..all() }
    };
    let mut near = watch(&mut client, with("pay", &[NearLimit, Denied], "")).await;
    let mut shadow = watch(&mut client, with("", &[ShadowDenied], "alice")).await;
    let mut other = watch(&mut client, with("default", &[Allowed], "")).await;
    let half = proto::WatchDecisionsRequest { sample_ppm: 500_000, ..with("pay", &[], "bulk") };
    let mut half = watch(&mut client, half).await;
    let mut checks = server.client().await;
    for _ in 0..6 {
        checks.check(pay("alice")).await.expect("a decision");
        checks.check(pay("bob")).await.expect("a decision");
    }
    check(&mut checks, "carol").await.expect("a decision");
    // 4 and 5 of 5 are near the limit, the sixth is denied.
    let near = next(&mut near, 6).await;
    let allowed = near
        .iter()
        .filter(|event| event.verdict.as_ref().is_some_and(|v| v.near_limit && v.allowed));
    assert_eq!(allowed.count(), 4);
    assert_eq!(next(&mut shadow, 5).await[0].key.as_ref().expect("a key").id, "alice");
    assert_eq!(next(&mut other, 1).await[0].verdict.as_ref().expect("a verdict").rule, "default");
    for _ in 0..200 {
        checks.check(pay("bulk")).await.expect("a decision");
    }
    checks.check(pay("end")).await.expect("a decision");
    let mut sampled = 0;
    while let Ok(Ok(Some(response))) = timeout(Duration::from_secs(1), half.message()).await {
        sampled += response.events.len();
    }
    assert!((70..=130).contains(&sampled), "{sampled} of 200");
}

#[tokio::test]
async fn ninth_watcher_waits_for_a_place() {
    let server = Rlaas::start(&[]);
    let mut client = admin(&server).await;
    let mut watching = Vec::new();
    for _ in 0..8 {
        watching.push(watch(&mut client, all()).await);
    }
    let refused = client.watch_decisions(all()).await.expect_err("no place");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let (status, problem) = get(&server, "/v1/admin/decisions").await;
    assert!(status == 503 && problem.contains("8 callers watch already"), "{problem}");
    watching.pop();
    eventually("a place is free", TIMEOUT, async || {
        client.clone().watch_decisions(all()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn slow_watcher_is_told_what_it_missed() {
    const CALLS: u64 = 30_000;
    let server = Rlaas::start(&[]);
    let mut client = admin(&server).await;
    let mut events = watch(&mut client, all()).await;
    // The stream is not read: the flow control of HTTP/2 stops the stream, then the buffer is full.
    let mut checks = server.client().await;
    for _ in 0..CALLS / 1_000 {
        let requests = vec![CheckRequest { cost: Some(0), ..request(&"u".repeat(400)) }; 1_000];
        checks
            .check_batch(CheckBatchRequest { requests, ..Default::default() })
            .await
            .expect("decisions");
    }
    let (mut sent, mut dropped) = (0, 0);
    while sent + dropped < CALLS {
        let response = timeout(TIMEOUT, events.message()).await.expect("a response in time");
        let response = response.expect("a response").expect("no end");
        assert!(response.events.len() <= 1_024);
        sent += response.events.len() as u64;
        dropped += response.dropped;
    }
    assert!(sent + dropped == CALLS && dropped > 0, "{sent} sent, {dropped} dropped");
}

#[tokio::test]
async fn drain_ends_the_stream() {
    let server = Rlaas::start(&[]);
    let mut client = admin(&server).await;
    let mut events = watch(&mut client, all()).await;
    server.signal("TERM");
    let ended = timeout(TIMEOUT, events.message()).await.expect("an end in time");
    assert_eq!(ended.expect_err("an end").code(), Code::Unavailable);
}

#[tokio::test]
async fn admin_alone_sees_hashed_keys() {
    let dir = TempDir::new();
    let server = serve(&dir, &with_tokens(RULES));
    let client = admin(&server).await;
    let watch = async |token: &str| {
        let started = client.clone().watch_decisions(with_token(all(), token)).await;
        started.map(tonic::Response::into_inner)
    };
    let mut operator = watch("operator").await.expect("a stream");
    let mut administrator = watch("administrator").await.expect("a stream");
    let mut checks = server.client().await;
    checks.check(with_token(pay("alice"), "operator")).await.expect("a decision");
    let clear = next(&mut operator, 1).await.pop().and_then(|event| event.key).expect("a key");
    assert_eq!((clear.parts[0].value.as_deref(), &*clear.id), (Some("alice"), "alice"));
    let event = next(&mut administrator, 1).await;
    assert!(!format!("{event:?}").contains("alice"), "{event:?}");
    let key = event[0].key.as_ref().expect("a key");
    let value = key.parts[0].value.as_ref().expect("a value");
    assert!(value.starts_with('#') && value.len() == 27, "{value}");
    assert_eq!(watch("nobody").await.expect_err("no caller").code(), Code::Unauthenticated);
}

#[tokio::test]
async fn http_streams_events() {
    let server = Rlaas::start(&[]);
    let mut connection = TcpStream::connect(server.http()).await.expect("a connection");
    let get = format!(
        "GET /v1/admin/decisions?user_id=alice HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.http()
    );
    connection.write_all(get.as_bytes()).await.expect("a request");
    let mut received = String::new();
    let mut checks = server.client().await;
    let mut buffer = [0; 4_096];
    while !received.contains("\"method\":\"Check\"") {
        check(&mut checks, "alice").await.expect("a decision");
        check(&mut checks, "bob").await.expect("a decision");
        if let Ok(read) = timeout(Duration::from_millis(200), connection.read(&mut buffer)).await {
            let read = read.expect("bytes");
            assert!(read > 0, "the stream ended: {received}");
            received += std::str::from_utf8(&buffer[..read]).expect("UTF-8");
        }
    }
    assert!(received.contains("content-type: text/event-stream"), "{received}");
    assert!(
        received.contains("event: message\ndata: {") && !received.contains("bob"),
        "{received}"
    );
}
