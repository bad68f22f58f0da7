//! The fleet in Redis: the same promises as in memory, and what Redis adds.

use std::time::{Duration, Instant};

use rlaas_limiter::clock::{Deadline, Micros, Timestamp};
use rlaas_limiter::fleet::{Fleet, FleetEvent, LogRange};
use rlaas_limiter::observer::BreakerState;
use rlaas_limiter::store::{NodeStatus, Store, StoreError, Tls};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::eventually;
use rlaas_testkit::proxy::{Behaviour, Proxy};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::sentinel::Sentinels;
use rlaas_testkit::tls::{Certificate, Certificates, ClientCertificates};
use tokio::time::timeout;

use super::instance::{Instance, as_user, cluster, sentinel, standalone};
use super::promises::{self, message, soon};

/// Time in which a fleet must work again after a fault, on a busy machine.
const RECOVERY: Duration = Duration::from_secs(20);

/// The commands of decisions, and of fleets; see docs/redis.md.
const DECISIONS: &str = "+eval +evalsha +time +info +get +set +incrby +del +pttl +pexpireat +zadd \
    +zcount +zrangebyscore +zremrangebyscore +zremrangebyrank";
const FLEET: [&str; 9] =
    ["+hdel", "+hget", "+hgetall", "+hlen", "+hset", "+persist", "+publish", "+xadd", "+xrevrange"];

#[tokio::test]
async fn promises_hold_on_one_server() {
    let redis = RedisServer::start();
    let one = Instance::start(standalone(&redis.url())).await;
    let other = Instance::start(standalone(&redis.url())).await;
    assert!(one.fleet.is_shared());
    promises::assert_all(&one.fleet, &other.fleet).await;
    // Nothing lives for ever but logs and secrets.
    for key in redis.keys() {
        let kind: String = redis.query(&["TYPE", &key]);
        let lasts = redis.query::<i64>(&["PTTL", &key]) == -1;
        assert_eq!(lasts, kind == "stream" || kind == "string", "{key}: {kind}");
    }
}

#[tokio::test]
async fn promises_hold_on_a_cluster() {
    let redis = RedisCluster::start(3, 0).await;
    let one = Instance::start(cluster(&redis.urls())).await;
    let other = Instance::start(cluster(&redis.urls())).await;
    promises::assert_all(&one.fleet, &other.fleet).await;
    let masters: std::collections::BTreeSet<_> =
        redis.keys().iter().map(|key| redis.master_of(redis.slot_of(key))).collect();
    assert_eq!(masters.len(), 3, "each key is on the node of its slot: {:?}", redis.keys());
    assert_eq!(one.store.nodes().len(), 3);
}

#[tokio::test]
async fn promises_hold_with_sentinel() {
    let redis = Sentinels::start().await;
    let one = Instance::start(sentinel(&redis.urls())).await;
    let other = Instance::start(sentinel(&redis.urls())).await;
    promises::assert_all(&one.fleet, &other.fleet).await;
    let address = format!("127.0.0.1:{}", redis.server(0).port());
    let nodes = one.store.nodes();
    let [node @ NodeStatus { breaker: BreakerState::Closed, errors: 0, outage: None, .. }] =
        &*nodes
    else {
        panic!("{nodes:?}")
    };
    assert_eq!((&node.address, node.is_available, node.role), (&address, true, Some("master")));
}

#[tokio::test]
async fn promises_hold_over_tls() {
    let certificates = Certificates::make();
    let redis = certificates.serve(Certificate::Server, ClientCertificates::Ignored);
    let settings = || {
        let ca = std::fs::read(certificates.authority()).expect("a certificate");
        let tls = Tls { ca: Some(ca), identity: None };
        rlaas_limiter::store::RedisSettings { tls, ..standalone(&redis.url()) }
    };
    let (one, other) = (Instance::start(settings()).await, Instance::start(settings()).await);
    promises::assert_all(&one.fleet, &other.fleet).await;
}

/// Adds a user with these permissions in place of earlier ones.
fn set_user(redis: &RedisServer, permissions: &[&str]) {
    let words = ["ACL", "SETUSER", "app", "reset", "on", ">s3cret", "~rlaas:*"];
    let decisions: Vec<_> = DECISIONS.split_whitespace().collect();
    redis.query::<()>(&[&words, decisions.as_slice(), permissions].concat());
}

#[tokio::test]
async fn promises_hold_with_the_documented_permissions_and_each_missing_one_is_named() {
    let redis = RedisServer::start();
    let rest = ["+subscribe", "+scan", "&rlaas:*"];
    let all = [&FLEET[..], &rest].concat();
    set_user(&redis, &all);
    let instance = || Instance::start(as_user(&redis.url(), "app", "s3cret"));
    let (one, other) = (instance().await, instance().await);
    let missing = async || {
        one.fleet.missing_permissions(&["topic"], soon()).await.expect("a list of permissions")
    };
    assert!(missing().await.is_empty());
    assert!(!redis.keys().contains(&"rlaas:permissions".to_owned()), "the check leaves no key");
    promises::assert_all(&one.fleet, &other.fleet).await;

    for taken in &all {
        let left: Vec<_> = all.iter().copied().filter(|other| other != taken).collect();
        set_user(&redis, &left);
        let named = if *taken == "&rlaas:*" { "&rlaas:topic" } else { taken };
        assert_eq!(missing().await, [named], "without {taken}");
    }
    set_user(&redis, &[]);
    let none = missing().await;
    // Without the command, Redis does not look at the channel.
    let expected: Vec<_> = FLEET.iter().chain(&["+subscribe", "+scan"]).copied().collect();
    assert_eq!(none, sorted(expected));

    let denied = [
        one.fleet.append("log", b"", 1, soon()).await.map(drop),
        one.fleet.read("log", LogRange::default(), 1, soon()).await.map(drop),
        one.fleet.put("map", "name", b"", RECOVERY, soon()).await,
        one.fleet.values("map", soon()).await.map(drop),
        one.fleet.publish("topic", b"-", soon()).await,
    ];
    let commands = ["+xadd", "+xrevrange", "+hlen", "+hgetall", "+publish"];
    for (denied, command) in denied.into_iter().zip(commands) {
        let error = denied.expect_err("no permission");
        assert_eq!(error.missing_permission(), Some(command));
        let StoreError::Refused { code, text } = error else { panic!("{error:?}") };
        assert_eq!(
            (code.as_str(), text),
            ("NOPERM", format!("the user lacks the permission {command}"))
        );
    }
    assert_eq!(one.store.nodes()[0].breaker, BreakerState::Closed, "no failure of decisions");
}

fn sorted(mut words: Vec<&str>) -> Vec<&str> {
    words.sort_unstable();
    words
}

#[tokio::test]
async fn nothing_is_opened_before_it_is_used() {
    let redis = RedisServer::start();
    let proxy = Proxy::to(redis.port());
    let instance = Instance::start(standalone(&proxy.url())).await;
    assert_eq!(proxy.open(), 1, "the monitor");
    let mut subscription = instance.fleet.subscribe("topic");
    assert_eq!(proxy.open(), 1, "a subscription connects when it is polled");
    instance.fleet.values("map", soon()).await.expect("values");
    assert_eq!(proxy.open(), 2);
    assert_eq!(subscription.next().await, FleetEvent::Gap);
    assert_eq!(proxy.open(), 3);
    assert!(redis.keys().is_empty());
}

#[tokio::test]
async fn values_expire_by_the_clock_of_redis_and_leave_no_key() {
    let redis = RedisServer::start();
    let t0 = Timestamp::from_millis(1_700_000_100_000);
    redis.set_clock(t0);
    let instance = Instance::start(standalone(&redis.url())).await;
    let put = async |name: &str, ttl: u64| {
        let ttl = Duration::from_millis(ttl);
        instance.fleet.put("map", name, b"", ttl, soon()).await.expect("a value");
    };
    put("long", 20_000).await;
    put("short", 10_000).await;
    let names = async || {
        let values = instance.fleet.values("map", soon()).await.expect("values");
        values.into_iter().map(|value| value.name).collect::<Vec<_>>()
    };
    redis.set_clock(t0 + Micros::from_millis(9_999));
    assert_eq!(names().await, ["long", "short"]);
    redis.set_clock(t0 + Micros::from_millis(10_000));
    assert_eq!(names().await, ["long"]);
    // The map is full: expired values make room.
    for number in 0..1022 {
        put(&number.to_string(), 5_000).await;
    }
    assert_eq!(redis.query::<u32>(&["HLEN", "rlaas:map"]), 1024);
    put("one more", 5_000).await;
    assert_eq!(redis.query::<u32>(&["HLEN", "rlaas:map"]), 1024, "`short` has left");
    redis.set_clock(t0 + Micros::from_millis(20_001));
    assert!(names().await.is_empty());
    assert!(redis.keys().is_empty(), "{:?}", redis.keys());
}

#[expect(clippy::disallowed_methods, reason = "measures how long the caller waits")]
#[tokio::test]
async fn a_hung_server_costs_the_deadline_and_a_lost_reply_is_ambiguous() {
    let redis = RedisServer::start();
    let proxy = Proxy::to(redis.port());
    let instance = Instance::start(standalone(&proxy.url())).await;
    let append = async |deadline| instance.fleet.append("log", b"", 10, deadline).await;
    append(soon()).await.expect("appended");

    proxy.set(Behaviour::Blackhole);
    let started = Instant::now();
    let error = append(Deadline::within(Duration::from_millis(200))).await.expect_err("hung");
    assert!(matches!(error, StoreError::Timeout(_) | StoreError::Unreachable), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    proxy.set(Behaviour::Pass);
    let heals = async || append(soon()).await.is_ok();
    eventually("the fleet works again", RECOVERY, heals).await;

    let before = redis.query::<u32>(&["XLEN", "rlaas:log"]);
    proxy.set(Behaviour::CutReply);
    let error = append(soon()).await.expect_err("a lost reply");
    assert!(matches!(error, StoreError::Lost) && error.is_ambiguous(), "{error:?}");
    assert_eq!(redis.query::<u32>(&["XLEN", "rlaas:log"]), before + 1, "not repeated");
    append(soon()).await.expect("a new connection");

    // A reply of another call is not taken for that of this one.
    proxy.set(Behaviour::Extra(b"+OK\r\n".to_vec()));
    let error = append(soon()).await.expect_err("an extra reply");
    assert!(matches!(error, StoreError::Garbled), "{error:?}");
    append(soon()).await.expect("a new connection");
}

#[tokio::test]
async fn texts_of_scripts_are_sent_to_servers_that_lack_them_and_writes_are_made_once() {
    let redis = RedisServer::start();
    let proxy = Proxy::to(redis.port());
    let instance = Instance::start(standalone(&proxy.url())).await;
    let append = async || instance.fleet.append("log", b"", 100, soon()).await;
    let texts = || {
        let stats: String = redis.query(&["INFO", "commandstats"]);
        let calls = stats.split("cmdstat_eval:calls=").nth(1).unwrap_or("0,");
        calls.split(',').next().and_then(|calls| calls.parse::<u32>().ok()).expect("a number")
    };
    // The monitor asks once by a script.
    eventually("the monitor has asked", RECOVERY, async || texts() == 1).await;
    for _ in 0..10 {
        append().await.expect("appended");
    }
    assert_eq!(texts(), 2);
    redis.query::<()>(&["SCRIPT", "FLUSH"]);
    for _ in 0..10 {
        append().await.expect("appended");
    }
    assert_eq!((texts(), redis.query::<u32>(&["XLEN", "rlaas:log"])), (3, 20));

    // The reply that is lost is that to the text.
    redis.query::<()>(&["SCRIPT", "FLUSH"]);
    proxy.set(Behaviour::CutReply);
    let error = append().await.expect_err("a lost reply");
    assert!(error.is_ambiguous(), "{error:?}");
    assert_eq!((texts(), redis.query::<u32>(&["XLEN", "rlaas:log"])), (4, 21));
}

#[tokio::test]
async fn failures_of_a_fleet_do_not_touch_decisions() {
    let redis = RedisServer::start();
    let proxy = Proxy::to(redis.port());
    let instance = Instance::start(standalone(&proxy.url())).await;
    instance.fleet.put("map", "a", b"", RECOVERY, soon()).await.expect("a value");
    redis.query::<()>(&["SET", "rlaas:log", "foreign"]);
    for _ in 0..50 {
        let error = instance.fleet.append("log", b"", 10, soon()).await.expect_err("foreign");
        assert_eq!(error.kind(), "refused", "{error}");
    }
    let connections = proxy.accepted();
    assert_eq!(instance.store.nodes()[0].breaker, BreakerState::Closed);
    instance.fleet.values("map", soon()).await.expect("values");
    assert_eq!(proxy.accepted(), connections, "an error reply keeps the connection");
}

#[tokio::test]
async fn an_unreachable_server_is_told_at_once_and_subscriptions_return() {
    let mut redis = RedisServer::start();
    let instance = Instance::start(standalone(&redis.url())).await;
    let mut subscription = instance.fleet.subscribe("topic");
    assert_eq!(subscription.next().await, FleetEvent::Gap);
    redis.kill();
    let unreachable = async || {
        let result = instance.fleet.values("map", soon()).await;
        matches!(result, Err(StoreError::Unreachable))
    };
    eventually("the server counts as unreachable", RECOVERY, unreachable).await;
    let waiting = timeout(Duration::from_millis(50), subscription.next()).await;
    assert!(waiting.is_err(), "{waiting:?}");
    redis.restart();
    let gap = timeout(RECOVERY, subscription.next()).await;
    assert_eq!(gap, Ok(FleetEvent::Gap), "messages may have been missed");
    publish_until_received(&instance.fleet, &mut subscription).await;
}

async fn publish_until_received(
    fleet: &Fleet,
    subscription: &mut rlaas_limiter::fleet::Subscription,
) {
    let published = async || fleet.publish("topic", b"again", soon()).await.is_ok();
    eventually("a message is published", RECOVERY, published).await;
    assert_eq!(message(subscription).await, b"again");
}

#[tokio::test]
async fn a_fleet_follows_a_failover_of_sentinel() {
    let mut redis = Sentinels::start().await;
    let instance = Instance::start(sentinel(&redis.urls())).await;
    let mut subscription = instance.fleet.subscribe("topic");
    assert_eq!(subscription.next().await, FleetEvent::Gap);
    instance.fleet.append("log", b"before", 10, soon()).await.expect("appended");
    let old = redis.kill_master();
    redis.wait_for_new_master(old).await;
    let append = async || instance.fleet.append("log", b"after", 10, soon()).await.is_ok();
    eventually("the fleet works again", RECOVERY, append).await;
    assert_eq!(timeout(RECOVERY, subscription.next()).await, Ok(FleetEvent::Gap));
    publish_until_received(&instance.fleet, &mut subscription).await;
}

#[tokio::test]
async fn a_fleet_follows_a_slot_that_moves() {
    let redis = RedisCluster::start(2, 0).await;
    let instance = Instance::start(cluster(&redis.urls())).await;
    let slot = redis.slot_of("rlaas:log");
    let (from, to) = (redis.master_of(slot), 1 - redis.master_of(slot));
    let append = async || instance.fleet.append("log", b"", 100, soon()).await.expect("appended");
    append().await;
    redis.begin_move(slot, from, to);
    append().await;
    redis.move_keys(slot, from, to);
    append().await;
    redis.end_move(slot, from, to).await;
    append().await;
    let log = instance.fleet.read("log", LogRange::default(), 10, soon()).await.expect("a log");
    assert_eq!(log.len(), 4);
}

#[tokio::test]
async fn a_demoted_master_is_left() {
    let (redis, master) = (RedisServer::start(), RedisServer::start());
    let instance = Instance::start(standalone(&redis.url())).await;
    instance.fleet.append("log", b"", 10, soon()).await.expect("appended");
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let error = instance.fleet.append("log", b"", 10, soon()).await.expect_err("a replica");
    assert!(matches!(error, StoreError::Unreachable) || error.kind() == "readonly", "{error:?}");
    redis.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    let heals = async || instance.fleet.append("log", b"", 10, soon()).await.is_ok();
    eventually("the fleet works again", RECOVERY, heals).await;
}

#[tokio::test]
async fn a_full_server_refuses_and_says_so() {
    let redis = RedisServer::start();
    let instance = Instance::start(standalone(&redis.url())).await;
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let fleet = &instance.fleet;
    let errors = [
        fleet.append("log", b"", 10, soon()).await.map(drop),
        fleet.put("map", "a", b"", RECOVERY, soon()).await,
        fleet.secret("secret", [1; 32], soon()).await.map(drop),
    ];
    for error in errors {
        let error = error.expect_err("a full server");
        assert!(error.kind() == "oom" && !error.is_ambiguous(), "{error:?}");
    }
    assert!(redis.keys().is_empty());
    fleet.read("log", LogRange::default(), 1, soon()).await.expect("reading needs no memory");
    fleet.publish("topic", b"-", soon()).await.expect("publishing needs no memory");
}

#[test]
fn memory_stores_have_no_nodes() {
    let limiter = rlaas_limiter::Limiter::builder().build().expect("a limiter");
    assert!(matches!(limiter.store(), Store::Memory(_)) && limiter.store().nodes().is_empty());
}
