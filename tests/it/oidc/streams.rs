//! Streams end with the token that opened them.

use rlaas_proto::ratelimit::admin::v1::WatchDecisionsRequest;
use rlaas_proto::ratelimit::v1::CheckResult;
use rlaas_testkit::process::request;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use super::issuer::IssuerProcess;
use super::signing::{SigningKey, claims, now, with};
use super::{LISTED, TIMEOUT, admin, code, keys, serve, with_token};
use rlaas_testkit::process::Rlaas;

type Requests = mpsc::Sender<rlaas_proto::ratelimit::v1::CheckRequest>;

/// Opens a stream of requests, and makes the first.
async fn check_stream(server: &Rlaas, token: &str) -> (Requests, Streaming<CheckResult>) {
    let (requests, sent) = mpsc::channel(8);
    let mut client = server.client().await;
    let stream = client.check_stream(with_token(ReceiverStream::new(sent), token)).await;
    let mut results = stream.expect("a stream").into_inner();
    requests.send(request("alice")).await.expect("an open stream");
    results.message().await.expect("a result").expect("a result");
    (requests, results)
}

/// Asserts that a stream ends, because its token has.
async fn assert_ends<T>(stream: &mut Streaming<T>) {
    let ended = async {
        loop {
            match stream.message().await {
                Ok(message) => assert!(message.is_some(), "ended without a status"),
                Err(status) => return status,
            }
        }
    };
    let status = timeout(TIMEOUT, ended).await.expect("the end of the stream");
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unauthenticated, "credentials are no longer valid")
    );
}

#[tokio::test]
async fn streams_end_when_their_token_expires() {
    let key = SigningKey::new("ed");
    let Some(issuer) = IssuerProcess::start(0, &keys(&key)) else { return };
    let server = serve(issuer.name(), "");
    assert_eq!(code(&server, &key.token(&claims(issuer.name()))).await, Code::Ok);
    let expires = now() + 3;
    let token = key.token(&with(issuer.name(), "exp", json!(expires)));
    let (_requests, mut results) = check_stream(&server, &token).await;
    let (listed_requests, mut listed) = check_stream(&server, LISTED).await;
    let mut client = admin(&server).await;
    let watch = with_token(WatchDecisionsRequest::default(), &token);
    let mut events = client.watch_decisions(watch).await.expect("a stream").into_inner();
    let mut event_stream = TcpStream::connect(server.http()).await.expect("a connection");
    let get = format!(
        "GET /v1/admin/decisions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\n\r\n"
    );
    tokio::io::AsyncWriteExt::write_all(&mut event_stream, get.as_bytes())
        .await
        .expect("a request");
    assert_ends(&mut results).await;
    assert!((expires..expires + 10).contains(&now()), "{} {expires}", now());
    assert_ends(&mut events).await;
    let mut received = String::new();
    let ended = timeout(TIMEOUT, event_stream.read_to_string(&mut received)).await;
    ended.expect("the end of the stream").expect("text");
    assert!(received.starts_with("HTTP/1.1 200 OK"), "{received}");
    assert_eq!(code(&server, &token).await, Code::Unauthenticated);
    // A listed token has no end.
    listed_requests.send(request("bob")).await.expect("an open stream");
    listed.message().await.expect("a result").expect("a result");
}

#[tokio::test]
async fn busy_stream_ends_when_the_key_leaves_the_key_set() {
    let [old, new] = ["old", "new"].map(SigningKey::new);
    let Some(issuer) = IssuerProcess::start(0, &keys(&old)) else { return };
    let name = issuer.name().to_owned();
    let server = serve(&name, "");
    let (requests, mut results) = check_stream(&server, &old.token(&claims(&name))).await;
    let port = issuer.stop();
    let _issuer = IssuerProcess::start(port, &keys(&new)).expect("the same issuer");
    assert_eq!(code(&server, &new.token(&claims(&name))).await, Code::Ok);
    let sending = tokio::spawn(async move { while requests.send(request("a")).await.is_ok() {} });
    assert_ends(&mut results).await;
    sending.await.expect("the requests end with their stream");
}
