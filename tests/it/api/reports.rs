//! `Report`, rules with a cost of their own, and costs by rule, over gRPC, HTTP and the command line.

use std::collections::HashMap;

use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse, ReportRequest, ReportResponse};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Client, Rlaas, request, run};
use rlaas_testkit::redis::RedisServer;
use tonic::{Code, Status};

use crate::http::client::post;

/// `tokens` has as much per day as all tests take, so that none depends on the time.
const RULES: &str = "\
rules:
  - {name: requests, endpoint: /llm, algorithm: gcra, limit: 100, window: 1d, cost: 1}
  - name: tokens
    endpoint: /llm
    algorithm: token-bucket
    limit: 1000
    window: 1d
    post-paid: true
    overrides: [{match: {user-id: mallory}, limit: 0}, {match: {user-id: ops}, unlimited: true}]
  - {name: money, endpoint: /bounded, algorithm: fixed-window, limit: 10, window: 366d,
     post-paid: true, max-debt: 5}
  - {name: once, endpoint: /free, limit: 10, window: 1h}
";

fn request_by(user: &str, resource: &str, cost: u64) -> CheckRequest {
    CheckRequest { resource: resource.to_owned(), cost: Some(cost), ..request(user) }
}

fn with_costs(request: CheckRequest, costs: &[(&str, u64)]) -> CheckRequest {
    let costs = costs.iter().map(|(rule, units)| ((*rule).to_owned(), *units));
    CheckRequest { costs: costs.collect::<HashMap<_, _>>(), ..request }
}

/// Returns what is left by rule.
fn left(response: &CheckResponse) -> Vec<(&str, i64)> {
    response.decisions.iter().map(|one| (&*one.rule, one.remaining)).collect()
}

async fn check(client: &mut Client, request: CheckRequest) -> CheckResponse {
    client.check(request).await.expect("an answer").into_inner()
}

async fn report(client: &mut Client, request: CheckRequest) -> Result<ReportResponse, Status> {
    let request = ReportRequest { request: Some(request) };
    client.report(request).await.map(tonic::Response::into_inner)
}

/// Asserts what reports and costs do, on a server with [`RULES`].
async fn assert_counts(server: &Rlaas) {
    let mut client = server.client().await;
    // A rule's own cost, then that of the request; `costs` come first.
    let checked = check(&mut client, request_by("alice", "/llm", 300)).await;
    assert_eq!(left(&checked), [("requests", 99), ("tokens", 700)]);
    let costs = [("tokens", 0), ("requests", 5), ("nothing", 3)];
    let checked = check(&mut client, with_costs(request_by("alice", "/llm", 300), &costs)).await;
    assert_eq!(left(&checked), [("requests", 94), ("tokens", 700)]);
    let looked = check(&mut client, request_by("alice", "/llm", 0)).await;
    assert_eq!(left(&looked), [("requests", 94), ("tokens", 700)]);
    let named =
        check(&mut client, with_costs(request_by("alice", "/llm", 0), &[("tokens", 50)])).await;
    assert_eq!(left(&named), [("requests", 94), ("tokens", 650)]);
    assert_eq!(server.metric_sum("rlaas_costs_ignored_total", &[]).await, 1);

    // A report counts in full, and only by the rule that is paid afterwards.
    let reported = report(&mut client, request_by("alice", "/llm", 900)).await.expect("a report");
    let verdict = reported.verdict.expect("a verdict");
    assert_eq!((verdict.allowed, left(&verdict)), (false, vec![("tokens", -250)]));
    assert!(verdict.retry_after.is_some() && reported.uncounted == 0, "{verdict:?}");
    assert!(!check(&mut client, request_by("alice", "/llm", 1)).await.allowed);
    let looked = check(&mut client, request_by("alice", "/llm", 0)).await;
    assert_eq!((looked.allowed, &*looked.rule), (false, "tokens"), "a look is denied in debt");

    // Twice under one id counts once; the id of a Check is another one.
    let once = CheckRequest { request_id: "one".to_owned(), ..request_by("bob", "/llm", 10) };
    assert!(check(&mut client, once.clone()).await.allowed);
    for replayed in [false, true] {
        let verdict = report(&mut client, once.clone()).await.expect("a report").verdict;
        let verdict = verdict.expect("a verdict");
        assert_eq!((verdict.replayed, verdict.remaining), (replayed, 980));
    }

    // Under a ban and an unlimited override of the file too.
    for (user, allowed) in [("mallory", false), ("ops", true)] {
        let reported =
            report(&mut client, request_by(user, "/llm", 1_500)).await.expect("a report");
        assert_eq!(reported.uncounted, 0, "{user}");
        assert_eq!(reported.verdict.expect("a verdict").allowed, allowed, "{user}");
    }

    // A ceiling of the debt is told.
    let reported =
        report(&mut client, request_by("alice", "/bounded", 12)).await.expect("a report");
    assert_eq!((reported.uncounted, reported.verdict.map(|one| one.remaining)), (0, Some(-2)));
    let reported =
        report(&mut client, request_by("alice", "/bounded", 12)).await.expect("a report");
    assert_eq!((reported.uncounted, reported.verdict.map(|one| one.remaining)), (9, Some(-5)));
    assert_eq!(server.metric_sum("rlaas_uncounted_units_total", &["rule=\"money\""]).await, 9);

    // A dry run counts nothing.
    let dry_run = CheckRequest { dry_run: true, ..request_by("carol", "/llm", 7) };
    let reported = report(&mut client, dry_run).await.expect("a report");
    assert_eq!(reported.verdict.map(|one| one.remaining), Some(1_000));

    let refused =
        report(&mut client, request_by("alice", "/free", 1)).await.expect_err("no such rule");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "no rule that applies has post-paid: true");
    let looked = check(&mut client, request_by("alice", "/free", 0)).await;
    assert_eq!(looked.remaining, 10, "nothing was counted");
}

#[tokio::test]
async fn costs_and_reports_are_counted_in_memory_and_in_redis() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    assert_counts(&Rlaas::start_from(&rules, &[])).await;
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let on_redis = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    assert_counts(&Rlaas::start_from(&rules, &on_redis)).await;
}

#[tokio::test]
async fn http_and_the_command_line_report() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let body =
        r#"{"request": {"userId": "alice", "resource": "/llm", "costs": {"tokens": "1200"}}}"#;
    let answer = post(&server, "/v1/report", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["verdict"]["remaining"], "-200");
    for (body, status, detail) in [
        (r#"{"request": {"userId": ""}}"#, 400, "user_id must be 1 to 1024 bytes"),
        ("{}", 400, "user_id must be 1 to 1024 bytes"),
        (r#"{"request": {"userId": "a", "costs": {"x": 4294967296}}}"#, 400, {
            "costs must have at most 64 entries of 0 to 4294967295"
        }),
        (r#"{"request": {"costs": {"x": "y"}}}"#, 400, {
            "request.costs must be an object of whole numbers"
        }),
        (r#"{"request": {"userId": "a", "resource": "/free"}}"#, 400, {
            "no rule that applies has post-paid: true"
        }),
    ] {
        let answer = post(&server, "/v1/report", body).await;
        assert_eq!((answer.status, &*answer.detail()), (status, detail), "{body}");
    }
    let body = r#"{"userId": "bob", "resource": "/llm", "costs": {"tokens": "7"}}"#;
    let answer = post(&server, "/v1/check", body).await.json();
    assert_eq!(answer["decisions"][1]["remaining"], "993", "{answer}");

    let report = |arguments: &[&str]| {
        run(&[&["report", "dave", "--resource", "/llm", "--addr", server.grpc()], arguments]
            .concat())
    };
    let (code, out, _) = report(&["--cost", "1500"]);
    assert_eq!(code, 0, "{out}");
    assert!(out.starts_with("counted  dave: try again in "), "{out}");
    let (code, out, _) = report(&["--cost", "tokens=1", "--json"]);
    assert!(code == 0 && out.contains("\"remaining\":\"-501\""), "{out}");
    let (code, _, error) = report(&["--cost", "tokens=1", "--cost", "tokens=2"]);
    assert_eq!(code, 2);
    assert!(error.contains("--cost must be given once, and once for each rule"), "{error}");
}
