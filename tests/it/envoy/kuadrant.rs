//! `kuadrant.service.ratelimit.v1`: looks, reports, reservations and settlements, in memory and in Redis.

use std::time::Duration;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use rlaas_testkit::process::{Rlaas, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tonic::transport::Channel;

type KuadrantClient = RateLimitServiceClient<Channel>;

const LIMITS: &str = "\
domain: llm
descriptors:
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 1000, reservable: true, hold: 400ms}}
  - {key: fresh, rate_limit: {unit: year, requests_per_unit: 1000, reservable: true, hold: 400ms}}
  - {key: paid, rate_limit: {unit: year, requests_per_unit: 1000, post_paid: true}}
  - {key: requests, rate_limit: {unit: year, requests_per_unit: 100}}
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

    // All or nothing: tokens are held and requests taken.
    let all = ["tokens", "requests"];
    let (code, id) = reserve(&mut client, &all, 9).await;
    assert!(code == Code::Ok && !id.is_empty());
    assert_eq!(left(server, &all).await, [991, 0]);
    let (code, none) = reserve(&mut client, &all, 1).await;
    assert_eq!((code, &*none), (Code::OverLimit, ""));
    assert_eq!(left(server, &all).await, [991, 0]);
    // Settled once, more than was held; the other limit is left as it is.
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
    let request = ReserveRequest { amount: too_many, ..ReserveRequest::default() };
    let refused = client.reserve(request).await.expect_err("too many units");
    assert_eq!(refused.message(), "amount must be 0 to 4294967295");
    let request = CommitRequest { actual_amount: too_many, ..CommitRequest::default() };
    let refused = client.commit(request).await.expect_err("too many units");
    assert_eq!(refused.message(), "actual_amount must be 0 to 4294967295");
    let ttl = Some(prost_types::Duration { seconds: 0, nanos: 1 });
    let refused = client.reserve(ReserveRequest { ttl, ..ReserveRequest::default() }).await;
    assert_eq!(refused.expect_err("too short").message(), "ttl must be 100ms to 24h");
    let refused = client.reserve(ReserveRequest::default()).await.expect_err("no domain");
    assert_eq!(refused.message(), "domain must be 1 to 1024 bytes");
}

fn start(dir: &TempDir, settings: &[&str]) -> Rlaas {
    let limits = dir.write("limits.yaml", LIMITS);
    let file = dir.write("rlaas.yaml", &format!("envoy: {{files: [{}]}}\n", limits.display()));
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
