//! Top keys over a fleet: three instances on one Redis, which move its clock.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use rlaas::clock::Timestamp;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, request, run, signal};
use rlaas_testkit::redis::RedisServer;

use super::admin;
use super::top_keys::query;

const TIMEOUT: Duration = Duration::from_secs(20);
const USERS: u32 = 200;
/// Time for which a report makes an instance one of the fleet, in milliseconds.
const REGISTERED: u64 = 600_000;

/// Instances on one Redis, whose clock stands still.
struct TestFleet {
    redis: RedisServer,
    servers: Vec<Rlaas>,
    ids: Vec<String>,
    /// Number of the first instances that run.
    running: usize,
    millis: u64,
}

/// Units that were taken, the instances of the answer, and its warning.
struct Answered {
    used: proto::TopKeyList,
    coverage: proto::Coverage,
    warning: String,
}

impl Answered {
    fn coverage(&self) -> (&[String], &[String]) {
        (&self.coverage.instances, &self.coverage.missing)
    }
}

impl TestFleet {
    #[expect(clippy::disallowed_methods, reason = "the clock of Redis begins with wall time")]
    async fn start(count: usize) -> Self {
        let redis = RedisServer::start();
        let settings =
            ["telemetry.top-keys=true", "rate-limiter.max-requests=100000", "server.workers=1"];
        let servers: Vec<_> = (0..count).map(|_| Rlaas::on_redis(&redis, &settings)).collect();
        let mut ids = Vec::new();
        for server in &servers {
            let mut client = admin(server).await;
            let listed = client.list_instances(proto::ListInstancesRequest::default()).await;
            let listed = listed.expect("a page").into_inner().instances;
            ids.extend(listed.into_iter().find(|one| one.answering).map(|one| one.id));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let mut fleet = Self { redis, servers, ids, running: count, millis: 0 };
        fleet.advance(u64::try_from(now.as_millis()).expect("few"));
        fleet
    }

    /// Moves the clock of Redis. Those that run are reported, as each does by itself every 10 s.
    fn advance(&mut self, millis: u64) {
        self.millis += millis;
        self.redis.set_clock(Timestamp::EPOCH + Duration::from_millis(self.millis).into());
        let report = format!("{} ", self.millis + REGISTERED);
        for id in &self.ids[..self.running] {
            let _added: i64 = self.redis.query(&["HSET", "rlaas:instances", id, &report]);
        }
    }

    /// The maps of answers.
    fn maps(&self) -> Vec<String> {
        self.redis.keys().into_iter().filter(|key| key.starts_with("rlaas:top:")).collect()
    }

    /// Asks an instance for the units that were taken.
    async fn used(&self, server: usize) -> Answered {
        let mut client = admin(&self.servers[server]).await;
        let response = client.top_keys(query("default")).await;
        let response = response.expect("counts");
        let warning = response.metadata().get("rlaas-warning");
        let warning = warning.map(|text| text.to_str().expect("ASCII").to_owned());
        let proto::TopKeysResponse { used, coverage, .. } = response.into_inner();
        let (used, coverage) = (used.expect("a list"), coverage.expect("a coverage"));
        Answered { used, coverage, warning: warning.unwrap_or_default() }
    }
}

/// Units that a user takes on a server: by Zipf's law, roughly.
fn units(server: usize, user: u32) -> u64 {
    u64::from(1 + 2_000 / (user + 1) + (user * 7 + 13 * u32::try_from(server).expect("few")) % 5)
}

/// The units of each user on the first servers.
fn sum(servers: usize) -> HashMap<String, u64> {
    let of = |user| (0..servers).map(|server| units(server, user)).sum::<u64>();
    (0..USERS).map(|user| (format!("user-{user}"), of(user))).collect()
}

/// Each server decides its requests.
async fn decide(servers: &[Rlaas]) {
    join_all(servers.iter().enumerate().map(async |(number, server)| {
        let mut client = server.client().await;
        for user in 0..USERS {
            let cost = Some(units(number, user));
            let of_user = CheckRequest { cost, ..request(&format!("user-{user}")) };
            assert!(client.check(of_user).await.expect("a decision").into_inner().allowed);
        }
    }))
    .await;
}

/// Asserts that the counts are those of `exact`, within the stated error.
fn assert_counts(found: &proto::TopKeyList, exact: &HashMap<String, u64>) {
    assert_eq!(found.total, exact.values().sum::<u64>());
    let counts: HashMap<&str, &proto::TopKey> =
        found.keys.iter().map(|top| (&*top.key.as_ref().expect("a key").id, top)).collect();
    for top in counts.values() {
        assert!(top.error <= found.total / 128, "{top:?} of {}", found.total);
    }
    let mut highest: Vec<_> = exact.iter().collect();
    highest.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (id, count) in &highest[..10] {
        let top = counts.get(id.as_str()).unwrap_or_else(|| panic!("{id} is not listed"));
        assert!((top.count - top.error..=top.count).contains(count), "{id}: {count}, {top:?}");
    }
}

#[tokio::test]
async fn counts_of_all_instances_are_merged_until_one_is_gone() {
    let mut fleet = TestFleet::start(3).await;
    decide(&fleet.servers).await;
    assert_eq!(fleet.maps(), [""; 0], "nothing was asked");
    let total = sum(3).values().sum::<u64>();
    let ids = {
        let mut ids = fleet.ids.clone();
        ids.sort_unstable();
        ids
    };
    for server in 0..3 {
        eventually("every unit of the fleet is counted", TIMEOUT, async || {
            fleet.advance(3_000);
            fleet.used(server).await.used.total == total
        })
        .await;
        let found = fleet.used(server).await;
        assert_counts(&found.used, &sum(3));
        assert_eq!((found.coverage(), &*found.warning), ((&*ids, &[][..]), ""));
    }
    let maps = fleet.maps();
    let [map] = &*maps else { panic!("one question: {maps:?}") };
    let left: u64 = fleet.redis.query(&["PTTL", map]);
    assert!(left <= 2_000, "{left} ms");

    // The last answer of an instance that died serves as long as it lives.
    fleet.servers[2].signal("KILL");
    fleet.servers[2].wait();
    assert_eq!(fleet.used(0).await.coverage().0.len(), 3);
    fleet.running = 2;
    fleet.advance(45_000);
    assert_eq!(fleet.maps(), [""; 0], "answers have ended");
    let dead = fleet.ids[2].clone();
    let is_missing = |found: &Answered| {
        assert_counts(&found.used, &sum(2));
        assert_eq!(
            (found.coverage().0.len(), found.coverage().1),
            (2, std::slice::from_ref(&dead))
        );
    };
    is_missing(&fleet.used(0).await);

    // What no instance has put is not counted.
    for hostile in ["garbage", " \u{2}", &"a".repeat(70_000), "\u{8}\u{5}"] {
        let value = format!("{} {hostile}", fleet.millis + 1_000);
        for name in [&dead, &format!("{dead}/0"), &format!("{dead}/3")] {
            let _added: i64 = fleet.redis.query(&["HSET", map, name, &value]);
        }
        is_missing(&fleet.used(1).await);
    }
    let addr = ["--addr", fleet.servers[0].grpc()];
    let top = ["top", "--keys", "default", "--kind", "used"];
    let (code, text, error) = run(&[&top[..], &addr].concat());
    let covered = format!("counted by 2 of 3 instances; missing: {dead}\n");
    assert!(code == 0 && text.ends_with(&covered), "{text}{error}");
    let path = "/v1/admin/top-keys?rule=default";
    let (status, json) = fleet.servers[1].get(path).await;
    assert!(status == 200 && json.contains(&format!(r#""missing":["{dead}"]"#)), "{json}");

    let _set: String = fleet.redis.query(&["SET", map, "text"]);
    let found = fleet.used(0).await;
    assert_counts(&found.used, &sum(1));
    assert_eq!((found.coverage().0, found.coverage().1.len()), (&fleet.ids[..1], 2));
    assert!(found.warning.contains("WRONGTYPE"), "{}", found.warning);
}

#[expect(clippy::disallowed_methods, reason = "the longest time of an answer")]
#[tokio::test]
async fn store_that_hangs_or_is_away_leaves_the_counts_of_the_instance() {
    let mut fleet = TestFleet::start(2).await;
    decide(&fleet.servers).await;
    let total = sum(2).values().sum::<u64>();
    eventually("every unit of the fleet is counted", TIMEOUT, async || {
        fleet.advance(3_000);
        fleet.used(0).await.used.total == total
    })
    .await;
    for away in ["hangs", "is gone"] {
        if away == "hangs" {
            signal(fleet.redis.pid(), "STOP");
        } else {
            fleet.redis.kill();
        }
        let asked = Instant::now();
        let found = fleet.used(0).await;
        assert!(asked.elapsed() < Duration::from_secs(3), "{away}: {:?}", asked.elapsed());
        assert_counts(&found.used, &sum(1));
        assert_eq!(found.coverage(), (&fleet.ids[..1], &fleet.ids[1..]), "{away}");
        assert!(found.warning.starts_with("counts of some instances alone: "), "{}", found.warning);
    }
    let top = ["top", "--keys", "default", "--addr", fleet.servers[0].grpc()];
    let (code, _, error) = run(&top);
    assert_eq!(code, 0, "{error}");
    assert!(error.starts_with("rlaas: warning: counts of some instances alone: "), "{error}");
}
