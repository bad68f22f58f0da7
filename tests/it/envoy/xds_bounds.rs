//! How much a management server may send.

use prost::Message;
use prost_types::Any;
use rlaas_proto::envoy::service::discovery::v3::DiscoveryResponse;
use rlaas_proto::ratelimit::config::ratelimit::v3::RateLimitUnit::Year;
use rlaas_proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::{TempDir, eventually};

use super::client::{check, client};
use super::xds::{ManagementServer, TIMEOUT, TYPE, limit, rlaas};

/// Returns a limit for users whose names begin so, with others below it.
fn descriptor(value: &str, below: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    let rate_limit =
        RateLimitPolicy { unit: Year.into(), requests_per_unit: 3, ..RateLimitPolicy::default() };
    RateLimitDescriptor {
        key: "user".to_owned(),
        value: value.to_owned(),
        rate_limit: Some(rate_limit),
        descriptors: below,
        ..RateLimitDescriptor::default()
    }
}

fn resource(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> Any {
    let config =
        RateLimitConfig { name: domain.to_owned(), domain: domain.to_owned(), descriptors };
    Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() }
}

/// Returns descriptors, each with another value.
fn several(count: usize) -> Vec<RateLimitDescriptor> {
    (0..count).map(|number| descriptor(&number.to_string(), vec![])).collect()
}

async fn counted(server: &Rlaas, event: &str) -> Option<f64> {
    server.metric(&format!("rlaas_xds_responses_total{{event=\"{event}\"}}")).await
}

#[tokio::test]
async fn more_descriptors_than_allowed_are_refused_with_their_number() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &["envoy.xds.max-descriptors=6"]);
    let (stream, _) = management.stream().await;
    // Those of all resources and depths.
    let six = || vec![descriptor("a", vec![descriptor("b", several(2))]), descriptor("c", vec![])];
    stream.accepts("1", vec![resource("a", six()), resource("b", several(1))]).await;
    let refused = stream.offer("2", vec![resource("a", six()), resource("b", several(2))]).await;
    let reason = refused.error_detail.expect("a reason").message;
    let expected = "7 descriptors or resources: must be at most 6 (envoy.xds.max-descriptors)";
    assert_eq!(reason, expected);
    // Resources without any take memory, too.
    let empty = (0..7).map(|number| resource(&number.to_string(), vec![])).collect();
    let reason = stream.offer("3", empty).await.error_detail.expect("a reason").message;
    assert_eq!(reason, expected);
    let answer = check(&mut client(&server).await, "a: user=c").await;
    assert!(answer.starts_with("OK [OK 3/YEAR"), "{answer}");
}

#[tokio::test]
async fn sixty_thousand_descriptors_are_refused_by_default_and_fewer_come_into_force() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    let rest = server.resident_kib();
    let reason = stream.offer("1", vec![resource("shop", several(60_000))]).await;
    let reason = reason.error_detail.expect("a reason").message;
    assert!(
        reason.starts_with("60000 descriptors or resources: must be at most 20000"),
        "{reason}"
    );
    let taken = server.resident_kib().saturating_sub(rest);
    assert!(taken < 60 * 1024, "{taken} KiB for a response that is refused");
    stream.accepts("2", vec![resource("shop", several(100))]).await;
    assert_eq!(
        (counted(&server, "accepted").await, counted(&server, "refused").await),
        (Some(1.0), Some(1.0))
    );
}

#[tokio::test]
async fn deeper_descriptors_than_any_request_needs_are_refused_before_they_are_read() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    let nested =
        |levels| (1..levels).fold(descriptor("a", vec![]), |of, _| descriptor("a", vec![of]));
    stream.accepts("1", vec![resource("shop", vec![nested(32)])]).await;
    let mut field = vec![];
    // Each level is two or more bytes: a message of messages, 100,000 deep.
    for _ in 0..100_000 {
        let mut outer = vec![4 << 3 | 2];
        prost::encode_length_delimiter(field.len(), &mut outer).expect("room");
        outer.append(&mut field);
        field = outer;
        if field.len() > 200_000 {
            break;
        }
    }
    field[0] = 3 << 3 | 2;
    let deep = Any { type_url: TYPE.to_owned(), value: field };
    for (version, offered) in [("2", deep), ("3", resource("shop", vec![nested(33)]))] {
        let refused = stream.offer(version, vec![offered]).await;
        let reason = refused.error_detail.expect("a reason").message;
        assert!(reason.contains("32 levels"), "{reason}");
    }
    assert!(is_alive(&server).await);
}

async fn is_alive(server: &Rlaas) -> bool {
    server.get("/livez").await.0 == 200
}

#[tokio::test]
async fn response_above_the_limit_is_counted_as_refused() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    let large = Any { type_url: TYPE.to_owned(), value: vec![0; 17 * 1024 * 1024] };
    stream.send("1", vec![large]).await;
    let is_counted = async || counted(&server, "refused").await == Some(1.0);
    eventually("the response is counted", TIMEOUT, is_counted).await;
    let (stream, _) = management.stream().await;
    stream.accepts("2", vec![limit("shop", 1, Year)]).await;
}

#[tokio::test]
async fn long_version_is_acknowledged_whole_and_kept_to_its_beginning() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let folder = TempDir::new();
    let state = format!("state-dir={}", folder.path("state").display());
    let server = rlaas(&management.address, &[&state, "store.memory.snapshot=off"]);
    let (stream, _) = management.stream().await;
    let version = "é".repeat(100_000);
    stream.accepts(&version, vec![limit("shop", 1, Year)]).await;
    let refused = stream.offer("b", vec![limit("", 1, Year)]).await;
    assert_eq!(refused.version_info, "é".repeat(128));
    assert!(server.log().lines().all(|line| line.len() < 2_000), "a long line");
    let kept = folder.path("state").join("xds.pb");
    let is_kept = async || kept.exists();
    eventually("the rules are kept", TIMEOUT, is_kept).await;
    let kept = std::fs::read(kept).expect("the last rules");
    let kept = DiscoveryResponse::decode(&*kept).expect("a response");
    assert_eq!(kept.version_info, "é".repeat(128));
}
