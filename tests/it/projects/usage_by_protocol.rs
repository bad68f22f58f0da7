//! Usage of requests of every protocol: single ones, batches, streams, HTTP and Envoy's descriptors; in
//! memory, over restarts with the journal, after kills, and on a Redis Cluster.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    Algorithm, CheckBatchRequest, CheckRequest, CheckResult, CommitRequest, ReportRequest,
    ReserveRequest, Rule,
};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, check, connect, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::Value;
use tokio::time::interval;
use tonic::Request;

use super::client::{client, rule};
use super::instance::Running;
use crate::envoy::client as envoy;
use crate::fleet::instance::cluster;
use crate::http::client::send_with;

const SOON: Duration = Duration::from_secs(20);
const ENVOY: &str = "domain: web\ndescriptors:\n  \
    - { key: user, rate_limit: { unit: year, requests_per_unit: 4 } }\n";

/// Allowed and denied requests, and units.
pub(crate) type Numbers = [u64; 3];

/// What [`make_requests`] makes for each user, of the project and without one.
const OF_SHOP: Numbers = [8, 3, 16];
const OF_NONE: Numbers = [4, 1, 8];

fn serve(dir: &TempDir, settings: &[&str]) -> Rlaas {
    let envoy = format!("envoy.files={}", dir.write("envoy.yaml", ENVOY).display());
    let always = ["auth.api-keys=accepted", "envoy.deadline=5s", &envoy];
    Rlaas::start(&[&always[..], settings].concat())
}

/// Creates a project with 4 units an hour for each user, and returns the secret of its key.
pub(crate) async fn create_shop(server: &Rlaas) -> String {
    let mut admin = client(server, "").await;
    let project = Some(proto::Project { id: "shop".to_owned(), ..Default::default() });
    let create = proto::CreateProjectRequest { project, ..Default::default() };
    let created = async || admin.clone().create_project(create.clone()).await.is_ok();
    eventually("a project", SOON, created).await;
    let (project_id, pay) = ("shop".to_owned(), Rule { max_requests: 4, ..rule("pay", "/pay") });
    let create = proto::CreateRuleRequest { project_id, rule: Some(pay), ..Default::default() };
    admin.create_rule(create).await.expect("a rule");
    new_key(server).await
}

async fn new_key(server: &Rlaas) -> String {
    let create = proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
    let created = client(server, "").await.create_key(create).await;
    created.expect("a key").into_inner().secret
}

/// Returns the key of a secret.
async fn listed(server: &Rlaas, secret: &str) -> proto::ApiKey {
    let request = proto::ListKeysRequest { project_id: "shop".to_owned(), ..Default::default() };
    let listed = client(server, "").await.list_keys(request).await.expect("keys").into_inner();
    let key = listed.keys.into_iter().find(|key| secret.contains(&format!("_{}", key.id)));
    key.expect("the key")
}

fn with_key<T>(secret: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", secret.parse().expect("a header"));
    request
}

fn pay(user: &str, cost: u64) -> CheckRequest {
    CheckRequest { resource: "/pay".to_owned(), cost: Some(cost), ..request(user) }
}

/// Returns how many results allow, and how many deny.
fn outcomes(results: &[CheckResult]) -> [usize; 2] {
    let text = results.iter().map(|result| format!("{result:?}")).collect::<Vec<_>>();
    ["allowed: true", "allowed: false"]
        .map(|outcome| text.iter().filter(|result| result.contains(outcome)).count())
}

/// Makes requests of every protocol, by users whose names begin so.
async fn make_requests(server: &Rlaas, secret: &str, prefix: &str) {
    let user = |name: &str| format!("{prefix}-{name}");
    let mut service = server.client().await;
    let alice = user("alice");
    for (cost, dry_run, is_allowed) in [(3, false, true), (2, false, false), (1, true, true)] {
        let message = CheckRequest { dry_run, ..pay(&alice, cost) };
        let response = service.check(with_key(secret, message)).await.expect("a decision");
        assert_eq!(response.into_inner().allowed, is_allowed, "{cost}");
    }
    let of = |name: &str, cost| pay(&user(name), cost);
    // An invalid one is no request.
    let requests = vec![of("bob", 4), of("bob", 1), of("carol", 1), pay("", 1)];
    let batch = service
        .check_batch(with_key(secret, CheckBatchRequest { requests, ..Default::default() }))
        .await;
    assert_eq!(outcomes(&batch.expect("a batch").into_inner().results), [2, 1]);
    let requests = tokio_stream::iter([of("dave", 2), of("dave", 2), of("dave", 1)]);
    let stream = service.check_stream(with_key(secret, requests)).await.expect("a stream");
    let (mut stream, mut results) = (stream.into_inner(), Vec::new());
    while let Some(result) = stream.message().await.expect("a result") {
        results.push(result);
    }
    assert_eq!(outcomes(&results), [2, 1]);
    let header = format!("x-api-key: {secret}\r\nContent-Type: application/json\r\n");
    let erin = user("erin");
    for (path, body) in [
        ("/v1/check", format!(r#"{{"userId":"{erin}","resource":"/pay"}}"#)),
        ("/check", format!(r#"{{"endpoint":"/pay","key":"{erin}"}}"#)),
        ("/v1/check", format!(r#"{{"userId":"{erin}","resource":"/pay","cost":2}}"#)),
    ] {
        let answer = send_with(server, "POST", path, &header, Some(&body)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    make_descriptor_requests(server, &user).await;
}

async fn make_descriptor_requests(server: &Rlaas, user: impl Fn(&str) -> String) {
    let mut client = envoy::client(server).await;
    let [one, two] = [user("one"), user("two")];
    for (request, code) in [
        (format!("web *3: user={one}"), "OK "),
        (format!("web *2: user={one}"), "OVER_LIMIT "),
        // One request, which costs as much as its most expensive descriptor.
        (format!("web: user={two} *2; user={} *3", user("three")), "OK "),
        // One that no rule limits.
        ("web: other=1".to_owned(), "OK "),
    ] {
        let answer = envoy::check(&mut client, &request).await;
        assert!(answer.starts_with(code), "{request}: {answer}");
    }
    let entry = format!(r#"{{"key":"user","value":"{two}"}}"#);
    let body =
        format!(r#"{{"domain":"web","descriptors":[{{"entries":[{entry}]}}],"hitsAddend":2}}"#);
    let header = "Content-Type: application/json\r\n";
    let answer = send_with(server, "POST", "/json", header, Some(&body)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Returns the usage of all days by project.
pub(crate) async fn usage(server: &Rlaas) -> BTreeMap<String, Numbers> {
    sums(server, "/v1/projects/-/usage", "projectId").await
}

/// Returns the usage of all days by what a field of the rows says.
async fn sums(server: &Rlaas, path: &str, field: &str) -> BTreeMap<String, Numbers> {
    let (status, body) = server.get(path).await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let mut usage = BTreeMap::<String, Numbers>::new();
    for row in body["usage"].as_array().expect("rows") {
        let numbers = usage.entry(row[field].as_str().expect("a name").to_owned());
        let numbers = numbers.or_default();
        for (number, field) in numbers.iter_mut().zip(["allowed", "denied", "units"]) {
            *number += row[field].as_str().and_then(|text| text.parse::<u64>().ok()).expect(field);
        }
    }
    usage
}

/// Returns the usage that several [`make_requests`] make.
fn expected(times: u64) -> BTreeMap<String, Numbers> {
    let of = |numbers: Numbers| numbers.map(|number| times * number);
    [("shop".to_owned(), of(OF_SHOP)), (String::new(), of(OF_NONE))].into()
}

#[tokio::test]
async fn requests_of_every_protocol_count_once() {
    let dir = TempDir::new();
    let server = serve(&dir, &[]);
    let secret = create_shop(&server).await;
    make_requests(&server, &secret, "first").await;
    assert_eq!(usage(&server).await, expected(1));
    // By key and by rule they are the same requests.
    let id = listed(&server, &secret).await.id;
    let by_key = sums(&server, "/v1/projects/shop/usage?by=key", "keyId").await;
    assert_eq!(by_key, [(id.clone(), OF_SHOP)].into());
    let by_rule = sums(&server, "/v1/projects/shop/usage?by=rule", "rule").await;
    // A dry run is no decision of the rule.
    assert_eq!(by_rule, [("pay".to_owned(), OF_SHOP)].into());
    let without_key = sums(&server, "/v1/projects/_/usage?by=USAGE_BY_KEY", "keyId").await;
    assert_eq!(without_key, [(String::new(), OF_NONE)].into());
    // Another key of the project, and a change of the key that was used.
    let other = new_key(&server).await;
    reserve_and_report(&server, &other).await;
    let other = listed(&server, &other).await.id;
    let of_other = [1, 0, 4 + 3];
    let by_key = sums(&server, "/v1/projects/shop/usage?by=key", "keyId").await;
    assert_eq!(by_key, [(id, OF_SHOP), (other, of_other)].into());
    let by_rule = sums(&server, "/v1/projects/shop/usage?by=rule", "rule").await;
    assert_eq!(by_rule["tokens"], [2, 0, 4 + 3], "{by_rule:?}");
    let (status, body) = server.get("/v1/projects/shop/usage?by=week").await;
    assert!(status == 400 && body.contains("by must be USAGE_BY_UNSPECIFIED or"), "{body}");
}

/// Reserves units with a key, of which it charges four, and reports three more.
async fn reserve_and_report(server: &Rlaas, secret: &str) {
    let tokens =
        Rule { reservable: true, post_paid: true, hold: None, ..rule("tokens", "/tokens") };
    let tokens = Rule { max_requests: 100, algorithm: Algorithm::TokenBucket.into(), ..tokens };
    let create = proto::CreateRuleRequest {
        project_id: "shop".to_owned(),
        rule: Some(tokens),
        ..Default::default()
    };
    client(server, "").await.create_rule(create).await.expect("a rule");
    let tokens = |cost| CheckRequest {
        resource: "/tokens".to_owned(),
        cost: Some(cost),
        ..request("alice")
    };
    let mut reservations = ReservationServiceClient::new(connect(server.grpc()).await);
    let reserve = ReserveRequest { request: Some(tokens(10)), ttl: None };
    let reserved =
        reservations.reserve(with_key(secret, reserve)).await.expect("held").into_inner();
    let commit = CommitRequest {
        reservation_id: reserved.reservation_id,
        actual: Some(4),
        ..Default::default()
    };
    for _ in 0..2 {
        let commit = with_key(secret, commit.clone());
        reservations.commit(commit).await.expect("settled");
    }
    let report = ReportRequest { request: Some(tokens(3)) };
    server.client().await.report(with_key(secret, report)).await.expect("counted");
}

#[tokio::test]
async fn journal_keeps_usage_over_restarts() {
    let dir = TempDir::new();
    let journal = format!("store.memory.journal.path={}", dir.path("journal").display());
    let mut server = serve(&dir, &[&journal]);
    let secret = create_shop(&server).await;
    make_requests(&server, &secret, "first").await;
    server.signal("TERM");
    assert!(server.wait().success(), "{}", server.log());
    let mut server = serve(&dir, &[&journal]);
    assert_eq!(usage(&server).await, expected(1));
    make_requests(&server, &secret, "second").await;
    assert_eq!(usage(&server).await, expected(2));
    // What it has not written is lost, and nothing else.
    server.signal("KILL");
    server.wait();
    let server = serve(&dir, &[&journal]);
    let left = usage(&server).await;
    for (project, numbers) in &left {
        for (at, number) in numbers.iter().enumerate() {
            let [least, most] = [1, 2].map(|times| expected(times)[project][at]);
            assert!((least..=most).contains(number), "{project}: {left:?}");
        }
    }
    make_requests(&server, &secret, "third").await;
    let after = usage(&server).await;
    for (project, numbers) in &expected(1) {
        for at in 0..numbers.len() {
            assert_eq!(after[project][at], left[project][at] + numbers[at], "{project}: {after:?}");
        }
    }
}

#[tokio::test]
async fn instances_on_a_cluster_add_up() {
    let redis = RedisCluster::start(3, 0).await;
    // Servers wait before they make a catalogue.
    let first = Running::on_redis(&cluster(&redis.urls()));
    eventually("a catalogue", SOON, async || first.put("_", "").await.is_ok()).await;
    let dir = TempDir::new();
    let settings = redis.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let settings = [&settings[..], &["store.redis.timeout=10s"]].concat();
    let [mut one, other] = [(); 2].map(|()| serve(&dir, &settings));
    let secret = create_shop(&one).await;
    let is_known = async || {
        let mut service = other.client().await;
        let look = CheckRequest { dry_run: true, ..pay("look", 0) };
        service.check(with_key(&secret, look)).await.is_ok()
    };
    eventually("the key is known", SOON, is_known).await;
    make_requests(&one, &secret, "one").await;
    make_requests(&other, &secret, "other").await;
    let unused = new_key(&one).await;
    let only_here = new_key(&one).await;
    let mut service = one.client().await;
    let look = || CheckRequest { dry_run: true, ..pay("look", 0) };
    service.check(with_key(&only_here, look())).await.expect("a decision");
    // It writes all when it stops.
    one.signal("TERM");
    assert!(one.wait().success(), "{}", one.log());
    // Looks are no requests.
    assert_eq!(usage(&other).await, expected(2));
    for (secret, is_used) in [(secret, true), (only_here, true), (unused, false)] {
        let key = listed(&other, &secret).await;
        // The hour began before the key was made.
        assert_eq!(key.last_used_at, key.created_at.filter(|_| is_used), "{key:?}");
    }
}

/// With `SOAK` it writes several times before it is killed.
#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "compares the times of requests with that of the kill"
)]
async fn killed_server_loses_what_it_counted_since_its_last_write() {
    /// Time between two writes, and that of a write on a busy machine.
    const MAX_LOST: Duration = Duration::from_secs(10 + 2);
    let lasts = if std::env::var_os("SOAK").is_some() { 45 } else { 0 };
    let redis = RedisServer::start();
    let [mut killed, other] = [(); 2].map(|()| Rlaas::on_redis(&redis, &[]));
    let mut client = killed.client().await;
    let written = async || {
        let usage = usage(&other).await;
        usage.get("").map_or(0, |[allowed, denied, _]| allowed + denied)
    };
    let (begun, mut answered) = (Instant::now(), Vec::new());
    let mut ticks = interval(Duration::from_millis(20));
    while written().await == 0 || begun.elapsed() < Duration::from_secs(lasts) {
        ticks.tick().await;
        check(&mut client, "alice").await.expect("an answer");
        answered.push(begun.elapsed());
    }
    let before = written().await;
    killed.signal("KILL");
    killed.wait();
    let (ended, left) = (begun.elapsed(), written().await);
    let all = u64::try_from(answered.len()).expect("a few");
    assert!((before..=all).contains(&left), "{left} of {all}, {before} were written");
    let first_lost = usize::try_from(left).ok().and_then(|left| answered.get(left));
    let lost = first_lost.map_or(Duration::ZERO, |at| ended.saturating_sub(*at));
    println!("{left} of {all} requests are left: the last {lost:?} are lost");
    assert!(lost <= MAX_LOST, "{lost:?}");
}
