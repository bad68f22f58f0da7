//! `ReservationService` over gRPC and HTTP, in memory and in Redis.

use std::collections::HashMap;

use prost_types::Duration;
use rlaas_proto::ratelimit::v1::check_response::Reason;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CancelRequest, CheckRequest, CheckResponse, CommitRequest, CommitResponse, ExtendRequest,
    ReportRequest, ReserveRequest, ReserveResponse, Settlement,
};
use rlaas_testkit::process::{Rlaas, connect, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::http::client::post;

pub(super) type ReservationClient = ReservationServiceClient<Channel>;

const RULES: &str = "\
rules:
  - {name: requests, endpoint: /llm, algorithm: gcra, limit: 100, window: 1d, cost: 1}
  - {name: tokens, endpoint: /llm, algorithm: token-bucket, limit: 1000, window: 1d, reservable: true,
     hold: 30s, max-holds: 3, overridable: true}
  - {name: money, endpoint: /llm, algorithm: fixed-window, limit: 5000, window: 366d, reservable: true,
     max-debt: 100}
  - {name: short, endpoint: /short, algorithm: gcra, limit: 10, window: 1d, reservable: true, hold: 100ms}
  - {name: plain, endpoint: /plain, limit: 10, window: 1h}
";

fn wanted(user: &str, cost: u64) -> CheckRequest {
    CheckRequest { resource: "/llm".to_owned(), cost: Some(cost), ..request(user) }
}

fn with_tokens(request: CheckRequest, units: u64) -> CheckRequest {
    let costs = HashMap::from([("tokens".to_owned(), units), ("money".to_owned(), 0)]);
    CheckRequest { costs, ..request }
}

async fn reserve(
    client: &mut ReservationClient,
    request: CheckRequest,
) -> Result<ReserveResponse, Status> {
    let request = ReserveRequest { request: Some(request), ttl: None };
    client.reserve(request).await.map(tonic::Response::into_inner)
}

async fn commit(
    client: &mut ReservationClient,
    id: &str,
    actual: Option<u64>,
) -> Result<CommitResponse, Status> {
    let request = CommitRequest { reservation_id: id.to_owned(), actual, ..Default::default() };
    client.commit(request).await.map(tonic::Response::into_inner)
}

fn left(verdict: Option<&CheckResponse>) -> Vec<(&str, i64)> {
    let decisions = verdict.into_iter().flat_map(|verdict| &verdict.decisions);
    decisions.map(|one| (&*one.rule, one.remaining)).collect()
}

fn settlement(rule: &str, [charged, returned, debt, uncounted]: [u64; 4]) -> Settlement {
    Settlement { rule: rule.to_owned(), charged, returned, debt, uncounted }
}

async fn assert_reservations(server: &Rlaas) {
    let mut check = server.client().await;
    let mut client = ReservationClient::new(connect(server.grpc()).await);
    // A request without a cost looks, however often.
    for _ in 0..4 {
        let looked = reserve(&mut client, wanted("alice", 0)).await.expect("a look");
        assert_eq!(
            (looked.verdict.is_some_and(|one| one.allowed), &*looked.reservation_id),
            (true, "")
        );
    }
    let looking = check.clone();
    let look = async |user: &str| {
        let looked = looking.clone().check(wanted(user, 0)).await.expect("a look").into_inner();
        looked.decisions.iter().map(|one| one.remaining).collect::<Vec<_>>()
    };
    // Requests are taken, tokens and money held.
    let held = reserve(&mut client, wanted("alice", 400)).await.expect("a reservation");
    assert_eq!(left(held.verdict.as_ref()), [("money", 4_600), ("requests", 99), ("tokens", 600)]);
    assert!(!held.reservation_id.is_empty() && held.expires_at.is_some());
    assert_eq!(look("alice").await, [4_600, 99, 600]);
    let denied = check.check(wanted("alice", 700)).await.expect("an answer").into_inner();
    assert_eq!((denied.allowed, denied.reason()), (false, Reason::Held));
    assert_eq!((&*denied.rule, denied.retry_after.is_some()), ("tokens", true));

    // What it was is charged, once; the rest comes back.
    let settled = commit(&mut client, &held.reservation_id, Some(150)).await.expect("a settlement");
    let expected = [settlement("money", [150, 250, 0, 0]), settlement("tokens", [150, 250, 0, 0])];
    assert_eq!((&*settled.settlements, settled.replayed), (&expected[..], false));
    let again = commit(&mut client, &held.reservation_id, Some(999)).await.expect("a settlement");
    assert_eq!((&*again.settlements, again.replayed), (&expected[..], true));
    let cancel = CancelRequest { reservation_id: held.reservation_id.clone() };
    let cancelled = client.cancel(cancel).await.expect("a settlement").into_inner();
    assert_eq!((&*cancelled.settlements, cancelled.replayed), (&expected[..], true));
    assert_eq!(look("alice").await, [4_850, 99, 850]);

    // Extended, and charged for more than that: by rule, and up to a ceiling.
    let held = reserve(&mut client, wanted("alice", 10)).await.expect("a reservation");
    let extend = ExtendRequest {
        reservation_id: held.reservation_id.clone(),
        cost: Some(40),
        ttl: Some(Duration { seconds: 20, nanos: 0 }),
        ..Default::default()
    };
    let extended = client.extend(extend.clone()).await.expect("an extension").into_inner();
    assert_eq!(left(extended.verdict.as_ref()), [("money", 4_800), ("tokens", 800)]);
    let more = ExtendRequest { cost: Some(900), ..extend };
    let denied = client.extend(more).await.expect("a denial").into_inner();
    assert_eq!(denied.verdict.map(|verdict| verdict.allowed), Some(false));
    assert_eq!(denied.expires_at, extended.expires_at, "a denial leaves the end");
    let actuals = HashMap::from([("money".to_owned(), 6_000), ("nothing".to_owned(), 1)]);
    let reservation_id = held.reservation_id;
    let request =
        CommitRequest { reservation_id, actual: Some(1_000), actuals, ..Default::default() };
    let settled = client.commit(request).await.expect("a settlement").into_inner();
    let expected =
        [settlement("money", [4_950, 0, 100, 1_050]), settlement("tokens", [1_000, 0, 150, 0])];
    assert_eq!(settled.settlements, expected);
    assert_eq!(look("alice").await, [-100, 98, -150]);

    // Nothing at all where one rule denies, and no more holds than allowed.
    let denied = reserve(&mut client, wanted("alice", 1)).await.expect("a denial");
    assert!(denied.reservation_id.is_empty() && denied.expires_at.is_none());
    assert_eq!(look("alice").await[1], 98);
    for _ in 0..3 {
        assert!(reserve(&mut client, wanted("bob", 1)).await.expect("held").verdict.is_some());
    }
    let denied = reserve(&mut client, wanted("bob", 1)).await.expect("a denial").verdict;
    let denied = denied.expect("a verdict");
    assert_eq!((denied.allowed, denied.reason(), &*denied.rule), (false, Reason::Held, "tokens"));

    // The same request under one id is one reservation.
    let once = CheckRequest { request_id: "one".to_owned(), ..wanted("carol", 100) };
    let first = reserve(&mut client, once.clone()).await.expect("a reservation");
    let second = reserve(&mut client, once.clone()).await.expect("the same");
    assert_eq!(first.reservation_id, second.reservation_id);
    assert_eq!(look("carol").await, [4_900, 99, 900]);
    // Also after others have spent more than there is.
    let report = CheckRequest { cost: None, ..with_tokens(wanted("carol", 1), 2_000) };
    check.report(ReportRequest { request: Some(report) }).await.expect("a report");
    let third = reserve(&mut client, once.clone()).await.expect("the same");
    assert_eq!(first.reservation_id, third.reservation_id);
    commit(&mut client, &first.reservation_id, None).await.expect("a settlement");
    let ended = reserve(&mut client, once).await.expect_err("it was settled");
    assert_eq!((ended.code(), ended.message()), (Code::NotFound, "no such reservation"));

    // Without a rule that holds it is a Check.
    let plain = CheckRequest { resource: "/plain".to_owned(), ..wanted("erin", 2) };
    let taken = reserve(&mut client, plain).await.expect("an answer");
    assert_eq!((left(taken.verdict.as_ref()), &*taken.reservation_id), (vec![("plain", 8)], ""));
    let dry_run = CheckRequest { dry_run: true, ..wanted("erin", 2) };
    assert!(reserve(&mut client, dry_run).await.expect("an answer").reservation_id.is_empty());
    assert_eq!(look("erin").await, [5_000, 100, 1_000]);
}

async fn assert_late_commits(server: &Rlaas) {
    let mut check = server.client().await;
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    // What is not settled ends by itself; a report counts then.
    let short = CheckRequest { resource: "/short".to_owned(), ..wanted("dave", 4) };
    let held = reserve(&mut client, short.clone()).await.expect("a reservation");
    eventually("the hold ends", std::time::Duration::from_secs(20), async || {
        let look = CheckRequest { cost: Some(0), ..short.clone() };
        let looked = check.clone().check(look).await.expect("a look");
        looked.get_ref().remaining == 10
    })
    .await;
    let ended = commit(&mut client, &held.reservation_id, Some(4)).await.expect_err("it has ended");
    assert_eq!((ended.code(), ended.message()), (Code::NotFound, "no such reservation"));
    let report = ReportRequest { request: Some(short.clone()) };
    let reported = check.report(report).await.expect("a report").into_inner();
    assert_eq!(reported.verdict.map(|verdict| verdict.remaining), Some(6));
    // With its request a Commit counts in its place: once for the id, or for the request id.
    let late = |id: &str, request_id: &str, actual| CommitRequest {
        reservation_id: id.to_owned(),
        actual,
        request: Some(CheckRequest { request_id: request_id.to_owned(), ..short.clone() }),
        ..CommitRequest::default()
    };
    for (commit, charged, [reported, replayed], left) in [
        (late(&held.reservation_id, "", Some(3)), 3, [true, false], 3),
        (late(&held.reservation_id, "", Some(2)), 3, [false, true], 3),
        (late("", "late", None), 4, [true, false], -1),
        (late("", "late", None), 4, [true, true], -1),
        (late("", "", Some(0)), 0, [true, false], -1),
    ] {
        let counted = client.commit(commit).await.expect("a settlement").into_inner();
        let debt = u64::from(left < 0);
        assert_eq!(counted.settlements, [settlement("short", [charged, 0, debt, 0])]);
        assert_eq!((counted.reported, counted.replayed), (reported, replayed));
        let look = CheckRequest { cost: Some(0), ..short.clone() };
        let looked = check.check(look).await.expect("a look").into_inner();
        assert_eq!(looked.remaining, left);
    }
    let cancel = CancelRequest { reservation_id: held.reservation_id.clone() };
    let cancelled = client.cancel(cancel).await.expect("the settlement").into_inner();
    assert_eq!((cancelled.replayed, cancelled.settlements[0].charged), (true, 3));
    let other = client.commit(late("", "late", Some(1))).await.expect_err("another request");
    assert_eq!(other.code(), Code::InvalidArgument);
    let plain = CheckRequest { resource: "/plain".to_owned(), ..wanted("dave", 1) };
    let nothing = CommitRequest { request: Some(plain), ..CommitRequest::default() };
    let nothing = client.commit(nothing).await.expect_err("no rule holds");
    assert_eq!(nothing.code(), Code::NotFound);
}

#[tokio::test]
async fn reservations_hold_and_settle_in_memory_and_in_redis() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let memory = Rlaas::start_from(&rules, &[]);
    assert_reservations(&memory).await;
    assert_late_commits(&memory).await;
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let on_redis = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let redis = Rlaas::start_from(&rules, &on_redis);
    assert_reservations(&redis).await;
    assert_late_commits(&redis).await;
}

#[tokio::test]
async fn bad_input_is_named_and_nothing_is_counted() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let mut client = ReservationClient::new(connect(server.grpc()).await);
    let second = |seconds| Some(Duration { seconds, nanos: 0 });
    for (ttl, problem) in
        [(second(0), "ttl must be 100ms to 24h"), (second(86_401), { "ttl must be 100ms to 24h" })]
    {
        let request = ReserveRequest { request: Some(wanted("alice", 1)), ttl };
        let refused = client.reserve(request).await.expect_err("a problem");
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, problem));
    }
    // Above the `hold` of the rules it is cut.
    let request = ReserveRequest { request: Some(wanted("alice", 1)), ttl: second(86_400) };
    let held = client.reserve(request).await.expect("a reservation").into_inner();
    let id = held.reservation_id;
    let refused = reserve(&mut client, CheckRequest::default()).await.expect_err("no user");
    assert_eq!(refused.message(), "user_id must be 1 to 1024 bytes");
    let long = CheckRequest { ..wanted(&"\u{1}".repeat(1_024), 1) };
    let refused = reserve(&mut client, long).await.expect_err("a long key");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("user_id, resource and attributes"), "{refused}");

    let not_one = "reservation_id must be one that Reserve returned";
    let cut = &id[..id.len() - 3];
    let later_version = format!("Ag{}", &id[2..]);
    for bad in ["", "x", cut, &later_version, &format!("{id}AAAA"), &"A".repeat(5_000)] {
        let refused = commit(&mut client, bad, None).await.expect_err("a bad id");
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, not_one), "{bad}");
    }
    // Another number, which nobody holds.
    let forged = format!("{}AAAA{}", &id[..4], &id[8..]);
    let refused = commit(&mut client, &forged, None).await.expect_err("a forged id");
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "no such reservation"));
    let too_many = Some(u64::from(u32::MAX) + 1);
    let refused = commit(&mut client, &id, too_many).await.expect_err("too many units");
    assert_eq!(refused.message(), "actual must be 0 to 4294967295");
    let costs = (0..65).map(|number| (format!("r{number}"), 1)).collect();
    let extend = ExtendRequest { reservation_id: id.clone(), costs, ..Default::default() };
    let refused = client.extend(extend).await.expect_err("too many costs");
    assert_eq!(refused.message(), "costs must have at most 64 entries of 0 to 4294967295");
    let settled = commit(&mut client, &id, Some(0)).await.expect("a settlement");
    assert!(settled.settlements.iter().all(|one| (one.charged, one.returned) == (0, 1)));
}

#[tokio::test]
async fn over_http_a_denial_is_429() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let body = |cost| {
        format!(
            r#"{{"request": {{"userId": "alice", "resource": "/llm", "cost": {cost}}}, "ttl": "5s"}}"#
        )
    };
    let held = post(&server, "/v1/reserve", &body(900)).await;
    assert_eq!(held.status, 200, "{held:?}");
    let denied = post(&server, "/v1/reserve", &body(200)).await;
    assert_eq!((denied.status, &denied.json()["verdict"]["reason"]), (429, &"HELD".into()));
    let id = held.json()["reservationId"].as_str().expect("an id").to_owned();
    let extended = post(&server, "/v1/extend", &format!(r#"{{"reservationId": "{id}"}}"#)).await;
    assert_eq!(extended.status, 200, "{extended:?}");
    let commit = format!(r#"{{"reservationId": "{id}", "actual": 40}}"#);
    let settled = post(&server, "/v1/commit", &commit).await;
    assert_eq!(settled.json()["settlements"][1]["charged"], "40", "{settled:?}");
    let cancelled = post(&server, "/v1/cancel", &format!(r#"{{"reservationId": "{id}"}}"#)).await;
    assert_eq!(cancelled.json()["replayed"], true);
    let unknown = post(&server, "/v1/cancel", r#"{"reservationId": "x"}"#).await;
    assert_eq!(unknown.status, 400);
    let reserved = server.metric_sum("rlaas_reservations_total", &["event=\"reserved\""]).await;
    assert_eq!(reserved, 1);
}

#[tokio::test]
async fn without_its_store_a_reservation_has_no_id_and_a_commit_fails() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: open, endpoint: /llm, algorithm: gcra, limit: 10, window: 1d, \
                 reservable: true, on-store-failure: allow}\n";
    let rules = dir.write("rules.yaml", rules);
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let on_redis = ["store.backend=redis", &url, "store.redis.timeout=1s"];
    let server = Rlaas::start_from(&rules, &on_redis);
    let mut client = ReservationClient::new(connect(server.grpc()).await);
    let held = reserve(&mut client, wanted("alice", 3)).await.expect("a reservation");
    redis.kill();
    let allowed = reserve(&mut client, wanted("alice", 3)).await.expect("by policy");
    assert!(allowed.reservation_id.is_empty(), "{allowed:?}");
    assert_eq!(allowed.verdict.map(|verdict| (verdict.allowed, verdict.source)), Some((true, 3)));
    let failed = commit(&mut client, &held.reservation_id, None).await.expect_err("no store");
    assert_eq!(failed.code(), Code::Unavailable);
}
