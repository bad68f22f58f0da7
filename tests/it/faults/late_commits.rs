//! Commits of reservations that have ended, in a cluster whose servers have clocks of their own.

use std::collections::HashMap;

use rlaas_limiter::clock::{Micros, Timestamp};
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CheckRequest, CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use rlaas_testkit::TempDir;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, connect, request};
use tonic::{Code, Status};

const RULES: &str = "rules:
  - {name: a-user, endpoint: /llm, algorithm: gcra, limit: 100, window: 366d, reservable: true, hold: 1m}
  - {name: b-tenant, endpoint: /llm, key-by: [tenant], algorithm: token-bucket, limit: 100, window: 366d,
     reservable: true, hold: 1m}
";

fn wanted(tenant: &str) -> CheckRequest {
    CheckRequest {
        resource: "/llm".to_owned(),
        attributes: HashMap::from([("tenant".to_owned(), tenant.to_owned())]),
        cost: Some(4),
        ..request("alice")
    }
}

async fn reserve(server: &Rlaas, tenant: &str) -> ReserveResponse {
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let request = ReserveRequest { request: Some(wanted(tenant)), ttl: None };
    client.reserve(request).await.expect("a reservation").into_inner()
}

async fn commit(server: &Rlaas, tenant: &str, id: &str) -> Result<CommitResponse, Status> {
    let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
    let (reservation_id, request) = (id.to_owned(), Some(wanted(tenant)));
    let commit = CommitRequest { reservation_id, request, ..CommitRequest::default() };
    client.commit(commit).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn each_shard_knows_by_its_own_clock_whether_it_is_too_late() {
    // Nobody is taken for dead whose clock jumps.
    let cluster = RedisCluster::start_with(3, 0, &["--cluster-node-timeout", "100000000"]).await;
    let dir = TempDir::new();
    let settings = cluster.settings();
    let mut settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    settings.extend(["store.redis.timeout=10s", "deny-cache.enabled=false"]);
    let server = Rlaas::start_from(&dir.write("rules.yaml", RULES), &settings);
    let of_user = cluster.master_of_id("alice");
    let mut tenants = (0..).map(|number| format!("tenant-{number}"));
    let tenant = tenants.find(|one| cluster.master_of_id(one) != of_user).expect("an id elsewhere");
    let of_tenant = cluster.master_of_id(&tenant);
    let open = reserve(&server, &tenant).await;
    let end = open.expires_at.expect("an end");
    let end = u64::try_from(end.seconds).expect("a time") + 1;
    let after = |seconds| Timestamp::from_millis(end * 1_000) + Micros::from_secs(seconds);
    cluster.node(of_user).set_clock(after(600));
    cluster.node(of_tenant).set_clock(after(598));
    for replayed in [false, true] {
        let settled = commit(&server, &tenant, &open.reservation_id).await.expect("a settlement");
        let charged = settled.settlements.iter().map(|one| (&*one.rule, one.charged));
        assert_eq!(charged.collect::<Vec<_>>(), [("b-tenant", 4)], "replayed: {replayed}");
        assert_eq!((settled.replayed, settled.reported), (replayed, !replayed));
    }
    // Both say so.
    let open = reserve(&server, &tenant).await;
    cluster.node(of_user).set_clock(after(2_000));
    cluster.node(of_tenant).set_clock(after(2_000));
    let late = commit(&server, &tenant, &open.reservation_id).await.expect_err("too late");
    assert_eq!(late.code(), Code::OutOfRange, "{late}");
    let looked = CheckRequest { cost: Some(0), ..wanted(&tenant) };
    let looked = server.client().await.check(looked).await.expect("a look").into_inner();
    let left: Vec<i64> = looked.decisions.iter().map(|one| one.remaining).collect();
    assert_eq!(left, [100, 96]);
}
