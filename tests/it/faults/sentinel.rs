//! The master dies, steps down, is cut off; the sentinels are gone.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::load::{COUNTED, Load};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, signal};
use rlaas_testkit::sentinel::Sentinels;

const PATIENCE: Duration = Duration::from_secs(20);

fn behind(sentinels: &Sentinels, settings: &[&str]) -> Rlaas {
    let urls = format!("store.redis.urls={}", sentinels.urls().join(","));
    let always = ["store.backend=redis", "store.redis.mode=sentinel", &urls];
    Rlaas::start(&[&always, settings].concat())
}

#[tokio::test]
async fn f35_a_killed_master_is_followed_by_the_next_one() {
    let mut sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 8).await;
    load.more_pass(200, PATIENCE).await;
    let old = sentinels.kill_master();
    sentinels.moved_from(old).await;
    // Within half a second of Sentinel's own failover.
    load.more_pass(1, Duration::from_millis(500)).await;
    load.more_pass(200, PATIENCE).await;
    load.finish().await;
}

#[tokio::test]
async fn f36_a_master_that_steps_down_is_left() {
    let sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 8).await;
    load.more_pass(200, PATIENCE).await;
    sentinels.failover().await;
    load.more_pass(1, Duration::from_millis(500)).await;
    load.more_pass(200, PATIENCE).await;
    load.finish().await;
}

#[tokio::test]
async fn f37_a_master_that_comes_back_is_not_taken_for_one() {
    let sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 8).await;
    load.more_pass(200, PATIENCE).await;
    let old = sentinels.master();
    signal(sentinels.server(old).pid(), "STOP");
    let new = sentinels.moved_from(old).await;
    load.more_pass(200, PATIENCE).await;
    let count = || {
        let keys = sentinels.server(new).keys();
        let key = keys.first().expect("the key of the one id");
        sentinels.server(new).query::<u64>(&["GET", key])
    };
    // Between the two a call may be decided and not yet answered.
    let (passed_before, count_before) = (load.passed(), count());
    // It believes that it is the master until a sentinel tells it otherwise.
    signal(sentinels.server(old).pid(), "CONT");
    load.more_pass(500, PATIENCE).await;
    let tally = load.finish().await;
    let passed = tally.passed.load(Ordering::Relaxed) - passed_before;
    let counted = count() - count_before;
    assert!(counted + 8 >= passed, "{passed} passed, {counted} counted by the new master");
}

#[tokio::test]
async fn f38_a_known_master_is_kept_to_without_sentinels() {
    let mut sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 4).await;
    load.more_pass(200, PATIENCE).await;
    let master = sentinels.master();
    sentinels.kill_sentinels();
    load.more_pass(500, PATIENCE).await;
    // A connection that breaks is made again.
    sentinels.server(master).query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    load.more_pass(500, PATIENCE).await;
    load.finish().await;
}

#[tokio::test]
async fn sentinels_that_know_no_such_master_are_told_in_the_log() {
    let sentinels = Sentinels::start().await;
    let server = behind(&sentinels, &["store.redis.master-name=another"]);
    check(&mut server.client().await, "alice").await.expect_err("no master");
    let told = async || server.log().contains("no sentinel names a master");
    eventually("that is told", PATIENCE, told).await;
}
