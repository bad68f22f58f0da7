//! Reservations in a cluster, and when a caller, an instance or Redis ends.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use rlaas_proto::ratelimit::v1::check_response::Reason;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CancelRequest, CheckRequest, CommitRequest, CommitResponse, ExtendRequest, ReserveRequest,
    ReserveResponse,
};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, connect};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::sentinel::Sentinels;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Status};

use crate::admin::journal::wait_for_snapshot;
use crate::admin::step_proxy::{StepFault, StepProxy};
use crate::faults::cluster::PARTIAL;

const SOON: Duration = Duration::from_secs(20);

fn request(endpoint: &str, tenant: &str, cost: u64) -> CheckRequest {
    CheckRequest {
        user_id: "alice".to_owned(),
        resource: endpoint.to_owned(),
        attributes: HashMap::from([("tenant".to_owned(), tenant.to_owned())]),
        cost: Some(cost),
        ..CheckRequest::default()
    }
}

async fn reserve(server: &Rlaas, request: CheckRequest) -> Result<ReserveResponse, Status> {
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let request = ReserveRequest { request: Some(request), ttl: None };
    client.reserve(request).await.map(tonic::Response::into_inner)
}

async fn commit(server: &Rlaas, id: &str, actual: u64) -> Result<CommitResponse, Status> {
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let reservation_id = id.to_owned();
    let request =
        CommitRequest { reservation_id, actual: Some(actual), ..CommitRequest::default() };
    client.commit(request).await.map(tonic::Response::into_inner)
}

/// Returns what is left by rule.
async fn left(server: &Rlaas, endpoint: &str, tenant: &str) -> Vec<i64> {
    let looked = server.client().await.check(request(endpoint, tenant, 0)).await.expect("a look");
    looked.into_inner().decisions.iter().map(|one| one.remaining).collect()
}

#[tokio::test]
async fn in_a_cluster_takes_are_given_back_if_the_holds_are_denied() {
    const RULES: &str = "\
rules:
  - {name: requests, endpoint: /llm, key-by: [tenant], algorithm: gcra, limit: 100, window: 366d, cost: 1}
  - {name: tokens, endpoint: /llm, algorithm: token-bucket, limit: 10, window: 366d, reservable: true}
";
    let cluster = RedisCluster::start(3, 0).await;
    let dir = TempDir::new();
    let settings = cluster.settings();
    let mut settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    settings.push("store.redis.timeout=10s");
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings);
    let master = cluster.master_of_id("alice");
    let mut tenants = (0..).map(|number| format!("tenant-{number}"));
    let tenant = tenants.find(|one| cluster.master_of_id(one) != master).expect("an id elsewhere");
    let held = reserve(&server, request("/llm", &tenant, 7)).await.expect("a reservation");
    assert_eq!(left(&server, "/llm", &tenant).await, [99, 3]);
    for _ in 0..3 {
        let denied = reserve(&server, request("/llm", &tenant, 7)).await.expect("a denial");
        assert!(denied.reservation_id.is_empty());
    }
    assert_eq!(left(&server, "/llm", &tenant).await, [99, 3]);
    for replayed in [false, true] {
        let settled = commit(&server, &held.reservation_id, 2).await.expect("a settlement");
        assert_eq!((settled.settlements[0].charged, settled.replayed), (2, replayed));
    }
    assert_eq!(left(&server, "/llm", &tenant).await, [99, 8]);
}

#[tokio::test]
async fn in_a_cluster_rules_hold_in_several_slots_or_nothing() {
    const RULES: &str = "rules:
  - {name: a-user, endpoint: /llm, algorithm: gcra, limit: 3, window: 366d, reservable: true, hold: 1h,
     on-store-failure: error}
  - {name: b-tenant, endpoint: /llm, key-by: [tenant], algorithm: token-bucket, limit: 5, window: 366d,
     reservable: true, hold: 1h}
  - {name: c-requests, endpoint: /llm, algorithm: fixed-window, limit: 100, window: 366d, cost: 1}
";
    let mut cluster = RedisCluster::start_with(3, 0, PARTIAL).await;
    let dir = TempDir::new();
    let settings = cluster.settings();
    let mut settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    settings.extend(["store.redis.timeout=5s", "deny-cache.enabled=false"]);
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings);
    let of_user = cluster.master_of_id("alice");
    let mut tenants = (0..).map(|number| format!("tenant-{number}"));
    let tenant = tenants.find(|one| cluster.master_of_id(one) != of_user).expect("an id elsewhere");
    let wanted = |cost| request("/llm", &tenant, cost);

    // What the tenant's slot holds is ended where the user's denies.
    let held = reserve(&server, wanted(2)).await.expect("a reservation");
    for _ in 0..3 {
        let denied = reserve(&server, wanted(2)).await.expect("a denial");
        assert!(denied.reservation_id.is_empty());
        let verdict = denied.verdict.expect("a verdict");
        assert_eq!((&*verdict.rule, verdict.reason()), ("a-user", Reason::Held));
    }
    assert_eq!(left(&server, "/llm", &tenant).await, [1, 3, 99]);
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    for (allowed, expected) in [(true, [0, 2, 99]), (false, [0, 2, 99])] {
        let reservation_id = held.reservation_id.clone();
        let more = ExtendRequest { reservation_id, cost: Some(1), ..ExtendRequest::default() };
        let extended = client.extend(more).await.expect("an answer").into_inner();
        assert_eq!(extended.verdict.map(|verdict| verdict.allowed), Some(allowed));
        assert_eq!(left(&server, "/llm", &tenant).await, expected);
    }
    for replayed in [false, true] {
        let settled = commit(&server, &held.reservation_id, 1).await.expect("a settlement");
        let charged = settled.settlements.iter().map(|one| (&*one.rule, one.charged, one.returned));
        assert_eq!(charged.collect::<Vec<_>>(), [("a-user", 1, 2), ("b-tenant", 1, 2)]);
        assert_eq!(settled.replayed, replayed);
        assert_eq!(left(&server, "/llm", &tenant).await, [2, 4, 99]);
    }
    let once = CheckRequest { request_id: "once".to_owned(), ..wanted(1) };
    let refused = reserve(&server, once).await.expect_err("a request id over two slots");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("with request_id"), "{refused}");

    // The master of the user, which is asked last, fails: nothing is held, and what can be is settled.
    let held = reserve(&server, wanted(2)).await.expect("a reservation");
    cluster.kill(of_user);
    let failed = reserve(&server, wanted(1)).await.expect_err("no store");
    assert_eq!(failed.code(), Code::Unavailable);
    let failed = commit(&server, &held.reservation_id, 2).await.expect_err("no store");
    assert_eq!(failed.code(), Code::Unavailable);
    cluster.restart(of_user);
    eventually("the cluster answers again", SOON, async || {
        server.client().await.check(wanted(0)).await.is_ok()
    })
    .await;
    assert_eq!(left(&server, "/llm", &tenant).await, [3, 2, 100]);
    let settled = commit(&server, &held.reservation_id, 2).await.expect("the settlement");
    let charged = settled.settlements.iter().map(|one| (&*one.rule, one.charged));
    assert_eq!((charged.collect::<Vec<_>>(), settled.replayed), (vec![("b-tenant", 2)], true));
    assert_eq!(left(&server, "/llm", &tenant).await, [3, 2, 100], "nobody pays for what is lost");
}

#[tokio::test]
async fn reservations_outlive_instances_and_end_with_the_data_of_redis() {
    const RULES: &str = "rules:\n  - {name: tokens, endpoint: /llm, algorithm: token-bucket, limit: 10, \
                         window: 366d, reservable: true, hold: 1h}\n";
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=5s"];
    let first = Rlaas::start_from(&rules, &settings);
    let held = reserve(&first, request("/llm", "t", 6)).await.expect("a reservation");
    let lost = reserve(&first, request("/llm", "t", 1)).await.expect("a reservation");
    first.signal("KILL");
    // Another instance settles what the first one has reserved.
    let second = Rlaas::start_from(&rules, &settings);
    let settled = commit(&second, &held.reservation_id, 4).await.expect("a settlement");
    assert_eq!(settled.settlements[0].charged, 4);
    assert_eq!(left(&second, "/llm", "t").await, [5]);
    // A Redis without its data knows neither charges nor holds: nobody is charged for them.
    redis.kill();
    redis.restart();
    eventually("Redis is back", SOON, async || {
        let looked = second.client().await.check(request("/llm", "t", 0)).await;
        looked.is_ok_and(|looked| looked.get_ref().remaining == 10)
    })
    .await;
    let gone = commit(&second, &lost.reservation_id, 3).await.expect_err("it is gone");
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(left(&second, "/llm", "t").await, [10]);
}

#[tokio::test]
async fn many_callers_hold_no_more_than_there_is() {
    const RULES: &str = "rules:\n  - {name: tokens, endpoint: /llm, algorithm: fixed-window, limit: 100, \
                         window: 366d, reservable: true, hold: 1h}\n";
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let servers = [Rlaas::start_from(&rules, &settings), Rlaas::start_from(&rules, &settings)];
    let calls = (0..200).map(|number| reserve(&servers[number % 2], request("/llm", "t", 3)));
    let answers = futures_util::future::join_all(calls).await;
    let held: Vec<String> = answers
        .into_iter()
        .map(|answer| answer.expect("an answer").reservation_id)
        .filter(|id| !id.is_empty())
        .collect();
    assert_eq!(held.len(), 33, "3 of 100 each");
    let settled = held.iter().map(|id| commit(&servers[0], id, 1));
    let again = held.iter().map(|id| commit(&servers[1], id, 1));
    let all = futures_util::future::join_all(settled.chain(again)).await;
    assert!(all.iter().all(|one| one.as_ref().expect("settled").settlements[0].charged == 1));
    assert_eq!(left(&servers[0], "/llm", "t").await, [67], "each is charged once");
}

/// Tokens, and one slot, each by tenant.
const TOKENS_AND_SLOT: &str = "\
rules:
  - {name: tokens, endpoint: /llm, algorithm: token-bucket, limit: 100, window: 366d, reservable: true, hold: 1h}
  - {name: slot, endpoint: /job, algorithm: concurrency, limit: 1, hold: 2s}
";

fn on(urls: &str, timeout: &str, rules: &Path) -> Rlaas {
    let timeout = format!("store.redis.timeout={timeout}");
    Rlaas::start_from(rules, &["store.backend=redis", urls, &timeout])
}

#[tokio::test]
async fn a_call_whose_reply_is_lost_is_repeated_and_charges_once() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", TOKENS_AND_SLOT);
    let redis = RedisServer::start();
    let proxy = StepProxy::to(redis.port());
    let url = |port| format!("store.redis.url=redis://127.0.0.1:{port}");
    let first = on(&url(proxy.port()), "300ms", &rules);
    let second = on(&url(redis.port()), "10s", &rules);
    let mut client = ReservationServiceClient::new(connect(first.grpc()).await);
    let lose_reply = || proxy.fail_at(&["%holds"], 0, StepFault::Unanswered);
    let heal = async || {
        assert!(proxy.has_failed());
        proxy.heal();
        eventually("the store answers again", SOON, async || {
            first.client().await.check(request("/llm", "t", 0)).await.is_ok()
        })
        .await;
    };
    assert_eq!(left(&first, "/llm", "t").await, [100]);
    let held = reserve(&second, request("/llm", "t", 40)).await.expect("a reservation");

    // What a Reserve without a reply holds comes back by itself.
    lose_reply();
    let ttl = Some(prost_types::Duration { seconds: 2, nanos: 0 });
    let lost = ReserveRequest { request: Some(request("/llm", "t", 30)), ttl };
    client.reserve(lost).await.expect_err("no reply");
    heal().await;
    assert_eq!(left(&second, "/llm", "t").await, [30]);
    eventually("the hold ends", SOON, async || left(&second, "/llm", "t").await == [60]).await;

    // An Extend may have added its units.
    lose_reply();
    let reservation_id = held.reservation_id.clone();
    let more = ExtendRequest { reservation_id, cost: Some(10), ..ExtendRequest::default() };
    client.extend(more).await.expect_err("no reply");
    heal().await;
    assert_eq!(left(&second, "/llm", "t").await, [50]);

    // A Commit charges once, a Cancel returns once.
    lose_reply();
    let unanswered = commit(&first, &held.reservation_id, 15).await.expect_err("no reply");
    assert_eq!(unanswered.code(), Code::Unavailable);
    heal().await;
    for server in [&first, &second] {
        let again = commit(server, &held.reservation_id, 15).await.expect("the settlement");
        let settled = &again.settlements[0];
        assert_eq!((again.replayed, settled.charged, settled.returned), (true, 15, 35));
    }
    assert_eq!(left(&second, "/llm", "t").await, [85]);
    let held = reserve(&second, request("/llm", "t", 20)).await.expect("a reservation");
    let cancel = CancelRequest { reservation_id: held.reservation_id };
    lose_reply();
    client.cancel(cancel.clone()).await.expect_err("no reply");
    heal().await;
    let again = client.cancel(cancel).await.expect("the settlement").into_inner();
    assert_eq!((again.replayed, again.settlements[0].returned), (true, 20));
    assert_eq!(left(&second, "/llm", "t").await, [85]);
}

#[tokio::test]
async fn reservations_outlive_a_redis_that_keeps_its_data() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", TOKENS_AND_SLOT);
    let data = TempDir::new();
    let kept = data.path("").display().to_string();
    let durable = ["--dir", &kept, "--appendonly", "yes", "--appendfsync", "always"];
    let mut redis = RedisServer::start_with(&durable);
    let server = on(&format!("store.redis.url={}", redis.url()), "5s", &rules);
    let mut restart = async || {
        redis.kill();
        redis.restart();
        eventually("Redis is back", SOON, async || {
            server.client().await.check(request("/llm", "t", 0)).await.is_ok()
        })
        .await;
    };
    let held = reserve(&server, request("/llm", "t", 40)).await.expect("a reservation");
    restart().await;
    assert_eq!(left(&server, "/llm", "t").await, [60]);
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let reservation_id = held.reservation_id.clone();
    let more = ExtendRequest { reservation_id, cost: Some(10), ..ExtendRequest::default() };
    client.extend(more).await.expect("an extension");
    restart().await;
    assert_eq!(left(&server, "/llm", "t").await, [50]);
    for replayed in [false, true, true] {
        let settled = commit(&server, &held.reservation_id, 30).await.expect("a settlement");
        assert_eq!((settled.replayed, settled.settlements[0].charged), (replayed, 30));
        restart().await;
        assert_eq!(left(&server, "/llm", "t").await, [70]);
    }
    // A slot stays taken, and is free when its time is over.
    let lost = reserve(&server, request("/job", "t", 1)).await.expect("a reservation");
    restart().await;
    eventually("the slot is free", SOON, async || {
        let held = reserve(&server, request("/job", "t", 1)).await.expect("an answer");
        let ends = lost.expires_at.as_ref().map(|at| (at.seconds, at.nanos));
        let began = held.expires_at.as_ref().map(|at| (at.seconds - 2, at.nanos));
        assert!(began.is_none() || began >= ends, "taken by {held:?} before the end of {lost:?}");
        !held.reservation_id.is_empty()
    })
    .await;
}

#[tokio::test]
async fn after_a_failover_the_new_master_knows_what_had_reached_it() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", TOKENS_AND_SLOT);
    let mut sentinels = Sentinels::start().await;
    let urls = format!("store.redis.urls={}", sentinels.urls().join(","));
    let settings = ["store.backend=redis", "store.redis.mode=sentinel", &urls];
    let settings = [&settings[..], &["store.redis.timeout=5s"]].concat();
    let server = Rlaas::start_from(&rules, &settings);
    let held = reserve(&server, request("/llm", "t", 40)).await.expect("a reservation");
    let master = sentinels.master();
    let offset = |server: &RedisServer| {
        let info: String = server.query(&["INFO", "replication"]);
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields
            .find(|(name, _)| *name == "master_repl_offset")
            .and_then(|(_, at)| at.parse::<u64>().ok())
    };
    let written = offset(sentinels.server(master));
    eventually("the replicas have the hold", SOON, async || {
        [0, 1].map(|i| offset(sentinels.server(i)) >= written) == [true; 2]
    })
    .await;
    // What is held from now on, no replica has.
    sentinels.end_replication().await;
    let lost = reserve(&server, request("/llm", "t", 50)).await.expect("a reservation");
    assert_eq!(left(&server, "/llm", "t").await, [10]);
    let old = sentinels.kill_master();
    sentinels.wait_for_new_master(old).await;
    eventually("the new master answers", SOON, async || {
        let looked = server.client().await.check(request("/llm", "t", 0)).await;
        looked.is_ok_and(|looked| looked.get_ref().remaining == 60)
    })
    .await;
    let gone = commit(&server, &lost.reservation_id, 50).await.expect_err("it is lost");
    assert_eq!(gone.code(), Code::NotFound);
    for replayed in [false, true] {
        let settled = commit(&server, &held.reservation_id, 30).await.expect("a settlement");
        assert_eq!((settled.replayed, settled.settlements[0].charged), (replayed, 30));
    }
    assert_eq!(left(&server, "/llm", "t").await, [70]);
}

#[tokio::test]
async fn a_memory_store_that_was_killed_knows_no_reservation() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", TOKENS_AND_SLOT);
    let server = Rlaas::start_from(&rules, &[]);
    let held = reserve(&server, request("/llm", "t", 40)).await.expect("a reservation");
    server.signal("KILL");
    let server = Rlaas::start_from(&rules, &[]);
    let gone = commit(&server, &held.reservation_id, 40).await.expect_err("it is lost");
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(left(&server, "/llm", "t").await, [100]);
}

#[tokio::test]
async fn a_memory_store_with_a_state_dir_keeps_counters_holds_and_settlements() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", TOKENS_AND_SLOT);
    let state_dir = format!("state-dir={}", dir.path("state").display());
    let settings = [&*state_dir, "store.memory.snapshot=1s"];
    let server = Rlaas::start_from(&rules, &settings);
    let settled = reserve(&server, request("/llm", "t", 40)).await.expect("a reservation");
    commit(&server, &settled.reservation_id, 10).await.expect("a settlement");
    let open = reserve(&server, request("/llm", "t", 30)).await.expect("a reservation");
    assert_eq!(left(&server, "/llm", "t").await, [60]);
    wait_for_snapshot(&server).await;
    server.signal("KILL");
    // The default has a snapshot, too; `off` reads none.
    for (settings, expected) in
        [(&settings[..1], 60), (&[&*state_dir, "store.memory.snapshot=off"], 100)]
    {
        let server = Rlaas::start_from(&rules, settings);
        assert_eq!(left(&server, "/llm", "t").await, [expected]);
        if expected == 60 {
            let again = commit(&server, &settled.reservation_id, 10).await.expect("it is known");
            assert_eq!((again.replayed, again.settlements[0].charged), (true, 10));
            let charged = commit(&server, &open.reservation_id, 25).await.expect("it stands");
            assert_eq!((charged.replayed, charged.settlements[0].charged), (false, 25));
            assert_eq!(left(&server, "/llm", "t").await, [65]);
        }
        server.signal("KILL");
    }
}
