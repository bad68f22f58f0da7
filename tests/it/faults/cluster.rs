//! Redis Cluster: a master dies or stalls, and slots move.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::Code;

use super::load::COUNTED;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, signal};

/// Keeps slots with a master available: by default a cluster refuses every call while a slot has
/// none.
pub(super) const PARTIAL: &[&str] = &["--cluster-require-full-coverage", "no"];

fn on_cluster(cluster: &RedisCluster, settings: &[&str]) -> Rlaas {
    let cluster_settings = cluster.settings();
    let cluster_settings: Vec<&str> = cluster_settings.iter().map(String::as_str).collect();
    Rlaas::start(&[&cluster_settings, COUNTED, settings].concat())
}

/// The number of calls for an id that were sent, passed and failed.
#[derive(Default)]
struct IdCounts {
    sent: AtomicU64,
    passed: AtomicU64,
    failed: AtomicU64,
}

/// A client for each id, which sends checks until it is stopped.
struct IdLoad {
    clients: JoinSet<()>,
    stop: Arc<AtomicBool>,
    counts_by_id: HashMap<String, Arc<IdCounts>>,
}

impl IdLoad {
    async fn start(server: &Rlaas, ids: impl Iterator<Item = String>) -> Self {
        let channel = server.channel().await;
        let stop = Arc::<AtomicBool>::default();
        let (mut clients, mut counts_by_id) = (JoinSet::new(), HashMap::new());
        for id in ids {
            let counts_of_id = Arc::<IdCounts>::default();
            counts_by_id.insert(id.clone(), Arc::clone(&counts_of_id));
            let mut client =
                rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient::new(
                    channel.clone(),
                );
            let stop = Arc::clone(&stop);
            clients.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    counts_of_id.sent.fetch_add(1, Ordering::SeqCst);
                    match check(&mut client, &id).await {
                        Ok(_) => counts_of_id.passed.fetch_add(1, Ordering::SeqCst),
                        Err(status) => {
                            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                            counts_of_id.failed.fetch_add(1, Ordering::SeqCst)
                        }
                    };
                }
            });
        }
        Self { clients, stop, counts_by_id }
    }

    fn sum(&self, of: impl Fn(&IdCounts) -> &AtomicU64) -> u64 {
        self.counts_by_id.values().map(|counts_of_id| of(counts_of_id).load(Ordering::SeqCst)).sum()
    }

    /// Waits until every id has passed `count` more times.
    async fn each_passes(&self, count: u64) -> Duration {
        let wanted = |counts_of_id: &IdCounts| counts_of_id.passed.load(Ordering::SeqCst) + count;
        let wanted: HashMap<&String, u64> =
            self.counts_by_id.iter().map(|(id, counts_of_id)| (id, wanted(counts_of_id))).collect();
        let timeout = Duration::from_secs(20);
        eventually("each id passes", timeout, async || {
            let passed = |(id, wanted): (&&String, &u64)| {
                self.counts_by_id[*id].passed.load(Ordering::SeqCst) >= *wanted
            };
            wanted.iter().all(passed)
        })
        .await
    }

    async fn finish(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no panic in a client");
        }
    }
}

/// Returns the count of each id in Redis.
fn counts(cluster: &RedisCluster) -> HashMap<String, u64> {
    let keys = cluster.keys().into_iter();
    let count = |key: String| {
        let id = key.split(['{', '}']).nth(1).expect("an id in braces").to_owned();
        let node = cluster.node(cluster.master_of(cluster.slot_of(&key)));
        (id, node.query::<u64>(&["GET", &key]))
    };
    keys.map(count).collect()
}

fn ids(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("user-{number}"))
}

#[tokio::test]
async fn ten_thousand_ids_are_served_without_error() {
    let cluster = RedisCluster::start(3, 1).await;
    let server = on_cluster(&cluster, &["rate-limiter.max-requests=5", "store.redis.timeout=10s"]);
    let client = server.client().await;
    let mut calls = JoinSet::new();
    for id in ids(10_000) {
        let mut client = client.clone();
        calls.spawn(async move { check(&mut client, &id).await.map(|response| response.allowed) });
        if calls.len() >= 200 {
            let answered = calls.join_next().await.expect("a call").expect("no panic");
            assert!(answered.expect("an answer"));
        }
    }
    for answered in calls.join_all().await {
        assert!(answered.expect("an answer"));
    }
    assert_eq!(cluster.count_keys(), 10_000);
    let index = &cluster.keys()[0];
    assert!(index.starts_with("rlaas:rate_limit:{user-"), "{index}");
}

#[tokio::test]
async fn dead_master_fails_only_its_slots_until_failover() {
    let mut cluster = RedisCluster::start_with(3, 1, PARTIAL).await;
    let server = on_cluster(&cluster, &["store.redis.timeout=10s"]);
    let mut load = IdLoad::start(&server, ids(32)).await;
    load.each_passes(20).await;
    assert_eq!(load.sum(|counts_of_id| &counts_of_id.failed), 0);

    let victim = cluster.master_of_id("user-0");
    let is_on_victim: HashMap<String, bool> =
        ids(32).map(|id| (id.clone(), cluster.master_of_id(&id) == victim)).collect();
    assert!(is_on_victim.values().any(|victim_ids| !victim_ids), "{is_on_victim:?}");
    cluster.kill(victim);
    // After the failover every slot has a master again.
    load.each_passes(20).await;
    load.finish().await;
    for (id, counts_of_id) in &load.counts_by_id {
        let failed = counts_of_id.failed.load(Ordering::SeqCst);
        assert_eq!(failed > 0, is_on_victim[id], "{id}: {failed} failed\n{}", server.log());
    }
}

#[tokio::test]
async fn stalled_master_counts_no_call_twice() {
    let cluster = RedisCluster::start_with(3, 0, PARTIAL).await;
    let server = on_cluster(&cluster, &["store.redis.timeout=500ms"]);
    let mut load = IdLoad::start(&server, ids(32)).await;
    load.each_passes(20).await;
    let victim = cluster.master_of_id("user-0");
    let is_on_victim = |id: &str| cluster.master_of_id(id) == victim;
    let victim_ids: Vec<String> = ids(32).filter(|id| is_on_victim(id)).collect();
    signal(cluster.node(victim).pid(), "STOP");
    let all_fail = async || {
        victim_ids.iter().all(|id| load.counts_by_id[id].failed.load(Ordering::SeqCst) >= 5)
    };
    eventually("calls for ids of the stalled master fail", Duration::from_secs(10), all_fail).await;
    signal(cluster.node(victim).pid(), "CONT");
    load.each_passes(20).await;
    load.finish().await;
    let counts = counts(&cluster);
    for (id, counts_of_id) in &load.counts_by_id {
        let of = |of: &AtomicU64| of.load(Ordering::SeqCst);
        let (sent, passed, failed) =
            (of(&counts_of_id.sent), of(&counts_of_id.passed), of(&counts_of_id.failed));
        assert!((passed..=sent).contains(&counts[id]), "{id}: {} of {sent}", counts[id]);
        assert_eq!(failed > 0, victim_ids.contains(id), "{id}: {failed} failed\n{}", server.log());
    }
}

#[tokio::test]
async fn slot_migration_under_load_loses_no_count() {
    let cluster = RedisCluster::start(3, 0).await;
    let server = on_cluster(&cluster, &["store.redis.timeout=10s"]);
    let mut load = IdLoad::start(&server, ids(16)).await;
    load.each_passes(10).await;
    // All slots move to one master: with several importers the cluster itself might disagree.
    for id in ids(16) {
        let slot = cluster.slot_of(&format!("{{{id}}}"));
        let from = cluster.master_of(slot);
        if from != 0 {
            cluster.move_slot(slot, from, 0).await;
        }
    }
    load.each_passes(10).await;
    load.finish().await;
    assert_eq!(load.sum(|counts_of_id| &counts_of_id.failed), 0, "{}", server.log());
    for (id, count) in counts(&cluster) {
        assert_eq!(count, load.counts_by_id[&id].passed.load(Ordering::SeqCst), "{id}");
    }
}

#[tokio::test]
async fn half_migrated_slot_serves_old_and_new_ids() {
    let cluster = RedisCluster::start(3, 0).await;
    let server = on_cluster(&cluster, &["rate-limiter.max-requests=3"]);
    let mut client = server.client().await;
    let mut pass = async |id: &str| {
        let response = check(&mut client, id).await;
        response.unwrap_or_else(|status| panic!("{id}: {status:?}\n{}", server.log())).allowed
    };
    // Two ids of one slot are found by trying, because braces in ids are encoded.
    let slot = cluster.slot_of("{user-0}");
    let mut of_slot = (0..).map(|number| format!("user-{number}"));
    let mut next = || of_slot.find(|id| cluster.slot_of(&format!("{{{id}}}")) == slot);
    let (old, new) = (next().expect("an id"), next().expect("another id"));
    assert!(pass(&old).await);
    let from = cluster.master_of(slot);
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to);
    assert!(pass(&old).await);
    assert!(pass(&new).await);
    cluster.move_keys(slot, from, to);
    assert!(pass(&old).await);
    assert!(!pass(&old).await, "the count is continuous");
    cluster.end_move(slot, from, to).await;
    assert!(!pass(&old).await);
    assert!(pass(&new).await);
    assert!(pass(&new).await);
    assert!(!pass(&new).await);
}

#[tokio::test]
async fn unreachable_cluster_leaves_the_server_live_and_not_ready() {
    let url = format!("store.redis.urls=redis://127.0.0.1:{}", rlaas_testkit::redis::free_port());
    let server = Rlaas::start(&["store.backend=redis", "store.redis.mode=cluster", &url]);
    let status = check(&mut server.client().await, "alice").await.expect_err("no cluster");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
    assert_eq!(server.get("/readyz").await.0, 503);
    assert_eq!(server.get("/livez").await.0, 200);
}
