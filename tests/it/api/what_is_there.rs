//! `at_least` and `headroom` over gRPC, HTTP and the command line.

use std::collections::HashMap;

use rlaas_proto::ratelimit::admin::v1::ExplainRequest;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CheckBatchRequest, CheckRequest, GetConfigRequest, ReportRequest, ReserveRequest, check_result,
};
use rlaas_testkit::TempDir;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::redis::{RedisServer, free_port};
use tonic::Code;
use tonic_types::StatusExt;

use crate::http::client::post;

const RULES: &str = "\
rules:
  - {name: tokens, endpoint: /llm, algorithm: token-bucket, limit: 30, window: 366d, post_paid: true,
     overrides: [{match: {attributes: {tier: batch}}, headroom: 30%}]}
";

fn wanted(cost: u64, at_least: u64) -> CheckRequest {
    let cost = Some(cost);
    CheckRequest { resource: "/llm".to_owned(), cost, at_least, ..request("alice") }
}

fn of_batch(request: CheckRequest) -> CheckRequest {
    let attributes = HashMap::from([("tier".to_owned(), "batch".to_owned())]);
    CheckRequest { attributes, ..request }
}

#[tokio::test]
async fn what_is_there_is_taken_and_told() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&rules, &[]);
    let mut client = server.client().await;
    let plain = client.check(wanted(10, 0)).await.expect("an answer").into_inner();
    assert_eq!(plain.taken, None, "unset without at_least");
    let most = client.check(wanted(100, 1)).await.expect("an answer").into_inner();
    assert_eq!((most.allowed, most.taken, most.remaining), (true, Some(20), 0));
    let denied = client.check(wanted(100, 1)).await.expect("an answer").into_inner();
    assert_eq!((denied.allowed, denied.taken), (false, Some(0)));
    assert!(denied.retry_after.is_some());

    let body = r#"{"userId": "bob", "resource": "/llm", "cost": 100, "atLeast": "7"}"#;
    let taken = post(&server, "/v1/check", body).await;
    assert!(taken.body.contains(r#""taken":"30""#), "{}", taken.body);
    let body = r#"{"userId": "eve", "resource": "/llm", "cost": 1}"#;
    assert!(!post(&server, "/v1/check", body).await.body.contains("taken"));

    let addr = format!("http://{}", server.grpc());
    let check = |more: &[&str]| {
        let arguments = ["check", "carol", "--resource", "/llm", "--addr", &addr];
        run(&[&arguments[..], more].concat())
    };
    let (code, out, error) = check(&["--cost", "40", "--at-least", "5"]);
    assert_eq!(
        (code, &*out),
        (0, "allowed  carol: 30 taken, 0 of 30 left, all in 366d (tokens)\n"),
        "{error}"
    );
    let (code, out, _) = check(&["--cost", "40", "--at-least", "5", "--json"]);
    assert!(code == 1 && out.contains(r#""taken":"0""#), "{out}");
}

#[tokio::test]
async fn more_than_the_cost_is_invalid_wherever_it_is_sent() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let mut client = server.client().await;
    for (cost, at_least) in [(10, 11), (0, 1), (1, u64::MAX), (u64::from(u32::MAX), 1 << 32)] {
        let error = client.check(wanted(cost, at_least)).await.expect_err("an invalid request");
        let expected = (Code::InvalidArgument, "at_least must be 0 to the cost");
        assert_eq!((error.code(), error.message()), expected);
        let requests = vec![wanted(cost, at_least), wanted(3, 3)];
        let batch = CheckBatchRequest { requests, ..CheckBatchRequest::default() };
        let results = client.check_batch(batch).await.expect("an answer").into_inner().results;
        let check_result::Result::Error(error) = results[0].result.as_ref().expect("a result")
        else {
            panic!("{results:?}");
        };
        assert_eq!(error.code, i32::from(Code::InvalidArgument));
        let check_result::Result::Response(other) = results[1].result.as_ref().expect("a result")
        else {
            panic!("{results:?}");
        };
        assert_eq!(other.taken, Some(3));
    }
    let report = ReportRequest { request: Some(wanted(5, 1)) };
    let error = client.report(report).await.expect_err("an invalid report");
    let expected = (Code::InvalidArgument, "at_least must be 0 in a report");
    assert_eq!((error.code(), error.message()), expected);
    let body = r#"{"userId": "a", "resource": "/llm", "atLeast": 18446744073709551615}"#;
    let refused = post(&server, "/v1/check", body).await;
    assert!(
        refused.status == 400 && refused.detail().contains("atLeast must be 0 to the cost"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn rules_in_several_slots_are_refused() {
    let cluster = RedisCluster::start(3, 0).await;
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: user, algorithm: gcra, limit: 9, window: 1h}\n  - {name: all, \
                 key-by: [resource], algorithm: gcra, limit: 9, window: 1h, match: {resource: /all}}\n";
    let settings = cluster.settings();
    let mut settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    settings.push("store.redis.timeout=10s");
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &settings);
    let mut client = server.client().await;
    let alone = CheckRequest { resource: "/one".to_owned(), ..wanted(20, 1) };
    assert_eq!(client.check(alone).await.expect("an answer").into_inner().taken, Some(9));
    let both = CheckRequest { resource: "/all".to_owned(), ..wanted(20, 1) };
    let error = client.check(both.clone()).await.expect_err("several slots");
    let reason = error.get_details_error_info().expect("a reason").reason;
    assert_eq!((error.code(), &*reason), (Code::FailedPrecondition, "SEVERAL_SLOTS"));
    let mut reservations = ReservationServiceClient::new(server.channel().await);
    let reserve = ReserveRequest { request: Some(both), ..ReserveRequest::default() };
    let error = reservations.reserve(reserve).await.expect_err("several slots");
    assert_eq!(error.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn policies_take_the_cost_or_what_the_share_has() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: open, endpoint: /open, algorithm: gcra, limit: 9, window: 1h, \
                 on-store-failure: allow}\n  - {name: local, endpoint: /local, algorithm: gcra, limit: 9, \
                 window: 1h, on-store-failure: local, local-share: 0.5}\n";
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &["store.backend=redis", &url]);
    let mut client = server.client().await;
    for (resource, taken, source) in [
        ("/open", Some(20), Source::FailOpen),
        ("/local", Some(4), Source::LocalFallback),
        ("/local", Some(0), Source::LocalFallback),
    ] {
        let request = CheckRequest { resource: resource.to_owned(), ..wanted(20, 2) };
        let answer = client.check(request).await.expect("an answer").into_inner();
        assert_eq!((answer.taken, answer.source()), (taken, source), "{resource}");
    }
}

#[tokio::test]
async fn batch_leaves_units_to_people() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let redis = RedisServer::start();
    let file = rules.display().to_string();
    for server in [
        Rlaas::start_from(&rules, &[]),
        Rlaas::start_from(
            &rules,
            &[
                "store.backend=redis",
                &format!("store.redis.url={}", redis.url()),
                "store.redis.timeout=10s",
            ],
        ),
    ] {
        let mut client = server.client().await;
        let config = client.get_config(GetConfigRequest::default()).await;
        let config = config.expect("the configuration").into_inner();
        let shown = config.rules.iter().find(|rule| rule.name == "tokens").expect("the rule");
        assert_eq!((shown.overrides[0].headroom_ppm, shown.overrides[0].grant), (300_000, None));

        let mut check =
            async |request| client.check(request).await.expect("an answer").into_inner();
        let first = check(of_batch(wanted(20, 0))).await;
        assert_eq!((first.allowed, first.remaining, first.current_count), (true, 1, 20));
        let most = check(of_batch(wanted(9, 1))).await;
        assert_eq!((most.taken, most.remaining), (Some(1), 0));
        // Twice: a remembered denial is that of the same headroom.
        for _ in 0..2 {
            let denied = check(of_batch(wanted(2, 0))).await;
            assert_eq!((denied.allowed, denied.reason()), (false, Reason::OverLimit));
        }
        let never = check(of_batch(wanted(22, 0))).await;
        assert_eq!(never.reason(), Reason::CostAboveLimit);
        let people = check(wanted(2, 0)).await;
        assert_eq!((people.allowed, people.remaining), (true, 7));
        let look = check(of_batch(wanted(0, 0))).await;
        assert_eq!((look.allowed, look.remaining, look.current_count), (true, 0, 23));

        let mut admin = AdminServiceClient::new(server.channel().await);
        let asked = of_batch(wanted(1, 0));
        let explain = ExplainRequest { request: Some(asked), ..ExplainRequest::default() };
        let explained = admin.explain(explain).await.expect("an explanation").into_inner();
        let decided = explained.rules[0].decision.as_ref().expect("a decision");
        assert_eq!((explained.rules[0].headroom_ppm, decided.allowed), (300_000, false));
    }
    let explain =
        ["explain", "--config", &file, "alice", "--resource", "/llm", "--attribute", "tier=batch"];
    let (code, out, error) = run(&explain);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("token-bucket, leaves to others 30%, by the rule"), "{out}");
}
