//! The deny cache: only denials that still hold are answered without Redis.

use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};

use super::load::{Client, SOON, assert_sound, script_calls, wait_for_store};
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

/// Logs when the deny cache is emptied.
const LOG: &str = "telemetry.log=info,rlaas_limiter::limiter::forget=debug";

/// The default limit of five in a window that outlasts the test, and long-lived denials.
const LONG: &[&str] = &[
    "rate-limiter.use-algo=fixed-window",
    "rate-limiter.window-size=366d",
    "deny-cache.max-age=1h",
    LOG,
];

/// Waits for the store, and until the server has subscribed to the changes of others: it empties the
/// cache then, and says so by [`LOG`].
async fn wait_for_deny_cache(server: &Rlaas) {
    wait_for_store(server).await;
    let is_empty = async || server.log().contains("deny cache is empty");
    eventually("the server has subscribed", SOON, is_empty).await;
}

async fn check_cost(client: &mut Client, user: &str, cost: u64) -> CheckResponse {
    let request_message = CheckRequest { cost: Some(cost), ..request(user) };
    client.check(request_message).await.expect("an answer").into_inner()
}

fn source(answer: &CheckResponse) -> &'static str {
    answer.source().as_str_name()
}

/// Returns `retry_after` in microseconds.
fn retry_after(answer: &CheckResponse) -> i64 {
    let wait = answer.retry_after.expect("a wait");
    wait.seconds * 1_000_000 + i64::from(wait.nanos / 1_000)
}

#[tokio::test]
async fn repeated_denials_do_not_reach_redis() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, LONG);
    wait_for_deny_cache(&server).await;
    let mut client = server.client().await;
    for _ in 0..5 {
        assert!(check(&mut client, "mallory").await.expect("an answer").allowed);
    }
    let first = check(&mut client, "mallory").await.expect("an answer");
    assert_eq!((first.allowed, source(&first)), (false, "STORE"));
    let calls_before = script_calls(&redis);
    let mut left = retry_after(&first);
    for _ in 0..300 {
        let answer = check(&mut client, "mallory").await.expect("an answer");
        assert_eq!((answer.allowed, source(&answer)), (false, "DENY_CACHE"));
        assert_eq!(answer.reason().as_str_name(), "OVER_LIMIT");
        assert_eq!(answer.current_count, first.current_count);
        let shorter = retry_after(&answer);
        assert!(0 < shorter && shorter < left, "{shorter} after {left}");
        left = shorter;
    }
    assert_eq!(script_calls(&redis), calls_before);
    assert_eq!(server.metric_sum("rlaas_deny_cache_hits_total", &[]).await, 300);
    let labels = ["outcome=\"denied\"", "source=\"deny_cache\""];
    assert_eq!(server.metric_sum("rlaas_decisions_total", &labels).await, 300);
    // Other users are not affected.
    assert_eq!(source(&check(&mut client, "alice").await.expect("an answer")), "STORE");
    assert_sound(&server);
}

#[tokio::test]
async fn replays_are_not_refused_by_a_later_denial() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, LONG);
    wait_for_deny_cache(&server).await;
    let mut client = server.client().await;
    let with_id = CheckRequest { cost: Some(5), request_id: "x".to_owned(), ..request("mallory") };
    let first = client.check(with_id.clone()).await.expect("an answer").into_inner();
    assert!(first.allowed && !first.replayed);
    for source_is in ["STORE", "DENY_CACHE"] {
        let denied = check_cost(&mut client, "mallory", 5).await;
        assert_eq!((denied.allowed, source(&denied)), (false, source_is));
    }
    let retry = client.check(with_id).await.expect("an answer").into_inner();
    assert_eq!((retry.allowed, retry.replayed, source(&retry)), (true, true, "STORE"));
    let other = CheckRequest { cost: Some(5), request_id: "y".to_owned(), ..request("mallory") };
    let denied = client.check(other).await.expect("an answer").into_inner();
    assert_eq!((denied.allowed, source(&denied)), (false, "STORE"));
}

#[tokio::test]
async fn requests_of_another_cost_reach_redis() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, LONG);
    wait_for_deny_cache(&server).await;
    let mut client = server.client().await;
    assert!(check_cost(&mut client, "alice", 3).await.allowed);
    for source_is in ["STORE", "DENY_CACHE"] {
        let denied = check_cost(&mut client, "alice", 4).await;
        assert_eq!((denied.allowed, source(&denied)), (false, source_is));
    }
    let look = check_cost(&mut client, "alice", 0).await;
    assert_eq!((look.allowed, look.remaining, source(&look)), (true, 2, "STORE"));
    let impossible = check_cost(&mut client, "alice", 6).await;
    assert_eq!(
        (impossible.reason().as_str_name(), source(&impossible)),
        ("COST_ABOVE_LIMIT", "STORE")
    );
    assert_eq!(impossible.retry_after, None);
    let smaller = check_cost(&mut client, "alice", 2).await;
    assert_eq!((smaller.allowed, source(&smaller)), (true, "STORE"));
    // A dry run gets the decision that the request would get without it.
    let dry_run = CheckRequest { cost: Some(4), dry_run: true, ..request("alice") };
    let dry_run = client.check(dry_run).await.expect("an answer").into_inner();
    assert_eq!((dry_run.allowed, source(&dry_run)), (false, "DENY_CACHE"));
}

#[tokio::test]
async fn higher_cost_has_its_own_retry_after() {
    let redis = RedisServer::start();
    let gcra =
        ["rate-limiter.use-algo=gcra", "rate-limiter.window-size=1h", "deny-cache.max-age=1h", LOG];
    let server = Rlaas::on_redis(&redis, &gcra);
    wait_for_deny_cache(&server).await;
    let mut client = server.client().await;
    assert!(check_cost(&mut client, "alice", 5).await.allowed);
    let one = check_cost(&mut client, "alice", 1).await;
    let three = check_cost(&mut client, "alice", 3).await;
    let slack = 60_000_000;
    assert!(retry_after(&one) <= 720_000_000, "{one:?}");
    assert!(retry_after(&three) > 3 * 720_000_000 - slack, "{three:?}");
}

#[tokio::test]
async fn ban_is_reported_despite_a_cached_denial() {
    let dir = TempDir::new();
    let file = dir.write(
        "rlaas.yaml",
        "rules:\n  - {name: all, limit: 5, window: 366d, algorithm: fixed}\n  \
         - {name: some, limit: 5, window: 366d, overrides: [{match: {resource: /no}, limit: 0}]}\n\
         deny-cache: {max-age: 1h}\n",
    );
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let server =
        Rlaas::start_from(&file, &["store.backend=redis", &url, "store.redis.timeout=10s", LOG]);
    wait_for_deny_cache(&server).await;
    let mut client = server.client().await;
    assert!(check_cost(&mut client, "alice", 5).await.allowed);
    for _ in 0..3 {
        let banned = CheckRequest { resource: "/no".to_owned(), ..request("alice") };
        let banned = client.check(banned).await.expect("an answer").into_inner();
        assert_eq!(
            (banned.allowed, banned.reason().as_str_name()),
            (false, "BANNED"),
            "{banned:?}"
        );
        assert_eq!(banned.retry_after, None);
    }
}

#[tokio::test]
async fn cached_denial_ends_with_its_retry_after() {
    let redis = RedisServer::start();
    for algorithm in ["fixed-window", "sliding-window-log", "gcra"] {
        let algorithm = format!("rate-limiter.use-algo={algorithm}");
        let prefix = format!("store.redis.key-prefix={}", &algorithm[24..]);
        let short = ["rate-limiter.window-size=1s", "rate-limiter.max-requests=2"];
        let settings = [&*algorithm, &prefix, "deny-cache.max-age=1h", LOG];
        let server = Rlaas::on_redis(&redis, &[settings.as_slice(), &short].concat());
        wait_for_deny_cache(&server).await;
        let mut client = server.client().await;
        for _ in 0..3 {
            let mut from_cache = 0;
            let denied = async || {
                let answer = check(&mut client, "alice").await.expect("an answer");
                assert!(answer.allowed || retry_after(&answer) <= 1_000_000, "{answer:?}");
                from_cache += u32::from(source(&answer) == "DENY_CACHE");
                from_cache >= 3
            };
            eventually("the cache denies", SOON, denied).await;
            let passes = async || check(&mut client, "alice").await.expect("an answer").allowed;
            eventually("passes again", SOON, passes).await;
        }
    }
}

#[tokio::test]
async fn changed_rules_invalidate_cached_denials() {
    let dir = TempDir::new();
    let rules = |limit: u32| {
        format!(
            "rate-limiter: {{use-algo: fixed, window: 366d, limit: {limit}}}\n\
             deny-cache: {{max-age: 1h}}\n"
        )
    };
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let file = dir.write("rlaas.yaml", &rules(5));
    let server =
        Rlaas::start_from(&file, &["store.backend=redis", &url, "store.redis.timeout=10s", LOG]);
    wait_for_deny_cache(&server).await;
    let mut client = server.client().await;
    assert!(check_cost(&mut client, "alice", 5).await.allowed);
    for source_is in ["STORE", "DENY_CACHE"] {
        assert_eq!(source(&check_cost(&mut client, "alice", 1).await), source_is);
    }
    for (limit, revision) in [(7, 2), (6, 3)] {
        dir.write("rlaas.yaml", &rules(limit));
        server.signal("HUP");
        let taken = async || server.metric_sum("rlaas_config_revision", &[]).await == revision;
        eventually("the rules are reloaded", SOON, taken).await;
        let answer = check_cost(&mut client, "alice", 1).await;
        assert_eq!((answer.allowed, source(&answer)), (limit == 7, "STORE"), "{answer:?}");
    }
}

#[tokio::test]
async fn disabled_deny_cache_sends_every_request_to_redis() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[LONG, &["deny-cache.enabled=false"]].concat());
    wait_for_store(&server).await;
    let mut client = server.client().await;
    check_cost(&mut client, "alice", 5).await;
    let calls_before = script_calls(&redis);
    for _ in 0..10 {
        let answer = check(&mut client, "alice").await.expect("an answer");
        assert_eq!((answer.allowed, source(&answer)), (false, "STORE"));
    }
    assert_eq!(script_calls(&redis), calls_before + 10);
    assert_eq!(server.metric_sum("rlaas_deny_cache_hits_total", &[]).await, 0);
}
