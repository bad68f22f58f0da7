//! Hashed keys: no listed id stands in Redis, and a new key starts afresh.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1::CheckRequest;

use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);
const RULES: &str = "rules:\n  \
    - {name: by-plan, key-by: [plan, user_id], limit: 9, window: 1h, algorithm: fixed}\n  \
    - {name: by-key, key-by: [api_key, resource], limit: 9, window: 1h, algorithm: gcra}\n";
const ENVOY: &str = "domain: shop\ndescriptors:\n  \
    - {key: user_id, rate_limit: {unit: hour, requests_per_unit: 9}}\n  \
    - {key: path, rate_limit: {unit: hour, requests_per_unit: 9}}\n";

fn request() -> CheckRequest {
    let attributes = [("plan", "gold"), ("api_key", "s3cret\n{}")];
    CheckRequest {
        user_id: "alice@example.org".to_owned(),
        resource: "/v1/pay".to_owned(),
        attributes: attributes.map(|(name, value)| (name.into(), value.into())).into(),
        ..CheckRequest::default()
    }
}

/// Writes a configuration that hashes users and API keys, with its key.
fn write(dir: &TempDir, key: &str) -> std::path::PathBuf {
    let (key, envoy) = (dir.write("privacy.key", key), dir.write("envoy.yaml", ENVOY));
    let text = format!(
        "privacy: {{hash: [user_id, attributes.api_key], key-file: '{}'}}\n\
         envoy: {{files: '{}'}}\n{RULES}",
        key.display(),
        envoy.display()
    );
    dir.write("rlaas.yaml", &text)
}

async fn decide(server: &Rlaas) {
    server.client().await.check(request()).await.expect("a decision");
    for entry in ["user_id", "path"] {
        let body = format!(
            r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{entry}","value":"alice@example.org"}}]}}]}}"#
        );
        assert_eq!(server.post("/json", &body).await.0, 200);
    }
}

#[tokio::test]
async fn listed_parts_are_hashed_in_redis_and_others_stay_readable() {
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    let file = write(&dir, &"k".repeat(32));
    let url = format!("store.redis.url={}", redis.url());
    let timeout = "store.redis.timeout=5s";
    let settings = ["store.backend=redis", &url, timeout, "telemetry.log=debug"];
    let server = Rlaas::start_from(&file, &settings);
    decide(&server).await;
    let keys = redis.keys();
    let shape = |key: &String| {
        let is_hash = |part: &str| {
            part.len() == 26 && part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
        };
        let is_window =
            |part: &str| part.len() == 6 && part.bytes().all(|byte| byte.is_ascii_digit());
        let parts = key.split(':').filter(|part| !is_window(part));
        let parts = parts.map(|part| if is_hash(part) { "#" } else { part });
        parts.collect::<Vec<_>>().join(":")
    };
    let mut shapes: Vec<String> = keys.iter().map(shape).collect();
    shapes.sort();
    // The value of `path` is that of the user: only names decide what is hashed.
    let expected = [
        "rlaas:rule:by-key:#:/v1/pay",
        "rlaas:rule:by-plan:gold:#",
        "rlaas:rule:envoy/shop:path:alice@example.org",
        "rlaas:rule:envoy/shop:user_id:#",
    ];
    assert_eq!(shapes, expected, "{keys:?}");
    for secret in ["s3cret", &"k".repeat(32)] {
        assert!(!server.log().contains(secret), "{}", server.log());
    }

    // Another instance with the same key has the same keys.
    decide(&Rlaas::start_from(&file, &settings)).await;
    assert_eq!(redis.keys().len(), keys.len());
}

#[tokio::test]
async fn new_key_is_reloaded_and_starts_afresh_with_one_more_quota() {
    let dir = TempDir::new();
    let file = write(&dir, &"k".repeat(32));
    let server = Rlaas::start_from(&file, &["unmatched=default"]);
    let mut client = server.client().await;
    let mut remaining = async || {
        let response = client.check(request()).await.expect("a decision").into_inner();
        response.decisions.iter().map(|decided| decided.remaining).collect::<Vec<_>>()
    };
    assert_eq!(remaining().await, [8, 8]);
    assert_eq!(remaining().await, [7, 7]);
    // An invalid file leaves the key in force.
    dir.write("privacy.key", "short");
    let failed = async || server.log().contains("configuration reload failed");
    eventually("the reload fails", TIMEOUT, failed).await;
    assert_eq!(remaining().await, [6, 6]);
    dir.write("privacy.key", &"n".repeat(32));
    let logged = async || server.log().contains("hashed keys changed: their state starts afresh");
    eventually("the new key is reloaded", TIMEOUT, logged).await;
    let afresh = async || server.log().matches("configuration reloaded").count() == 1;
    eventually("the reload ends", TIMEOUT, afresh).await;
    assert_eq!(remaining().await, [8, 8]);
    // Back to the first key: what was counted by it still holds.
    dir.write("privacy.key", &format!("{}\n", "k".repeat(32)));
    let back = async || server.log().matches("configuration reloaded").count() == 2;
    eventually("the first key is reloaded", TIMEOUT, back).await;
    assert_eq!(remaining().await, [5, 5]);
}

#[tokio::test]
async fn without_the_setting_keys_are_as_documented() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[]);
    check(&mut server.client().await, "alice").await.expect("a decision");
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice"]);
}

/// Selects keys by parts, or by an id.
fn selector(rule: &str, parts: &[(&str, &str)], id: &str) -> proto::InspectRequest {
    let part = |(name, value): &(&str, &str)| proto::KeyPart {
        name: (*name).to_owned(),
        value: Some((*value).to_owned()),
    };
    let parts = parts.iter().map(part).collect();
    let key = proto::KeyRef { parts, id: id.to_owned(), ..proto::KeyRef::default() };
    let target = Some(proto::selector::Target::Key(key));
    proto::InspectRequest {
        selector: Some(proto::Selector {
            target,
            rule: rule.to_owned(),
            project_id: String::new(),
        }),
    }
}

#[tokio::test]
async fn administrators_find_hashed_keys_by_clear_parts_by_hash_and_by_id() {
    let (redis, dir) = (RedisServer::start(), TempDir::new());
    let file = write(&dir, &"k".repeat(32));
    let url = format!("store.redis.url={}", redis.url());
    let on_redis = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    for server in [Rlaas::start_from(&file, &[]), Rlaas::start_from(&file, &on_redis)] {
        decide(&server).await;
        let mut admin = AdminServiceClient::new(server.channel().await);
        let mut inspect = async |request: proto::InspectRequest| {
            let response = admin.inspect(request).await.expect("a state").into_inner();
            let [state] = &response.keys[..] else { panic!("{response:?}") };
            (state.used, state.key.clone().expect("a key"))
        };
        let clear = [("attributes.plan", "gold"), ("user_id", "alice@example.org")];
        let (used, key) = inspect(selector("by-plan", &clear, "")).await;
        assert_eq!((used, key.parts[0].value.as_deref()), (1, Some("gold")));
        let shown = key.parts[1].value.clone().expect("a value");
        let hash = shown.strip_prefix('#').expect("a hash");
        assert_eq!((hash.len(), &*key.id), (26, &*format!("gold:{hash}")));
        assert!(!format!("{key:?}").contains("alice"), "{key:?}");
        let hashed = [("attributes.plan", "gold"), ("user_id", &*shown)];
        assert_eq!(inspect(selector("by-plan", &hashed, "")).await, (1, key.clone()));
        assert_eq!(inspect(selector("by-plan", &[], &key.id)).await, (1, key.clone()));
        // Somebody else has a key of their own, also under the text of the hash.
        let other = [("attributes.plan", "gold"), ("user_id", hash)];
        let (used, other) = inspect(selector("by-plan", &other, "")).await;
        assert_eq!(used, 0);
        assert_ne!(other.id, key.id);
        // A descriptor, by its entry.
        let rule = "shop.user_id";
        let entry = [("user_id", "alice@example.org")];
        let (used, key) = inspect(selector(rule, &entry, "")).await;
        assert_eq!((used, key.parts[0].value.as_ref()), (1, Some(&shown)));
        assert_eq!(inspect(selector(rule, &[], &key.id)).await, (1, key.clone()));
    }
}
