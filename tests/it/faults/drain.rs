//! Shutdown: the drain, its bounds, and the end of the process.

use std::time::Duration;

use rlaas_proto::ratelimit::v1::GetConfigRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::load::wait_for_connections;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, request, signal};
use rlaas_testkit::redis::RedisServer;

const TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn drain_ends_despite_open_watches_and_silent_connections() {
    for name in ["TERM", "INT"] {
        let mut server = Rlaas::start(&[]);
        let mut health = HealthClient::new(server.channel().await);
        let watched = HealthCheckRequest::default();
        let mut watch = health.watch(watched).await.expect("a stream").into_inner();
        assert_eq!(watch.next().await.expect("a report").expect("a report").status, 1);
        let _silent = TcpStream::connect(server.grpc()).await.expect("a connection");

        server.signal(name);
        let report = watch.next().await.expect("a report").expect("a report");
        assert_eq!(report.status, 2, "NOT_SERVING is reported before the end");
        eventually("the process ends", TIMEOUT, async || server.has_ended()).await;
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    }
}

#[tokio::test]
async fn drain_finishes_requests_in_flight() {
    let redis = RedisServer::start();
    let mut server = Rlaas::on_redis(&redis, &[]);
    let client = server.client().await;
    check(&mut client.clone(), "warm").await.expect("an answer");
    signal(redis.pid(), "STOP");
    let mut calls = JoinSet::new();
    for user in 0..100 {
        let mut client = client.clone();
        calls.spawn(async move { check(&mut client, &user.to_string()).await });
    }
    // This call follows them on the same connection: once it is answered, they are in flight.
    tokio::task::yield_now().await;
    client.clone().get_config(GetConfigRequest::default()).await.expect("an answer");
    server.signal("TERM");
    eventually("the drain begins", TIMEOUT, async || server.log().contains("draining")).await;
    assert!(!server.has_ended());
    signal(redis.pid(), "CONT");
    for result in calls.join_all().await {
        assert!(result.expect("finished, not cut off").allowed);
    }
    drop(client);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

#[tokio::test]
async fn drain_ends_idle_streams_and_answers_half_closed_ones() {
    let redis = RedisServer::start();
    let mut server = Rlaas::on_redis(&redis, &[]);
    let mut client = server.client().await;
    let (sender, requests) = mpsc::channel(1);
    sender.send(request("alice")).await.expect("an open channel");
    let stream = client.check_stream(ReceiverStream::new(requests)).await;
    let mut idle = stream.expect("a stream").into_inner();
    idle.next().await.expect("an answer").expect("an answer");
    signal(redis.pid(), "STOP");
    let requests = (0..10).map(|user| request(&user.to_string()));
    let stream = client.check_stream(tokio_stream::iter(requests)).await;
    let mut half_closed = stream.expect("a stream").into_inner();
    // This call follows them on the same connection.
    client.get_config(GetConfigRequest::default()).await.expect("an answer");

    server.signal("TERM");
    let end = idle.next().await.expect("an end of the stream").expect_err("no answer");
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "connection closing"));
    signal(redis.pid(), "CONT");
    for _ in 0..10 {
        half_closed.next().await.expect("an answer").expect("an answer");
    }
    assert!(half_closed.next().await.is_none());
    eventually("the process ends", TIMEOUT, async || server.has_ended()).await;
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    drop(sender);
}

#[tokio::test]
async fn drain_finishes_http_requests_after_grpc_has_ended() {
    let redis = RedisServer::start();
    let mut server = Rlaas::on_redis(&redis, &["server.workers=1"]);
    wait_for_connections(&redis).await;
    let mut http = TcpStream::connect(server.http()).await.expect("a connection");
    signal(redis.pid(), "STOP");
    let request_bytes = b"POST /v1/check HTTP/1.1\r\nHost: rlaas\r\nConnection: close\r\n\
        Content-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"userId\":\"alice\"}";
    http.write_all(request_bytes).await.expect("a server");
    let request_arrived = async || {
        let open = server.metric("rlaas_open_connections{api=\"http\"}").await;
        // The other connection is that of this query.
        open == Some(2.0)
    };
    eventually("the request has arrived", TIMEOUT, request_arrived).await;
    server.signal("TERM");
    // No gRPC call is in flight, so that listener ends at once.
    let grpc_ended = async || TcpStream::connect(server.grpc()).await.is_err();
    eventually("the gRPC listener ends", TIMEOUT, grpc_ended).await;
    signal(redis.pid(), "CONT");
    let mut answer = String::new();
    http.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#""allowed":true"#), "{answer}");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

#[tokio::test]
async fn drain_is_bounded_by_its_timeout() {
    let mut server = Rlaas::start(&["server.drain.timeout=100ms"]);
    let mut half = TcpStream::connect(server.grpc()).await.expect("a connection");
    half.write_all(b"PRI * HTT").await.expect("an incomplete preface");
    let mut client = server.client().await;
    check(&mut client, "alice").await.expect("an answer");
    server.signal("TERM");
    eventually("the process ends", TIMEOUT, async || server.has_ended()).await;
    assert_eq!(server.wait().code(), Some(0));
    assert!(server.log().contains("server.drain.timeout"), "{}", server.log());
}

#[tokio::test]
async fn second_signal_ends_the_drain_at_once() {
    let mut server = Rlaas::start(&["server.drain.delay=1h"]);
    server.signal("TERM");
    eventually("the drain begins", TIMEOUT, async || server.log().contains("draining")).await;
    assert!(!server.has_ended());
    server.signal("TERM");
    eventually("the process ends", TIMEOUT, async || server.has_ended()).await;
    assert_eq!(server.wait().code(), Some(130));
}

#[tokio::test]
async fn silent_connections_do_not_block_new_ones() {
    let server = Rlaas::start(&[]);
    let mut silent = Vec::new();
    for _ in 0..1_100 {
        silent.push(TcpStream::connect(server.grpc()).await.expect("a connection"));
    }
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);
}
