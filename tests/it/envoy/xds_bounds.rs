//! How much a management server may send.

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, ListValue, Struct, Value};
use rlaas_proto::envoy::service::discovery::v3::DiscoveryResponse;
use rlaas_proto::ratelimit::config::ratelimit::v3::RateLimitUnit::Year;
use rlaas_proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::{TempDir, eventually};

use super::client::{check, client};
use super::xds::{ManagementServer, TIMEOUT, TYPE, XdsStream, limit, rlaas};

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

/// Returns a descriptor whose metadata is a list of so many nulls, of four bytes each.
fn with_nulls(value: &str, count: usize) -> RateLimitDescriptor {
    let values = vec![Value { kind: Some(Kind::NullValue(0)) }; count];
    let list = Value { kind: Some(Kind::ListValue(ListValue { values })) };
    let metadata = Some(Struct { fields: [("a".to_owned(), list)].into() });
    RateLimitDescriptor { metadata, ..descriptor(value, vec![]) }
}

/// Returns why a resource is refused.
async fn refusal(stream: &XdsStream, version: &str, resource: Any) -> String {
    let refused = stream.offer(version, vec![resource]).await;
    refused.error_detail.expect("a reason").message
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
async fn deeper_descriptors_than_any_request_needs_are_refused() {
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
    let above = resource("shop", vec![nested(33)]);
    for (version, offered, levels) in [("2", deep, "100 levels"), ("3", above, "32 levels")] {
        let reason = refusal(&stream, version, offered).await;
        assert!(reason.contains(levels), "{reason}");
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

#[tokio::test]
async fn long_texts_and_metadata_are_refused_by_name() {
    const LONG: usize = 1_025;
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &["envoy.metadata=true"]);
    let (stream, _) = management.stream().await;
    let (long, longest) = ("a".repeat(LONG), "a".repeat(LONG - 1));
    let rest = server.resident_kib();
    let text = "a".repeat(64 * 1024);
    let labels = resource("shop", vec![descriptor(&text, several(3_000))]);
    let key = RateLimitDescriptor { key: long.clone(), ..descriptor("b", vec![]) };
    let key = resource("shop", vec![descriptor("a", vec![key])]);
    let named = RateLimitPolicy { name: long.clone(), ..RateLimitPolicy::default() };
    let named = RateLimitDescriptor { rate_limit: Some(named), ..descriptor("a", vec![]) };
    let of_name = RateLimitConfig { name: long.clone(), ..RateLimitConfig::default() };
    let of_name = Any { type_url: TYPE.to_owned(), value: of_name.encode_to_vec() };
    let of_domain = RateLimitConfig { domain: long, ..RateLimitConfig::default() };
    let of_domain = Any { type_url: TYPE.to_owned(), value: of_domain.encode_to_vec() };
    for (version, sent, expected) in [
        ("1", labels, "value of 65536 bytes: must be at most 1024 bytes"),
        ("2", key, "key of 1025 bytes: must be at most 1024 bytes"),
        ("3", of_name, "name of 1025 bytes: must be at most 1024 bytes"),
        ("4", of_domain, "domain of 1025 bytes: must be at most 1024 bytes"),
        ("5", resource("shop", vec![named]), "name of 1025 bytes: must be at most 1024 bytes"),
        (
            "6",
            resource("shop", vec![with_nulls("a", 100_000)]),
            "metadata of 400015 bytes: must be at most 65536 bytes",
        ),
    ] {
        let reason = refusal(&stream, version, sent).await;
        assert_eq!(reason, format!("resources[0]: {expected}"), "{version}");
    }
    let taken = server.resident_kib().saturating_sub(rest);
    assert!(taken < 60 * 1024, "{taken} KiB for responses that are refused");
    let longest = RateLimitDescriptor { key: longest.clone(), ..descriptor(&longest, vec![]) };
    stream.accepts("7", vec![resource("shop", vec![longest])]).await;
}

#[tokio::test]
async fn values_of_metadata_are_bounded_alone_and_together() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &["envoy.metadata=true"]);
    let (stream, _) = management.stream().await;
    // A list has 1,000 values at most, itself counted.
    stream.accepts("1", vec![resource("shop", vec![with_nulls("a", 999)])]).await;
    let rest = server.resident_kib();
    for (version, count) in [("2", 1_000), ("3", 16_000)] {
        let sent = resource("shop", vec![with_nulls("a", count)]);
        let reason = refusal(&stream, version, sent).await;
        assert!(reason.contains("descriptors[0].metadata: must be a map of at most"), "{reason}");
    }
    let taken = server.resident_kib().saturating_sub(rest);
    assert!(taken < 60 * 1024, "{taken} KiB for 64 KiB of nulls");
    let several = (0..11).map(|number| with_nulls(&number.to_string(), 16_000)).collect();
    let sent = resource("shop", vec![descriptor("a", several)]);
    let reason = refusal(&stream, "4", sent).await;
    let expected = "bytes of keys, values and metadata: must be at most 20480000 ";
    assert!(reason.contains(expected), "{reason}");
    let taken = server.resident_kib().saturating_sub(rest);
    assert!(taken < 60 * 1024, "{taken} KiB for a response that is refused");
}

#[tokio::test]
async fn labels_below_long_paths_are_bounded_together() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    let deep = |count| {
        let key = "a".repeat(1_000);
        (0..30).fold(several(count), |below, _| {
            vec![RateLimitDescriptor { key: key.clone(), ..descriptor(&key, below) }]
        })
    };
    stream.accepts("1", vec![resource("shop", deep(100))]).await;
    let rest = server.resident_kib();
    let reason = refusal(&stream, "2", resource("shop", deep(1_000))).await;
    let expected = "bytes of keys, values and metadata: must be at most 20480000 ";
    assert!(reason.contains(expected), "{reason}");
    let taken = server.resident_kib().saturating_sub(rest);
    assert!(taken < 60 * 1024, "{taken} KiB for a response that is refused");
}

#[tokio::test]
async fn problems_of_a_response_are_few_and_cut_in_the_log() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    let rest = server.resident_kib();
    let name = "a".repeat(500);
    let invalid = |descriptor: RateLimitDescriptor| {
        let rate_limit = Some(RateLimitPolicy::default());
        RateLimitDescriptor { rate_limit, ..descriptor }
    };
    let invalid = || several(3_000).into_iter().map(invalid).collect::<Vec<_>>();
    for (version, descriptors) in [("1", invalid()), ("2", vec![descriptor("a", invalid())])] {
        let config = RateLimitConfig { name: name.clone(), domain: "shop".into(), descriptors };
        let sent = Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() };
        let reason = refusal(&stream, version, sent).await;
        assert!(reason.starts_with("resource \"aaa") && reason.len() <= 4_096, "{reason}");
    }
    let log = server.log();
    assert!(log.lines().all(|line| line.len() < 5_000), "a long line");
    assert_eq!(log.matches("configuration reload failed").count(), 2, "{log}");
    let taken = server.resident_kib().saturating_sub(rest);
    assert!(taken < 100 * 1024, "{taken} KiB for responses that are refused");
}
