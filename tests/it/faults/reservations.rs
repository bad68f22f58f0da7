//! Reservations in a cluster, and when a caller, an instance or Redis ends.

use std::collections::HashMap;
use std::time::Duration;

use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CheckRequest, CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, connect};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Status};

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
  - {name: one, endpoint: /two, algorithm: gcra, limit: 10, window: 366d, reservable: true}
  - {name: other, endpoint: /two, key-by: [tenant], algorithm: gcra, limit: 10, window: 366d,
     reservable: true}
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
    let refused = reserve(&server, request("/two", &tenant, 1)).await.expect_err("two slots");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("keys in one slot of a cluster"), "{refused}");
    assert_eq!(left(&server, "/two", &tenant).await, [10, 10]);
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
