//! The headers of `envoy.headers: legacy` beside those of envoyproxy/ratelimit, on random requests, and windows
//! of several units behind a real Envoy.

use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use rlaas_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;

use super::client::client;
use super::notation;
use super::proxy::Envoy;

const RULES: &str = "\
domain: shop
descriptors:
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 6}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: ban, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
";
const KEYS: [&str; 7] = ["hour", "day", "shadow", "quota", "ban", "free", "nothing"];

/// Returns the status that envoyproxy/ratelimit makes the headers of.
fn reported<'a>(
    request: &RateLimitRequest,
    response: &'a RateLimitResponse,
) -> Option<&'a DescriptorStatus> {
    let (mut reported, mut least) = (None, u32::MAX);
    for (descriptor, status) in request.descriptors.iter().zip(&response.statuses) {
        if status.current_limit.is_some() && status.limit_remaining < least {
            (reported, least) = (Some(status), status.limit_remaining);
        }
        let is_quota = descriptor.entries[0].key == "quota";
        if status.code() == Code::OverLimit && !is_quota {
            (reported, least) = (Some(status), 0);
        }
    }
    reported
}

#[tokio::test]
async fn legacy_headers_are_those_of_envoyproxy_ratelimit() {
    let dir = TempDir::new();
    let files = format!("envoy.files={}", dir.write("rules.yaml", RULES).display());
    let server = Rlaas::start(&[&files, "envoy.headers=legacy", "envoy.deadline=10s"]);
    let mut client = client(&server).await;
    let mut random = 57_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).expect("31 bits") % below
    };
    let (mut with_headers, mut denied) = (0, 0);
    for _ in 0..600 {
        let descriptors: Vec<String> =
            (0..=next(4)).map(|_| format!("{}={}", KEYS[next(KEYS.len())], next(40))).collect();
        let request = notation::request(&format!("shop: {}", descriptors.join("; ")));
        let response = client.should_rate_limit(request.clone()).await.expect("an answer");
        let response = response.into_inner();
        let header = |name: &str| {
            let headers = &mut response.response_headers_to_add.iter();
            let found = headers.find(|header| header.key == format!("ratelimit-{name}"));
            found.map(|header| header.value.parse::<u32>().expect("a number"))
        };
        let expected = reported(&request, &response).map(|status| {
            let limit = status.current_limit.as_ref().expect("a limit");
            let reset = status.duration_until_reset.expect("a reset").seconds;
            (limit.requests_per_unit, status.limit_remaining, reset)
        });
        let (limit, remaining) = (header("limit"), header("remaining"));
        assert_eq!(limit.zip(remaining), expected.map(|(limit, left, _)| (limit, left)));
        let reset = header("reset").map(i64::from);
        assert_eq!(reset, expected.map(|(_, _, reset)| reset), "{descriptors:?}");
        with_headers += u32::from(expected.is_some());
        denied += u32::from(response.overall_code() == Code::OverLimit);
    }
    assert!(with_headers > 300 && denied > 100, "{with_headers} {denied}");
}

#[tokio::test]
async fn windows_of_several_units_have_their_length_behind_a_real_envoy() {
    let dir = TempDir::new();
    let rules = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, unit_multiplier: 36, requests_per_unit: 2}}\n";
    let files = format!("envoy.files={}", dir.write("rules.yaml", rules).display());
    let server = Rlaas::start(&[&files, "envoy.deadline=10s"]);
    let edits = [("timeout: 0.020s", "timeout: 20s")];
    let Some(envoy) = Envoy::in_front_of(&server, &edits).await else { return };
    let response = envoy.get("/", &[("x-user", "alice")]).await;
    assert_eq!(response.header("x-ratelimit-limit"), Some("2, 2;w=129600"));
}
