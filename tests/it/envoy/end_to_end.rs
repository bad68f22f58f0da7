//! Requests through a real Envoy in front of a real `rlaas`, as `config/envoy` sets them up.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::proxy::Envoy;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient as KuadrantClient;
use rlaas_proto::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use rlaas_testkit::process::{Rlaas, signal};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(30);
/// A long timeout in Envoy, for tests that are not about response times.
const LONG_TIMEOUT: (&str, &str) = ("timeout: 0.020s", "timeout: 20s");
/// The same in rlaas: a busy machine takes longer than 15 ms, and a response is then not charged.
const PATIENT: &str = "envoy.deadline=10s";
const DENIES: (&str, &str) = ("failure_mode_deny: false", "failure_mode_deny: true");

/// Starts `rlaas` with `config/envoy/rlaas.yaml`, which names the file of rules beside it.
fn rlaas(settings: &[&str]) -> Rlaas {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(
        std::env::current_dir().expect("a folder"),
        dir,
        "cargo runs tests in the folder of the package"
    );
    Rlaas::start_from(Path::new("config/envoy/rlaas.yaml"), settings)
}

fn rlaas_on(redis: &RedisServer, settings: &[&str]) -> Rlaas {
    let url = format!("store.redis.url={}", redis.url());
    let always = ["store.backend=redis", &url];
    rlaas(&[&always, settings].concat())
}

#[tokio::test]
async fn envoy_allows_five_requests_and_denies_the_sixth() {
    let rlaas = rlaas(&[PATIENT]);
    let Some(envoy) = Envoy::in_front_of(&rlaas, &[LONG_TIMEOUT]).await else { return };
    // Eleven requests fill a window even if the next one begins in between.
    let mut refused = None;
    for _ in 0..11 {
        let response = envoy.get("/", &[("x-user", "alice")]).await;
        assert_eq!(response.header("x-ratelimit-limit"), Some("5, 5;w=60"));
        assert_eq!(response.header("ratelimit-limit"), Some("5"));
        let left = response.header("x-ratelimit-remaining");
        assert_eq!(response.header("ratelimit-remaining"), left);
        let reset = response.header("x-ratelimit-reset").and_then(|value| value.parse().ok());
        assert!((1..=60).contains(&reset.unwrap_or(0)), "{response:?}");
        if response.status != 200 {
            refused = Some(response);
            break;
        }
        assert_eq!((response.body.as_str(), response.header("retry-after")), ("hello\n", None));
    }
    let refused = refused.expect("a refusal");
    assert_eq!((refused.status, refused.body.as_str()), (429, ""));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(refused.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(refused.header("retry-after"), refused.header("x-ratelimit-reset"));
    // A banned user, and a request without a descriptor.
    assert_eq!(envoy.get("/", &[("x-user", "mallory")]).await.status, 429);
    let open = envoy.get("/", &[]).await;
    assert_eq!((open.status, open.header("x-ratelimit-limit")), (200, None));
    assert_eq!(envoy.counter("cluster.backend.ratelimit.error").await, 0);
    assert_eq!(envoy.counter("cluster.backend.ratelimit.over_limit").await, 2);
}

#[tokio::test]
async fn hits_addend_takes_and_refunds_units() {
    let rlaas = rlaas(&[PATIENT]);
    let Some(envoy) = Envoy::in_front_of(&rlaas, &[LONG_TIMEOUT]).await else { return };
    let batch =
        async |units: &str| envoy.get("/batch", &[("x-tenant", "acme"), ("x-units", units)]).await;
    let first = batch("60").await;
    assert_eq!((first.status, first.header("x-ratelimit-remaining")), (200, Some("40")));
    let refused = batch("60").await;
    assert_eq!((refused.status, refused.header("x-ratelimit-remaining")), (429, Some("40")));
    assert_eq!(batch("40").await.status, 200);
    assert_eq!(batch("1").await.status, 429);
    // Envoy sends the refund when the response is complete, and does not wait for it.
    envoy.get("/batch", &[("x-gives-back", "acme"), ("x-units", "30")]).await;
    eventually("30 units are refunded", TIMEOUT, async || {
        batch("0").await.header("x-ratelimit-remaining") == Some("30")
    })
    .await;
    assert_eq!(batch("30").await.status, 200);
    assert_eq!(batch("1").await.status, 429);
}

/// Asserts that a budget of 21 an hour, of which each response takes 10, is overdrawn after three
/// requests.
async fn three_of_forty_pass(rlaas: &Rlaas) {
    let Some(envoy) = Envoy::in_front_of(rlaas, &[LONG_TIMEOUT]).await else { return };
    #[expect(clippy::disallowed_methods, reason = "budgets begin and end by wall time")]
    let hour = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs() / 3_600;
    let decided = || rlaas.metric_sum("rlaas_decisions_total", &["rule=\"shop.chat\""]);
    for user in ["alice", "bob"] {
        let (began, mut statuses) = (hour(), Vec::new());
        for _ in 0..40 {
            let before = decided().await;
            let status = envoy.get("/chat", &[("x-user", user)]).await.status;
            statuses.push(status);
            // Envoy reports the hits when the response is complete, and does not wait for it.
            eventually("the response is charged", TIMEOUT, async || {
                status != 200 || decided().await >= before + 2
            })
            .await;
        }
        // If a new hour began, the budget was refilled: try again with another user.
        if began == hour() {
            assert_eq!(statuses[..3], [200; 3], "{statuses:?}");
            assert_eq!(statuses[3..], [429; 37], "{statuses:?}");
            assert_eq!(envoy.counter("cluster.backend.ratelimit.error").await, 0);
            return;
        }
    }
    panic!("a new hour began in both tries");
}

#[tokio::test]
async fn post_paid_budget_is_exhausted() {
    three_of_forty_pass(&rlaas(&[PATIENT])).await;
    three_of_forty_pass(&rlaas_on(&RedisServer::start(), &[PATIENT])).await;
}

/// What Kuadrant's Reserve holds of a limit is missing to Envoy's requests, and comes back.
#[tokio::test]
async fn reserved_units_are_missing_to_requests() {
    let dir = TempDir::new();
    let rules = std::fs::read_to_string("config/envoy/rules.yaml").expect("rules");
    let rules = rules.replace("post_paid: true", "reservable: true\n      post_paid: true");
    let rules = dir.write("rules.yaml", &rules);
    let settings = dir.write("rlaas.yaml", &format!("envoy: {{ files: [{}] }}\n", rules.display()));
    let rlaas = Rlaas::start_from(&settings, &[PATIENT]);
    let Some(envoy) = Envoy::in_front_of(&rlaas, &[LONG_TIMEOUT]).await else { return };
    let mut client = KuadrantClient::new(rlaas.channel().await);
    let entry = Entry { key: "chat".to_owned(), value: "carol".to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let (domain, descriptors) = ("shop".to_owned(), vec![descriptor]);
    let held = ReserveRequest { domain, descriptors, amount: 15, ttl: None };
    let settled = CommitRequest {
        domain: held.domain.clone(),
        descriptors: held.descriptors.clone(),
        actual_amount: 2,
        reservation_id: client.reserve(held).await.expect("a hold").into_inner().reservation_id,
    };
    let chat = async || envoy.get("/chat", &[("x-user", "carol")]).await.status;
    // 6 of 21 are left; the response takes 10.
    assert_eq!(chat().await, 200);
    eventually("more is held than is left", TIMEOUT, async || chat().await == 429).await;
    assert!(client.commit(settled).await.expect("a settlement").into_inner().reservation_released);
    // 12 of 21 are used, or 2 if a new hour began.
    assert_eq!(chat().await, 200);
}

#[tokio::test]
async fn shadow_rules_allow_and_overrides_apply() {
    let rlaas = rlaas(&[PATIENT]);
    let Some(envoy) = Envoy::in_front_of(&rlaas, &[LONG_TIMEOUT]).await else { return };
    for _ in 0..3 {
        assert_eq!(envoy.get("/trial", &[("x-user", "alice")]).await.status, 200);
    }
    let shadow = ["rule=\"shop.trial\"", "outcome=\"shadow_denied\""];
    assert!(rlaas.metric_sum("rlaas_decisions_total", &shadow).await >= 1);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let response = envoy.get("/plan", &[("x-user", "alice")]).await;
        assert_eq!(response.header("x-ratelimit-limit"), Some("2, 2;w=3600"));
        statuses.push(response.status);
    }
    // An hour may begin in between.
    assert!(statuses.contains(&429) && statuses.starts_with(&[200]), "{statuses:?}");
}

#[tokio::test]
async fn envoy_decides_when_rlaas_is_killed() {
    for (edits, expected) in [(&[LONG_TIMEOUT][..], 200), (&[LONG_TIMEOUT, DENIES][..], 500)] {
        let mut rlaas = rlaas(&[PATIENT]);
        let Some(envoy) = Envoy::in_front_of(&rlaas, edits).await else { return };
        assert_eq!(envoy.get("/", &[("x-user", "mallory")]).await.status, 429);
        rlaas.signal("KILL");
        rlaas.wait();
        let response = envoy.get("/", &[("x-user", "mallory")]).await;
        assert_eq!(response.status, expected);
    }
}

#[tokio::test]
async fn rule_policy_then_envoy_decides_when_redis_is_killed() {
    let always = ("/trial }", "/always }");
    let key = ("descriptor_key: trial", "descriptor_key: always");
    for (mode, expected) in [(None, 200), (Some(DENIES), 500)] {
        let mut redis = RedisServer::start();
        let rlaas = rlaas_on(&redis, &["envoy.deadline=5s", "store.redis.timeout=5s"]);
        let edits: Vec<_> = [LONG_TIMEOUT, always, key].into_iter().chain(mode).collect();
        let Some(envoy) = Envoy::in_front_of(&rlaas, &edits).await else { return };
        assert_eq!(envoy.get("/", &[("x-user", "alice")]).await.status, 200);
        assert_eq!(envoy.counter("cluster.backend.ratelimit.ok").await, 1);
        redis.kill();
        let failed = envoy.get("/", &[("x-user", "alice")]).await;
        assert_eq!((failed.status, failed.header("x-ratelimit-limit")), (expected, None));
        assert_eq!(envoy.counter("cluster.backend.ratelimit.error").await, 1);
        // The rule has `on_store_failure: allow`.
        assert_eq!(envoy.get("/always", &[("x-user", "alice")]).await.status, 200);
        assert_eq!(envoy.counter("cluster.backend.ratelimit.ok").await, 2);
    }
}

/// Uses the default timeouts: 20 ms in Envoy, 15 ms in `rlaas`, 50 ms for Redis.
#[tokio::test]
async fn hung_redis_is_reported_before_envoy_times_out() {
    let redis = RedisServer::start();
    let rlaas = rlaas_on(&redis, &[]);
    let Some(envoy) = Envoy::in_front_of(&rlaas, &[DENIES]).await else { return };
    let status = async || envoy.get("/", &[("x-user", "alice")]).await.status;
    eventually("a reply of Redis", TIMEOUT, async || status().await != 500).await;
    signal(redis.pid(), "STOP");
    let timeouts = || rlaas.metric_sum("rlaas_store_errors_total", &["kind=\"timeout\""]);
    let late = || envoy.counter("cluster.rlaas.upstream_rq_timeout");
    eventually("the failure is reported before Envoy times out", TIMEOUT, async || {
        let before = (timeouts().await, late().await);
        status().await == 500 && timeouts().await > before.0 && late().await == before.1
    })
    .await;
    signal(redis.pid(), "CONT");
    eventually("answers again", TIMEOUT, async || status().await != 500).await;
}
