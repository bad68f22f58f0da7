//! Changes whose callers go away before the answer: they end, and so does their audit.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::audit_entry::State;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;
use tokio::net::TcpStream;
use tonic::{Code, Request};

use super::audit::newest;
use super::{AdminClient, admin, inspect, of_user, refund};

const SOON: Duration = Duration::from_secs(20);

/// Starts a server, takes 3 units of alice, and waits for the report of its counts: until the next
/// one, ten seconds later, all that Redis holds back is of the test.
async fn server_on(redis: &RedisServer) -> Rlaas {
    let server = Rlaas::on_redis(redis, &[]);
    let mut client = server.client().await;
    for _ in 0..3 {
        check(&mut client, "alice").await.expect("a decision");
    }
    let has_reported = async || redis.query::<u64>(&["EXISTS", "rlaas:fleet"]) == 1;
    eventually("the counts are reported", SOON, has_reported).await;
    server
}

/// Holds back scripts until [`unpause`].
fn pause(redis: &RedisServer) {
    redis.query::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]);
}

fn unpause(redis: &RedisServer) {
    redis.query::<()>(&["CLIENT", "UNPAUSE"]);
}

/// Begins a refund under the id `id`, waits until Redis holds it back, and cancels it.
async fn cancelled_refund(redis: &RedisServer, admin: &AdminClient) {
    let mut admin = admin.clone();
    let call = tokio::spawn(async move { refund(&mut admin, of_user("alice"), 1, "id").await });
    let is_held =
        async || !redis.query::<String>(&["INFO", "clients"]).contains("blocked_clients:0");
    eventually("redis holds the change back", SOON, is_held).await;
    call.abort();
    assert!(call.await.expect_err("no answer").is_cancelled());
}

/// Retries a refund until the first call has ended.
async fn retried_refund(admin: &mut AdminClient, id: &str) -> proto::Change {
    loop {
        match refund(admin, of_user("alice"), 1, id).await {
            Ok(change) => return change,
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
    }
}

#[tokio::test]
async fn a_change_ends_although_its_call_is_cancelled() {
    let redis = RedisServer::start();
    let server = server_on(&redis).await;
    let mut admin = admin(&server).await;
    pause(&redis);
    cancelled_refund(&redis, &admin).await;
    unpause(&redis);
    let change = retried_refund(&mut admin, "id").await;
    assert!(change.replayed, "the retry gets the answer to the first call");
    assert_eq!((change.before[0].used, change.after[0].used), (3, 2));
    let entries = newest(&mut admin).await;
    assert_eq!(entries.iter().map(proto::AuditEntry::state).collect::<Vec<_>>(), [State::Done]);

    // A change that has not begun by the caller's deadline is made by the retry.
    pause(&redis);
    let mut hurried = Request::new(proto::RefundRequest {
        selector: of_user("alice"),
        units: 1,
        reason: "a test".to_owned(),
        request_id: "hurried".to_owned(),
    });
    hurried.set_timeout(Duration::from_millis(50));
    let status = admin.refund(hurried).await.expect_err("no answer in time");
    // The client's own timer may be the first.
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&status.code()), "{status:?}");
    unpause(&redis);
    let change = retried_refund(&mut admin, "hurried").await;
    assert_eq!((change.before[0].used, change.after[0].used), (2, 1));
    let found = inspect(&mut admin, of_user("alice")).await.expect("a state");
    assert_eq!(found[0].used, 1);
}

#[tokio::test]
async fn the_drain_waits_for_changes_without_a_caller() {
    let redis = RedisServer::start();
    let mut server = server_on(&redis).await;
    let client = admin(&server).await;
    pause(&redis);
    cancelled_refund(&redis, &client).await;
    drop(client);
    server.signal("TERM");
    let is_closed = async || TcpStream::connect(server.grpc()).await.is_err();
    eventually("no connection is accepted", SOON, is_closed).await;
    assert!(!server.has_ended(), "{}", server.log());
    unpause(&redis);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert!(!server.log().contains("drain timed out"), "{}", server.log());

    let other = Rlaas::on_redis(&redis, &[]);
    let mut admin = admin(&other).await;
    let entries = newest(&mut admin).await;
    assert_eq!(entries.iter().map(proto::AuditEntry::state).collect::<Vec<_>>(), [State::Done]);
    let change = refund(&mut admin, of_user("alice"), 1, "id").await.expect("the answer");
    assert!(change.replayed, "{change:?}");
}
