//! `unmatched`: the policy for requests that no rule matches.

use std::time::Duration;

use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::check_result::Result as ItemResult;
use rlaas_proto::ratelimit::v1::{
    Algorithm, CheckBatchRequest, CheckRequest, CheckResponse, CheckResult,
};
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use rlaas_testkit::process::{Client, Rlaas, request};
use rlaas_testkit::redis::{RedisServer, free_port};
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "rules:\n  - {name: pay, endpoint: /pay, limit: 1, window: 1h}\n  \
                     - {name: trial, endpoint: /trial, limit: 1, window: 1h, shadow: true}\n";

fn request_for(resource: &str) -> CheckRequest {
    CheckRequest { resource: resource.to_owned(), ..request("alice") }
}

async fn check(client: &mut Client, resource: &str) -> Result<CheckResponse, Status> {
    client.check(request_for(resource)).await.map(tonic::Response::into_inner)
}

fn assert_passes_without_a_rule(response: &CheckResponse) {
    let bare = CheckResponse {
        allowed: true,
        reason: Reason::NoRule.into(),
        source: Source::Unspecified.into(),
        algorithm: Algorithm::Unspecified.into(),
        decisions: response.decisions.clone(),
        ..CheckResponse::default()
    };
    assert_eq!(*response, bare);
}

fn assert_no_rule(status: &Status) {
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "no rule matches"));
    let info = status.get_details_error_info().expect("an ErrorInfo");
    assert_eq!((&*info.reason, &*info.domain), ("NO_RULE", "rlaas"));
}

/// Returns the status of a failed item.
fn failed(result: &CheckResult) -> Status {
    use prost::Message;
    let Some(ItemResult::Error(error)) = &result.result else { panic!("{result:?}") };
    let code = Code::from_i32(error.code);
    Status::with_details(code, error.message.clone(), error.encode_to_vec().into())
}

/// Sends the same three requests as a batch and as a stream.
async fn check_in_batch_and_stream(client: &mut Client) -> Vec<Vec<CheckResult>> {
    let requests = || ["/pay", "/other", "/trial"].map(request_for);
    let batch = CheckBatchRequest { requests: requests().to_vec(), ..Default::default() };
    let batch = client.check_batch(batch).await.expect("answers").into_inner().results;
    let stream = client.check_stream(tokio_stream::iter(requests())).await.expect("a stream");
    let stream = stream.into_inner().map(|result| result.expect("an answer")).collect().await;
    vec![batch, stream]
}

#[tokio::test]
async fn unmatched_allow_passes_and_takes_nothing() {
    let redis = RedisServer::start();
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let url = format!("store.redis.url={}", redis.url());
    let on_redis = ["store.backend=redis", &url, "store.redis.timeout=10s", "unmatched=allow"];
    for settings in [&["unmatched=allow"][..], &on_redis] {
        let server = Rlaas::start_from(&rules, settings);
        let mut client = server.client().await;
        for _ in 0..7 {
            let response = check(&mut client, "/other").await.expect("an answer");
            assert_passes_without_a_rule(&response);
            assert_eq!(response.decisions, []);
        }
        assert_eq!(check(&mut client, "/pay").await.expect("an answer").rule, "pay");
        assert!(!check(&mut client, "/pay").await.expect("an answer").allowed);
        // A rule in shadow mode has matched, and refuses nothing.
        for would_pass in [true, false] {
            let response = check(&mut client, "/trial").await.expect("an answer");
            assert_passes_without_a_rule(&response);
            let [trial] = &*response.decisions else { panic!("{response:?}") };
            assert_eq!((&*trial.rule, trial.shadow, trial.allowed), ("trial", true, would_pass));
        }
        for results in check_in_batch_and_stream(&mut client).await {
            let [pay, other, trial] = &*results else { panic!("{results:?}") };
            let response = |result: &CheckResult| match &result.result {
                Some(ItemResult::Response(response)) => response.clone(),
                other => panic!("{other:?}"),
            };
            assert!(!response(pay).allowed);
            assert_passes_without_a_rule(&response(other));
            assert_passes_without_a_rule(&response(trial));
        }
        assert_eq!(
            server.metric("rlaas_unmatched_total{outcome=\"allowed\",reason=\"rule\"}").await,
            Some(9.0)
        );
        assert_eq!(
            server.metric("rlaas_unmatched_total{outcome=\"denied\",reason=\"rule\"}").await,
            Some(0.0)
        );
        let default = server.metric_sum("rlaas_decisions_total", &["rule=\"default\""]).await;
        assert_eq!(default, 0);
        let trial = ["rule=\"trial\"", "outcome=\"shadow_denied\""];
        assert_eq!(server.metric_sum("rlaas_decisions_total", &trial).await, 3);
    }
    assert_eq!(redis.keys(), ["rlaas:rule:pay:alice", "rlaas:rule:trial:alice"]);
}

#[tokio::test]
async fn unmatched_deny_rejects() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &["unmatched=deny"]);
    let mut client = server.client().await;
    for resource in ["/other", "/login", ""] {
        assert_no_rule(&check(&mut client, resource).await.expect_err(resource));
    }
    assert!(check(&mut client, "/pay").await.expect("an answer").allowed);
    for results in check_in_batch_and_stream(&mut client).await {
        let [pay, other, trial] = &*results else { panic!("{results:?}") };
        assert!(matches!(&pay.result, Some(ItemResult::Response(response)) if !response.allowed));
        assert_no_rule(&failed(other));
        assert!(matches!(&trial.result, Some(ItemResult::Response(response)) if response.allowed));
    }
    assert_eq!(
        server.metric("rlaas_unmatched_total{outcome=\"denied\",reason=\"rule\"}").await,
        Some(5.0)
    );
}

#[tokio::test]
async fn unmatched_policy_changes_on_reload() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&file, &[]);
    let mut client = server.client().await;
    assert_eq!(check(&mut client, "/other").await.expect("an answer").rule, "default");
    for (policy, expected) in [("deny", None), ("allow", Some("")), ("default", Some("default"))] {
        dir.write("rules.yaml", &format!("{RULES}unmatched: {policy}\n"));
        eventually(policy, TIMEOUT, async || {
            let answer = check(&mut client, "/other").await;
            answer.ok().as_ref().map(|response| &*response.rule) == expected
        })
        .await;
    }
    assert!(!server.log().contains("restart"), "{}", server.log());
}

#[tokio::test]
async fn unmatched_policy_applies_without_a_store() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start_from(&rules, &["store.backend=redis", &url, "unmatched=allow"]);
    let mut client = server.client().await;
    for resource in ["/other", "/trial"] {
        assert_passes_without_a_rule(&check(&mut client, resource).await.expect("an answer"));
    }
    assert_eq!(check(&mut client, "/pay").await.expect_err("no store").code(), Code::Unavailable);
}
