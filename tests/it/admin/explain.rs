//! `Explain` and `ExplainDescriptors` over gRPC and HTTP, in memory and in Redis.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::rule_explanation::Applies;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse, check_result};
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::{RedisServer, free_port};
use rlaas_testkit::{TempDir, eventually};

use super::admin;
use super::http::post_to;

const TIMEOUT: Duration = Duration::from_secs(20);

const RULES: &str = "\
rules:
  - {name: pay, match: {resource: /pay}, algorithm: gcra, limit: 3, window: 60s, overrides: [
      {match: {user_id: vip-*}, limit: 1000}]}
  - {name: search, match: {resource: /search/*}, limit: 20, window: 1s}
  - {name: shadow, match: {user_id: a*}, limit: 2, window: 60s, shadow: true}
";
const DESCRIPTORS: &str = "\
domain: edge
descriptors:
  - key: path
    value: /pay
    descriptors:
      - {key: method, value: POST, rate_limit: {unit: hour, requests_per_unit: 2}}
";

fn pay(user_id: &str) -> CheckRequest {
    CheckRequest { resource: "/pay".to_owned(), ..request(user_id) }
}

async fn explain(server: &Rlaas, request: CheckRequest) -> proto::ExplainResponse {
    let request = proto::ExplainRequest { request: Some(request), ..Default::default() };
    admin(server).await.explain(request).await.expect("an explanation").into_inner()
}

fn answer(explained: &proto::ExplainResponse) -> &CheckResponse {
    match explained.result.as_ref().and_then(|result| result.result.as_ref()) {
        Some(check_result::Result::Response(response)) => response,
        other => panic!("{other:?}"),
    }
}

fn applying(explained: &proto::ExplainResponse) -> Vec<&str> {
    let rules = explained.rules.iter().filter(|rule| rule.applies() == Applies::Yes);
    rules.map(|rule| &*rule.rule).collect()
}

#[tokio::test]
async fn explanation_says_what_check_does_and_counts_nothing() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let file = dir.write("rules.yaml", RULES);
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    for server in [Rlaas::start_from(&file, &[]), Rlaas::start_from(&file, &settings)] {
        let mut client = server.client().await;
        for taken in 0..5 {
            let explained = explain(&server, pay("alice")).await;
            assert_eq!(applying(&explained), ["pay", "shadow"]);
            assert_eq!(explained.revision, 1);
            let said = answer(&explained);
            let states: Vec<_> =
                explained.rules[..2].iter().map(|rule| rule.state.clone()).collect();
            let used = states[0].as_ref().map(|state| (state.used, state.remaining));
            assert_eq!(used, Some((taken.min(3), (3 - taken).max(0))));
            let done = client.check(pay("alice")).await.expect("a decision").into_inner();
            assert_eq!((said.allowed, said.reason), (done.allowed, done.reason));
            assert_eq!(said.retry_after.is_some(), done.retry_after.is_some());
            // A denial from the deny cache has the decision of its rule alone.
            assert_eq!(said.decisions.len(), done.decisions.len());
        }
        let explained = explain(&server, pay("vip-1")).await;
        assert_eq!(applying(&explained), ["pay"]);
        let rule = &explained.rules[0];
        assert_eq!(rule.grant_from(), proto::GrantFrom::RuleOverride);
        assert_eq!((rule.rule_override, rule.cost), (Some(0), 1));
        let others: Vec<_> = explained.rules[1..].iter().map(|rule| &*rule.rule).collect();
        assert_eq!(others, ["default", "search", "shadow"]);
        assert_eq!(explained.rules[1].applies(), Applies::NotDefault);
        let mismatch = explained.rules[2].mismatch.clone().expect("a mismatch");
        assert_eq!((&*mismatch.part, &*mismatch.wanted[0]), ("resource", "/search/*"));
        assert_eq!(mismatch.got.as_deref(), Some("/pay"));
    }
}

#[tokio::test]
async fn request_that_is_not_valid_is_a_result() {
    let server = Rlaas::start(&["unmatched=deny"]);
    for (user_id, code) in [("", 3), ("alice", 7)] {
        let explained = explain(&server, request(user_id)).await;
        match explained.result.and_then(|result| result.result) {
            Some(check_result::Result::Error(error)) => assert_eq!(error.code, code),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn denial_in_the_deny_cache_is_told() {
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let server = Rlaas::start(&[
        "store.backend=redis",
        &url,
        "store.redis.timeout=10s",
        "deny-cache.enabled=true",
        "deny-cache.max-age=60s",
    ]);
    let mut client = server.client().await;
    for _ in 0..6 {
        client.check(request("alice")).await.expect("a decision");
    }
    // The server clears the cache when it begins to follow other instances: the check decides again
    // then, and its denial is cached anew.
    let hits = async || server.metric("rlaas_deny_cache_hits_total").await.expect("a metric");
    let is_cached = async || {
        let before = hits().await;
        let explained = explain(&server, request("alice")).await;
        assert_eq!(hits().await.to_bits(), before.to_bits(), "only the check is a hit");
        let done = client.check(request("alice")).await.expect("a decision").into_inner();
        let is_hit = hits().await > before;
        if is_hit && explained.rules[0].deny_cached_for.is_some() {
            assert_eq!(answer(&explained).source, done.source);
            return true;
        }
        false
    };
    eventually("the denial is cached", TIMEOUT, is_cached).await;
    assert_eq!(hits().await.to_bits(), 1.0_f64.to_bits(), "only the check is a hit");
}

#[tokio::test]
async fn without_its_store_a_server_explains_all_but_the_state() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start(&["store.backend=redis", &url]);
    let explained = explain(&server, request("alice")).await;
    assert!(explained.result.is_none());
    let rule = &explained.rules[0];
    assert_eq!((rule.applies(), &*rule.rule), (Applies::Yes, "default"));
    assert!(rule.state.is_none() && rule.decision.is_none());
    assert_eq!(rule.grant_from(), proto::GrantFrom::Rule);
    assert_eq!(rule.key.as_ref().map(|key| &*key.storage_key), Some("rlaas:rate_limit:alice"));
    let error = explained.store_error.expect("an error");
    assert_eq!((error.code, &*error.message), (14, "store unavailable"));
}

#[tokio::test]
async fn descriptors_are_explained_over_http_too() {
    let dir = TempDir::new();
    let descriptors = dir.write("edge.yaml", DESCRIPTORS);
    let files = format!("envoy.files=[{}]", descriptors.display());
    let server = Rlaas::start(&[&files]);
    let body = r#"{"domain":"edge","descriptors":[
        {"entries":[{"key":"path","value":"/pay"},{"key":"method","value":"POST"}]},
        {"entries":[{"key":"path","value":"/pay"},{"key":"method","value":"POSTS"}],"hitsAddend":"3"}
    ]}"#;
    for _ in 0..2 {
        let (status, _, answer) = post_to(&server, "/v1/admin/explain-descriptors", body).await;
        assert_eq!((status, &answer["overLimit"]), (200, &false.into()), "{answer}");
        let [first, second] = [&answer["descriptors"][0], &answer["descriptors"][1]];
        assert_eq!(first["rule"]["rule"], "edge.path_/pay.method_POST");
        assert_eq!((&first["matchedEntries"], &second["matchedEntries"]), (&2.into(), &1.into()));
        assert_eq!(second["nearest"], serde_json::json!(["method=POST"]));
    }
    let request = r#"{"request":{"userId":"alice"}}"#;
    let (status, _, answer) = post_to(&server, "/v1/admin/explain", request).await;
    assert_eq!((status, &answer["rules"][0]["applies"]), (200, &"APPLIES_YES".into()), "{answer}");
}
