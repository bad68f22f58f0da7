//! Scripts: few, loaded once ahead of calls, and loaded again where they are lost.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use deadpool_redis::redis::{Value, from_redis_value_ref};
use rlaas::algorithm::Algorithm;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CommitRequest, ReserveRequest};
use rlaas_testkit::process::{Client, Rlaas, check, connect, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::task::JoinSet;

use super::load::{
    COUNTED, Load, RECOVERY, SOON, assert_sound, assert_unavailable, breaker, wait_for_store,
};
use super::redis_permissions::{add_user, as_user};

/// Scripts of the fleet, of registers and of the catalogue, beside those for decisions.
const OTHERS: u64 = 3;

/// Returns rules of each algorithm as it is, overridable, with `on-change`, and reservable where it can be; one
/// by calendar years. Each stands alone, and beside those of its kind.
fn rules() -> (TempDir, std::path::PathBuf, Vec<String>) {
    let kinds = ["", "overridable: true, ", "on-change: scale, ", "reservable: true, "];
    let mut text = "rules:\n".to_owned();
    let mut endpoints = Vec::new();
    for algorithm in Algorithm::RATES.iter().map(|algorithm| algorithm.name()) {
        for (at, kind) in kinds.iter().enumerate() {
            let name = format!("{algorithm}-{at}");
            let (window, kind) = match (algorithm, at) {
                ("fixed-window", 1) => ("calendar: {unit: year}", *kind),
                ("sliding-window-log", 3) => ("window: 366d", ""),
                _ => ("window: 366d", *kind),
            };
            let limit = format!("algorithm: {algorithm}, {kind}limit: 900, {window}");
            text.extend([
                format!("  - {{name: {name}, endpoint: /{name}, {limit}}}\n"),
                format!("  - {{name: all-{name}, endpoint: /all-{at}, {limit}}}\n"),
            ]);
            endpoints.push(format!("/{name}"));
        }
    }
    endpoints.extend((0..kinds.len()).map(|at| format!("/all-{at}")));
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &text);
    (dir, file, endpoints)
}

fn at(endpoint: &str, number: usize) -> CheckRequest {
    CheckRequest { resource: endpoint.to_owned(), ..request(&format!("user-{}", number % 7)) }
}

/// Sends requests of each kind to one endpoint.
async fn send_all_kinds(server: &Rlaas, client: &mut Client, endpoint: &str, number: usize) {
    client.check(at(endpoint, number)).await.expect("an answer");
    client.check(CheckRequest { cost: Some(0), ..at(endpoint, number) }).await.expect("a look");
    let with_id =
        CheckRequest { request_id: format!("q-{endpoint}-{number}"), ..at(endpoint, number) };
    client.check(with_id.clone()).await.expect("an answer");
    client.check(with_id).await.expect("a replay");
    if endpoint.ends_with('3') && !endpoint.contains("log") {
        let mut client = ReservationServiceClient::new(connect(server.grpc()).await);
        let reserve = ReserveRequest { request: Some(at(endpoint, number)), ttl: None };
        let reservation_id =
            client.reserve(reserve).await.expect("a hold").into_inner().reservation_id;
        let commit = CommitRequest { reservation_id, actual: Some(2), ..CommitRequest::default() };
        client.commit(commit).await.expect("a settlement");
    }
}

/// Returns a field of INFO.
fn info(redis: &RedisServer, section: &str, field: &str) -> Option<u64> {
    let text: String = redis.query(&["INFO", section]);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")))?;
    let value = line.strip_prefix("calls=").unwrap_or(line).split(',').next()?;
    value.parse().ok()
}

/// Arguments of a server that logs all commands.
const LOG_ALL: &[&str] = &["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"];

/// Returns the number of decisions that had the text of a script, on a server with [`LOG_ALL`].
fn calls_with_texts(redis: &RedisServer) -> usize {
    let entries: Vec<Vec<Value>> = redis.query(&["SLOWLOG", "GET", "100000"]);
    let has_text = |entry: &&Vec<Value>| {
        let words: Vec<Vec<u8>> = from_redis_value_ref(&entry[3]).expect("the words of a command");
        words[0] == b"EVAL" && words.iter().any(|word| word.starts_with(b"MessagePack follows"))
    };
    entries.iter().filter(has_text).count()
}

fn calls(redis: &RedisServer, command: &str) -> u64 {
    info(redis, "commandstats", &format!("cmdstat_{command}")).unwrap_or(0)
}

#[tokio::test]
async fn rules_of_every_kind_leave_few_scripts() {
    // 24: three kinds, for each algorithm and for all.
    let most = 3 * (Algorithm::ALL.len() as u64 + 1);
    let redis = RedisServer::start();
    let (_dir, file, endpoints) = rules();
    let url = format!("store.redis.url={}", redis.url());
    let server =
        Rlaas::start_from(&file, &["store.backend=redis", &url, "store.redis.timeout=10s"]);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    let mut known = Vec::new();
    for round in 0..6 {
        for endpoint in &endpoints {
            send_all_kinds(&server, &mut client, endpoint, round).await;
        }
        let number = info(&redis, "memory", "number_of_cached_scripts").expect("a number");
        assert!(number <= most + OTHERS, "{number} scripts in round {round}");
        known.push((number, info(&redis, "memory", "used_memory_scripts").expect("bytes")));
    }
    // Others are loaded by the first turn of their tasks, which may come late. Lua collects its garbage now and then,
    // so that the bytes change a little.
    let (first, last) = (known[2], known[5]);
    assert!(last.0 <= first.0 + OTHERS, "{known:?}");
    assert!(last.1 < first.1 + first.1 / 4, "{known:?}");
    assert_sound(&server);
}

#[tokio::test]
async fn scripts_are_loaded_once_and_ahead_of_calls() {
    let mut redis = RedisServer::start_with(LOG_ALL);
    let server = Rlaas::on_redis(&redis, &[COUNTED, &["server.workers=4"]].concat());
    // A default rule needs a lean script and a full one.
    let loaded = async || calls(&redis, "script|load") == 2;
    eventually("the scripts are loaded", SOON, loaded).await;
    let load = Load::start(&server, 8).await;
    load.wait_for_passed(500, SOON).await;
    load.finish().await;
    assert_eq!(calls(&redis, "script|load"), 2, "no connection has loaded them again");
    assert_eq!(calls_with_texts(&redis), 0);

    redis.kill();
    redis.restart();
    let loaded = async || calls(&redis, "script|load") == 2;
    eventually("the new start has the scripts", SOON, loaded).await;
    assert_sound(&server);
}

#[tokio::test]
async fn reload_loads_what_new_rules_need() {
    let redis = RedisServer::start_with(LOG_ALL);
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", "rate-limiter: {use-algo: fixed-window}\n");
    let url = format!("store.redis.url={}", redis.url());
    let server = Rlaas::start_from(&file, &["store.backend=redis", &url]);
    eventually("two scripts", SOON, async || calls(&redis, "script|load") == 2).await;
    let more = "rate-limiter: {use-algo: fixed-window}\n\
                rules: [{name: b, algorithm: gcra, limit: 5, window: 1m, overridable: true}]\n";
    dir.write("rlaas.yaml", more);
    server.signal("HUP");
    // Those of GCRA with overrides and in full, and for several algorithms one of each kind.
    eventually("seven scripts", SOON, async || calls(&redis, "script|load") == 7).await;
    check(&mut server.client().await, "alice").await.expect("an answer");
    assert_eq!(calls_with_texts(&redis), 0);
}

#[tokio::test]
async fn without_permission_to_load_scripts_they_are_loaded_by_calls_without_requests() {
    let redis = RedisServer::start_with(LOG_ALL);
    add_user(&redis);
    let server = as_user(&redis, COUNTED);
    // A call from before the connection of the monitor has its text.
    wait_for_store(&server).await;
    let before = calls_with_texts(&redis);
    let load = Load::start(&server, 4).await;
    load.wait_for_passed(100, SOON).await;
    let counts = load.finish().await;
    assert_eq!(counts.unavailable.load(Ordering::Relaxed), 0);
    assert_eq!((calls(&redis, "script|load"), calls_with_texts(&redis)), (0, before));
}

#[tokio::test]
async fn open_breaker_closes_although_the_scripts_are_gone() {
    let redis = RedisServer::start();
    let server = Rlaas::on_redis(&redis, COUNTED);
    wait_for_store(&server).await;
    let mut client = server.client().await;
    redis.query::<()>(&["ACL", "SETUSER", "default", "-evalsha"]);
    assert_unavailable(&mut client, "alice").await;
    assert!(breaker(&server).await > 0);
    redis.query::<()>(&["SCRIPT", "FLUSH"]);
    redis.query::<()>(&["ACL", "SETUSER", "default", "+evalsha"]);
    let decides = async || check(&mut client, "alice").await.is_ok();
    eventually("the breaker closes", SOON, decides).await;
}

#[tokio::test]
async fn callers_of_cold_scripts_wait_without_failures() {
    let redis = RedisServer::start();
    let (_dir, file, endpoints) = rules();
    let url = format!("store.redis.url={}", redis.url());
    // Much more than the scripts take: on a busy machine 64 callers wait for each other for more than a second.
    let server =
        Rlaas::start_from(&file, &["store.backend=redis", &url, "store.redis.timeout=10s"]);
    wait_for_store(&server).await;
    for _ in 0..3 {
        redis.query::<()>(&["SCRIPT", "FLUSH"]);
        let mut callers = JoinSet::new();
        for number in 0..64 {
            let (mut client, endpoints) = (server.client().await, endpoints.clone());
            callers.spawn(async move {
                for step in 0..endpoints.len() {
                    let endpoint = &endpoints[(step + number) % endpoints.len()];
                    client.check(at(endpoint, number)).await.expect("an answer");
                }
            });
        }
        callers.join_all().await;
    }
    assert_eq!(breaker(&server).await, 0);
    assert_sound(&server);
}

#[tokio::test]
async fn restarted_redis_gets_the_scripts_of_many_rules_under_load() {
    let mut redis = RedisServer::start();
    let (_dir, file, endpoints) = rules();
    let url = format!("store.redis.url={}", redis.url());
    let server = Rlaas::start_from(&file, &["store.backend=redis", &url, "store.redis.timeout=1s"]);
    wait_for_store(&server).await;
    redis.kill();
    redis.restart();
    let mut client = server.client().await;
    let answers = async || client.check(at("/gcra-0", 0)).await.is_ok();
    eventually("answers again", RECOVERY, answers).await;
    let mut failed = HashMap::new();
    for (number, endpoint) in endpoints.iter().enumerate() {
        if let Err(status) = client.check(at(endpoint, number)).await {
            failed.insert(endpoint, status);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
