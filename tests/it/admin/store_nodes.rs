//! The Redis servers of an instance: what they do, and what an outage cost the callers.

use std::time::{Duration, Instant};

use rlaas_proto::ratelimit::admin::v1::{ListInstancesRequest, StoreNode};
use rlaas_proto::ratelimit::v1::{CheckRequest, ReportRequest};
use rlaas_testkit::process::{Client, Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::Code;

use super::{AdminClient, admin};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval and timeout of probes.
const PROBE: Duration = Duration::from_millis(500);
const RULES: &str = "
rules:
  - {name: open, endpoint: /open, limit: 5, window: 1h, on-store-failure: allow}
  - {name: alone, endpoint: /alone, limit: 4, window: 1h, on-store-failure: local}
  - {name: closed, endpoint: /closed, limit: 5, window: 1h, on-store-failure: deny}
";

async fn node(client: &mut AdminClient) -> StoreNode {
    let request = ListInstancesRequest::default();
    let mut listed = client.list_instances(request).await.expect("a page").into_inner();
    listed.instances.remove(0).store_nodes.remove(0)
}

async fn sees(client: &AdminClient, what: &str, is_so: impl Fn(&StoreNode) -> bool) -> StoreNode {
    let seen = async || is_so(&node(&mut client.clone()).await);
    eventually(what, TIMEOUT, seen).await;
    node(&mut client.clone()).await
}

#[expect(clippy::disallowed_methods, reason = "outages are measured in real time")]
fn now() -> Instant {
    Instant::now()
}

fn length(duration: Option<prost_types::Duration>) -> Duration {
    Duration::try_from(duration.expect("a duration")).expect("one that is not negative")
}

/// Sends so many checks of a resource, and returns how many failed, passed and were denied.
async fn send(client: &mut Client, resource: &str, count: usize, dry_run: bool) -> [u64; 3] {
    let mut counts = [0; 3];
    for _ in 0..count {
        let request = CheckRequest { resource: resource.to_owned(), dry_run, ..request("alice") };
        let outcome = match client.check(request).await {
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                0
            }
            Ok(response) => 1 + usize::from(!response.into_inner().allowed),
        };
        counts[outcome] += 1;
    }
    counts
}

#[tokio::test]
async fn an_outage_has_its_length_and_the_requests_that_failed_or_passed() {
    let mut redis = RedisServer::start_with(&["--maxmemory", "64mb"]);
    let dir = TempDir::new();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", RULES), &settings);
    let (mut client, admin) = (server.client().await, admin(&server).await);
    let well = sees(&admin, "a described server", |node| node.used_memory.is_some()).await;
    assert_eq!((&*well.role, &*well.eviction_policy), ("master", "noeviction"));
    assert_eq!(well.max_memory, Some(64 << 20));
    assert!(well.used_memory.is_some_and(|used| (100_000..64 << 20).contains(&used)), "{well:?}");
    assert_eq!(send(&mut client, "/", 3, false).await, [0, 3, 0]);
    let well = sees(&admin, "a round trip", |node| node.p99.is_some()).await;
    let (p50, p99) = (length(well.p50), length(well.p99));
    assert!(Duration::ZERO < p50 && p50 <= p99, "{well:?}");
    assert_eq!(well.errors, 0, "{well:?}");

    let before = now();
    redis.kill();
    let away = sees(&admin, "the outage", |node| !node.available).await;
    let known = now();
    assert_eq!((&*away.role, &*away.eviction_policy, away.used_memory), ("", "", None));
    assert_eq!(send(&mut client, "/", 20, false).await, [20, 0, 0]);
    assert_eq!(send(&mut client, "/open", 7, false).await, [0, 7, 0]);
    assert_eq!(send(&mut client, "/closed", 2, false).await, [0, 0, 2]);
    assert_eq!(send(&mut client, "/alone", 4, false).await, [0, 2, 2], "half of the limit");
    // These are no requests.
    send(&mut client, "/", 5, true).await;
    let report = ReportRequest { request: Some(request("alice")) };
    client.report(report).await.expect_err("the store is away");
    let lasts = node(&mut admin.clone()).await;
    assert_eq!((lasts.outage_failed, lasts.outage_allowed), (20, 7), "{lasts:?}");
    assert!(lasts.errors >= 1 && length(lasts.outage) > length(away.outage), "{lasts:?}");

    let restarting = now();
    redis.restart();
    let back = sees(&admin, "the end of the outage", |node| node.available).await;
    let until = now();
    let (lasted, longest) = (length(back.outage), until - before + PROBE);
    assert!(lasted >= restarting - known && lasted <= longest, "{lasted:?}, {longest:?}");
    assert_eq!(back.outage_started_at, away.outage_started_at);
    assert_eq!((back.outage_failed, back.outage_allowed), (20, 7));
    let answers = async || send(&mut client.clone(), "/", 1, false).await != [1, 0, 0];
    eventually("an answer", TIMEOUT, answers).await;
    let after = node(&mut admin.clone()).await;
    assert_eq!(&*after.role, "master");
}

#[tokio::test]
async fn without_permission_for_info_role_and_memory_are_not_known_until_it_is_given() {
    let redis = RedisServer::start();
    redis.query::<()>(&["ACL", "SETUSER", "default", "-info"]);
    let server = Rlaas::on_redis(&redis, &[]);
    let (mut client, admin) = (server.client().await, admin(&server).await);
    assert_eq!(send(&mut client, "/", 2, false).await, [0, 2, 0]);
    let node =
        sees(&admin, "an available server", |node| node.available && node.p50.is_some()).await;
    assert_eq!((&*node.role, &*node.eviction_policy), ("", ""));
    assert_eq!((node.used_memory, node.max_memory, node.errors), (None, None, 0));
    redis.query::<()>(&["ACL", "SETUSER", "default", "+info"]);
    let node = sees(&admin, "the memory", |node| node.used_memory.is_some()).await;
    assert_eq!((&*node.role, node.max_memory), ("master", Some(0)));
}
