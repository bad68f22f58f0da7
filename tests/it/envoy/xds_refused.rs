//! Snapshots of a management server that are refused: how often they are read, and how soon others are.

use std::fs::write;
use std::time::{Duration, Instant};

use prost_types::Any;
use rlaas_proto::envoy::service::discovery::v3::DiscoveryRequest;
use rlaas_proto::ratelimit::config::ratelimit::v3::RateLimitUnit::{Unknown, Year};
use rlaas_testkit::TempDir;
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;

use super::client::{check, client};
use super::xds::{ManagementServer, TIMEOUT, limit, rlaas};

/// A response with the bytes that were refused last is answered so long after it came.
const PAUSE: Duration = Duration::from_millis(500);

/// Returns resources that are not valid, others for each number.
fn invalid(number: u32) -> Vec<Any> {
    vec![limit("shop", number, Unknown)]
}

/// Returns why a response was refused.
fn reason(refused: DiscoveryRequest) -> String {
    refused.error_detail.expect("a reason").message
}

/// Returns how often resources were read and found not to be valid.
fn refused_readings(server: &Rlaas) -> usize {
    server.log().matches("configuration reload failed").count()
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "it measures the pause of a running service")]
async fn same_bytes_get_the_same_refusal_unread_after_a_pause() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    stream.accepts("1", vec![limit("shop", 1, Year)]).await;
    let first = reason(stream.offer("2", invalid(1)).await);
    // Under the same version, as go-control-plane sends them, and under others.
    for version in ["2", "2", "2", "2", "2", "3", "4", "2"] {
        let sent = Instant::now();
        assert_eq!(reason(stream.offer(version, invalid(1)).await), first);
        assert!(sent.elapsed() >= PAUSE, "{version}: {:?}", sent.elapsed());
    }
    assert_eq!(refused_readings(&server), 1, "{}", server.log());
    let refused = server.metric("rlaas_xds_responses_total{event=\"refused\"}").await;
    assert_eq!(refused, Some(9.0));
    // Other bytes under the version that was refused.
    stream.accepts("2", vec![limit("shop", 2, Year)]).await;
    let answer = check(&mut client(&server).await, "shop: user=bob").await;
    assert!(answer.starts_with("OK [OK 2/YEAR"), "{answer}");
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "it measures the pause of a running service")]
async fn other_bytes_are_read_at_once_and_refused_at_most_three_times_a_second() {
    const REFUSED: u32 = 10;
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    let begun = Instant::now();
    for number in 1..=REFUSED {
        let version = number.to_string();
        assert!(reason(stream.offer(&version, invalid(number)).await).contains("unit"));
    }
    let least = Duration::from_secs(1) * (REFUSED - 1) / 3;
    assert!(begun.elapsed() >= least, "{REFUSED} refusals in {:?}", begun.elapsed());
    // The log is written after the request.
    eventually("all are logged", TIMEOUT, async || refused_readings(&server) == 10).await;
}

#[tokio::test]
async fn server_that_does_not_wait_for_refusals_is_served_at_once_when_its_rules_are_valid() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    for version in 1..=30 {
        stream.send(&version.to_string(), invalid(1 + version % 2)).await;
    }
    stream.send("mended", vec![limit("shop", 7, Year)]).await;
    let mut refusals = 0;
    let taken = loop {
        let request = stream.request().await;
        if request.error_detail.is_none() {
            break request;
        }
        refusals += 1;
    };
    assert_eq!((&*taken.version_info, &*taken.response_nonce), ("mended", "nonce-mended"));
    // One at a time is waiting to be sent: it is for the response that came last.
    assert!(refusals <= 10, "{refusals}");
    let answer = check(&mut client(&server).await, "shop: user=bob").await;
    assert!(answer.starts_with("OK [OK 7/YEAR"), "{answer}");
}

#[tokio::test]
async fn after_a_reload_of_files_the_refused_bytes_are_read_again() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let folder = TempDir::new();
    let same = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 3 } }]\n";
    let rules = folder.write("rules.yaml", same);
    let file = folder.write("rlaas.yaml", "envoy: { files: [rules.yaml] }\n");
    let address = format!("envoy.xds.address=http://{}", management.address);
    let server = Rlaas::start_from(&file, &[&address, "envoy.deadline=10s"]);
    let (stream, _) = management.stream().await;
    let offered = || vec![limit("shop", 9, Year)];
    let refused = reason(stream.offer("1", offered()).await);
    let expected = "resource \"shop/first\": descriptors[0].key: another descriptor";
    assert!(refused.starts_with(expected), "{refused}");
    assert_eq!(reason(stream.offer("1", offered()).await), refused);
    assert_eq!(refused_readings(&server), 1, "{}", server.log());

    // The reload itself succeeds: the refused rules are not part of it.
    write(&rules, "domain: other\ndescriptors: []\n").expect("a file");
    let is_reloaded = async || server.log().contains("configuration reloaded");
    eventually("the files are reloaded", TIMEOUT, is_reloaded).await;
    // The server has not sent them again.
    let taken = stream.request().await;
    assert_eq!((&*taken.version_info, taken.error_detail), ("1", None));
    assert_eq!(taken.response_nonce, "nonce-1");
    let answer = check(&mut client(&server).await, "shop: user=bob").await;
    assert!(answer.starts_with("OK [OK 9/YEAR"), "{answer}");
}

#[tokio::test]
async fn after_a_reload_refused_rules_get_their_new_problems_and_foreign_types_stay_refused() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let folder = TempDir::new();
    let taken = |key: &str| {
        format!(
            "domain: shop\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: year, requests_per_unit: 3 }} }}]\n"
        )
    };
    let rules = folder.write("rules.yaml", &taken("user"));
    let file = folder.write("rlaas.yaml", "envoy: { files: [rules.yaml] }\n");
    let address = format!("envoy.xds.address=http://{}", management.address);
    let server = Rlaas::start_from(&file, &[&address]);
    let (stream, _) = management.stream().await;
    let clash = "descriptors[0].key: another descriptor";
    let unit = "descriptors[0].rate_limit.unit";
    let resources = || vec![limit("shop", 9, Year), invalid(1).remove(0)];
    let first = reason(stream.offer("1", resources()).await);
    assert!(first.contains(clash) && first.contains(unit), "{first}");
    let reloads = async |count: usize| {
        let is_reloaded = async || server.log().matches("configuration reloaded").count() == count;
        eventually("the files are reloaded", TIMEOUT, is_reloaded).await;
    };
    write(&rules, taken("other")).expect("a file");
    let again = stream.request().await;
    assert_eq!((&*again.version_info, &*again.response_nonce), ("", "nonce-1"));
    let again = reason(again);
    assert!(again.contains(unit), "{again}");
    eventually("the refusal is logged", TIMEOUT, async || refused_readings(&server) == 2).await;

    // No reload makes another type valid, so the response is not kept.
    let foreign = || vec![Any { type_url: "type.googleapis.com/a.B".to_owned(), value: vec![] }];
    let first = reason(stream.offer("2", foreign()).await);
    write(&rules, taken("third")).expect("a file");
    reloads(2).await;
    assert_eq!(reason(stream.offer("3", foreign()).await), first);
    assert_eq!(server.log().matches("are refused: the last ones stay").count(), 3);
}
