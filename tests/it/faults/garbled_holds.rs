//! Foreign values in the companions of a key, which have its holds: the calls for that key fail, and no
//! others.

use rlaas_limiter::clock::Micros;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CommitRequest, ReserveRequest};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, connect, request};
use rlaas_testkit::redis::{RedisServer, command};
use rlaas_testkit::service::T0;
use tonic::{Code, Status};

use super::load::breaker;

const RULES: &str = "rules:\n  - {name: tokens, algorithm: token-bucket, limit: 100, window: 366d, \
                     reservable: true, hold: 1m}\n";

/// Holds 10 units. Returns the id.
async fn reserve(server: &Rlaas, user: &str) -> Result<String, Status> {
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let wanted = CheckRequest { cost: Some(10), ..request(user) };
    let wanted = ReserveRequest { request: Some(wanted), ttl: None };
    client.reserve(wanted).await.map(|reserved| reserved.into_inner().reservation_id)
}

/// Commits no units. Returns what was returned.
async fn commit(server: &Rlaas, id: &str) -> Result<u64, Status> {
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let reservation_id = id.to_owned();
    let wanted = CommitRequest { reservation_id, actual: Some(0), ..CommitRequest::default() };
    let settled = client.commit(wanted).await?.into_inner();
    Ok(settled.settlements[0].returned)
}

/// Looks for a cost. Returns what is left.
async fn left(server: &Rlaas, user: &str, cost: u64) -> Result<i64, Status> {
    let look = CheckRequest { cost: Some(cost), dry_run: true, ..request(user) };
    server.client().await.check(look).await.map(|looked| looked.get_ref().remaining)
}

fn key_with(redis: &RedisServer, part: &str) -> String {
    redis.keys().into_iter().find(|key| key.contains(part)).expect("a key")
}

/// Nobody else pays for it.
async fn assert_others_pass(server: &Rlaas, what: &str) {
    assert_eq!(left(server, "bob", 0).await.expect("another key"), 100, "{what}");
    assert_eq!(breaker(server).await, 0, "{what}");
}

/// Calls for alice fail, and for nobody else.
async fn assert_garbled(server: &Rlaas, id: &str, what: &str) {
    for _ in 0..10 {
        let failed = left(server, "alice", 0).await.expect_err(what);
        assert_eq!(failed.code(), Code::Unavailable, "{what}");
    }
    assert_others_pass(server, what).await;
    for _ in 0..5 {
        reserve(server, "alice").await.expect_err(what);
        commit(server, id).await.expect_err(what);
    }
    assert_others_pass(server, what).await;
}

#[tokio::test]
async fn garbled_numbers_fail_the_calls_of_their_key_alone() {
    let dir = TempDir::new();
    let redis = RedisServer::start();
    redis.set_clock(T0);
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings);
    let held = reserve(&server, "alice").await.expect("a reservation");
    let key = |suffix: &str| redis.keys().into_iter().find(|key| key.ends_with(suffix));
    let (ends, units) = (key("%holds").expect("a key"), key("%held").expect("a key"));
    let number: Vec<Vec<u8>> = redis.query(&["ZRANGE", &ends, "0", "-1"]);
    let set = |field: &[u8], value: &str| {
        let mut set = command(&["HSET", &units]);
        set.arg(field).arg(value).query::<()>(&mut redis.connect()).expect("a reply");
    };
    for foreign in ["nan", "1e300", "inf", "-1", "0.5", "1e16", "abc", ""] {
        set(b"sum", foreign);
        assert_garbled(&server, &held, &format!("sum {foreign:?}")).await;
        set(b"sum", "10");
        assert_eq!(left(&server, "alice", 0).await.expect("a decision"), 90);
    }
    redis.query::<()>(&["RENAME", &units, "kept"]);
    redis.query::<()>(&["LPUSH", &units, "x"]);
    assert_garbled(&server, &held, "a list").await;
    redis.query::<()>(&["RENAME", "kept", &units]);
    // The next end matters to those who are denied, units of a hold to those who settle it.
    let next = format!("{}.5", T0.as_micros());
    redis.query::<()>(&["ZADD", &ends, &next, "foreign"]);
    for _ in 0..10 {
        left(&server, "alice", 95).await.expect_err("no end");
    }
    assert_others_pass(&server, "no end").await;
    let beside = reserve(&server, "alice").await.expect("a reservation beside it");
    assert_eq!(commit(&server, &beside).await.expect("a settlement"), 10);
    redis.query::<()>(&["ZREM", &ends, "foreign"]);
    let settlement = key_with(&redis, ":reservation:");
    for foreign in ["abc", "\u{94}\u{1}", ""] {
        redis.query::<()>(&["SET", &settlement, foreign]);
        for _ in 0..10 {
            commit(&server, &beside).await.expect_err("a garbled settlement");
        }
        assert_others_pass(&server, foreign).await;
    }
    redis.query::<()>(&["DEL", &settlement]);
    set(&number[0], "nan");
    for _ in 0..10 {
        commit(&server, &held).await.expect_err("garbled units");
    }
    assert_others_pass(&server, "units").await;

    // With its last hold all of it ends, and is replaced.
    redis.set_clock(T0 + Micros::from_secs(61));
    assert_eq!(left(&server, "alice", 0).await.expect("a decision"), 100);
    for foreign in [&["SET", "x"][..], &["HSET", "sum", "nan"], &["LPUSH", "x"]] {
        for key in [&ends, &units] {
            redis.query::<()>(&["DEL", key]);
            redis.query::<()>(&[&[foreign[0], key], &foreign[1..]].concat());
        }
        let held = reserve(&server, "alice").await.expect("a reservation");
        assert_eq!(left(&server, "alice", 0).await.expect("a decision"), 90, "{foreign:?}");
        assert_eq!(commit(&server, &held).await.expect("a settlement"), 10, "{foreign:?}");
    }
    assert_others_pass(&server, "all").await;
}
