//! The circuit breaker: it opens after failures, probes Redis, and closes.

use std::time::Duration;

use tokio::task::JoinSet;

use super::load::{
    COUNTED, Load, RECOVERY, SOON, assert_sound, assert_unavailable, breaker, script_calls,
    store_errors, wait_for_store,
};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::redis::RedisServer;

/// Makes Redis refuse every decision, or ends that.
fn refuse(redis: &RedisServer, refuses: bool) {
    let least = if refuses { "1" } else { "0" };
    redis.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", least]);
}

#[tokio::test]
async fn open_breaker_sends_only_few_probes() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    assert!(check(&mut client, "alice").await.expect("an answer").allowed);
    assert_eq!(breaker(&server).await, 0);

    refuse(&redis, true);
    for _ in 0..5 {
        assert_eq!(store_errors(&server, "breaker_open").await, 0);
        assert_unavailable(&mut client, "alice").await;
    }
    assert_eq!(store_errors(&server, "noreplicas").await, 5);
    assert_eq!(breaker(&server).await, 2);

    let calls_before = script_calls(&redis);
    let mut rounds = 0;
    let many = async || {
        for _ in 0..20 {
            assert_unavailable(&mut client, "alice").await;
        }
        rounds += 1;
        rounds == 50
    };
    let took = eventually("a thousand calls fail", SOON * 4, many).await;
    let probes = script_calls(&redis) - calls_before;
    // The first pause is 50 to 100 ms, the second twice that, and all others four times.
    let most = 3 + took.as_millis() / 200;
    assert!(u128::from(probes) <= most, "{probes} probes in {took:?}");
    assert!(probes >= 1 || took < Duration::from_millis(100), "no probe in {took:?}");
    assert_eq!(store_errors(&server, "noreplicas").await, 5 + probes);
    assert_eq!(store_errors(&server, "breaker_open").await, 1000 - probes);

    refuse(&redis, false);
    let closes = async || check(&mut client, "alice").await.is_ok();
    eventually("the breaker closes", RECOVERY, closes).await;
    assert_eq!(breaker(&server).await, 0);
    let logged = async || server.log().contains("breaker closed");
    eventually("the breaker is logged as closed", SOON, logged).await;
    let log = server.log();
    for change in ["breaker opened", "breaker closed"] {
        assert_eq!(log.matches(change).count(), 1, "{change}:\n{log}");
    }
    assert_sound(&server);
}

#[tokio::test]
async fn half_open_breaker_sends_one_probe_and_fails_other_calls() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let load = Load::start(&server, 8).await;
    load.wait_for_passed(20, SOON).await;
    refuse(&redis, true);
    load.wait_for_failed(50).await;
    // From here on a probe gets no reply.
    redis.query::<()>(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    let is_half_open = async || breaker(&server).await == 1;
    eventually("the breaker is half-open", SOON, is_half_open).await;
    // All calls but the probes fail at once: one waits, and one more after each pause.
    let waiting = load.unavailable();
    eventually("other calls fail", SOON, async || load.unavailable() >= waiting + 20).await;
    refuse(&redis, false);
    redis.query::<()>(&["CLIENT", "UNPAUSE"]);
    load.wait_for_passed(50, RECOVERY).await;
    load.finish().await;
    assert_eq!(breaker(&server).await, 0);
    assert_sound(&server);
}

#[tokio::test]
async fn failures_between_successes_keep_the_breaker_closed() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    for _ in 0..10 {
        refuse(&redis, true);
        for _ in 0..4 {
            assert_unavailable(&mut client, "alice").await;
        }
        refuse(&redis, false);
        assert!(check(&mut client, "alice").await.expect("an answer").allowed);
    }
    assert_eq!(breaker(&server).await, 0);
    assert_eq!(store_errors(&server, "breaker_open").await, 0);
    assert!(!server.log().contains("breaker opened"), "{}", server.log());
}

/// The bytes of the command that a connection waits with, of its line in CLIENT LIST.
fn waiting_bytes(line: &str) -> Option<usize> {
    line.split_once("argv-mem=")?.1.split(' ').next()?.parse().ok()
}

#[tokio::test]
async fn connections_lost_together_count_as_one_failure() {
    const WORKERS: usize = 8;
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, &[COUNTED, &["server.workers=8"]].concat());
    wait_for_store(&server).await;
    redis.query::<()>(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    let user = "alice".repeat(40);
    let mut calls = JoinSet::new();
    for _ in 0..WORKERS {
        // Workers get connections in turn.
        let mut client = server.client().await;
        let user = user.clone();
        calls.spawn(async move { check(&mut client, &user).await });
    }
    let in_flight = async || {
        let clients = redis.query::<String>(&["CLIENT", "LIST", "TYPE", "normal"]);
        // The calls are alike; other commands of that size are not.
        let mut sizes: Vec<_> = clients.lines().filter_map(waiting_bytes).collect();
        sizes.retain(|&bytes| bytes > user.len());
        sizes.sort_unstable();
        sizes.chunk_by(|one, next| one == next).any(|alike| alike.len() == WORKERS)
    };
    eventually("a call of each worker is in flight", SOON, in_flight).await;
    redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
    for answer in calls.join_all().await {
        answer.expect_err("a lost call");
    }
    redis.query::<()>(&["CLIENT", "UNPAUSE"]);
    assert_eq!(store_errors(&server, "lost").await, WORKERS as u64);
    assert_eq!(breaker(&server).await, 0);
    assert!(!server.log().contains("breaker opened"), "{}", server.log());
    let mut client = server.client().await;
    check(&mut client, "bob").await.expect("an answer");
    assert_sound(&server);
}
