//! Rules that bound work in flight (`algorithm: concurrency`), in memory and in Redis.

use std::collections::HashMap;

use prost_types::{Duration, Timestamp};
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::admin::v1::{ExplainRequest, Selector, SetOverrideRequest};
use rlaas_proto::ratelimit::v1::check_response::Reason;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{
    Algorithm, CheckRequest, CommitRequest, ExtendRequest, GetConfigRequest, Grant, ReportRequest,
    ReserveRequest, ReserveResponse,
};
use rlaas_testkit::process::{Rlaas, connect, request, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;

use super::reservations::ReservationClient;
use crate::http::client::post;

const RULES: &str = "\
rules:
  - {name: requests, endpoint: '/j*', algorithm: gcra, limit: 100, window: 366d, post-paid: true}
  - {name: jobs, endpoint: /jobs, algorithm: concurrency, limit: 2, hold: 30s, overridable: true}
  - {name: short, endpoint: /j/short, algorithm: concurrency, limit: 1, hold: 200ms}
  - {name: tried, endpoint: /j/tried, algorithm: concurrency, limit: 1, shadow: true}
";

fn wanted(resource: &str) -> CheckRequest {
    CheckRequest { resource: resource.to_owned(), cost: Some(5), ..request("alice") }
}

async fn reserve(client: &mut ReservationClient, request: CheckRequest) -> ReserveResponse {
    let request = ReserveRequest { request: Some(request), ttl: None };
    client.reserve(request).await.expect("an answer").into_inner()
}

async fn commit(client: &mut ReservationClient, id: &str) -> Vec<(String, u64, u64)> {
    let reservation_id = id.to_owned();
    let request = CommitRequest { reservation_id, actual: Some(7), ..CommitRequest::default() };
    let settled = client.commit(request).await.expect("a settlement").into_inner();
    settled.settlements.into_iter().map(|one| (one.rule, one.charged, one.returned)).collect()
}

fn left(response: &ReserveResponse) -> Vec<(&str, bool, i64)> {
    let decisions = response.verdict.iter().flat_map(|verdict| &verdict.decisions);
    decisions.map(|one| (&*one.rule, one.allowed, one.remaining)).collect()
}

async fn assert_slots(server: &Rlaas) {
    let mut check = server.client().await;
    let mut client = ReservationClient::new(connect(server.grpc()).await);
    // A reservation takes one slot, whatever its cost, and the other rule counts it.
    let first = reserve(&mut client, wanted("/jobs")).await;
    assert_eq!(left(&first), [("jobs", true, 1), ("requests", true, 95)]);
    let second = reserve(&mut client, wanted("/jobs")).await;
    assert_eq!(left(&second), [("jobs", true, 0), ("requests", true, 90)]);
    let denied = reserve(&mut client, wanted("/jobs")).await;
    let verdict = denied.verdict.as_ref().expect("a verdict");
    assert_eq!((verdict.allowed, &*verdict.rule, verdict.reason()), (false, "jobs", Reason::Held));
    assert_eq!(verdict.algorithm(), Algorithm::Concurrency);
    let wait = verdict.retry_after.expect("a wait").seconds;
    assert!((20..=30).contains(&wait), "{wait} s");
    assert_eq!(left(&denied), [("jobs", false, 0), ("requests", true, 90)]);

    // An extension renews the slot and adds none. Settling charges none.
    let extend = ExtendRequest {
        reservation_id: first.reservation_id.clone(),
        cost: Some(3),
        costs: HashMap::from([("jobs".to_owned(), 1)]),
        ttl: Some(Duration { seconds: 60, nanos: 0 }),
    };
    let extended = client.extend(extend).await.expect("an extension").into_inner();
    assert!(extended.verdict.expect("a verdict").allowed);
    let end = |at: Option<Timestamp>| at.map(|at| (at.seconds, at.nanos));
    assert!(end(extended.expires_at) > end(first.expires_at));
    for _ in 0..2 {
        let settled = commit(&mut client, &first.reservation_id).await;
        assert_eq!(settled, [("jobs".to_owned(), 0, 1)]);
    }
    let third = reserve(&mut client, wanted("/jobs")).await;
    assert_eq!(left(&third), [("jobs", true, 0), ("requests", true, 85)]);
    for held in [second, third] {
        commit(&mut client, &held.reservation_id).await;
    }
    let costs = HashMap::from([("jobs".to_owned(), 2), ("requests".to_owned(), 1)]);
    let both = reserve(&mut client, CheckRequest { costs, ..wanted("/jobs") }).await;
    assert_eq!(left(&both), [("jobs", true, 0), ("requests", true, 84)]);
    let costs = HashMap::from([("jobs".to_owned(), 3)]);
    let too_many = reserve(&mut client, CheckRequest { costs, ..wanted("/jobs") }).await;
    let verdict = too_many.verdict.expect("a verdict");
    assert_eq!((verdict.reason(), verdict.retry_after), (Reason::CostAboveLimit, None));
    commit(&mut client, &both.reservation_id).await;

    // A check can't hold a slot; it may look. A report counts by other rules only.
    let refused = check.check(wanted("/jobs")).await.expect_err("it needs a reservation");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "rule jobs bounds work in flight: use Reserve");
    for look in [
        CheckRequest { cost: Some(0), ..wanted("/jobs") },
        CheckRequest { dry_run: true, ..wanted("/jobs") },
    ] {
        let looked = check.check(look).await.expect("a look").into_inner();
        assert!(looked.allowed && looked.decisions.iter().any(|one| one.rule == "jobs"));
    }
    let report = ReportRequest { request: Some(wanted("/jobs")) };
    let reported = check.report(report).await.expect("a report").into_inner();
    let decisions = reported.verdict.expect("a verdict").decisions;
    assert_eq!(decisions.len(), 1, "{decisions:?}");
    assert_eq!(decisions[0].remaining, 79);

    let mut admin = AdminServiceClient::new(server.channel().await);
    let explain = ExplainRequest { request: Some(wanted("/jobs")), ..ExplainRequest::default() };
    let explained = admin.explain(explain).await.expect("an explanation").into_inner();
    let answer = explained.result.and_then(|result| result.result).expect("an answer");
    let refusal = format!("{answer:?}");
    assert!(refusal.contains("rule jobs bounds work in flight"), "{refusal}");
}

/// In shadow mode, under overrides, and without their caller.
async fn assert_slots_in_other_modes(server: &Rlaas) {
    let mut check = server.client().await;
    let mut client = ReservationClient::new(connect(server.grpc()).await);
    let mut admin = AdminServiceClient::new(server.channel().await);
    // In shadow mode it refuses nobody, and holds where there is room.
    let in_shadow = check.check(wanted("/j/tried")).await.expect("a check").into_inner();
    assert!(in_shadow.allowed);
    for number in 0..2 {
        let tried = reserve(&mut client, wanted("/j/tried")).await;
        assert!(tried.verdict.expect("a verdict").allowed);
        assert_eq!(tried.reservation_id.is_empty(), number == 1);
    }

    // Overrides change how many there are; holds keep their slots.
    let held = reserve(&mut client, wanted("/jobs")).await;
    for (kind, allowed) in
        [(Kind::Limit(3), 2), (Kind::Unlimited(true), 4), (Kind::Banned(true), 0)]
    {
        let set = SetOverrideRequest {
            selector: Some(Selector {
                target: Some(Target::Request(wanted("/jobs"))),
                rule: "jobs".to_owned(),
                ..Selector::default()
            }),
            grant: Some(Grant { kind: Some(kind), burst: 0 }),
            ttl: Some(Duration { seconds: 60, nanos: 0 }),
            reason: "a test".to_owned(),
            ..SetOverrideRequest::default()
        };
        admin.set_override(set).await.expect("an override");
        let mut ids = Vec::new();
        for _ in 0..4 {
            let id = reserve(&mut client, wanted("/jobs")).await.reservation_id;
            ids.extend(Some(id).filter(|id| !id.is_empty()));
        }
        assert_eq!(ids.len(), allowed, "{kind:?}");
        for id in ids {
            commit(&mut client, &id).await;
        }
    }
    assert_eq!(commit(&mut client, &held.reservation_id).await, [("jobs".to_owned(), 0, 1)]);

    // A caller that is lost blocks its slot for one hold.
    let lost = reserve(&mut client, wanted("/j/short")).await;
    assert!(!lost.reservation_id.is_empty());
    eventually("the slot is free", std::time::Duration::from_secs(20), async || {
        let mut client = client.clone();
        !reserve(&mut client, wanted("/j/short")).await.reservation_id.is_empty()
    })
    .await;
}

#[tokio::test]
async fn slots_are_held_until_the_work_ends() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let memory = Rlaas::start_from(&rules, &[]);
    assert_slots(&memory).await;
    assert_slots_in_other_modes(&memory).await;
    let server = RedisServer::start();
    let url = format!("store.redis.url={}", server.url());
    let settings = ["store.backend=redis", &*url, "store.redis.timeout=10s"];
    let redis = Rlaas::start_from(&rules, &settings);
    assert_slots(&redis).await;
    assert_slots_in_other_modes(&redis).await;
}

#[tokio::test]
async fn slots_are_shown_without_a_window() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let config = server.client().await.get_config(GetConfigRequest::default()).await;
    let rules = config.expect("the configuration").into_inner().rules;
    let jobs = rules.iter().find(|rule| rule.name == "jobs").expect("the rule");
    assert_eq!((jobs.max_requests, jobs.window, jobs.cost), (2, None, 1));
    assert_eq!((jobs.reservable, jobs.max_holds), (false, 0));
    let look = post(&server, "/v1/check", r#"{"userId": "bob", "resource": "/jobs", "cost": 0}"#);
    let look = look.await;
    let policy = look.header("ratelimit-policy").expect("a policy");
    assert!(policy.starts_with(r#""jobs";q=2;qu="concurrent-requests", "requests";q=100;w="#));
    let check = post(&server, "/check", r#"{"endpoint": "/jobs", "key": "bob"}"#).await;
    let problem = "rule jobs bounds work in flight: use Reserve";
    assert_eq!((check.status, &*check.body), (400, problem));
}

#[test]
fn fields_that_slots_do_not_have_are_named() {
    let dir = TempDir::new();
    let file = dir.write("bad.yaml", "rate-limiter: {use-algo: concurrency}");
    let (code, out, error) = run(&["check-config", &file.display().to_string()]);
    assert_eq!(code, 64, "{out}");
    assert!(
        format!("{out}{error}").contains("the default rule can't be concurrency"),
        "{out}{error}"
    );
    // One for all requests is allowed, and warned of.
    let file = dir.write("all.yaml", "rules: [{name: a, algorithm: concurrency, limit: 3}]");
    let (code, out, error) = run(&["check-config", &file.display().to_string()]);
    assert_eq!(code, 0, "{out}{error}");
    assert!(format!("{out}{error}").contains("it applies to all requests, and refuses each Check"));
}
