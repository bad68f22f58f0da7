//! `kuadrant.service.ratelimit.v1`: looks, reports, reservations and settlements, in memory and in Redis.

use std::time::Duration;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::process::{Rlaas, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::task::JoinSet;
use tonic::transport::Channel;

pub(super) type KuadrantClient = RateLimitServiceClient<Channel>;

const LIMITS: &str = "\
domain: llm
descriptors:
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 1000, reservable: true, hold: 400ms}}
  - {key: fresh, rate_limit: {unit: year, requests_per_unit: 1000, reservable: true, hold: 400ms}}
  - {key: paid, rate_limit: {unit: year, requests_per_unit: 1000, post_paid: true}}
  - {key: requests, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: calls, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: late, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: held, rate_limit: {unit: year, requests_per_unit: 1000, reservable: true}}
  - {key: long, rate_limit: {unit: year, requests_per_unit: 1000, reservable: true}}
  - {key: both, rate_limit: {unit: year, requests_per_unit: 100, reservable: true, post_paid: true, max_debt: 50}}
";

fn descriptors(keys: &[&str]) -> Vec<RateLimitDescriptor> {
    let one = |key: &&str| RateLimitDescriptor {
        entries: vec![Entry { key: (*key).to_owned(), value: "alice".to_owned() }],
        ..RateLimitDescriptor::default()
    };
    keys.iter().map(one).collect()
}

fn hits(keys: &[&str], hits_addend: u32) -> RateLimitRequest {
    RateLimitRequest { domain: "llm".to_owned(), descriptors: descriptors(keys), hits_addend }
}

/// Returns what is left by each key, as Envoy's service sees it.
async fn left(server: &Rlaas, keys: &[&str]) -> Vec<u32> {
    let mut request = hits(keys, 0);
    request.descriptors.iter_mut().for_each(|one| one.hits_addend = Some(0));
    let mut client = super::client::client(server).await;
    let looked = client.should_rate_limit(request).await.expect("a look").into_inner();
    looked.statuses.iter().map(|status| status.limit_remaining).collect()
}

async fn reserve(client: &mut KuadrantClient, keys: &[&str], amount: u64) -> (Code, String) {
    let request = ReserveRequest {
        domain: "llm".to_owned(),
        descriptors: descriptors(keys),
        amount,
        ttl: None,
    };
    let reserved = client.reserve(request).await.expect("an answer").into_inner();
    (reserved.code(), reserved.reservation_id)
}

async fn commit(client: &mut KuadrantClient, keys: &[&str], id: &str, actual: u64) -> bool {
    let request = CommitRequest {
        domain: "llm".to_owned(),
        descriptors: descriptors(keys),
        reservation_id: id.to_owned(),
        actual_amount: actual,
    };
    client.commit(request).await.expect("an answer").into_inner().reservation_released
}

async fn assert_kuadrant(server: &Rlaas) {
    let mut client = KuadrantClient::new(server.channel().await);
    // A look takes nothing, a report counts whatever is left.
    for (addend, code) in [(0, Code::Ok), (100, Code::Ok), (101, Code::OverLimit)] {
        let looked = client.check_rate_limit(hits(&["both"], addend)).await.expect("a look");
        assert_eq!(looked.get_ref().overall_code(), code, "{addend}");
    }
    assert_eq!(left(server, &["both"]).await, [100]);
    client.report(hits(&["both", "requests"], 90)).await.expect("a report");
    client.report(hits(&["requests"], 0)).await.expect("a report of one");
    assert_eq!(left(server, &["both", "requests"]).await, [10, 9]);
    let over = client.report(hits(&["both"], 30)).await.expect("a report").into_inner();
    assert_eq!(over.overall_code(), Code::OverLimit);
    let looked = client.check_rate_limit(hits(&["both"], 0)).await.expect("a look").into_inner();
    assert_eq!(looked.overall_code(), Code::OverLimit);

    // All or nothing: tokens are held if requests would pass.
    let all = ["tokens", "requests"];
    let (code, id) = reserve(&mut client, &all, 9).await;
    assert!(code == Code::Ok && !id.is_empty());
    assert_eq!(left(server, &all).await, [991, 9]);
    let (code, none) = reserve(&mut client, &all, 10).await;
    assert_eq!((code, &*none), (Code::OverLimit, ""));
    assert_eq!(left(server, &all).await, [991, 9]);
    // Settled once, more than was held; the other limit counts up to it.
    for actual in [20, 300] {
        assert!(commit(&mut client, &all, &id, actual).await);
    }
    assert_eq!(left(server, &all).await, [980, 0]);
    let (_, id) = reserve(&mut client, &["tokens"], 980).await;
    assert_eq!(reserve(&mut client, &["tokens"], 1).await.0, Code::OverLimit);
    assert!(commit(&mut client, &["tokens"], &id, 0).await);
    assert_eq!(left(server, &["tokens"]).await, [980]);
    // A limit that does not hold has no id.
    assert_eq!(reserve(&mut client, &["both"], 0).await, (Code::OverLimit, String::new()));

    // Without an id, or after its end, the cost is reported, once for an id.
    assert!(!commit(&mut client, &["tokens", "requests"], "", 80).await);
    assert_eq!(left(server, &["tokens"]).await, [900]);
    let (_, id) = reserve(&mut client, &["tokens"], 100).await;
    eventually("the hold has ended", Duration::from_secs(20), async || {
        left(server, &["tokens"]).await == [900]
    })
    .await;
    for released in [false, true] {
        assert_eq!(commit(&mut client, &["tokens"], &id, 50).await, released);
    }
    assert_eq!(left(server, &["tokens"]).await, [850]);
    // Nothing is counted for other ids.
    for id in ["x", "AAAA", &id[..id.len() - 2]] {
        assert!(!commit(&mut client, &["tokens"], id, 50).await, "{id}");
    }
    let (_, id) = reserve(&mut client, &["tokens"], 1).await;
    assert!(!commit(&mut client, &["requests"], &id, 50).await);
    assert!(commit(&mut client, &["tokens"], &id, 0).await);
    assert_eq!(left(server, &["tokens"]).await, [850]);

    // A descriptor twice is held twice, and settled once, whatever the order of the descriptors.
    let twice = ["tokens", "tokens", "fresh"];
    assert_eq!(reserve(&mut client, &twice, 426).await.0, Code::OverLimit);
    let (code, id) = reserve(&mut client, &twice, 400).await;
    assert_eq!(code, Code::Ok);
    assert_eq!(left(server, &["tokens", "fresh"]).await, [50, 600]);
    assert!(commit(&mut client, &twice, &id, 10).await);
    assert!(commit(&mut client, &["fresh", "tokens"], &id, 10).await);
    assert_eq!(left(server, &["tokens", "fresh"]).await, [840, 990]);
    let (_, id) = reserve(&mut client, &["tokens", "fresh"], 100).await;
    eventually("the holds have ended", Duration::from_secs(20), async || {
        left(server, &["tokens", "fresh"]).await == [840, 990]
    })
    .await;
    for (keys, released) in [(["tokens", "fresh"], false), (["fresh", "tokens"], true)] {
        assert_eq!(commit(&mut client, &keys, &id, 40).await, released);
    }
    assert_eq!(left(server, &["tokens", "fresh"]).await, [800, 950]);
    // What is refused counts nothing, by limits that are paid afterwards either.
    let paid = ["paid", "tokens"];
    assert_eq!(reserve(&mut client, &paid, 801).await.0, Code::OverLimit);
    assert_eq!(left(server, &paid).await, [1_000, 800]);
    // A look sees both hits of a key.
    let mut look = hits(&["fresh", "fresh"], 500);
    let looked = client.check_rate_limit(look.clone()).await.expect("a look").into_inner();
    assert_eq!(looked.overall_code(), Code::OverLimit);
    look.hits_addend = 475;
    let looked = client.check_rate_limit(look).await.expect("a look").into_inner();
    assert_eq!(looked.overall_code(), Code::Ok);

    let too_many = u64::from(u32::MAX) + 1;
    let request = CommitRequest { actual_amount: too_many, ..CommitRequest::default() };
    let refused = client.commit(request).await.expect_err("too many units");
    assert_eq!(refused.message(), "actual_amount must be 0 to 4294967295");
    let refused = client.reserve(ReserveRequest::default()).await.expect_err("no domain");
    assert_eq!(refused.message(), "domain must be 1 to 1024 bytes");
}

async fn left_at(server: &Rlaas, keys: &[&str], expected: &[u32]) {
    assert_eq!(left(server, keys).await, expected, "{keys:?}");
}

/// The calls that Kuadrant's operator makes of a policy for tokens: Reserve of 0 unless the policy says
/// otherwise, and Commit of what the response has cost.
async fn assert_as_its_operator_calls(server: &Rlaas) {
    let mut client = KuadrantClient::new(server.channel().await);
    // No limit holds: there is no id, and each Commit counts.
    let mut passed = 0;
    for _ in 0..120 {
        let (code, id) = reserve(&mut client, &["requests"], 0).await;
        assert_eq!(id, "");
        if code == Code::Ok {
            passed += 1;
            assert!(!commit(&mut client, &["requests"], &id, 1).await);
        }
    }
    assert_eq!(passed, 100);
    left_at(server, &["requests"], &[0]).await;
    // Reserve of more than is left is refused, and takes nothing of any limit.
    let all = ["long", "calls", "paid"];
    assert_eq!(reserve(&mut client, &all, 101).await, (Code::OverLimit, String::new()));
    left_at(server, &all, &[1_000, 100, 1_000]).await;
    // What does not hold is looked at, once for all hits of a key.
    assert_eq!(reserve(&mut client, &["calls", "calls"], 51).await.0, Code::OverLimit);
    let (code, id) = reserve(&mut client, &all, 40).await;
    assert!(code == Code::Ok && !id.is_empty());
    left_at(server, &all, &[960, 100, 1_000]).await;
    // With an id once, whatever the order, how often and with which cost: by all of them.
    for actual in [30, 30, 70] {
        assert!(commit(&mut client, &all, &id, actual).await);
    }
    for _ in 0..20 {
        assert!(commit(&mut client, &["paid", "calls", "long"], &id, 30).await);
    }
    left_at(server, &all, &[970, 70, 970]).await;
    // Above what is left: limits without debt count up to the limit.
    let (_, id) = reserve(&mut client, &all, 1).await;
    assert!(commit(&mut client, &all, &id, 5_000).await);
    left_at(server, &all, &[0, 0, 0]).await;
    assert_eq!(reserve(&mut client, &["calls"], 0).await.0, Code::OverLimit);
    // What has ended by itself is counted once, too; what nobody knows is not.
    let late = ["fresh", "late"];
    let (_, id) = reserve(&mut client, &late, 100).await;
    eventually("the hold has ended", Duration::from_secs(20), async || {
        left(server, &late).await == [1_000, 100]
    })
    .await;
    for released in [false, true, true] {
        assert_eq!(commit(&mut client, &late, &id, 50).await, released);
    }
    left_at(server, &late, &[950, 50]).await;
    for id in ["x", "AAAA", &id[..id.len() - 2]] {
        assert!(!commit(&mut client, &late, id, 50).await, "{id}");
    }
    // A descriptor with units of its own: none.
    let mut mixed = descriptors(&late);
    mixed[0].hits_addend = Some(0);
    let domain = "llm".to_owned();
    let request = ReserveRequest { domain, descriptors: mixed, amount: 10, ttl: None };
    let reserved = client.reserve(request).await.expect("an answer").into_inner();
    assert_eq!((reserved.code(), &*reserved.reservation_id), (Code::Ok, ""));
    for _ in 0..2 {
        assert!(!commit(&mut client, &late, "", 10).await);
    }
    left_at(server, &late, &[930, 30]).await;

    // Times that are none, and times out of the range of holds.
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let nanos = |nanos| Some(prost_types::Duration { seconds: 0, nanos });
    for ttl in [None, seconds(0), seconds(-5), nanos(1), seconds(i64::MAX), seconds(i64::MIN)] {
        let (domain, descriptors) = ("llm".to_owned(), descriptors(&["held"]));
        let request = ReserveRequest { domain, descriptors, amount: 1, ttl };
        let reserved = client.reserve(request).await.expect("an answer").into_inner();
        assert_eq!(reserved.code(), Code::Ok, "{ttl:?}");
        assert!(commit(&mut client, &["held"], &reserved.reservation_id, 1).await, "{ttl:?}");
    }
    left_at(server, &["held"], &[994]).await;
}

#[tokio::test]
async fn limits_count_what_kuadrants_operator_commits() {
    let dir = TempDir::new();
    assert_as_its_operator_calls(&start(&dir, &[])).await;
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=5s"];
    assert_as_its_operator_calls(&start(&dir, &settings)).await;
}

/// The rules of docs/envoy.md: one descriptor has the entries of two limits.
#[tokio::test]
async fn one_descriptor_meets_the_project_rules_of_several_limits() {
    let settings = ["auth.api-keys=accepted", "envoy.projects.llm=llm", "envoy.deadline=10s"];
    let server = Rlaas::start(&settings);
    eventually("a project", Duration::from_secs(20), async || {
        let project = r#"{"project": {"id": "llm"}}"#;
        server.post("/v1/projects", project).await.0 == 201
    })
    .await;
    let rule = |name: &str, limit: u32, window: &str| {
        serde_json::json!({
            "name": name, "maxRequests": limit.to_string(), "window": window,
            "algorithm": "FIXED_WINDOW", "keyBy": ["attributes.auth.identity.userid"],
            "matchers": [{ "part": format!("attributes.tokenlimit.{name}"), "anyOf": ["1"] }],
            "reservable": name == "free",
        })
    };
    let rules = [rule("free", 20, "31536000s"), rule("daily", 30, "31104000s")];
    let rules = serde_json::json!({ "rules": rules }).to_string();
    let (status, answer) = server.post("/v1/projects/llm/rules:apply", &rules).await;
    assert_eq!(status, 200, "{answer}");
    let mut client = KuadrantClient::new(server.channel().await);
    let entry = |(key, value): (&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    let descriptor = |entries: &[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().copied().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    let user = ("auth.identity.userid", "alice");
    let both = [("tokenlimit.daily", "1"), user, ("tokenlimit.free", "1")];
    let free = [("tokenlimit.free", "1"), user];
    let reserve = |entries: &[(&str, &str)], amount| ReserveRequest {
        domain: "llm".to_owned(),
        descriptors: vec![descriptor(entries)],
        amount,
        ttl: None,
    };
    let commit = |entries: &[(&str, &str)], id: &str, actual_amount| CommitRequest {
        domain: "llm".to_owned(),
        descriptors: vec![descriptor(entries)],
        reservation_id: id.to_owned(),
        actual_amount,
    };
    let held = client.reserve(reserve(&both, 15)).await.expect("an answer").into_inner();
    assert_eq!(held.code(), Code::Ok);
    let id = held.reservation_id;
    let full = client.reserve(reserve(&free, 6)).await.expect("an answer").into_inner();
    assert_eq!(full.code(), Code::OverLimit, "15 of 20 are held");
    for _ in 0..3 {
        client.commit(commit(&both, &id, 12)).await.expect("an answer");
    }
    // Both limits have counted 12, once.
    for (amount, code) in [(8, Code::Ok), (9, Code::OverLimit)] {
        let looked = client.reserve(reserve(&free, amount)).await.expect("an answer").into_inner();
        assert_eq!(looked.code(), code, "{amount}");
        client.commit(commit(&free, &looked.reservation_id, 0)).await.expect("an answer");
    }
    let daily = [("tokenlimit.daily", "1"), user];
    for (amount, code) in [(18, Code::Ok), (19, Code::OverLimit)] {
        let looked = client.reserve(reserve(&daily, amount)).await.expect("an answer").into_inner();
        assert_eq!(looked.code(), code, "{amount}");
    }
    // Usage counts the tokens of a request once.
    let (_, usage) = server.get("/v1/projects/llm/usage").await;
    let usage: serde_json::Value = serde_json::from_str(&usage).expect("JSON");
    assert_eq!(usage["usage"][0]["units"], "12", "{usage}");
}

#[tokio::test]
async fn commit_counts_once_for_an_id_over_all_masters() {
    let (dir, cluster) = (TempDir::new(), RedisCluster::start(3, 0).await);
    let settings = cluster.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = start(&dir, &[&settings[..], &["store.redis.timeout=10s"]].concat());
    let mut client = KuadrantClient::new(server.channel().await);
    let all = ["long", "held", "calls", "paid", "late"];
    let (code, id) = reserve(&mut client, &all, 40).await;
    assert!(code == Code::Ok && !id.is_empty());
    for _ in 0..12 {
        assert!(commit(&mut client, &all, &id, 30).await);
    }
    left_at(&server, &all, &[970, 970, 70, 970, 70]).await;
}

fn start(dir: &TempDir, settings: &[&str]) -> Rlaas {
    let limits = dir.write("limits.yaml", LIMITS);
    let file = dir
        .write("rlaas.yaml", &format!("envoy: {{deadline: 10s, files: [{}]}}\n", limits.display()));
    Rlaas::start_from(&file, settings)
}

#[tokio::test]
async fn limits_are_looked_at_reported_reserved_and_settled() {
    let dir = TempDir::new();
    assert_kuadrant(&start(&dir, &[])).await;
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    assert_kuadrant(&start(&dir, &["store.backend=redis", &url, "store.redis.timeout=5s"])).await;
}

#[test]
fn limits_that_can_not_hold_are_named() {
    let dir = TempDir::new();
    for (limit, setting, problem) in [
        ("hold: 5s", "", "hold: only with reservable: true"),
        ("reservable: true, hold: 25h", "", "hold: must be 100ms to 24h"),
        (
            "reservable: true, algorithm: sliding-window-log",
            "",
            "reservable: not with sliding-window-log",
        ),
        (
            "reservable: true",
            ", count-refused: true",
            "reservable: not with unlimited: true or envoy",
        ),
        ("algorithm: concurrency", "", "algorithm: must not be concurrency"),
    ] {
        let limits = format!(
            "domain: a\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 5, {limit}}}}}]\n"
        );
        let limits = dir.write("limits.yaml", &limits);
        let file = format!("envoy: {{files: [{}]{setting}}}\n", limits.display());
        let file = dir.write("rlaas.yaml", &file);
        let (code, out, error) = run(&["check-config", &file.display().to_string()]);
        assert_eq!(code, 64, "{limit}: {out}{error}");
        assert!(format!("{out}{error}").contains(problem), "{limit}: {out}{error}");
    }
}

#[tokio::test]
async fn commits_of_one_id_at_the_same_time_count_once() {
    let (dir, redis) = (TempDir::new(), RedisServer::start());
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let servers = [start(&dir, &settings), start(&dir, &settings)];
    let all = ["held", "calls", "paid"];
    let mut client = KuadrantClient::new(servers[0].channel().await);
    for round in 1..=5 {
        let (code, id) = reserve(&mut client, &all, 5).await;
        assert_eq!(code, Code::Ok, "{round}");
        let mut commits = JoinSet::new();
        for task in 0..40 {
            let mut client = KuadrantClient::new(servers[task % 2].channel().await);
            let id = id.clone();
            commits.spawn(async move { commit(&mut client, &all, &id, 7).await });
        }
        assert!(commits.join_all().await.into_iter().all(|released| released), "{round}");
        let left_of = |of: u32| of - 7 * round;
        left_at(&servers[1], &all, &[left_of(1_000), left_of(100), left_of(1_000)]).await;
    }
}
