//! Request ids: calls that are repeated and hedged through a proxy that loses replies take the units
//! of each id once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rlaas::algorithm::Algorithm;
use rlaas::rules::Part;
use rlaas::store::{Receipt, Servers};
use rlaas_limiter::{Deadline, Limiter, Request};
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Client, Rlaas};
use rlaas_testkit::proxy::{Behaviour, Proxy};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Endpoint;

use super::load::{COUNTED, SOON};
use super::multi_shard_library::{limiter, no_observer, rule, rule_set};

/// Distinct requests, each with an id of its own.
const IDS: usize = 1_000;
const WORKERS: usize = 10;
/// Pairs of calls for each id: fewer calls than a reply is repeated.
const MAX_PAIRS: usize = 4;
/// The proxies close the connection instead of forwarding each reply of this number. What HTTP/2
/// exchanges on a new connection is counted too, so that lost calls come in groups: with a small
/// number all pairs of an id would be lost now and then.
const LOST: u64 = 16;

const TTL: &str = "idempotency.ttl=1h";

/// A server behind a proxy that loses replies.
struct LossyServer {
    server: Rlaas,
    proxy: Proxy,
}

impl LossyServer {
    fn new(server: Rlaas) -> Self {
        let port = server.grpc().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let proxy = Proxy::to(port.expect("an address with a port"));
        proxy.set(Behaviour::CutEvery(LOST));
        Self { server, proxy }
    }

    /// Returns a client with a connection of its own, through the proxy.
    fn client(&self) -> Client {
        let url = format!("http://127.0.0.1:{}", self.proxy.port());
        let endpoint = Endpoint::from_shared(url).expect("a valid url").timeout(SOON);
        Client::new(endpoint.connect_lazy())
    }
}

/// What became of the calls.
#[derive(Debug, Default)]
struct Counts {
    lost: AtomicUsize,
    replayed: AtomicUsize,
    /// Ids with an answer that allows.
    allowed: AtomicUsize,
}

/// Calls both servers at the same time, until a pair of calls has an answer. Returns `true` if one
/// allows.
async fn check_hedged(clients: &mut [Client; 2], request: &CheckRequest, counts: &Counts) -> bool {
    for _ in 0..MAX_PAIRS {
        let [one, other] = clients;
        let answers = tokio::join!(one.check(request.clone()), other.check(request.clone()));
        let mut answered = None;
        for answer in [answers.0, answers.1] {
            match answer {
                Ok(answer) => {
                    let CheckResponse { allowed, replayed, .. } = answer.into_inner();
                    counts.replayed.fetch_add(replayed.into(), Ordering::Relaxed);
                    answered = Some(answered == Some(true) || allowed);
                }
                Err(status) => {
                    let is_error = matches!(
                        status.code(),
                        Code::InvalidArgument | Code::FailedPrecondition | Code::Internal
                    );
                    assert!(!is_error, "{status:?}");
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if let Some(allowed) = answered {
            counts.allowed.fetch_add(allowed.into(), Ordering::Relaxed);
            return allowed;
        }
    }
    panic!("{MAX_PAIRS} pairs of calls were lost");
}

/// Checks each id by several workers. `done` counts the ids.
async fn check_all(
    servers: [&LossyServer; 2],
    request: impl Fn(usize) -> CheckRequest + Clone + Send + 'static,
    done: &watch::Sender<usize>,
) -> Counts {
    let counts = Arc::new(Counts::default());
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let mut clients = servers.map(LossyServer::client);
        let (counts, request, done) = (Arc::clone(&counts), request.clone(), done.clone());
        workers.spawn(async move {
            for id in (worker..IDS).step_by(WORKERS) {
                check_hedged(&mut clients, &request(id), &counts).await;
                done.send_modify(|done| *done += 1);
            }
        });
    }
    workers.join_all().await;
    let counts = Arc::into_inner(counts).expect("the workers have ended");
    println!("{counts:?}");
    assert!(counts.lost.load(Ordering::Relaxed) > IDS / 20, "{counts:?}");
    assert!(counts.replayed.load(Ordering::Relaxed) > IDS / 4, "{counts:?}");
    counts
}

fn by_alice(id: usize) -> CheckRequest {
    CheckRequest {
        user_id: "alice".to_owned(),
        request_id: format!("id-{id}"),
        ..CheckRequest::default()
    }
}

/// Returns the units in use, by rule.
async fn in_use(server: &Rlaas, request: CheckRequest) -> HashMap<String, usize> {
    let look = CheckRequest { cost: Some(0), request_id: String::new(), ..request };
    let look = server.client().await.check(look).await.expect("an answer").into_inner();
    let used = |units: i64| usize::try_from(units).expect("no debt");
    let decisions = look.decisions.into_iter();
    decisions.map(|one| (one.rule, used(one.limit - one.remaining))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_and_hedged_calls_take_each_id_once_in_memory() {
    let server = LossyServer::new(Rlaas::start(&[COUNTED, &[TTL]].concat()));
    let counts = check_all([&server, &server], by_alice, &watch::Sender::new(0)).await;
    assert_eq!(counts.allowed.into_inner(), IDS);
    assert_eq!(in_use(&server.server, by_alice(0)).await["default"], IDS);
    let replays = server.server.metric_sum("rlaas_replays_total", &[]).await;
    assert!(usize::try_from(replays).is_ok_and(|all| all >= counts.replayed.into_inner()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_and_hedged_calls_take_each_id_once_on_redis() {
    let redis = RedisServer::start();
    let settings = [COUNTED, &[TTL, "store.redis.timeout=10s"]].concat();
    let servers = [(); 2].map(|()| LossyServer::new(Rlaas::on_redis(&redis, &settings)));
    for LossyServer { server, .. } in &servers {
        super::load::wait_for_store(server).await;
    }
    let counts = check_all(servers.each_ref(), by_alice, &watch::Sender::new(0)).await;
    assert_eq!(counts.allowed.into_inner(), IDS);
    assert_eq!(in_use(&servers[0].server, by_alice(0)).await["default"], IDS);
}

/// Two servers on a cluster, with a rule by user and one by tenant, which are in different shards.
struct TwoShards {
    cluster: RedisCluster,
    _dir: TempDir,
    servers: [LossyServer; 2],
    tenant: String,
}

/// Limit of the tenant: more than all ids take.
const TENANT_LIMIT: u64 = 5_000;

impl TwoShards {
    async fn start() -> Self {
        let cluster = RedisCluster::start(3, 0).await;
        let dir = TempDir::new();
        let rules = format!(
            "rules:\n  - {{ name: a-user, endpoint: /pay, algorithm: sliding-window-log, limit: \
             5000, window: 366d }}\n  - {{ name: b-tenant-gcra, key-by: [tenant], algorithm: gcra, \
             limit: {TENANT_LIMIT}, window: 366d }}\n"
        );
        let file = dir.write("rules.yaml", &rules);
        let settings = cluster.settings();
        let mut settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        settings.extend([TTL, "store.redis.timeout=10s"]);
        let servers = [(); 2].map(|()| LossyServer::new(Rlaas::start_from(&file, &settings)));
        let user_master = cluster.master_of_id("alice");
        let mut tenants = (0..).map(|number| format!("tenant-{number}"));
        let tenant = tenants.find(|tenant| cluster.master_of_id(tenant) != user_master);
        let tenant = tenant.expect("an id on another master");
        let two = Self { cluster, _dir: dir, servers, tenant };
        for LossyServer { server, .. } in &two.servers {
            let look = CheckRequest { cost: Some(0), ..two.request()(0) };
            let up = async || server.client().await.check(look.clone()).await.is_ok();
            eventually("the cluster decides", SOON * 2, up).await;
        }
        two
    }

    fn request(&self) -> impl Fn(usize) -> CheckRequest + Clone + Send + 'static {
        let tenant = self.tenant.clone();
        move |id| CheckRequest {
            resource: "/pay".to_owned(),
            attributes: HashMap::from([("tenant".to_owned(), tenant.clone())]),
            ..by_alice(id)
        }
    }

    /// Returns a limiter on the same cluster with the rule of the tenant alone.
    async fn tenant_limiter(&self) -> Limiter {
        let seeds = self.cluster.urls();
        let seeds = seeds.iter().map(|url| url.parse().expect("a valid url")).collect();
        let by_tenant = Part::Attribute("tenant".to_owned());
        let rules = rule_set(vec![rule("b-tenant", by_tenant, Algorithm::Gcra, TENANT_LIMIT)]);
        let limiter = limiter(Servers::Cluster { seeds }, rules, 4096, no_observer());
        let background = limiter.clone();
        tokio::spawn(async move { background.run().await });
        let up = async || {
            let request = Request::user("filler").cost(0).build().expect("a valid request");
            limiter.check(&request, Deadline::NEVER).await.is_ok()
        };
        eventually("the cluster decides", SOON * 2, up).await;
        limiter
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_and_hedged_calls_take_each_id_once_in_each_of_two_shards() {
    let two = TwoShards::start().await;
    let counts = check_all(two.servers.each_ref(), two.request(), &watch::Sender::new(0)).await;
    assert_eq!(counts.allowed.into_inner(), IDS);
    let used = in_use(&two.servers[0].server, two.request()(0)).await;
    assert_eq!((used["a-user"], used["b-tenant-gcra"]), (IDS, IDS));
}

/// Units of the tenant that others may take while its last ones are taken: one for each worker, and
/// some.
const LEFT_TO_OTHERS: u32 = 12;
/// Ids for which the tenant has no units, and then has units, in turn.
const TURN: usize = 30;

/// Takes all units of the tenant that are left, and refunds them, in turn. Ends while it holds
/// them, once all ids are done.
async fn fill_in_turn(
    limiter: Limiter,
    tenant: String,
    mut done: watch::Receiver<usize>,
) -> Vec<Receipt> {
    let attributes = [("tenant", &*tenant)];
    let check = async |cost| {
        let request = Request::user("filler").attributes(&attributes).cost(cost).build();
        let request = request.expect("a valid request");
        limiter.check_with_receipts(&request, Deadline::NEVER).await.expect("a verdict")
    };
    loop {
        // The last units one by one, because others take some meanwhile.
        let look = check(0).await.0;
        let left = u32::try_from(look.deciding().decision.remaining).expect("no debt");
        let mut held = check(left.saturating_sub(LEFT_TO_OTHERS)).await.1;
        loop {
            let (verdict, receipts) = check(1).await;
            held.extend(receipts);
            if !verdict.is_allowed() {
                break;
            }
        }
        if wait_for_turn(&mut done).await == IDS {
            return held;
        }
        limiter.refund(held, Deadline::NEVER).await.expect("a refund");
        wait_for_turn(&mut done).await;
    }
}

/// Waits until [`TURN`] more ids are done, or all. Returns their number.
async fn wait_for_turn(done: &mut watch::Receiver<usize>) -> usize {
    let target = IDS.min(*done.borrow() + TURN);
    *done.wait_for(|done| *done >= target).await.expect("the workers run")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_on_each_shard_equal_the_allowed_ids_if_the_second_is_full_half_of_the_time() {
    let two = TwoShards::start().await;
    let limiter = two.tenant_limiter().await;
    let done = watch::Sender::new(0);
    let filler = tokio::spawn(fill_in_turn(limiter.clone(), two.tenant.clone(), done.subscribe()));
    let counts = check_all(two.servers.each_ref(), two.request(), &done).await;
    let held = filler.await.expect("the filler has ended");
    // While the tenant has no units left, an id is answered only by what it has taken: by a call
    // whose answer was lost, too.
    let mut allowed = 0;
    let (mut client, request) = (two.servers[0].server.client().await, two.request());
    for id in 0..IDS {
        let answer = client.check(request(id)).await.expect("an answer").into_inner();
        assert_eq!(answer.allowed, answer.replayed, "{answer:?}");
        allowed += usize::from(answer.allowed);
    }
    limiter.refund(held, Deadline::NEVER).await.expect("a refund");
    println!("{allowed} of {IDS} ids are allowed");
    assert!((IDS / 4..IDS * 3 / 4).contains(&allowed), "{allowed}");
    assert!(allowed >= counts.allowed.into_inner());
    let used = in_use(&two.servers[0].server, request(0)).await;
    assert_eq!((used["a-user"], used["b-tenant-gcra"]), (allowed, allowed));
}
