//! `near_limit` of Envoy's limits: in metrics and in `GetConfig`.

use std::time::Duration;

use rlaas_proto::ratelimit::v1::GetConfigRequest;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

use super::client::{check, client};

const TIMEOUT: Duration = Duration::from_secs(20);
const FILE: &str = "\
domain: shop
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 4, near_limit: 0.5}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 4}}
  - key: local
    rate_limit: {unit: hour, requests_per_unit: 8, near-limit: '0.75', on_store_failure: local}
";

async fn outcomes(server: &Rlaas, rule: &str, source: &str) -> [u64; 3] {
    let mut counted = [0; 3];
    for (outcome, counted) in ["allowed", "near_limit", "denied"].iter().zip(&mut counted) {
        let labels = [("rule", rule), ("source", source), ("outcome", outcome)];
        let labels = labels.map(|(name, value)| format!("{name}=\"{value}\""));
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        *counted = server.metric_sum("rlaas_decisions_total", &labels).await;
    }
    counted
}

#[tokio::test]
async fn metrics_count_what_is_allowed_near_the_limit() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", FILE);
    let server = Rlaas::start(&[&format!("envoy.files={}", file.display())]);
    let mut calls = client(&server).await;
    for request in ["shop: a=1", "shop: b=1"] {
        for expected in [true, true, true, true, false] {
            assert_eq!(check(&mut calls, request).await.starts_with("OK"), expected, "{request}");
        }
    }
    // A limit of the request has the share of the rule: above floor(0.5 * 10), and above floor(0.5 * 5).
    for limit in ["10/day", "5/year"] {
        for _ in 0..5 {
            check(&mut calls, &format!("shop: a=1 ={limit}")).await;
        }
    }
    check(&mut calls, "shop: a=1 =10/day").await;
    // Two of 4 were above floor(0.5 * 4).
    assert_eq!(outcomes(&server, "shop.a", "store").await, [2 + 5 + 2, 2 + 1 + 3, 1]);
    assert_eq!(outcomes(&server, "shop.b", "store").await, [4, 0, 1]);
    let config = server.client().await.get_config(GetConfigRequest::default()).await;
    let rules = config.expect("the rules").into_inner().rules;
    let shares: Vec<(&str, u32)> =
        rules.iter().map(|rule| (&*rule.name, rule.near_limit_ppm)).collect();
    let expected = [("default", 0), ("shop.a", 500_000), ("shop.b", 0), ("shop.local", 750_000)];
    assert_eq!(shares, expected);
}

#[tokio::test]
async fn local_fallback_is_near_its_own_share_of_the_limit() {
    let (dir, mut redis) = (TempDir::new(), RedisServer::start());
    let file = format!("envoy.files={}", dir.write("rules.yaml", FILE).display());
    let server = Rlaas::on_redis(&redis, &[&file]);
    redis.kill();
    let mut calls = client(&server).await;
    // The local share is half of 8, and 1 of 4 is above floor(0.75 * 4).
    for expected in [true, true, true, true, false] {
        assert_eq!(check(&mut calls, "shop: local=1").await.starts_with("OK"), expected);
    }
    assert_eq!(outcomes(&server, "shop.local", "local_fallback").await, [3, 1, 1]);
}

#[tokio::test]
async fn dashboards_of_envoyproxy_ratelimit_have_their_names() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", &FILE.replace("0.5", "0.8").replace(": 4,", ": 10,"));
    let file = format!("envoy.files={}", file.display());
    let server = Rlaas::start(&[&file, "telemetry.envoy-names=true"]);
    let mut calls = client(&server).await;
    for (request, expected) in [
        ("shop: a=1 *7", "OK"),
        ("shop: a=1", "OK"),
        ("shop: a=1 *0", "OK"),
        // 9 and 10 are above floor(0.8 * 10).
        ("shop: a=1", "OK"),
        ("shop: a=1", "OK"),
        ("shop: a=1 *4", "OVER_LIMIT"),
        ("shop: a=1 *0", "OVER_LIMIT"),
        (": a=1", "INVALID_ARGUMENT"),
        ("shop: a=1 =5/0", "INVALID_ARGUMENT"),
    ] {
        let answer = check(&mut calls, request).await;
        assert!(answer.starts_with(expected), "{request}: {answer}");
    }
    let hits =
        |name: &str| format!("ratelimit_service_rate_limit_{name}{{domain=\"shop\",key1=\"a\"}}");
    for (name, count) in [
        (hits("total_hits"), 7 + 1 + 1 + 1 + 4),
        (hits("over_limit"), 2),
        (hits("near_limit"), 2),
        (hits("within_limit"), 5),
        ("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}".to_owned(), 9),
        (
            "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}"
                .to_owned(),
            9,
        ),
        ("ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}".to_owned(), 2),
        ("ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}".to_owned(), 0),
        ("ratelimit_service_config_load_success".to_owned(), 1),
        ("ratelimit_service_config_load_error".to_owned(), 0),
    ] {
        assert_eq!(server.metric(&name).await, Some(f64::from(count)), "{name}");
    }
    dir.write("rules.yaml", "domain: [");
    let refused = "ratelimit_service_config_load_error";
    eventually("a refused file", TIMEOUT, async || server.metric(refused).await == Some(1.0)).await;
    dir.write("rules.yaml", FILE);
    let loaded = "ratelimit_service_config_load_success";
    eventually("another file", TIMEOUT, async || server.metric(loaded).await == Some(2.0)).await;
}

#[tokio::test]
async fn a_store_that_is_away_is_an_error_of_redis() {
    let (dir, mut redis) = (TempDir::new(), RedisServer::start());
    let file = format!("envoy.files={}", dir.write("rules.yaml", FILE).display());
    let server = Rlaas::on_redis(&redis, &[&file, "telemetry.envoy-names=true"]);
    let mut calls = client(&server).await;
    redis.kill();
    for _ in 0..3 {
        assert!(check(&mut calls, "shop: a=1").await.starts_with("UNAVAILABLE"));
    }
    let errors = "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}";
    assert_eq!(server.metric(errors).await, Some(3.0));
}

#[tokio::test]
async fn every_limit_is_near_above_the_share_rounded_down() {
    let dir = TempDir::new();
    let rules: Vec<String> = (1..=40)
        .map(|limit| {
            format!(
                "  - {{key: l{limit}, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n"
            )
        })
        .collect();
    let rules = format!("domain: shop\ndescriptors:\n{}", rules.concat());
    let file = format!("envoy.files={}", dir.write("rules.yaml", &rules).display());
    let server = Rlaas::start(&[&file, "envoy.near-limit=0.8", "envoy.deadline=10s"]);
    let mut calls = client(&server).await;
    for limit in 1..=40_u64 {
        for _ in 0..=limit {
            check(&mut calls, &format!("shop: l{limit}=1")).await;
        }
        let near = limit - limit * 8 / 10;
        let counted = outcomes(&server, &format!("shop.l{limit}"), "store").await;
        assert_eq!(counted, [limit - near, near, 1], "{limit}");
    }
}
