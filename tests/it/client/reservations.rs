//! Reservations by the client, and by the tower layer in front of a service.

use std::time::Duration;

use rlaas::algorithm::Cost;
use rlaas::rules::Request;
use rlaas_client::tower::remote;
use rlaas_client::{CheckError, Client, OnNoAnswer};
use rlaas_limiter::Deadline;
use rlaas_limiter::tower::Reserve;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use tonic::Code;

use super::TIMEOUT;

const RULES: &str = "rules:\n  - {name: tokens, algorithm: token-bucket, limit: 100, window: 366d, \
                     reservable: true, hold: 1m}\n";

fn request(cost: u32) -> Request<'static> {
    Request::user("alice").cost(cost).build().expect("a valid request")
}

async fn served() -> (Rlaas, Client) {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let client = Client::builder(server.grpc()).timeout(TIMEOUT).connect().await;
    (server, client.expect("a server"))
}

async fn left(client: &Client) -> i64 {
    client.check(&request(0)).await.expect("an answer").decision().remaining
}

#[tokio::test]
async fn a_client_reserves_extends_and_settles() {
    let (server, client) = served().await;
    let reserve = async |cost| client.reserve(&request(cost), None, Deadline::NEVER).await;
    let (verdict, held) = reserve(60).await.expect("an answer");
    let mut held = held.expect("a reservation");
    assert_eq!((verdict.is_allowed(), left(&client).await), (true, 40));
    assert!(!held.id().is_empty());
    let before = held.expires_at().seconds;
    let verdict = held.extend(Cost::new(30), Some(Duration::from_secs(59))).await;
    assert!(verdict.expect("an answer").is_allowed());
    assert_eq!(left(&client).await, 10);
    assert!((before - 2..=before + 60).contains(&held.expires_at().seconds));
    let verdict = held.extend(Cost::new(11), None).await.expect("an answer");
    assert!(!verdict.is_allowed());
    // A denial by holds is not remembered.
    let (denied, none) = reserve(11).await.expect("an answer");
    assert!(!denied.is_allowed() && none.is_none());
    for _ in 0..2 {
        let settled = held.commit(Some(Cost::new(25))).await.expect("a settlement");
        assert_eq!((settled[0].charged, settled[0].returned), (25, 65));
    }
    let (_, other) = reserve(11).await.expect("an answer");
    let settled = other.expect("a reservation").cancel().await.expect("a settlement");
    assert_eq!((settled[0].charged, settled[0].returned, left(&client).await), (0, 11, 75));
    let refused = held.extend(Cost::ONE, None).await.expect_err("it was settled");
    assert!(matches!(&refused, CheckError::Rejected(status) if status.code() == Code::NotFound));
    // Without a server the policy decides, and settling fails.
    let (_, held) = reserve(1).await.expect("an answer");
    drop(server);
    let refused = held.expect("a reservation").commit(None).await.expect_err("no server");
    assert!(matches!(refused, CheckError::NoAnswer(_)), "{refused}");
    let lenient = Client::builder("unix:/nowhere").on_no_answer(OnNoAnswer::Allow);
    let lenient = lenient.connect_lazy().expect("a client");
    let (verdict, none) =
        lenient.reserve(&request(1), None, Deadline::NEVER).await.expect("the policy");
    assert!(verdict.is_allowed() && none.is_none());
}

#[tokio::test]
async fn the_layer_reserves_by_the_service() {
    let (_server, client) = served().await;
    let remote = remote(client.clone());
    let (verdict, held) = remote.reserve(&request(60), Deadline::NEVER).await.expect("an answer");
    assert_eq!((verdict.is_allowed(), left(&client).await), (true, 40));
    let (verdict, none) = remote.reserve(&request(60), Deadline::NEVER).await.expect("an answer");
    assert!(!verdict.is_allowed() && none.is_none());
    remote.settle(held.expect("a reservation"), Cost::new(3)).await.expect("a settlement");
    assert_eq!(left(&client).await, 97);
}
