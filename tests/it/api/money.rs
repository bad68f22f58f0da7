//! Amounts of money: limits of fixed windows far above a billion, in memory and in Redis.

use std::collections::HashMap;

use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::admin::v1::{InspectRequest, Selector, SetOverrideRequest};
use rlaas_proto::ratelimit::v1::check_response::Reason;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{
    CheckRequest, CommitRequest, GetConfigRequest, Grant, ReportRequest, ReserveRequest,
};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use tonic::Code;

use super::reservations::ReservationClient;
use crate::http::client::post;

/// The largest limit, and the largest cost.
const MAX: i64 = 999_999_999_999_999;
const LARGEST: u32 = u32::MAX;

const RULES: &str = "\
rules:
  - {name: money, algorithm: fixed-window, limit: 999999999999999, window: 366d, post-paid: true,
     overridable: true, near-limit: 0.5, on-change: keep-used}
";

fn costs(units: u32) -> CheckRequest {
    CheckRequest { cost: Some(units.into()), ..request("alice") }
}

async fn assert_amounts(server: &Rlaas) {
    let mut client = server.client().await;
    let mut admin = AdminServiceClient::new(server.channel().await);
    let selector =
        Selector { target: Some(Target::Request(request("alice"))), ..Selector::default() };
    let mut left = MAX;
    for _ in 0..3 {
        left -= i64::from(LARGEST);
        let taken = client.check(costs(LARGEST)).await.expect("a decision").into_inner();
        assert_eq!((taken.allowed, taken.limit, taken.remaining), (true, MAX, left));
    }
    let report = ReportRequest { request: Some(costs(7)) };
    let reported = client.report(report).await.expect("a report").into_inner();
    assert_eq!(
        (reported.verdict.map(|one| one.remaining), reported.uncounted),
        (Some(left - 7), 0)
    );
    let used = MAX - left + 7;
    let set = |units: i64| {
        let request = SetOverrideRequest {
            selector: Some(selector.clone()),
            grant: Some(Grant { kind: Some(Kind::Limit(units)), burst: 0 }),
            ttl: Some(Duration { seconds: 3_600, nanos: 0 }),
            reason: "a test".to_owned(),
            ..SetOverrideRequest::default()
        };
        let mut admin = admin.clone();
        async move { admin.set_override(request).await }
    };
    // Another budget for one key: more is used than half of it, then all but one unit, then more than all.
    for (budget, cost, allowed) in
        [(used * 2, 0, true), (used + 1, 2, false), (used + 1, 1, true), (used - 9, 0, false)]
    {
        set(budget).await.expect("an override");
        let decided = client.check(costs(cost)).await.expect("a decision").into_inner();
        assert_eq!((decided.allowed, decided.limit), (allowed, budget), "{cost} of {budget}");
        assert!(decided.decisions[0].near_limit, "{budget}");
    }
    let refused = set(MAX + 1).await.expect_err("too much");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("grant.limit must be 1 to 999999999999999"), "{refused}");
    let inspect = InspectRequest { selector: Some(selector.clone()) };
    let states = admin.inspect(inspect).await.expect("a state").into_inner().keys;
    assert_eq!((states[0].used, states[0].remaining), (used + 1, -10));
}

#[tokio::test]
async fn amounts_are_exact_up_to_a_billion_in_millionths() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let memory = Rlaas::start_from(&rules, &[]);
    assert_amounts(&memory).await;
    let config = memory.client().await.get_config(GetConfigRequest::default()).await;
    let config = config.expect("the configuration").into_inner();
    assert_eq!(
        config.rules.iter().find(|rule| rule.name == "money").map(|one| one.max_requests),
        Some(MAX)
    );
    let look = post(&memory, "/v1/check", r#"{"userId": "bob", "cost": 0}"#).await;
    let policy = look.header("ratelimit-policy").expect("a policy");
    assert_eq!(policy, r#""money";q=999999999999999;w=31622400"#);
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url, "store.redis.timeout=10s"];
    assert_amounts(&Rlaas::start_from(&rules, &settings)).await;
}

/// Reserves 4,000 dollars a thousand times by the rules of the book, and commits what was held.
async fn assert_budget(server: &Rlaas) {
    const AMOUNT: u64 = 4_000_000_000;
    let mut client = ReservationClient::new(server.channel().await);
    let wanted = |units| CheckRequest {
        attributes: HashMap::from([("project".to_owned(), "shop".to_owned())]),
        cost: Some(0),
        costs: HashMap::from([("budget".to_owned(), units)]),
        ..request("alice")
    };
    let mut held = Vec::new();
    for _ in 0..1_000 {
        let request = ReserveRequest { request: Some(wanted(AMOUNT)), ttl: None };
        let reserved = client.reserve(request).await.expect("an answer").into_inner();
        held.extend(Some(reserved.reservation_id).filter(|id| !id.is_empty()));
    }
    assert_eq!(held.len(), 62, "of 250,000 dollars 248,000 are held");
    let mut check = server.client().await;
    let denied = check.check(wanted(AMOUNT)).await.expect("a decision").into_inner();
    assert_eq!((denied.allowed, denied.reason()), (false, Reason::Held));
    for reservation_id in held {
        let commit = CommitRequest { reservation_id, ..CommitRequest::default() };
        let settled = client.commit(commit).await.expect("a settlement").into_inner();
        assert_eq!(settled.settlements[0].charged, AMOUNT);
    }
    let looked = check.check(wanted(0)).await.expect("a decision").into_inner();
    let left = looked.decisions.iter().find(|one| one.rule == "budget").map(|one| one.remaining);
    assert_eq!(left, Some(2_000_000_000));
}

#[tokio::test]
async fn budget_of_the_book_is_not_exceeded_by_reservations() {
    let book = include_str!("../../../docs/money.md");
    let rules = book.split("```").find_map(|part| part.strip_prefix("yaml,file=money.yaml\n"));
    let dir = TempDir::new();
    let rules = rules.expect("the rules").replace("limit: 20,", "limit: 1000000,");
    let file = dir.write("money.yaml", &rules);
    assert_budget(&Rlaas::start_from(&file, &[])).await;
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &*url, "store.redis.timeout=10s"];
    assert_budget(&Rlaas::start_from(&file, &settings)).await;
}
