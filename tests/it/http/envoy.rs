//! The HTTP endpoints of envoyproxy/ratelimit, and the name of its health service.

use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::client::{get, post};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::{RedisServer, free_port};

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2, name: per_user }
    metadata: { tier: 1 }
  - key: user
    value: root
    rate_limit: { unlimited: true }
  - key: path
    value: /a*
    shadow_mode: true
    rate_limit: { window: 300d, requests_per_unit: 7 }
    descriptors:
      - key: who
        quota_mode: true
        rate_limit: { unit: Day, requests_per_unit: 0 }
";

fn serve(dir: &TempDir, settings: &[&str]) -> Rlaas {
    let files = format!("envoy.files={}", dir.write("rules.yaml", RULES).display());
    Rlaas::start(&[&[files.as_str()], settings].concat())
}

#[tokio::test]
async fn json_endpoint_decides_descriptors() {
    let dir = TempDir::new();
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let on_redis = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    for server in [serve(&dir, &[]), serve(&dir, &on_redis)] {
        let request = r#"{"domain": "shop", "descriptors": [
            {"entries": [{"key": "user", "value": "alice"}]},
            {"entries": [{"key": "user", "value": "root"}], "hitsAddend": null},
            {"entries": [{"key": "nobody"}]}]}"#;
        let answer = post(&server, "/json", request).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let mut body = answer.json();
        let reset = body["statuses"][0]["durationUntilReset"].take();
        let reset = reset.as_str().and_then(|reset| reset.strip_suffix('s')?.parse().ok());
        assert!((1..=31_536_000).contains(&reset.expect("seconds")), "{answer:?}");
        let limit = json!({ "name": "per_user", "requestsPerUnit": 2, "unit": "YEAR" });
        let first = json!({
            "code": "OK", "currentLimit": limit, "limitRemaining": 1, "durationUntilReset": null,
        });
        let statuses =
            json!([first, { "code": "OK", "limitRemaining": u32::MAX }, { "code": "OK" }]);
        assert_eq!(body, json!({ "overallCode": "OK", "statuses": statuses }));

        // Names in snake_case and numbers as strings are accepted too.
        let request = r#"{"domain": "shop", "hits_addend": "2", "descriptors": [
            {"entries": [{"key": "user", "value": "alice"}]}]}"#;
        let answer = post(&server, "/json", request).await;
        assert_eq!((answer.status, &answer.json()["overallCode"]), (429, &json!("OVER_LIMIT")));
        assert_eq!(answer.json()["statuses"][0]["limitRemaining"], 1);
        let back = r#"{"domain": "shop", "descriptors": [{"isNegativeHits": true, "hits_addend": 1,
            "entries": [{"key": "user", "value": "alice"}]}]}"#;
        assert_eq!(post(&server, "/json", back).await.json()["statuses"][0]["limitRemaining"], 2);
        for (unit, name) in [("\"HOUR\"", "HOUR"), ("5", "MONTH")] {
            let request = format!(
                r#"{{"domain": "shop", "descriptors": [{{"limit": {{"unit": {unit},
                "requests_per_unit": 9}}, "entries": [{{"key": "x", "value": "y"}}]}}]}}"#
            );
            let limit = json!({ "requestsPerUnit": 9, "unit": name });
            let answer = post(&server, "/json", &request).await.json();
            assert_eq!(answer["statuses"][0]["currentLimit"], limit);
        }
        let windows = r#"{"domain": "shop", "descriptors": [{"limit": {"unit": "MINUTE",
            "requestsPerUnit": 9, "unitMultiplier": 5}, "entries": [{"key": "x", "value": "z"}]}]}"#;
        let answer = post(&server, "/json", windows).await.json();
        let limit = json!({ "requestsPerUnit": 9, "unit": "MINUTE", "unitMultiplier": 5 });
        assert_eq!(answer["statuses"][0]["currentLimit"], limit);
        // Fields with the value 0 are omitted.
        let banned = r#"{"domain": "shop", "descriptors": [
            {"entries": [{"key": "path", "value": "/abc"}, {"key": "who", "value": "a"}]}]}"#;
        let answer = post(&server, "/json", banned).await;
        assert_eq!(answer.status, 429);
        assert_eq!(answer.json()["statuses"][0]["currentLimit"], json!({ "unit": "DAY" }));
    }
}

#[tokio::test]
async fn json_endpoint_returns_headers_and_metadata_if_enabled() {
    let dir = TempDir::new();
    let server = serve(&dir, &["envoy.headers=legacy", "envoy.metadata=true"]);
    let request = r#"{"domain": "shop", "descriptors": [
        {"entries": [{"key": "user", "value": "alice"}], "hitsAddend": 2}]}"#;
    let answer = post(&server, "/json", request).await.json();
    assert_eq!(
        answer["responseHeadersToAdd"][0],
        json!({ "key": "ratelimit-limit", "value": "2" })
    );
    let descriptors = json!([{ "entries": ["user=alice"], "hitsAddend": 2 }]);
    let expected =
        json!({ "domain": "shop", "descriptors": descriptors, "metadata": { "tier": 1 } });
    assert_eq!(answer["dynamicMetadata"], expected);
}

#[tokio::test]
async fn json_endpoint_names_the_invalid_field() {
    let dir = TempDir::new();
    let server = serve(&dir, &[]);
    let descriptor = |of: &str| format!(r#"{{"domain": "shop", "descriptors": [{of}]}}"#);
    for (body, expected) in [
        (String::new(), "body: not JSON at line 1, column 0"),
        ("[]".to_owned(), "body must be a JSON object"),
        ("{}".to_owned(), "domain must be 1 to 1024 bytes"),
        (r#"{"domain": "shop"}"#.to_owned(), "descriptors must have 1 to 64 entries"),
        (r#"{"domain": 7}"#.to_owned(), "domain must be a string"),
        (r#"{"domain": "a", "domain": "a"}"#.to_owned(), "domain: given twice"),
        (r#"{"domains": "s3cret"}"#.to_owned(), "domains: unknown field"),
        (descriptor("7"), "descriptors[0] must be an object with unique members"),
        (descriptor(r#"{"limit": 7}"#), "descriptors[0].limit must be an object"),
        (descriptor(&["{}"; 65].join(",")), "descriptors must be a list of objects"),
        (
            descriptor(r#"{"hitsAddend": -1}"#),
            "descriptors[0].hitsAddend must be a whole number from 0 to 4294967295",
        ),
        (
            descriptor(r#"{"hitsAddend": 4294967296}"#),
            "descriptors[0].hitsAddend must be a whole number from 0 to 4294967295",
        ),
        (
            descriptor(r#"{}, {"entries": [{}, {"key": ["s3cret"]}]}"#),
            "descriptors[1].entries[1].key must be a string",
        ),
        (descriptor(r#"{"entries": [{"name": 1}]}"#), "descriptors[0].entries[0].name: unknown"),
        (
            descriptor(r#"{"limit": {"unit": "FORTNIGHT"}}"#),
            "descriptors[0].limit.unit must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
        ),
        (
            descriptor(r#"{"limit": {}}"#),
            "descriptors[0].limit.unit must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, and \
             unit_multiplier at least 1 and make at most 366 days of it",
        ),
        (
            descriptor(r#"{"isNegativeHits": 1}"#),
            "descriptors[0].isNegativeHits must be true or false",
        ),
    ] {
        let answer = post(&server, "/json", &body).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert!(answer.body.starts_with(expected), "{body}: {answer:?}");
        assert!(!answer.body.contains("s3cret"), "{answer:?}");
    }
    assert_eq!(server.metric_sum("rlaas_rejected_total", &[]).await, 17);
}

#[tokio::test]
async fn rlconfig_lists_one_rule_per_line() {
    let dir = TempDir::new();
    let server = serve(&dir, &[]);
    let answer = get(&server, "/rlconfig").await;
    let of = |unit: &str, shadow: bool, quota: bool| {
        format!("unit={unit}, shadow_mode: {shadow}, quota_mode: {quota}\n")
    };
    let expected = [
        format!("shop.user: {}", of("YEAR requests_per_unit=2", false, false)),
        format!("shop.user_root: {}", of("UNKNOWN requests_per_unit=0", false, false)),
        format!("shop.path_/a*: {}", of("UNKNOWN requests_per_unit=7", true, false)),
        format!("shop.path_/a*.who: {}", of("DAY requests_per_unit=0", false, true)),
    ];
    assert_eq!((answer.status, answer.body), (200, expected.concat()));
}

#[tokio::test]
async fn healthcheck_path_and_health_service_report_readiness() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let (ready, away) = (Rlaas::start(&[]), Rlaas::start(&["store.backend=redis", &url]));
    let request = HealthCheckRequest { service: "ratelimit".to_owned() };
    for (server, expected, status) in [(ready, (200, "OK"), 1), (away, (500, ""), 2)] {
        let answer = get(&server, "/healthcheck").await;
        assert_eq!((answer.status, answer.body.as_str()), expected);
        let mut client = HealthClient::new(server.channel().await);
        let answer = client.check(request.clone()).await.expect("a known service").into_inner();
        assert_eq!(answer.status, status);
    }
}
