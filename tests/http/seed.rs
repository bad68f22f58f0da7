//! `GET /check` and `POST /check`: what the seed systems answered.

use super::client::{get, post, send};
use super::common::TempDir;
use super::common::process::Rlaas;
use super::common::redis::{RedisServer, free_port};

const RULES: &str = "rules:\n  \
    - {name: pay, endpoint: /v1/pay, key-by: [api_key], limit: 2, window: 60s}\n";

#[tokio::test]
async fn five_requests_of_a_user_pass_and_the_sixth_is_told_when() {
    let redis = RedisServer::start();
    for server in [Rlaas::start(&[]), Rlaas::on_redis(&redis, &[])] {
        for _ in 0..5 {
            let answer = get(&server, "/check?userId=alice").await;
            assert_eq!((answer.status, answer.body.as_str()), (200, "User is allowed"));
        }
        let denied = get(&server, "/check?userId=alice").await;
        assert_eq!(denied.status, 429);
        let wait = denied.header("retry-after").expect("a wait");
        assert_eq!(denied.body, format!("User is not allowed...Try after {wait} seconds."));
        assert!((1..=60).contains(&wait.parse::<u32>().expect("seconds")), "{wait}");
        assert_eq!(denied.header("cache-control"), Some("no-store"));
        assert_eq!(get(&server, "/check?userId=bob").await.status, 200);
    }
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice", "rlaas:rate_limit:bob"]);
}

#[tokio::test]
async fn an_id_is_decoded_from_the_query() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    for target in ["/check?userId=a+b", "/check?x=1&userId=a%20b", "/check?user%49d=a%20b"] {
        assert_eq!(get(&server, target).await.status, 200, "{target}");
    }
    assert_eq!(redis.keys(), ["rlaas:rate_limit:a b"]);
}

#[tokio::test]
async fn a_head_request_is_a_get_without_a_body() {
    let server = Rlaas::start(&["rate-limiter.max-requests=1"]);
    for status in [200, 429] {
        let answer = send(&server, "HEAD", "/check?userId=alice", None).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, ""));
        assert!(answer.header("ratelimit").is_some());
    }
}

#[tokio::test]
async fn an_endpoint_and_a_key_meet_the_rules_of_both() {
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &[]);
    let body = r#"{"endpoint":"/v1/pay","key":"alice","api_key":"k1"}"#;
    for _ in 0..2 {
        let answer = post(&server, "/check", body).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"allowed":true}"#));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("ratelimit-policy"), Some("\"pay\";q=2;w=60"));
    }
    let denied = post(&server, "/check", body).await;
    assert_eq!((denied.status, denied.body.as_str()), (429, "Rate limit exceeded"));
    assert!(denied.header("retry-after").is_some());
    for others in [
        r#"{"endpoint":"/v1/pay","key":"alice","api_key":"k2"}"#,
        r#"{"endpoint":"/v1/pay","key":"alice","api_key":null}"#,
        r#"{"endpoint":"/other","key":"alice"}"#,
        r#"{"endpoint":"","key":"alice"}"#,
    ] {
        assert_eq!(post(&server, "/check", others).await.status, 200, "{others}");
    }
}

#[tokio::test]
async fn without_a_store_the_policy_of_the_rule_answers() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    for (policy, user, endpoint) in [
        ("error", (500, "Internal error"), (500, "Internal error")),
        ("allow", (200, "User is allowed"), (200, r#"{"allowed":true}"#)),
        ("deny", (429, "User is not allowed...Try after 1 seconds."), (429, "Rate limit exceeded")),
    ] {
        let policy = format!("rate-limiter.on-store-failure={policy}");
        let server = Rlaas::start(&["store.backend=redis", &url, &policy]);
        let answer = get(&server, "/check?userId=alice").await;
        assert_eq!((answer.status, answer.body.as_str()), user, "{policy}");
        let answer = post(&server, "/check", r#"{"endpoint":"/r","key":"alice"}"#).await;
        assert_eq!((answer.status, answer.body.as_str()), endpoint, "{policy}");
    }
}

#[tokio::test]
async fn a_ban_has_no_wait() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: pay, limit: 2, window: 60s, \
                 overrides: [{match: {user_id: mallory}, limit: 0}]}\n";
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &[]);
    let answer = get(&server, "/check?userId=mallory").await;
    assert_eq!((answer.status, answer.body.as_str()), (429, "User is not allowed"));
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.header("ratelimit"), Some("\"pay\";r=0"));
}
