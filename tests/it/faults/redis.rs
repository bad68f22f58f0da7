//! Redis dies, hangs, starts late, or loses its scripts; readiness during outages.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rlaas::api::SERVICE;
use tokio::task::JoinSet;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::load::{Load, WIDE, WINDOW, counted};
use rlaas_testkit::process::{Rlaas, check, signal};
use rlaas_testkit::redis::{RedisServer, free_port};
use rlaas_testkit::{TempDir, eventually};

#[tokio::test]
async fn killed_redis_recovers_under_load() {
    let mut redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[WIDE, WINDOW]);
    let load = Load::start(&server, 8).await;
    load.wait_for_passed(200, Duration::from_secs(5)).await;
    for outages in 1..=3 {
        redis.kill();
        load.wait_for_failed(100).await;
        let logged = async || server.log().matches("redis connection failed").count() == outages;
        eventually("the outage is logged", Duration::from_secs(5), logged).await;
        redis.restart();
        // Calls pass within a second of its return.
        load.wait_for_passed(1, Duration::from_secs(1)).await;
        load.wait_for_passed(200, Duration::from_secs(5)).await;
    }
    load.finish().await;
    let log = server.log();
    assert_eq!(log.matches("outage_seconds").count(), 3, "{log}");
    assert!(log.contains("Connection refused"), "the reason is logged:\n{log}");
    for change in ["breaker opened", "breaker closed"] {
        assert_eq!(log.matches(change).count(), 3, "{change}:\n{log}");
    }
    assert!(log.lines().count() < 30, "one line per change of state, not per call:\n{log}");
}

#[tokio::test]
async fn hung_redis_fails_calls_within_the_timeout() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[WIDE, WINDOW, "store.redis.timeout=50ms"]);
    let load = Load::start(&server, 8).await;
    load.wait_for_passed(200, Duration::from_secs(5)).await;
    signal(redis.pid(), "STOP");
    load.wait_for_failed(100).await;
    signal(redis.pid(), "CONT");
    load.wait_for_passed(1, Duration::from_secs(1)).await;
    load.wait_for_passed(200, Duration::from_secs(5)).await;
    let counts = load.finish().await;
    let (counted, calls) = (counted(&redis), counts.calls());
    assert!(counted <= calls, "{counted} counted, {calls} calls");
    assert!(counted >= counts.passed.load(Ordering::Relaxed), "{counted} counted");
}

#[tokio::test]
async fn late_redis_is_connected_in_the_background() {
    let port = free_port();
    let url = format!("store.redis.url=redis://127.0.0.1:{port}");
    let server = Rlaas::start(&["store.backend=redis", &url]);
    let mut client = server.client().await;
    let status = check(&mut client, "alice").await.expect_err("no redis");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
    assert_eq!(server.get("/livez").await.0, 200);
    assert_eq!(server.get("/readyz").await.0, 503);
    assert!(!is_serving(&server, SERVICE).await);
    assert!(is_serving(&server, "").await);

    let redis = RedisServer::start_on(port);
    eventually("the server is ready", Duration::from_secs(1), async || {
        is_serving(&server, SERVICE).await
    })
    .await;
    assert!(check(&mut client, "alice").await.expect("an answer").allowed);
    assert!(is_serving(&server, "store").await);

    // A later outage is reported by the health service `store`, and does not make the server
    // unready.
    drop(redis);
    let gone = async || !is_serving(&server, "store").await;
    eventually("the health service store reports the outage", Duration::from_secs(2), gone).await;
    assert!(is_serving(&server, SERVICE).await);
}

#[tokio::test]
async fn require_store_makes_the_server_unready_in_an_outage() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &["health.require-store=true"]);
    let ready = async || is_serving(&server, SERVICE).await;
    eventually("the server is ready", Duration::from_secs(2), ready).await;
    drop(redis);
    let unready = async || !is_serving(&server, SERVICE).await;
    eventually("the server is unready", Duration::from_secs(2), unready).await;
}

#[tokio::test]
async fn readiness_before_the_first_redis_reply_follows_the_rules() {
    let rules = |policy: &str| {
        format!(
            "rate-limiter: {{fail-open: true}}\nrules:\n  - {{name: trial, limit: 1, window: 1s, \
             shadow: true}}\n  - {{name: pay, limit: 1, window: 1s, on-store-failure: {policy}}}\n"
        )
    };
    let (dir, port) = (TempDir::new(), free_port());
    let url = format!("store.redis.url=redis://127.0.0.1:{port}");
    let file = dir.write("rlaas.yaml", &rules("deny"));
    let server = Rlaas::start_from(&file, &["store.backend=redis", &url]);
    let turns = async |what: &str, ready: bool| {
        let turned = async || is_serving(&server, SERVICE).await == ready;
        eventually(what, Duration::from_secs(5), turned).await;
        assert_eq!(server.get("/readyz").await.0, if ready { 200 } else { 503 }, "{what}");
    };
    turns("ready: every rule has a policy", true).await;
    dir.write("rlaas.yaml", &rules("error"));
    server.signal("HUP");
    turns("unready: one rule has the policy error", false).await;
    let redis = RedisServer::start_on(port);
    turns("ready: Redis has replied", true).await;
    drop(redis);
    let gone = async || !is_serving(&server, "store").await;
    eventually("the health service store reports the outage", Duration::from_secs(2), gone).await;
    turns("still ready in an outage", true).await;
}

#[tokio::test]
async fn fail_open_rule_allows_and_reports_its_source() {
    let url = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start(&["store.backend=redis", &url, "rate-limiter.fail-open=true"]);
    let response = check(&mut server.client().await, "alice").await.expect("an answer");
    assert!(response.allowed);
    assert_eq!(response.source().as_str_name(), "FAIL_OPEN");
    assert_eq!(response.reason().as_str_name(), "STORE_UNAVAILABLE");
    let fail_open = "rate_limiter_fail_open_total{rule=\"default\"}";
    assert_eq!(server.metric(fail_open).await, Some(1.0));
    let ready = async || is_serving(&server, SERVICE).await;
    eventually("the server is ready", Duration::from_secs(2), ready).await;
}

#[tokio::test]
async fn script_flush_goes_unnoticed() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[WIDE, WINDOW]);
    let load = Load::start(&server, 4).await;
    for _ in 0..20 {
        redis.query::<()>(&["SCRIPT", "FLUSH"]);
        load.wait_for_passed(50, Duration::from_secs(5)).await;
    }
    let counts = load.finish().await;
    assert_eq!(counts.unavailable.load(Ordering::Relaxed), 0);
    let counted = counted(&redis);
    assert_eq!(counted, counts.passed.load(Ordering::Relaxed));
}

#[tokio::test]
async fn two_processes_share_counts_under_concurrent_calls() {
    for algorithm in ["fixed-window", "sliding-window-log"] {
        let redis = RedisServer::start();
        let algorithm = format!("rate-limiter.use-algo={algorithm}");
        // The window outlasts the test.
        let settings = [&*algorithm, "rate-limiter.window-size=366d"];
        let servers = [Rlaas::on_redis(&redis, &settings), Rlaas::on_redis(&redis, &settings)];
        let mut calls = JoinSet::new();
        for server in &servers {
            let client = server.client().await;
            for _ in 0..500 {
                let mut client = client.clone();
                calls.spawn(async move {
                    check(&mut client, "alice").await.expect("an answer").allowed
                });
            }
        }
        let allowed = calls.join_all().await.into_iter().filter(|allowed| *allowed).count();
        assert_eq!(allowed, 5, "{algorithm}");
    }
}

async fn is_serving(server: &Rlaas, service: &str) -> bool {
    let mut health = HealthClient::new(server.channel().await);
    let request = HealthCheckRequest { service: service.to_owned() };
    let response = health.check(request).await;
    response.is_ok_and(|response| response.into_inner().status == 1)
}

#[tokio::test]
async fn silent_connection_is_abandoned() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &["store.redis.timeout=50ms"]);
    let mut client = server.client().await;
    eventually("the store answers", Duration::from_secs(2), async || {
        check(&mut client, "a").await.is_ok()
    })
    .await;
    signal(redis.pid(), "STOP");
    let down = async || !is_serving(&server, "store").await;
    eventually("the health service store reports the outage", Duration::from_secs(5), down).await;
    // Redis is known to be unreachable: no call waits for its deadline, which is longer than the
    // test.
    let unreachable = "rlaas_store_errors_total{kind=\"unreachable\"}";
    let fails_at_once = async || {
        assert!(check(&mut client, "a").await.is_err());
        server.metric(unreachable).await.is_some_and(|failed| failed >= 10.0)
    };
    eventually("calls fail at once", Duration::from_secs(10), fails_at_once).await;
    signal(redis.pid(), "CONT");
    let mut client = server.client().await;
    let answers = async || check(&mut client, "b").await.is_ok();
    eventually("answers again", Duration::from_secs(2), answers).await;
}
