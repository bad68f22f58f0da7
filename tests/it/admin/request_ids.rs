//! Request ids of changes: how long they are remembered, and how many.

use std::path::PathBuf;
use std::time::Duration;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;
use tonic_types::StatusExt;

use super::{admin, of_user, refund};

const SOON: Duration = Duration::from_secs(20);

fn write(dir: &TempDir, ttl: &str) -> PathBuf {
    dir.write("rlaas.yaml", &format!("idempotency: {{ttl: {ttl}}}\n"))
}

#[tokio::test]
async fn ids_of_changes_are_remembered_for_the_configured_time() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&write(&dir, "1s"), &settings);
    let mut admin = admin(&server).await;
    let refund_again = async || refund(&mut admin.clone(), of_user("a"), 1, "id").await;
    assert!(!refund_again().await.expect("a change").replayed);
    let is_forgotten = async || !refund_again().await.expect("an answer").replayed;
    let took = eventually("the id is forgotten", SOON, is_forgotten).await;
    assert!(took >= Duration::from_millis(500), "forgotten after {took:?}");

    write(&dir, "1h");
    server.signal("HUP");
    let mut number = 0;
    let follows = async || {
        number += 1;
        refund(&mut admin, of_user("a"), 1, &number.to_string()).await.expect("a change");
        redis.query::<i64>(&["PTTL", "rlaas:changes"]) > 3_000_000
    };
    eventually("the reloaded time is used", SOON, follows).await;
    assert!(redis.query::<i64>(&["PTTL", "rlaas:changes"]) <= 3_600_000);
}

#[tokio::test]
async fn ids_of_changes_are_bounded_and_changes_without_one_go_on() {
    let server = Rlaas::start(&["idempotency.ttl=1d"]);
    let mut admin = admin(&server).await;
    for number in 0..1024 {
        refund(&mut admin, of_user("a"), 1, &number.to_string()).await.expect("a change");
    }
    let status = refund(&mut admin, of_user("a"), 1, "1024").await.expect_err("no space");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, "TOO_MANY_REQUEST_IDS");
    assert!(status.message().contains("idempotency.ttl"), "{status:?}");
    // Known ids are still answered, and changes without an id are made.
    assert!(refund(&mut admin, of_user("a"), 1, "7").await.expect("the answer").replayed);
    super::reset(&mut admin, of_user("a"), "").await.expect("a change");
}

#[tokio::test]
async fn calls_at_once_under_one_id_make_one_change() {
    let server = Rlaas::start(&[]);
    let admin = admin(&server).await;
    for round in 0..20 {
        let id = format!("twice {round}");
        let call = async || refund(&mut admin.clone(), of_user("a"), 1, &id).await;
        let calls = tokio::join!(call(), call(), call());
        let changes = [calls.0, calls.1, calls.2].map(|change| change.expect("a change"));
        assert_eq!(changes.iter().filter(|change| !change.replayed).count(), 1, "{changes:?}");
    }
}
