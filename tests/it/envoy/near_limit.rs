//! `near_limit` of Envoy's limits: in metrics and in `GetConfig`.

use rlaas_proto::ratelimit::v1::GetConfigRequest;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;

use super::client::{check, client};

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
    // A limit of the request has the share of the rule.
    for _ in 0..10 {
        check(&mut calls, "shop: a=1 =10/minute").await;
    }
    assert_eq!(outcomes(&server, "shop.a", "store").await, [1 + 4, 3 + 6, 1]);
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
    // The local share is half of 8, and 3 of 4 are near it.
    for expected in [true, true, true, true, false] {
        assert_eq!(check(&mut calls, "shop: local=1").await.starts_with("OK"), expected);
    }
    assert_eq!(outcomes(&server, "shop.local", "local_fallback").await, [2, 2, 1]);
}
