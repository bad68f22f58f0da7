//! Rate limit metadata of `Check` responses, as `grpc.headers` selects it.

use rlaas_proto::ratelimit::v1::CheckBatchRequest;

use rlaas_testkit::process::{Rlaas, request};

/// Returns the rate limit metadata as sorted `name=value`.
fn limits(metadata: &tonic::metadata::MetadataMap) -> Vec<String> {
    let headers = metadata.clone().into_headers();
    let of_limits = headers.iter().filter(|(name, _)| {
        name.as_str().starts_with("ratelimit") || name.as_str() == "retry-after"
    });
    let mut limits: Vec<String> = of_limits
        .map(|(name, value)| format!("{name}={}", value.to_str().expect("ASCII")))
        .collect();
    limits.sort();
    limits
}

#[tokio::test]
async fn headers_setting_selects_the_metadata() {
    let draft = ["ratelimit-policy=\"default\";q=1;w=3600", "ratelimit=\"default\";r=0;t=3600"];
    let legacy = ["ratelimit-limit=1", "ratelimit-remaining=0", "ratelimit-reset=3600"];
    let both = [&legacy[..1], &draft[..1], &legacy[1..], &draft[1..]].concat();
    for (setting, expected) in [
        (None, &[][..]),
        (Some("grpc.headers=none"), &[]),
        (Some("grpc.headers=draft"), &draft),
        (Some("grpc.headers=legacy"), &legacy),
        (Some("grpc.headers=both"), &both),
    ] {
        let limit = ["rate-limiter.max-requests=1", "rate-limiter.window-size=3600"];
        let settings: Vec<&str> = limit.into_iter().chain(setting).collect();
        let server = Rlaas::start(&settings);
        let mut client = server.client().await;
        let allowed = client.check(request("alice")).await.expect("a response");
        assert_eq!(limits(allowed.metadata()), expected, "{setting:?}");
        let denied = client.check(request("alice")).await.expect("a response");
        let wait = denied.get_ref().retry_after.as_ref().expect("a wait");
        let seconds = wait.seconds + i64::from(wait.nanos > 0);
        let retry_after = format!("retry-after={seconds}");
        let found = limits(denied.metadata());
        assert_eq!(found.contains(&retry_after), !expected.is_empty(), "{setting:?}: {found:?}");

        let batch = CheckBatchRequest { requests: vec![request("alice")], ..Default::default() };
        let batch = client.check_batch(batch).await.expect("a response");
        assert_eq!(limits(batch.metadata()), [""; 0]);
        let error = client.check(request("")).await.expect_err("an id of no bytes");
        assert_eq!(limits(error.metadata()), [""; 0]);
    }
}
