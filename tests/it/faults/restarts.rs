//! Redis returns changed: empty, as a replica, or with an eviction policy.

use rlaas_proto::ratelimit::v1::CheckRequest;

use super::load::{COUNTED, Load, RECOVERY, SOON, assert_sound, breaker, counted, wait_for_store};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::redis::RedisServer;

const CAME_BACK_EMPTY: &str = "came back empty";

#[tokio::test]
async fn empty_redis_after_a_restart_is_logged_once() {
    let mut redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let load = Load::start(&server, 4).await;
    load.wait_for_passed(50, SOON).await;
    assert_eq!(server.log().matches(CAME_BACK_EMPTY).count(), 0);
    for restarts in 1..=2 {
        redis.kill();
        load.wait_for_failed(20).await;
        redis.restart();
        load.wait_for_passed(1, RECOVERY).await;
        load.wait_for_passed(50, SOON).await;
        let logged = async || server.log().matches(CAME_BACK_EMPTY).count() == restarts;
        eventually("the empty restart is logged", SOON, logged).await;
    }
    load.finish().await;
    assert_eq!(server.log().matches(CAME_BACK_EMPTY).count(), 2, "{}", server.log());
    assert_sound(&server);
}

#[tokio::test]
async fn redis_restarted_with_its_data_loses_no_count() {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes"]);
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let load = Load::start_apart(&server, 4).await;
    load.wait_for_passed(50, SOON).await;
    redis.kill();
    load.wait_for_failed(20).await;
    redis.restart();
    load.wait_for_passed(50, SOON).await;
    let counts = load.finish().await;
    let bases = (1..=4).map(|number| number * 10_000_000).sum::<u64>();
    assert!(counted(&redis) <= bases + counts.calls());
    assert_eq!(server.log().matches(CAME_BACK_EMPTY).count(), 0, "{}", server.log());
    assert_sound(&server);
}

#[tokio::test]
async fn demoted_master_decides_nothing() {
    let (redis, other) = (RedisServer::start(), RedisServer::start());
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let load = Load::start_apart(&server, 4).await;
    for _ in 0..2 {
        load.wait_for_passed(50, SOON).await;
        redis.query::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
        load.wait_for_failed(20).await;
        let passed = load.passed();
        load.wait_for_failed(100).await;
        assert_eq!(load.passed(), passed, "a replica has decided");
        // Its data may be that of the other server, but counts go on from there.
        redis.query::<()>(&["REPLICAOF", "NO", "ONE"]);
        load.wait_for_passed(1, RECOVERY).await;
    }
    load.wait_for_passed(50, SOON).await;
    load.finish().await;
    assert!(server.log().contains("replica"), "{}", server.log());
    assert_eq!(breaker(&server).await, 0);
    assert_sound(&server);
}

#[tokio::test]
async fn demoted_master_is_detected_without_a_call() {
    let (redis, other) = (RedisServer::start(), RedisServer::start());
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let logged = async || server.log().contains("the server is a replica");
    eventually("the replica is detected", SOON, logged).await;
    // A replica must not answer, not even a request that takes nothing.
    let look = CheckRequest { cost: Some(0), ..request("alice") };
    // The log has the first connection that noticed; the others notice one after the other.
    let mut client = server.client().await;
    let refused = async || {
        let answer = client.check(look.clone()).await;
        answer.is_err_and(|status| status.message() == "store unavailable")
    };
    eventually("no connection answers as a replica", SOON, refused).await;
}

#[tokio::test]
async fn eviction_policy_is_warned_of_at_connect() {
    let warning = "maxmemory-policy";
    for (arguments, warnings) in [
        (&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"][..], 1),
        (&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"], 1),
        (&["--maxmemory", "100mb"], 0),
        (&["--maxmemory-policy", "allkeys-lru"], 0),
    ] {
        let redis = RedisServer::start_with(arguments);
        let server = Rlaas::on_redis(&redis, COUNTED);
        wait_for_store(&server).await;
        assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);
        // The warning comes from the monitor, and calls do not wait for it.
        let is_logged = async || server.log().contains("redis connected");
        eventually("the monitor has connected", SOON, is_logged).await;
        let log = server.log();
        assert_eq!(log.matches(warning).count(), warnings, "{arguments:?}:\n{log}");
    }
}
