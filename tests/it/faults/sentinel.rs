//! Redis Sentinel: the master dies, steps down or stalls, and sentinels die.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::load::{COUNTED, Load};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, signal};
use rlaas_testkit::sentinel::Sentinels;

const TIMEOUT: Duration = Duration::from_secs(20);

fn behind(sentinels: &Sentinels, settings: &[&str]) -> Rlaas {
    let urls = format!("store.redis.urls={}", sentinels.urls().join(","));
    let always = ["store.backend=redis", "store.redis.mode=sentinel", &urls];
    Rlaas::start(&[&always, settings].concat())
}

#[tokio::test]
async fn killed_master_is_replaced_after_failover() {
    let mut sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 8).await;
    load.wait_for_passed(200, TIMEOUT).await;
    let old = sentinels.kill_master();
    sentinels.wait_for_new_master(old).await;
    // Calls pass within half a second of the failover.
    load.wait_for_passed(1, Duration::from_millis(500)).await;
    load.wait_for_passed(200, TIMEOUT).await;
    load.finish().await;
}

#[tokio::test]
async fn demoted_master_is_abandoned_after_failover() {
    let sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 8).await;
    load.wait_for_passed(200, TIMEOUT).await;
    sentinels.failover().await;
    load.wait_for_passed(1, Duration::from_millis(500)).await;
    load.wait_for_passed(200, TIMEOUT).await;
    load.finish().await;
}

#[tokio::test]
async fn returning_master_receives_no_calls() {
    let sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 8).await;
    load.wait_for_passed(200, TIMEOUT).await;
    let old = sentinels.master();
    signal(sentinels.server(old).pid(), "STOP");
    let new = sentinels.wait_for_new_master(old).await;
    load.wait_for_passed(200, TIMEOUT).await;
    let count = || {
        let keys = sentinels.server(new).keys();
        let key = keys.first().expect("the key of the one id");
        sentinels.server(new).query::<u64>(&["GET", key])
    };
    // Between these two reads a call may be decided but not yet answered.
    let (passed_before, count_before) = (load.passed(), count());
    // The old master acts as a master until a sentinel demotes it.
    signal(sentinels.server(old).pid(), "CONT");
    load.wait_for_passed(500, TIMEOUT).await;
    let counts = load.finish().await;
    let passed = counts.passed.load(Ordering::Relaxed) - passed_before;
    let counted = count() - count_before;
    assert!(counted + 8 >= passed, "{passed} passed, {counted} counted by the new master");
}

#[tokio::test]
async fn known_master_is_kept_without_sentinels() {
    let mut sentinels = Sentinels::start().await;
    let server = behind(&sentinels, COUNTED);
    let load = Load::start(&server, 4).await;
    load.wait_for_passed(200, TIMEOUT).await;
    let master = sentinels.master();
    sentinels.kill_sentinels();
    load.wait_for_passed(500, TIMEOUT).await;
    // Lost connections are reopened.
    sentinels.server(master).query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    load.wait_for_passed(500, TIMEOUT).await;
    load.finish().await;
}

#[tokio::test]
async fn unknown_master_name_is_logged() {
    let sentinels = Sentinels::start().await;
    let server = behind(&sentinels, &["store.redis.master-name=another"]);
    check(&mut server.client().await, "alice").await.expect_err("no master");
    let logged = async || server.log().contains("no sentinel reports a master");
    eventually("the unknown name is logged", TIMEOUT, logged).await;
}
