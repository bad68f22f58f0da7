//! Descriptors of one key whose amounts together are above the largest cost of a request.

use std::time::Duration;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use rlaas_proto::kuadrant::service::ratelimit::v1::ReserveRequest;
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);

/// Returns two descriptors that the same rule decides by the same key.
fn descriptors() -> Vec<RateLimitDescriptor> {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let descriptor = |entries: &[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    vec![
        descriptor(&[("user_id", "alice")]),
        descriptor(&[("user_id", "alice"), ("resource", "/llm")]),
    ]
}

async fn assert_sums(server: &Rlaas) {
    let rule = json!({
        "name": "money", "maxRequests": "7000000000", "window": "86400s", "algorithm": "FIXED_WINDOW",
        "keyBy": ["user_id"], "reservable": true,
    });
    let project = json!({ "project": { "id": "shop" } }).to_string();
    eventually("a project", SOON, async || server.post("/v1/projects", &project).await.0 == 201)
        .await;
    let rules = json!({ "rules": [rule], "prune": true }).to_string();
    let (status, answer) = server.post("/v1/projects/shop/rules:apply", &rules).await;
    assert_eq!(status, 200, "{answer}");
    let mut client = RateLimitServiceClient::new(server.channel().await);
    let mut held = Vec::new();
    for amount in [3_000_000_000, 1_000_000_000] {
        let request = ReserveRequest {
            domain: "web".to_owned(),
            descriptors: descriptors(),
            amount,
            ttl: None,
        };
        held.push(client.reserve(request).await.expect("an answer").into_inner().code());
    }
    assert_eq!(held, [Code::Ok, Code::OverLimit], "6 of 7 billion, then 2 more");
}

#[tokio::test]
async fn amounts_of_one_key_are_held_together() {
    let settings = ["auth.api-keys=accepted", "envoy.projects.web=shop", "envoy.deadline=10s"];
    assert_sums(&Rlaas::start(&settings)).await;
    assert_sums(&Rlaas::on_redis(&RedisServer::start(), &settings)).await;
}
