//! Messages over gRPC: the first byte selects the method, the rest is the message.

#![no_main]

use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, header};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use rlaas::api::{ApiSettings, services};
use rlaas_fuzz::{LIMITER, METRICS, RUNTIME, administrator};
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest, GetConfigRequest};
use tower::ServiceExt;

/// Codes of gRPC that an answer may have: OK, INVALID_ARGUMENT, PERMISSION_DENIED (no rule matches).
const EXPECTED: [&str; 3] = ["0", "3", "7"];

type Decodes = fn(&[u8]) -> bool;

const METHODS: [(&str, Decodes); 5] = [
    ("/ratelimit.v1.RateLimitService/Check", decodes::<CheckRequest>),
    ("/ratelimit.v1.RateLimitService/CheckBatch", decodes::<CheckBatchRequest>),
    ("/ratelimit.v1.RateLimitService/CheckStream", decodes::<CheckRequest>),
    ("/ratelimit.v1.RateLimitService/GetConfig", decodes::<GetConfigRequest>),
    ("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", decodes::<RateLimitRequest>),
];

static ROUTER: LazyLock<Router> = LazyLock::new(|| {
    let administrator = administrator(&LIMITER);
    services(&LIMITER, administrator, &METRICS, &ApiSettings::default()).into_axum_router()
});

fn decodes<M: Message + Default>(bytes: &[u8]) -> bool {
    M::decode(bytes).is_ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((selector, message)) = data.split_first() else { return };
    let (path, decodes) = METHODS[usize::from(*selector) % METHODS.len()];
    let length = u32::try_from(message.len()).expect("inputs are small");
    let frame = [&[0], length.to_be_bytes().as_slice(), message].concat();
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(Body::from(frame))
        .expect("a request");
    RUNTIME.block_on(async {
        let response = ROUTER.clone().oneshot(request).await.expect("the router is infallible");
        let mut code = response.headers().get("grpc-status").cloned();
        let mut body = response.into_body();
        // As servers do: trailers are the end. After a broken message of a stream tonic repeats them
        // forever.
        while code.is_none() {
            let frame = body.frame().await.expect("trailers").expect("a body in memory");
            code = frame.trailers_ref().and_then(|trailers| trailers.get("grpc-status").cloned());
        }
        let code = code.expect("a status");
        let code = code.to_str().expect("a number");
        assert_eq!(decodes(message), code != "13", "INTERNAL is for broken messages: {path}");
        assert!(!decodes(message) || EXPECTED.contains(&code), "{path}: code {code}");
    });
});
