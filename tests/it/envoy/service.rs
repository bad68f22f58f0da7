//! The service beyond the case files: store failures, concurrent callers, metrics and roles.

use std::time::Duration;

use super::client::{EnvoyClient, check, client};
use super::notation;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, signal};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio_stream::StreamExt;
use tonic::{Code, Request};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

const TIMEOUT: Duration = Duration::from_secs(20);
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Starts a server with a descriptor for each key and the fields of its `rate_limit`.
fn serve(dir: &TempDir, rules: &[(&str, &str)], settings: &[&str]) -> Rlaas {
    let descriptor = |(key, limit): &(&str, &str)| {
        format!("  - {{ key: {key}, rate_limit: {{ window: 300d, {limit} }} }}\n")
    };
    let descriptors: Vec<String> = rules.iter().map(descriptor).collect();
    let text = format!("domain: shop\ndescriptors:\n{}", descriptors.concat());
    let file = dir.write("rules.yaml", &text);
    let files = format!("envoy.files={}", file.display());
    Rlaas::start(&[&[files.as_str()], settings].concat())
}

fn on(redis: &RedisServer) -> [String; 2] {
    ["store.backend=redis".to_owned(), format!("store.redis.url={}", redis.url())]
}

#[tokio::test]
async fn reflection_describes_the_service() {
    let server = Rlaas::start(&[]);
    let mut client = ServerReflectionClient::new(server.channel().await);
    let symbol = MessageRequest::FileContainingSymbol(SERVICE.to_owned());
    for message in [MessageRequest::ListServices(String::new()), symbol] {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let stream = client.server_reflection_info(tokio_stream::once(request)).await;
        let answer = stream.expect("a stream").into_inner().next().await.expect("an answer");
        match answer.expect("an answer").message_response.expect("a message") {
            MessageResponse::ListServicesResponse(list) => {
                assert!(list.service.iter().any(|service| service.name == SERVICE), "{list:?}");
            }
            MessageResponse::FileDescriptorResponse(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn descriptor_without_a_limit_passes_regardless_of_unmatched() {
    let dir = TempDir::new();
    let rules = [("user", "requests_per_unit: 1")];
    for policy in ["unmatched=deny", "unmatched=allow"] {
        let server = serve(&dir, &rules, &[policy]);
        let mut client = client(&server).await;
        for request in ["shop: other=1", "nowhere: user=1"] {
            assert_eq!(check(&mut client, request).await, "OK [OK]", "{policy}");
        }
        for expected in ["OK [OK ", "OVER_LIMIT ["] {
            let answer = check(&mut client, "shop: user=1").await;
            assert!(answer.starts_with(expected), "{policy}: {answer}");
        }
    }
}

#[tokio::test]
async fn store_failure_follows_the_policy_of_the_rule() {
    let (dir, mut redis) = (TempDir::new(), RedisServer::start());
    let rules = [
        ("error", "requests_per_unit: 4"),
        ("allow", "requests_per_unit: 4, on_store_failure: allow"),
        ("deny", "requests_per_unit: 4, fail_open: false, algorithm: gcra"),
        ("denies", "requests_per_unit: 4, on_store_failure: deny"),
        ("local", "requests_per_unit: 4, on_store_failure: local, local_share: 0.5"),
    ];
    let url = on(&redis);
    let settings = [url[0].as_str(), &url[1], "envoy.deadline=5s", "store.redis.timeout=5s"];
    let server = serve(&dir, &rules, &settings);
    let mut client = client(&server).await;
    let limit = "4/300DAY";
    assert!(check(&mut client, "shop: error=a").await.starts_with("OK [OK 4/300DAY left 3"));
    redis.kill();
    for (request, expected) in [
        ("shop: error=a", "UNAVAILABLE store unavailable".to_owned()),
        ("shop: deny=a", "UNAVAILABLE store unavailable".to_owned()),
        ("shop: allow=a", format!("OK [OK {limit} left 0]")),
        ("shop: denies=a", format!("OVER_LIMIT [OVER_LIMIT {limit} left 0 reset 1]")),
        (
            "shop: allow=a; denies=a",
            format!("OVER_LIMIT [OK {limit} left 0 | OVER_LIMIT {limit} left 0 reset 1]"),
        ),
        ("shop: allow=a; error=a", "UNAVAILABLE store unavailable".to_owned()),
        ("shop: error=a -1", "UNAVAILABLE store unavailable".to_owned()),
        ("shop: nobody=a", "OK [OK]".to_owned()),
        // The policy of the rule applies to a limit in the request as well.
        ("shop: allow=a =1/minute", "OK [OK 1/MINUTE left 0]".to_owned()),
        ("shop: nobody=a =1/minute", "UNAVAILABLE store unavailable".to_owned()),
    ] {
        assert_eq!(check(&mut client, request).await, expected, "{request}");
    }
    // The local share is half of the limit.
    for expected in ["OK [OK 4/300DAY left 1", "OK [OK 4/300DAY left 0", "OVER_LIMIT [OVER_LIMIT"] {
        let answer = check(&mut client, "shop: local=a").await;
        assert!(answer.starts_with(expected), "{answer}");
    }
    let labels = ["rule=\"shop.allow\"", "policy=\"allow\""];
    assert!(server.metric_sum("rlaas_degraded_total", &labels).await >= 2);
}

#[tokio::test]
async fn hung_store_is_reported_within_the_envoy_deadline() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = on(&redis);
    let settings = [url[0].as_str(), &url[1], "envoy.deadline=100ms", "store.redis.timeout=60s"];
    let server = serve(&dir, &[("a", "requests_per_unit: 4")], &settings);
    let mut client = client(&server).await;
    eventually("a reply of Redis", TIMEOUT, async || {
        check(&mut client, "shop: a=1 *0").await.starts_with("OK")
    })
    .await;
    signal(redis.pid(), "STOP");
    // The client of this test waits 10 s.
    assert_eq!(check(&mut client, "shop: a=1").await, "UNAVAILABLE store unavailable");
    signal(redis.pid(), "CONT");
}

#[tokio::test]
async fn deny_cache_answers_only_with_every_status_known() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = on(&redis);
    let settings = [url[0].as_str(), &url[1], "envoy.deadline=10s", "store.redis.timeout=10s"];
    let rules = [("a", "requests_per_unit: 1"), ("b", "requests_per_unit: 5")];
    let server = serve(&dir, &rules, &settings);
    let mut client = client(&server).await;
    check(&mut client, "shop: a=1").await;
    for _ in 0..3 {
        let refused = check(&mut client, "shop: a=1").await;
        assert!(refused.starts_with("OVER_LIMIT [OVER_LIMIT 1/300DAY left 0 reset "), "{refused}");
        let both = check(&mut client, "shop: b=1; a=1").await;
        assert!(both.starts_with("OVER_LIMIT [OK 5/300DAY left 5 reset "), "{both}");
    }
    assert!(server.metric("rlaas_deny_cache_hits_total").await >= Some(1.0));
    // A refund removes the remembered denial.
    assert!(check(&mut client, "shop: a=1 -1").await.starts_with("OK [OK 1/300DAY left 1"));
    assert!(check(&mut client, "shop: a=1").await.starts_with("OK"));
}

#[tokio::test]
async fn deny_cache_ignores_several_hits_of_one_key() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = on(&redis);
    let long_timeouts = ["envoy.deadline=10s", "store.redis.timeout=10s", "deny-cache.max-age=1h"];
    let settings = [&[url[0].as_str(), &url[1]], &long_timeouts[..]].concat();
    let server = serve(&dir, &[("a", "requests_per_unit: 5")], &settings);
    let mut client = client(&server).await;
    assert!(check(&mut client, "shop: a=1 *2").await.starts_with("OK [OK 5/300DAY left 3"));
    // Three units are left: too few for both hits, enough for one.
    let both = check(&mut client, "shop: a=1 *2; a=1 *2").await;
    assert!(both.starts_with("OVER_LIMIT [OK 5/300DAY left 3"), "{both}");
    assert!(check(&mut client, "shop: a=1 *2").await.starts_with("OK [OK 5/300DAY left 1"));
    // The denial of a single hit is remembered, once the server follows the other instances: it
    // clears the cache then.
    assert!(check(&mut client, "shop: a=1 *2").await.starts_with("OVER_LIMIT"));
    let is_cached = async || {
        assert!(check(&mut client, "shop: a=1 *2").await.starts_with("OVER_LIMIT"));
        server.metric("rlaas_deny_cache_hits_total").await >= Some(1.0)
    };
    eventually("the denial is cached", TIMEOUT, is_cached).await;
    assert!(check(&mut client, "shop: a=1").await.starts_with("OK [OK 5/300DAY left 0"));
}

#[tokio::test]
async fn report_counts_despite_a_denial_on_another_shard() {
    let (dir, cluster) = (TempDir::new(), RedisCluster::start(3, 0).await);
    let cluster_settings = cluster.settings();
    let cluster_settings: Vec<&str> = cluster_settings.iter().map(String::as_str).collect();
    let paid_later = "requests_per_unit: 5, algorithm: token-bucket, post_paid: true";
    let rules = [("paid", paid_later), ("tenant", "requests_per_unit: 1")];
    let settings =
        [&cluster_settings[..], &["envoy.deadline=10s", "store.redis.timeout=10s"]].concat();
    let server = serve(&dir, &rules, &settings);
    let mut client = client(&server).await;
    check(&mut client, "shop: tenant=1").await;
    for user in 0..20 {
        // The tenant denies and the report counts, regardless of which shard is called first.
        let refused = check(&mut client, &format!("shop: paid={user} *7; tenant=1")).await;
        assert!(refused.starts_with("OVER_LIMIT [OVER_LIMIT 5/300DAY left 0"), "{refused}");
        let looked = check(&mut client, &format!("shop: paid={user} *0")).await;
        assert!(looked.starts_with("OVER_LIMIT [OVER_LIMIT 5/300DAY left 0"), "{looked}");
        let back = check(&mut client, &format!("shop: paid={user} -3")).await;
        assert!(back.starts_with("OK [OK 5/300DAY left 1"), "{back}");
    }
}

#[tokio::test]
async fn denial_refunds_units_taken_on_other_shards() {
    let (dir, cluster) = (TempDir::new(), RedisCluster::start(3, 0).await);
    let cluster_settings = cluster.settings();
    let cluster_settings: Vec<&str> = cluster_settings.iter().map(String::as_str).collect();
    let rules = [("user", "requests_per_unit: 50"), ("tenant", "requests_per_unit: 1")];
    let settings =
        [&cluster_settings[..], &["envoy.deadline=10s", "store.redis.timeout=10s"]].concat();
    let server = serve(&dir, &rules, &settings);
    let mut client = client(&server).await;
    check(&mut client, "shop: tenant=1").await;
    for user in 0..20 {
        let request = format!("shop: user={user}; tenant=1; user={user}");
        let refused = check(&mut client, &request).await;
        assert!(refused.starts_with("OVER_LIMIT [OK 50/300DAY left 50"), "{refused}");
        let looked = check(&mut client, &format!("shop: user={user} *0")).await;
        assert!(looked.starts_with("OK [OK 50/300DAY left 50"), "{looked}");
    }
    for user in 0..20 {
        let request = format!("shop: user={user} *3; user={user}x");
        let passed = check(&mut client, &request).await;
        assert!(passed.contains("left 47") && passed.contains("left 49"), "{passed}");
        let back = check(&mut client, &format!("shop: user={user} -2")).await;
        assert!(back.starts_with("OK [OK 50/300DAY left 49"), "{back}");
    }
}

#[tokio::test]
async fn metric_labels_use_the_configured_descriptor_path() {
    let dir = TempDir::new();
    let limit = "rate_limit: { unit: hour, requests_per_unit: 1 }";
    let text = format!(
        "domain: shop\ndescriptors:\n  - key: user\n    {limit}\n  - {{ key: path, value: /a*, \
         {limit} }}\n  - key: route\n    value_to_metric: true\n    descriptors:\n      - {{ key: \
         who, {limit} }}\n  - {{ key: all, detailed_metric: true, {limit} }}\n  - {{ key: files, \
         value: f*, share_threshold: true, detailed_metric: true, {limit} }}\n"
    );
    let files = format!("envoy.files={}", dir.write("rules.yaml", &text).display());
    let server = Rlaas::start(&[&files]);
    let mut client = client(&server).await;
    for request in [
        "shop: user=secret",
        "shop: path=/abc",
        "shop: route=api,who=secret",
        "shop: all=told",
        "shop: files=f1",
        "shop: brought=secret =1/hour",
        "shop: =x",
        ": a=b",
        "shop: user=a =1/0",
    ] {
        check(&mut client, request).await;
    }
    for label in ["shop.user", "shop.path_/a*", "shop.route_api.who", "shop.all_told"] {
        let labels = [format!("rule=\"{label}\""), "outcome=\"allowed\"".to_owned()];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        assert_eq!(server.metric_sum("rlaas_decisions_total", &labels).await, 1, "{label}");
    }
    for label in ["rule=\"shop.files_f*\"", "rule=\"shop\""] {
        assert_eq!(server.metric_sum("rlaas_decisions_total", &[label]).await, 1, "{label}");
    }
    for (reason, count) in [("domain", 1), ("limit", 1)] {
        let label = format!("reason=\"{reason}\"");
        assert_eq!(server.metric_sum("rlaas_rejected_total", &[&label]).await, count, "{reason}");
    }
    let (_, text) = server.get("/metrics").await;
    assert!(!text.contains("secret"));
    assert!(text.contains("rlaas_check_duration_seconds_count{api=\"envoy\"} 9\n"), "{text}");
}

#[tokio::test]
async fn value_labels_are_bounded() {
    const MAX: usize = 1_000;
    let dir = TempDir::new();
    let text = "domain: shop\ndescriptors:\n  - { key: a, detailed_metric: true, rate_limit: { unit: \
                hour, requests_per_unit: 1 } }\n";
    let files = format!("envoy.files={}", dir.write("rules.yaml", text).display());
    let server = Rlaas::start(&[&files]);
    let mut client = client(&server).await;
    let long = "x".repeat(300);
    check(&mut client, &format!("shop: a={long}")).await;
    for value in 0..MAX + 50 {
        check(&mut client, &format!("shop: a={value}")).await;
    }
    let (_, text) = server.get("/metrics").await;
    assert_eq!(text.matches("rule=\"shop.a_").count(), MAX);
    assert_eq!(server.metric_sum("rlaas_decisions_total", &["rule=\"shop.a\""]).await, 51);
}

#[tokio::test]
async fn reduced_request_limit_is_logged_once() {
    let dir = TempDir::new();
    let server = serve(&dir, &[("a", "requests_per_unit: 1")], &[]);
    let mut client = client(&server).await;
    for _ in 0..3 {
        let answer = check(&mut client, "shop: a=1 =4294967295/day").await;
        assert!(answer.starts_with("OK [OK 1000000000/DAY"), "{answer}");
    }
    let warning = "limit override of a request exceeds the maximum";
    eventually("the warning", TIMEOUT, async || server.log().contains(warning)).await;
    assert_eq!(server.log().matches(warning).count(), 1);
}

#[tokio::test]
async fn envoy_service_requires_the_check_role() {
    let dir = TempDir::new();
    let hash = |token: &str| {
        let bytes = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
        bytes.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    };
    let text = format!(
        "auth:\n  tokens:\n    - {{ name: mesh, sha256: {}, roles: [check] }}\n    - {{ name: ops, \
         sha256: {}, roles: [admin] }}\n",
        hash("checker"),
        hash("admin")
    );
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &text), &[]);
    let mut client = client(&server).await;
    let code_of = async |client: &mut EnvoyClient, token: &str| {
        let mut request = Request::new(notation::request("shop: a=b"));
        if !token.is_empty() {
            let header = format!("Bearer {token}").parse().expect("a header");
            request.metadata_mut().insert("authorization", header);
        }
        client.should_rate_limit(request).await.err().map(|status| status.code())
    };
    assert_eq!(code_of(&mut client, "").await, Some(Code::Unauthenticated));
    assert_eq!(code_of(&mut client, "admin").await, Some(Code::PermissionDenied));
    assert_eq!(code_of(&mut client, "checker").await, None);
}
