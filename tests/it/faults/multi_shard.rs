//! Requests whose rules have ids on different masters of a cluster: shards are called one after the
//! other, and the earlier ones are refunded if a later one denies or fails.

use std::collections::HashMap;
use std::time::Duration;

use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::cluster::PARTIAL;
use super::load::SOON;
use rlaas_testkit::TempDir;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, signal};

/// Returns pairs of rules by user and by tenant that cover every algorithm.
fn rules(user_limit: u32, tenant_limit: u32, tenant_policy: &str) -> String {
    const ALGORITHMS: [(&str, &str); 3] = [
        ("token-bucket", "gcra"),
        ("fixed-window", "sliding-window-log"),
        ("sliding-window-counter", "leaky-bucket"),
    ];
    let rules = ALGORITHMS.map(|(by_user, by_tenant)| {
        format!(
            "  - {{ name: user-{by_user}, endpoint: /{by_user}, algorithm: {by_user}, limit: \
             {user_limit}, window: 366d }}\n  - {{ name: tenant-{by_tenant}, endpoint: \
             /{by_user}, key-by: [tenant], algorithm: {by_tenant}, limit: {tenant_limit}, window: \
             366d, on-store-failure: {tenant_policy} }}\n"
        )
    });
    format!("rules:\n{}", rules.concat())
}

const ENDPOINTS: [&str; 3] = ["/token-bucket", "/fixed-window", "/sliding-window-counter"];

fn serve(cluster: &RedisCluster, dir: &TempDir, rules: &str, settings: &[&str]) -> Rlaas {
    let cluster_settings = cluster.settings();
    let cluster_settings: Vec<&str> = cluster_settings.iter().map(String::as_str).collect();
    let settings = [&cluster_settings, &["deny-cache.enabled=false"][..], settings].concat();
    Rlaas::start_from(&dir.write("rules.yaml", rules), &settings)
}

fn request(endpoint: &str, user: &str, tenant: &str) -> CheckRequest {
    CheckRequest {
        user_id: user.to_owned(),
        resource: endpoint.to_owned(),
        attributes: HashMap::from([("tenant".to_owned(), tenant.to_owned())]),
        ..CheckRequest::default()
    }
}

async fn check(server: &Rlaas, request: CheckRequest) -> Result<CheckResponse, Status> {
    server.client().await.check(request).await.map(tonic::Response::into_inner)
}

/// Returns two ids on different masters, and the master of the second.
fn ids_on_different_masters(cluster: &RedisCluster) -> (String, String, usize) {
    let master = |id: &str| cluster.master_of_id(id);
    let user = "user-0".to_owned();
    let tenant = (0..).map(|number| format!("tenant-{number}"));
    let mut elsewhere = tenant.filter(|tenant| master(tenant) != master(&user));
    let tenant = elsewhere.next().expect("an id on another master");
    let tenant_master = master(&tenant);
    (user, tenant, tenant_master)
}

#[tokio::test]
async fn denial_by_a_later_shard_refunds_the_earlier_ones() {
    let cluster = RedisCluster::start(3, 0).await;
    let dir = TempDir::new();
    let server = serve(&cluster, &dir, &rules(100, 3, "error"), &["store.redis.timeout=10s"]);
    let (user, tenant, _) = ids_on_different_masters(&cluster);
    for endpoint in ENDPOINTS {
        let check =
            async || check(&server, request(endpoint, &user, &tenant)).await.expect("an answer");
        for left in [99, 98, 97] {
            let response = check().await;
            assert!(response.allowed, "{endpoint}");
            let by_user = response.decisions.iter().find(|decision| decision.limit == 100);
            assert_eq!(by_user.expect("a decision by user").remaining, left, "{endpoint}");
        }
        // The tenant is denied, and the user keeps its units.
        for _ in 0..5 {
            let response = check().await;
            assert!(!response.allowed, "{endpoint}");
            assert_eq!(response.decisions.len(), 2, "{endpoint}");
            let by_user = response.decisions.iter().find(|decision| decision.limit == 100);
            assert_eq!(by_user.expect("a decision by user").remaining, 97, "{endpoint}");
        }
    }
    assert_eq!(server.metric("rlaas_give_back_errors_total").await, Some(0.0));
}

#[tokio::test]
async fn concurrent_clients_take_exactly_the_limit_across_shards() {
    const CLIENTS: u32 = 200;
    let cluster = RedisCluster::start(3, 0).await;
    let dir = TempDir::new();
    let server = serve(&cluster, &dir, &rules(1_000, 50, "error"), &["store.redis.timeout=10s"]);
    let (user, tenant, _) = ids_on_different_masters(&cluster);
    for endpoint in ENDPOINTS {
        let client = server.client().await;
        let mut calls = JoinSet::new();
        for _ in 0..CLIENTS {
            let (mut client, request) = (client.clone(), request(endpoint, &user, &tenant));
            calls.spawn(async move { client.check(request).await.expect("an answer") });
        }
        let allowed = calls.join_all().await.into_iter().map(tonic::Response::into_inner);
        let allowed = u64::try_from(allowed.filter(|response| response.allowed).count());
        assert_eq!(allowed, Ok(50), "{endpoint}");
        let look = CheckRequest { cost: Some(0), ..request(endpoint, &user, &tenant) };
        let look = check(&server, look).await.expect("an answer");
        for decision in look.decisions {
            assert_eq!(decision.limit - decision.remaining, 50, "{endpoint}: {decision:?}");
        }
    }
}

#[tokio::test]
async fn failure_of_a_later_shard_refunds_the_earlier_ones() {
    let mut cluster = RedisCluster::start_with(3, 0, PARTIAL).await;
    let dir = TempDir::new();
    let server = serve(&cluster, &dir, &rules(100, 100, "error"), &[]);
    let (user, tenant, tenant_master) = ids_on_different_masters(&cluster);
    for endpoint in ENDPOINTS {
        let asked = async || check(&server, request(endpoint, &user, &tenant)).await.is_ok();
        eventually("the cluster decides", Duration::from_secs(10), asked).await;
    }
    cluster.kill(tenant_master);
    for endpoint in ENDPOINTS {
        let in_use = async || {
            let look = CheckRequest { cost: Some(0), ..request(endpoint, &user, &user) };
            let look = check(&server, look).await.expect("the user's master answers");
            let by_user = look.decisions.iter().find(|decision| decision.rule.starts_with("user"));
            by_user.map(|decision| decision.limit - decision.remaining).expect("a decision")
        };
        let before = in_use().await;
        for _ in 0..10 {
            let status = check(&server, request(endpoint, &user, &tenant)).await;
            let status = status.expect_err("the tenant's master is dead");
            assert_eq!((status.code(), status.message()), (Code::Unavailable, "store unavailable"));
        }
        assert_eq!(in_use().await, before, "{endpoint}");
    }
}

#[tokio::test]
async fn cancelled_request_is_refunded_across_shards() {
    let cluster = RedisCluster::start_with(3, 0, PARTIAL).await;
    let dir = TempDir::new();
    let server = serve(&cluster, &dir, &rules(1, 1_000, "error"), &["store.redis.timeout=10s"]);
    let (user, tenant, _) = ids_on_different_masters(&cluster);
    let user_master = cluster.node(cluster.master_of_id(&user)).pid();
    for endpoint in ENDPOINTS {
        assert!(
            check(&server, request(endpoint, &user, &tenant)).await.expect("an answer").allowed
        );
        let in_use = async || {
            let look = CheckRequest { cost: Some(0), ..request(endpoint, &tenant, &tenant) };
            let look = check(&server, look).await.expect("the tenant's master answers");
            let by_tenant = look.decisions.iter().find(|one| one.rule.starts_with("tenant"));
            by_tenant.map(|decision| decision.limit - decision.remaining).expect("a decision")
        };
        // The tenant's rule takes. The user's rule will deny, but the caller leaves before that.
        signal(user_master, "STOP");
        let (mut client, request) = (server.client().await, request(endpoint, &user, &tenant));
        let call = tokio::spawn(async move { client.check(request).await.map(drop) });
        eventually("the tenant's rule takes", SOON, async || in_use().await == 2).await;
        call.abort();
        assert!(call.await.is_err_and(|ended| ended.is_cancelled()));
        signal(user_master, "CONT");
        eventually("the unit is refunded", SOON, async || in_use().await == 1).await;
    }
}

#[tokio::test]
async fn store_failure_policy_applies_only_to_rules_of_the_failed_shard() {
    let mut cluster = RedisCluster::start_with(3, 0, PARTIAL).await;
    let dir = TempDir::new();
    let settings = ["store.redis.timeout=1s"];
    let server = serve(&cluster, &dir, &rules(3, 100, "allow"), &settings);
    let (user, tenant, tenant_master) = ids_on_different_masters(&cluster);
    cluster.kill(tenant_master);
    for endpoint in ENDPOINTS {
        let mut passed = 0;
        for _ in 0..6 {
            let answer = check(&server, request(endpoint, &user, &tenant)).await;
            passed += u32::from(answer.expect("an answer").allowed);
        }
        assert_eq!(passed, 3, "{endpoint}: the limit of the user");
    }
}
