//! Client connections: age, keepalive, and the calls on connections that end.

use std::time::Duration;

use rlaas_proto::ratelimit::v1::CheckRequest;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::load::{Load, WIDE, WINDOW};
use rlaas_testkit::eventually;
use rlaas_testkit::http2::{ACK, Frame, GOAWAY, PING, RawHttp2};
use rlaas_testkit::process::{Rlaas, check, request};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn connection_renewal_under_load_fails_no_call() {
    let server = Rlaas::start(&["server.max-connection-age=1s", WIDE, WINDOW]);
    let load = Load::start(&server, 8).await;
    let opened = async || server.metric_sum("rlaas_connections_total", &["api=\"grpc\""]).await;
    eventually("connections were renewed several times", SOON, async || opened().await >= 5 * 8)
        .await;
    assert_eq!(load.unavailable(), 0);
    let tally = load.finish().await;
    assert!(tally.calls() > 100, "{}", tally.calls());
    let open = async || server.metric_sum("rlaas_open_connections", &["api=\"grpc\""]).await;
    eventually("all connections are closed", SOON, async || open().await == 0).await;
}

#[tokio::test]
async fn aged_connection_receives_goaway_and_closes_when_idle() {
    let server = Rlaas::start(&["server.max-connection-age=1s"]);
    let mut connection = RawHttp2::connect(server.grpc(), &[]).await;
    // The first GOAWAY announces the end and still accepts every stream.
    let first = connection.next_of(GOAWAY).await.expect("GOAWAY");
    assert_eq!(first.payload[..8], [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    let mut last = first;
    while last.payload[..4] == [0x7f, 0xff, 0xff, 0xff] {
        last = connection.next_of(GOAWAY).await.expect("a GOAWAY with the last stream");
    }
    assert_eq!(last.payload[..8], [0; 8]);
    connection.closed().await;
}

#[tokio::test]
async fn stream_on_an_aged_connection_ends_after_the_grace_period() {
    let ages = ["server.max-connection-age=1s", "server.max-connection-age-grace=500ms"];
    let server = Rlaas::start(&ages);
    let (sender, requests) = mpsc::channel(1);
    let mut client = server.client().await;
    let stream = client.check_stream(ReceiverStream::new(requests)).await;
    let mut answers = stream.expect("a stream").into_inner();
    let mut answered = 0;
    let end = loop {
        // Sending fails once the server has ended the stream.
        let _ended = sender.send(request("alice")).await;
        match answers.next().await.expect("a status at the end") {
            Ok(_) => answered += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "connection closing"));
    assert!(answered > 10, "the stream ended early, after {answered} answers");
    // The client reconnects.
    check(&mut client, "bob").await.expect("an answer");
}

#[tokio::test]
async fn client_that_ignores_pings_is_disconnected() {
    let server = Rlaas::start(&["server.keepalive.interval=1s", "server.keepalive.timeout=1s"]);
    let mut dead = RawHttp2::connect(server.grpc(), &[]).await;
    let mut alive = RawHttp2::connect(server.grpc(), &[]).await;
    for _ in 0..3 {
        let ping = alive.next_of(PING).await.expect("an open connection");
        alive.send(&Frame::new(PING, ACK, 0, ping.payload)).await.expect("an open connection");
    }
    dead.closed().await;
}

#[tokio::test]
async fn max_connection_age_accepts_never() {
    let server = Rlaas::start(&["server.max-connection-age=never"]);
    let request = CheckRequest { cost: Some(0), ..request("alice") };
    server.client().await.check(request).await.expect("an answer");
}
