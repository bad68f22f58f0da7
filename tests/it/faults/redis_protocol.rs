//! Faults of the connection to Redis: lost, garbled, extra, endless and delayed replies, and
//! silence.

use std::sync::atomic::Ordering;

use rlaas_proto::ratelimit::v1::CheckRequest;

use super::load::{
    COUNTED, Load, RECOVERY, SOON, ambiguous, assert_sound, assert_unavailable, breaker, counted,
    store_errors, wait_for_connections, wait_for_store,
};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::proxy::{Behaviour, Proxy};
use rlaas_testkit::redis::RedisServer;

/// Most open connections while all fail: those of the worker, the monitor, the calls of the fleet
/// and its subscription, each with one that takes its place.
const MAX_OPEN: usize = 8;

/// Starts a server that reaches its Redis through a proxy.
async fn start(settings: &[&str]) -> (RedisServer, Proxy, Rlaas) {
    let redis = RedisServer::start();
    let proxy = Proxy::to(redis.port());
    let url = format!("store.redis.url={}", proxy.url());
    // One worker, so one connection for decisions, beside those of the monitor and the fleet.
    let always = ["store.backend=redis", &url, "store.redis.timeout=10s", "server.workers=1"];
    let server = Rlaas::start(&[&always, COUNTED, settings].concat());
    wait_for_store(&server).await;
    (redis, proxy, server)
}

/// Waits until the proxy has applied a fault that occurs once.
async fn wait_for_fault(proxy: &Proxy) {
    eventually("the fault", SOON, async || proxy.behaviour() == Behaviour::Pass).await;
}

#[tokio::test]
async fn lost_reply_is_counted_once_and_not_retried() {
    let (redis, proxy, server) = start(&[]).await;
    let mut client = server.client().await;
    assert!(check(&mut client, "alice").await.expect("an answer").allowed);
    for lost in 1..=3 {
        wait_for_connections(&redis).await;
        proxy.set(Behaviour::CutReply);
        assert_unavailable(&mut client, "alice").await;
        assert_eq!(ambiguous(&server).await, lost);
        assert_eq!(store_errors(&server, "lost").await, lost);
        assert_eq!(counted(&redis), 2 * lost);
        wait_for_store(&server).await;
        let answer = check(&mut client, "alice").await.expect("an answer");
        assert_eq!(answer.current_count.cast_unsigned(), 2 * lost + 1);
    }
    // A request that takes nothing is retried if there is another connection.
    for look in [
        CheckRequest { cost: Some(0), ..request("alice") },
        CheckRequest { dry_run: true, ..request("alice") },
    ] {
        let repeated = async || {
            wait_for_connections(&redis).await;
            proxy.set(Behaviour::CutReply);
            let answer = client.check(look.clone()).await;
            assert_eq!(proxy.behaviour(), Behaviour::Pass);
            answer.is_ok_and(|answer| answer.into_inner().current_count == 7)
        };
        eventually("an answer", SOON, repeated).await;
    }
    assert_eq!((ambiguous(&server).await, counted(&redis)), (3, 7));
    assert_sound(&server);
}

#[tokio::test]
async fn garbled_reply_costs_only_its_connection() {
    // The timeout is for replies that announce more bytes than they have.
    let (redis, proxy, server) = start(&["store.redis.timeout=200ms"]).await;
    let load = Load::start_apart(&server, 8).await;
    load.wait_for_passed(50, SOON).await;
    let nested = b"*1\r\n".repeat(100_000);
    let garbage: [&[u8]; 14] = [
        b"?!\r\n",
        b"\xff\xfe\x00\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b":twelve\r\n",
        b"$-5\r\n",
        b"*2147483647\r\n",
        b"*9223372036854775807\r\n",
        b"%4611686018427387904\r\n",
        &nested,
        // Replies of the wrong shape.
        b"+OK\r\n",
        b"$-1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\nx\r\n:1\r\n",
        b"*3\r\n$3\r\n1.1\r\n:1\r\n$3\r\nabc\r\n",
    ];
    let before = server.resident_kib();
    for bytes in garbage {
        let failed = load.unavailable();
        proxy.set(Behaviour::Garbage(bytes.to_vec()));
        wait_for_fault(&proxy).await;
        let assert_unavailable = async || load.unavailable() > failed;
        eventually("the call fails", SOON, assert_unavailable).await;
        load.wait_for_passed(1, RECOVERY).await;
        load.wait_for_passed(20, SOON).await;
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 65_536, "{grown} KiB");
    assert!(store_errors(&server, "garbled").await > 0);
    let counts = load.finish().await;
    assert!(counted(&redis) >= counts.passed.load(Ordering::Relaxed));
    assert_sound(&server);
}

#[tokio::test]
async fn extra_reply_reaches_no_caller() {
    let (_redis, proxy, server) = start(&[]).await;
    let load = Load::start_apart(&server, 16).await;
    load.wait_for_passed(50, SOON).await;
    let extra: [&[u8]; 5] = [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        // A reply to TIME.
        b"*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n",
        // A reply of a script with another nonce.
        b"*9\r\n$3\r\n1.1\r\n:1700000000000000\r\n:0\r\n:5\r\n:5\r\n:0\r\n:1\r\n:1\r\n:0\r\n",
    ];
    for bytes in extra.into_iter().cycle().take(20) {
        proxy.set(Behaviour::Extra(bytes.to_vec()));
        wait_for_fault(&proxy).await;
        load.wait_for_passed(50, RECOVERY).await;
    }
    load.finish().await;
    assert!(store_errors(&server, "garbled").await > 0);
    assert_sound(&server);
}

#[tokio::test]
async fn endless_reply_does_not_fill_memory() {
    let (_redis, proxy, server) = start(&["store.redis.timeout=100ms"]).await;
    let load = Load::start_apart(&server, 4).await;
    load.wait_for_passed(50, SOON).await;
    let before = server.resident_kib();
    proxy.set(Behaviour::Endless);
    for _ in 0..5 {
        load.wait_for_failed(100).await;
        let grown = server.resident_kib().saturating_sub(before);
        assert!(grown < 32_768, "{grown} KiB");
    }
    assert!(proxy.open() <= MAX_OPEN, "{} connections", proxy.open());
    proxy.set(Behaviour::Pass);
    load.wait_for_passed(1, RECOVERY).await;
    load.wait_for_passed(50, SOON).await;
    load.finish().await;
    assert_sound(&server);
}

#[tokio::test]
async fn half_open_connection_fails_calls_within_the_timeout() {
    let (redis, proxy, server) = start(&["store.redis.timeout=100ms"]).await;
    let load = Load::start_apart(&server, 8).await;
    load.wait_for_passed(50, SOON).await;
    proxy.set(Behaviour::Blackhole);
    for _ in 0..10 {
        load.wait_for_failed(200).await;
        assert!(proxy.open() <= MAX_OPEN, "{} connections", proxy.open());
    }
    let message = "redis connection failed";
    eventually("the failure is logged", SOON, async || server.log().contains(message)).await;
    proxy.set(Behaviour::Pass);
    // The promise is 3 seconds.
    load.wait_for_passed(1, RECOVERY * 2).await;
    load.wait_for_passed(50, SOON).await;
    wait_for_connections(&redis).await;
    let counts = load.finish().await;
    let bases = (1..=8).map(|number| number * 10_000_000).sum::<u64>();
    let counted = counted(&redis) - bases;
    assert!(counted <= counts.calls(), "{counted} counted, {} calls", counts.calls());
    assert_eq!(breaker(&server).await, 0);
    assert_sound(&server);
}

#[tokio::test]
async fn delayed_replies_are_decided() {
    let (redis, proxy, server) = start(&[]).await;
    let load = Load::start_apart(&server, 8).await;
    proxy.set(Behaviour::Delay(std::time::Duration::from_millis(20)));
    load.wait_for_passed(100, SOON * 2).await;
    proxy.set(Behaviour::Pass);
    let counts = load.finish().await;
    assert_eq!(counts.unavailable.load(Ordering::Relaxed), 0);
    let bases = (1..=8).map(|number| number * 10_000_000).sum::<u64>();
    assert_eq!(counted(&redis), bases + counts.passed.load(Ordering::Relaxed));
}
