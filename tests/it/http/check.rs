//! `POST /v1/check`: the JSON mapping of the messages, compared with a library that implements it.

use std::sync::LazyLock;

use futures_util::future::select;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, SerializeOptions};
use rlaas_proto::ratelimit::v1::CheckRequest;
use tonic::Code;

use super::client::{HttpResponse, get, post};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, check, signal};
use rlaas_testkit::redis::{RedisServer, free_port};

/// Members that a problem document adds to a response.
const PROBLEM_MEMBERS: [&str; 5] = ["type", "title", "status", "detail", "violated-policies"];

const RULES: &str = "\
rules:
  - {name: bucket, endpoint: /leaky, algorithm: leaky-bucket, limit: 2, window: 1500ms}
  - {name: trial, endpoint: /leaky, limit: 1, window: 1s, shadow: true}
  - name: pay
    endpoint: /pay
    limit: 2
    window: 60s
    overrides:
      - {match: {user_id: ops}, unlimited: true}
      - {match: {user_id: mallory}, limit: 0}
";

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors")
});

/// Parses a message with the library.
fn read(message: &str, json: &str) -> Result<DynamicMessage, serde_json::Error> {
    let descriptor = POOL.get_message_by_name(message).expect("a message of the proto");
    let mut text = serde_json::Deserializer::from_str(json);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(descriptor, &mut text, &options)?;
    text.end()?;
    Ok(message)
}

/// Asserts that the body is what the library writes for the same message.
fn assert_follows_the_mapping(answer: &HttpResponse) {
    let mut body = answer.json();
    let members = body.as_object_mut().expect("an object");
    members.retain(|name, _| !PROBLEM_MEMBERS.contains(&name.as_str()));
    let message = read("ratelimit.v1.CheckResponse", &body.to_string()).expect("a response");
    let options =
        SerializeOptions::new().skip_default_fields(false).stringify_64_bit_integers(true);
    let written = message.serialize_with_options(serde_json::value::Serializer, &options);
    assert_eq!(written.expect("JSON"), body);
}

#[tokio::test]
async fn responses_follow_the_json_mapping() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let mut seen = Vec::new();
    let server = Rlaas::start_from(&file, &["rate-limiter.use-algo=fixed-window"]);
    for body in [
        r#"{"userId":"a"}"#,
        r#"{"userId":"a","cost":0}"#,
        r#"{"userId":"a","cost":4}"#,
        r#"{"userId":"a","cost":4}"#,
        r#"{"userId":"a","cost":6}"#,
        r#"{"userId":"a","resource":"/leaky"}"#,
        r#"{"userId":"a","resource":"/leaky"}"#,
        r#"{"userId":"a","resource":"/leaky"}"#,
        r#"{"userId":"ops","resource":"/pay"}"#,
        r#"{"userId":"mallory","resource":"/pay"}"#,
    ] {
        let answer = post(&server, "/v1/check", body).await;
        assert_follows_the_mapping(&answer);
        seen.push((answer.status, answer.json()["reason"].as_str().expect("a reason").to_owned()));
    }
    let expected = [
        (200, "WITHIN_LIMIT"),
        (200, "WITHIN_LIMIT"),
        (200, "WITHIN_LIMIT"),
        (429, "OVER_LIMIT"),
        (429, "COST_ABOVE_LIMIT"),
        (200, "WITHIN_LIMIT"),
        (200, "WITHIN_LIMIT"),
        (429, "OVER_LIMIT"),
        (200, "UNLIMITED"),
        (429, "BANNED"),
    ];
    assert_eq!(seen, expected.map(|(status, reason)| (status, reason.to_owned())));
}

#[tokio::test]
async fn unmatched_request_has_the_reason_no_rule() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: trial, endpoint: /leaky, limit: 1, window: 1h, shadow: true}\n";
    let file = dir.write("rules.yaml", rules);
    let allows = Rlaas::start_from(&file, &["unmatched=allow"]);
    for (resource, decisions) in [("/other", 0), ("/leaky", 1)] {
        let body = format!(r#"{{"userId":"a","resource":"{resource}"}}"#);
        let answer = post(&allows, "/v1/check", &body).await;
        assert_follows_the_mapping(&answer);
        let body = answer.json();
        assert_eq!(
            (answer.status, &body["reason"], &body["rule"]),
            (200, &"NO_RULE".into(), &"".into())
        );
        assert_eq!(body["decisions"].as_array().expect("a list").len(), decisions);
        assert_eq!(answer.limit_headers(), Vec::<&str>::new());
    }
    let denies = Rlaas::start_from(&file, &["unmatched=deny"]);
    let answer = post(&denies, "/v1/check", r#"{"userId":"a","resource":"/other"}"#).await;
    assert_eq!((answer.status, &*answer.detail()), (403, "no rule matches"));
    assert_eq!(answer.json()["reason"], "NO_RULE");
    // A rule that matches is a match in any mode.
    let answer = post(&denies, "/v1/check", r#"{"userId":"a","resource":"/leaky"}"#).await;
    assert_eq!((answer.status, &answer.json()["decisions"][0]["rule"]), (200, &"trial".into()));
}

#[tokio::test]
async fn denial_is_a_problem_document_that_names_the_rules() {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", RULES);
    let server = Rlaas::start_from(&file, &[]);
    for _ in 0..2 {
        post(&server, "/v1/check", r#"{"userId":"a","resource":"/leaky"}"#).await;
    }
    let denied = post(&server, "/v1/check", r#"{"userId":"a","resource":"/leaky"}"#).await;
    assert_eq!(denied.status, 429);
    let wait = denied.header("retry-after").expect("a wait");
    assert_eq!(wait, "1");
    assert_eq!(denied.detail(), "try again after 1 second");
    let problem = denied.json();
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(problem["type"], kind);
    assert_eq!(problem["title"], "Quota Exceeded");
    assert_eq!(
        problem["violated-policies"],
        serde_json::json!(["bucket"]),
        "shadow rules are not listed"
    );
    assert_eq!(problem["allowed"], false);
    assert_eq!(problem["rule"], "bucket");
}

/// Repeated members are not compared: the library takes the last, rlaas rejects them.
#[tokio::test]
async fn requests_are_parsed_as_by_the_reference_library() {
    let server = Rlaas::start(&["rate-limiter.max-requests=100000"]);
    let mut client = server.client().await;
    for body in [
        "{}",
        r#"{"userId":"a"}"#,
        r#"{"user_id":"a"}"#,
        r#"{"userId":null}"#,
        r#"{"userId":7}"#,
        r#"{"userId":["a"]}"#,
        r#"{"userId":{}}"#,
        r#"{"userId":"a","resource":null,"attributes":null,"cost":null,"dryRun":null}"#,
        r#"{"userId":"a","attributes":{"plan":"free"}}"#,
        r#"{"userId":"a","attributes":{"plan":1}}"#,
        r#"{"userId":"a","attributes":{"plan":null}}"#,
        r#"{"userId":"a","attributes":{"":"x"}}"#,
        r#"{"userId":"a","attributes":[]}"#,
        r#"{"userId":"a","cost":1}"#,
        r#"{"userId":"a","cost":"1"}"#,
        r#"{"userId":"a","cost":1.0}"#,
        r#"{"userId":"a","cost":1e2}"#,
        r#"{"userId":"a","cost":1.5}"#,
        r#"{"userId":"a","cost":-1}"#,
        r#"{"userId":"a","cost":4294967296}"#,
        r#"{"userId":"a","cost":18446744073709551615}"#,
        r#"{"userId":"a","cost":18446744073709551616}"#,
        r#"{"userId":"a","cost":""}"#,
        r#"{"userId":"a","cost":"one"}"#,
        r#"{"userId":"a","cost":true}"#,
        r#"{"userId":"a","dryRun":true}"#,
        r#"{"userId":"a","dry_run":true}"#,
        r#"{"userId":"a","dryRun":"true"}"#,
        r#"{"userId":"a","dryRun":1}"#,
        r#"{"userId":"a","unknown":1}"#,
        r#"{"userId":"a"}{}"#,
        r#"{"userId":"a",}"#,
        r#"{userId:"a"}"#,
        "[]",
        "\"a\"",
        "null",
        "",
    ] {
        let expected = match read("ratelimit.v1.CheckRequest", body) {
            Ok(message) => {
                let request: CheckRequest = message.transcode_to().expect("the same message");
                client.check(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
            }
            Err(_) => Code::InvalidArgument,
        };
        let expected = if expected == Code::Ok { 200 } else { 400 };
        let answer = post(&server, "/v1/check", body).await;
        let status = if answer.status == 429 { 200 } else { answer.status };
        assert_eq!(status, expected, "{body}: {answer:?}");
    }
}

#[tokio::test]
async fn grpc_and_http_share_counters() {
    let redis = RedisServer::start();
    for server in [Rlaas::start(&[]), Rlaas::on_redis(&redis, &[])] {
        let mut client = server.client().await;
        check(&mut client, "alice").await.expect("an answer");
        get(&server, "/check?userId=alice").await;
        post(&server, "/check", r#"{"endpoint":"/r","key":"alice"}"#).await;
        let looked = post(&server, "/v1/check", r#"{"userId":"alice","dryRun":true}"#).await;
        assert_eq!(looked.json()["currentCount"], "3");
        let taken = post(&server, "/v1/check", r#"{"userId":"alice","cost":"2"}"#).await;
        assert_eq!(taken.json()["currentCount"], "3");
        let response = check(&mut client, "alice").await;
        assert!(!response.expect("an answer").allowed);
    }
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice"]);
}

#[tokio::test]
async fn store_failure_policy_sets_status_and_body() {
    let port = free_port();
    let url = format!("store.redis.url=redis://127.0.0.1:{port}");
    for (policy, status, source) in [
        ("error", 503, None),
        ("allow", 200, Some("FAIL_OPEN")),
        ("deny", 429, Some("FAIL_CLOSED")),
        ("local", 200, Some("LOCAL_FALLBACK")),
    ] {
        let policy = format!("rate-limiter.on-store-failure={policy}");
        let server = Rlaas::start(&["store.backend=redis", &url, &policy]);
        let answer = post(&server, "/v1/check", r#"{"userId":"alice"}"#).await;
        assert_eq!(answer.status, status, "{policy}");
        if let Some(source) = source {
            assert_eq!(answer.json()["source"], source);
            assert_follows_the_mapping(&answer);
        } else {
            assert_eq!(answer.detail(), "store unavailable");
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        let known = source.is_some_and(|source| source != "FAIL_OPEN");
        assert_eq!(answer.header("ratelimit").is_some(), known, "{policy}");
        assert!(
            !answer.body.contains(&port.to_string()),
            "the address of the store is not shown: {answer:?}"
        );
    }
}

#[tokio::test]
async fn shed_request_gets_503_overloaded() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &["store.redis.max-in-flight=1"]);
    post(&server, "/v1/check", r#"{"userId":"alice"}"#).await;
    signal(redis.pid(), "STOP");
    let one = Box::pin(post(&server, "/v1/check", r#"{"userId":"bob"}"#));
    let other = Box::pin(post(&server, "/v1/check", r#"{"userId":"carol"}"#));
    // One request waits for Redis, the other is shed at once.
    let (shed, waiting) = select(one, other).await.factor_first();
    signal(redis.pid(), "CONT");
    assert_eq!(shed.status, 503);
    assert_eq!(shed.detail(), "overloaded");
    assert_eq!(shed.header("retry-after"), Some("1"));
    assert_eq!(waiting.await.status, 200);
}

#[tokio::test]
async fn metrics_count_http_decisions_and_rejections() {
    let server = Rlaas::start(&[]);
    post(&server, "/v1/check", r#"{"userId":"secret-user"}"#).await;
    get(&server, "/check?userId=secret-user").await;
    post(&server, "/check", r#"{"endpoint":"/r","key":"secret-user"}"#).await;
    for bad in ["{", r#"{"secret":1}"#, r#"{"userId":1}"#, r#"{"userId":"a","cost":-1}"#] {
        post(&server, "/v1/check", bad).await;
    }
    get(&server, "/check").await;
    post(&server, "/check", r#"{"endpoint":1,"key":"a"}"#).await;
    let count = "rlaas_check_duration_seconds_count{api=\"http\"}";
    assert_eq!(server.metric(count).await, Some(3.0));
    for (reason, times) in [("body", 2.0), ("user_id", 2.0), ("cost", 1.0), ("resource", 1.0)] {
        let name = format!("rlaas_rejected_total{{reason=\"{reason}\"}}");
        assert_eq!(server.metric(&name).await, Some(times), "{reason}");
    }
    assert!(!get(&server, "/metrics").await.body.contains("secret"));
    assert!(!server.log().contains("secret"));
}

#[test]
fn problem_members_do_not_collide_with_response_fields() {
    let response = POOL.get_message_by_name("ratelimit.v1.CheckResponse").expect("a response");
    for name in PROBLEM_MEMBERS {
        assert!(response.get_field_by_json_name(name).is_none(), "{name}");
    }
}
