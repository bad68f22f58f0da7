//! `GET /check` and `POST /check`: the APIs of RLaaS Users Service and RLaaS on GoRL.

use super::client::{get, post, send};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::{RedisServer, free_port};

const RULES: &str = "rules:\n  \
    - {name: pay, endpoint: /v1/pay, key-by: [api_key], limit: 2, window: 60s}\n";

#[tokio::test]
async fn get_check_allows_five_requests_and_denies_the_sixth() {
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
async fn get_check_decodes_the_user_id() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    for target in ["/check?userId=a+b", "/check?x=1&userId=a%20b", "/check?user%49d=a%20b"] {
        assert_eq!(get(&server, target).await.status, 200, "{target}");
    }
    assert_eq!(redis.keys(), ["rlaas:rate_limit:a b"]);
}

#[tokio::test]
async fn head_check_is_a_get_without_a_body() {
    let server = Rlaas::start(&["rate-limiter.max-requests=1"]);
    for status in [200, 429] {
        let answer = send(&server, "HEAD", "/check?userId=alice", None).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, ""));
        assert!(answer.header("ratelimit").is_some());
    }
}

#[tokio::test]
async fn post_check_applies_rules_by_endpoint_and_key() {
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
async fn key_by_ip_token_or_custom_counts_each_key_separately() {
    let dir = TempDir::new();
    for key_by in ["ip", "[ip]", "token", "custom"] {
        let rules = format!(
            "rules:\n  - {{name: login, endpoint: /login, strategy: sliding, key_by: {key_by}, \
             limit: 2, window: 1h}}\n"
        );
        let server = Rlaas::start_from(&dir.write("rules.yaml", &rules), &[]);
        for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
            let body = format!(r#"{{"endpoint":"/login","key":"{address}"}}"#);
            for status in [200, 200, 429] {
                assert_eq!(post(&server, "/check", &body).await.status, status, "{key_by} {body}");
            }
        }
        // An attribute of that name takes precedence over the user id.
        let name = key_by.trim_matches(['[', ']']);
        let body = format!(
            r#"{{"userId":"alice","resource":"/login","attributes":{{"{name}":"10.0.0.1"}}}}"#
        );
        assert_eq!(post(&server, "/v1/check", &body).await.status, 429, "{body}");
    }
}

#[tokio::test]
async fn missing_key_by_attributes_share_one_bucket() {
    let dir = TempDir::new();
    let rules = "rules:\n  \
        - {name: login, match: {resource: /login}, key_by: ip, limit: 1, window: 1h}\n  \
        - {name: pay, endpoint: /pay, key_by: api_key, limit: 1, window: 1h}\n  \
        - {name: both, endpoint: /both, key_by: [ip, token], limit: 1, window: 1h}\n";
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &[]);
    for endpoint in ["/login", "/pay", "/both"] {
        for (key, status) in [("alice", 200), ("bob", 429)] {
            let body = format!(r#"{{"endpoint":"{endpoint}","key":"{key}"}}"#);
            assert_eq!(post(&server, "/check", &body).await.status, status, "{body}");
        }
    }
}

#[tokio::test]
async fn star_in_an_endpoint_matches_any_text() {
    let dir = TempDir::new();
    let rules = r#"
rules:
  - { name: images, endpoint: "*.png", limit: 0, window: 1h }
  - { name: middle, endpoint: /x/*/y, limit: 0, window: 1h }
  - { name: search, endpoint: /search/**, limit: 0, window: 1h }
  - { name: star, endpoint: '/star/\*', limit: 0, window: 1h }
  - { name: few, endpoint: ["/few/*/a", "/few/b"], limit: 0, window: 1h }
"#;
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &[]);
    for (endpoint, status) in [
        ("/a/b.png", 429),
        (".png", 429),
        ("/a.png?x", 200),
        ("/x/1/2/y", 429),
        ("/x//y", 429),
        ("/x/y", 200),
        ("/search/", 429),
        ("/search/a/b", 429),
        ("/search", 200),
        ("/star/*", 429),
        ("/star/1", 200),
        (r"/star/\\*", 200),
        ("/few/x/a", 429),
        ("/few/b", 429),
        ("/few/c", 200),
    ] {
        let body = format!(r#"{{"endpoint":"{endpoint}","key":"{endpoint}"}}"#);
        assert_eq!(post(&server, "/check", &body).await.status, status, "{endpoint}");
    }
}

#[tokio::test]
async fn limit_of_0_denies_all_users_without_an_override() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: closed, endpoint: /closed, limit: 0, window: 1h, \
                 overrides: [{match: {user_id: ops}, limit: 2}]}\n";
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &[]);
    for (key, statuses) in [("alice", [429, 429, 429]), ("ops", [200, 200, 429])] {
        for status in statuses {
            let body = format!(r#"{{"userId":"{key}","resource":"/closed"}}"#);
            let answer = post(&server, "/v1/check", &body).await;
            assert_eq!(answer.status, status, "{key}");
            let reason = if key == "alice" { "BANNED" } else { "" };
            assert!(answer.json()["reason"].as_str().expect("a reason").contains(reason));
        }
    }
    let closed = Rlaas::start(&["rate-limiter.max-requests=0"]);
    let answer = post(&closed, "/v1/check", r#"{"userId":"alice"}"#).await;
    assert_eq!((answer.status, answer.json()["reason"].as_str()), (429, Some("BANNED")));
}

#[tokio::test]
async fn unmatched_policy_applies_to_endpoints_without_a_rule() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let other = r#"{"endpoint":"/other","key":"alice"}"#;
    let denies = Rlaas::start_from(&rules, &["unmatched=deny"]);
    for answer in [post(&denies, "/check", other).await, get(&denies, "/check?userId=alice").await]
    {
        assert_eq!((answer.status, answer.body.as_str()), (403, "NO_RULE: no rule matches"));
    }
    let allows = Rlaas::start_from(&rules, &["unmatched=allow", "http.headers=both"]);
    for _ in 0..7 {
        let answer = post(&allows, "/check", other).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"allowed":true}"#));
        assert_eq!(answer.limit_headers(), Vec::<&str>::new());
        let answer = get(&allows, "/check?userId=alice").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "User is allowed"));
    }
    for server in [denies, allows] {
        let body = r#"{"endpoint":"/v1/pay","key":"alice","api_key":"k1"}"#;
        for status in [200, 200, 429] {
            assert_eq!(post(&server, "/check", body).await.status, status);
        }
    }
}

#[tokio::test]
async fn store_failure_policy_sets_status_and_body() {
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
async fn ban_has_no_retry_after() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: pay, limit: 2, window: 60s, \
                 overrides: [{match: {user_id: mallory}, limit: 0}]}\n";
    let server = Rlaas::start_from(&dir.write("rules.yaml", rules), &[]);
    let answer = get(&server, "/check?userId=mallory").await;
    assert_eq!((answer.status, answer.body.as_str()), (429, "User is not allowed"));
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.header("ratelimit"), Some("\"pay\";r=0"));
}
