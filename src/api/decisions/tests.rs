//! What is called without the router answers as the router does.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use prost::bytes::BufMut;
use rlaas_limiter::Rule;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::kuadrant::service::ratelimit::v1 as kuadrant;
use rlaas_proto::ratelimit::v1::{
    CancelRequest, CheckBatchRequest, CheckRequest, CommitRequest, ExtendRequest, ReportRequest,
    ReserveRequest,
};

use super::*;
use crate::api::{Sampled, TracedDecision, services};

type TestFrame = Result<Frame<Bytes>, BoxError>;
type TestBody = StreamBody<BoxStream<'static, TestFrame>>;

/// What of a response must be the same.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    status: StatusCode,
    headers: HeaderMap,
    is_traced: bool,
    has_message: bool,
    trailers: Option<HeaderMap>,
}

/// How a message arrives.
struct Transmission {
    name: &'static str,
    header: (&'static str, &'static str),
    frames: fn(&[u8]) -> Vec<TestFrame>,
    /// Whether the body ends; else the response must not wait for its end.
    ends: bool,
}

const ENDS: Transmission =
    Transmission { name: "", header: ("te", "trailers"), frames: |_| Vec::new(), ends: true };
const HANGS: Transmission = Transmission { ends: false, ..ENDS };

const TRANSMISSIONS: [Transmission; 19] = [
    Transmission { name: "whole", frames: |whole| vec![data(whole)], ..ENDS },
    Transmission { name: "empty last frame", frames: |whole| vec![data(whole), data(b"")], ..ENDS },
    Transmission {
        name: "in parts",
        frames: |whole| vec![data(&whole[..4]), data(&whole[4..6]), data(&whole[6..])],
        ..ENDS
    },
    Transmission { name: "cut", frames: |whole| vec![data(&whole[..whole.len() - 1])], ..ENDS },
    Transmission { name: "nothing", ..ENDS },
    Transmission { name: "two", frames: |whole| vec![data(whole), data(whole)], ..ENDS },
    Transmission { name: "two in a frame", frames: |whole| vec![data(&whole.repeat(2))], ..ENDS },
    Transmission { name: "too large", frames: |_| vec![data(b"\0\xff\0\0\0")], ..HANGS },
    Transmission {
        name: "whole and too large",
        frames: |whole| vec![data(&enlarge(whole))],
        ..HANGS
    },
    Transmission { name: "compressed", frames: |whole| vec![data(&with_flag(whole, 1))], ..HANGS },
    Transmission {
        name: "unknown flag",
        frames: |whole| vec![data(&with_flag(whole, 2))],
        ..HANGS
    },
    Transmission { name: "no protobuf", frames: |_| vec![data(b"\0\0\0\0\x02\xff\xff")], ..HANGS },
    Transmission { name: "gzip", header: ("grpc-encoding", "gzip"), ..HANGS },
    Transmission {
        name: "identity",
        header: ("grpc-encoding", "identity"),
        frames: |whole| vec![data(whole)],
        ..ENDS
    },
    Transmission {
        name: "deadline passed",
        header: ("grpc-timeout", "0n"),
        frames: |whole| vec![data(whole)],
        ..ENDS
    },
    Transmission { name: "late", frames: |_| vec![late()], ..ENDS },
    Transmission { name: "late end", frames: |whole| vec![data(whole), late()], ..ENDS },
    Transmission {
        name: "cancelled",
        frames: |whole| vec![data(whole), Err(Status::cancelled("reset").into())],
        ..ENDS
    },
    Transmission {
        name: "trailers",
        frames: |whole| vec![data(whole), Ok(Frame::trailers(HeaderMap::new()))],
        ..ENDS
    },
];

#[expect(clippy::unnecessary_wraps, reason = "an item of a body")]
fn data(bytes: &[u8]) -> TestFrame {
    Ok(Frame::data(Bytes::copy_from_slice(bytes)))
}

fn late() -> TestFrame {
    Err(Status::deadline_exceeded("request took too long to arrive").into())
}

fn with_flag(whole: &[u8], flag: u8) -> Vec<u8> {
    [&[flag], &whole[1..]].concat()
}

fn whole(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message");
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// Adds a field that no message has.
fn enlarge(whole_message: &[u8]) -> Vec<u8> {
    let mut message = whole_message[5..].to_vec();
    message.put_u8(15 << 3 | 2);
    prost::encode_length_delimiter(MAX_DESCRIPTORS_MESSAGE, &mut message).expect("a vector grows");
    message.put_bytes(0, MAX_DESCRIPTORS_MESSAGE);
    whole(&message)
}

/// Returns the methods with one request, each with a message.
fn calls() -> Vec<(&'static str, Vec<u8>)> {
    let alice = CheckRequest { user_id: "alice".to_owned(), ..CheckRequest::default() };
    let request = Some(alice.clone());
    let entries = vec![Entry { key: "user".to_owned(), value: "alice".to_owned() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let domain = "llm".to_owned();
    let descriptors_request = RateLimitRequest { domain, descriptors, hits_addend: 1 };
    let RateLimitRequest { domain, descriptors, .. } = descriptors_request.clone();
    let reserve = kuadrant::ReserveRequest { domain, descriptors, amount: 1, ttl: None };
    let RateLimitRequest { domain, descriptors, .. } = descriptors_request.clone();
    let commit = kuadrant::CommitRequest { domain, descriptors, ..Default::default() };
    let descriptors_request = descriptors_request.encode_to_vec();
    vec![
        ("/ratelimit.v1.RateLimitService/Check", alice.encode_to_vec()),
        (
            "/ratelimit.v1.RateLimitService/CheckBatch",
            CheckBatchRequest { requests: vec![alice], ..Default::default() }.encode_to_vec(),
        ),
        (
            "/ratelimit.v1.RateLimitService/Report",
            ReportRequest { request: request.clone() }.encode_to_vec(),
        ),
        (
            "/ratelimit.v1.ReservationService/Reserve",
            ReserveRequest { request, ttl: None }.encode_to_vec(),
        ),
        (
            "/ratelimit.v1.ReservationService/Extend",
            ExtendRequest { cost: Some(1), ..Default::default() }.encode_to_vec(),
        ),
        (
            "/ratelimit.v1.ReservationService/Commit",
            CommitRequest { reservation_id: "none".to_owned(), ..Default::default() }
                .encode_to_vec(),
        ),
        (
            "/ratelimit.v1.ReservationService/Cancel",
            CancelRequest { reservation_id: "none".to_owned() }.encode_to_vec(),
        ),
        (
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            descriptors_request.clone(),
        ),
        (
            "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit",
            descriptors_request.clone(),
        ),
        ("/kuadrant.service.ratelimit.v1.RateLimitService/Report", descriptors_request),
        ("/kuadrant.service.ratelimit.v1.RateLimitService/Reserve", reserve.encode_to_vec()),
        ("/kuadrant.service.ratelimit.v1.RateLimitService/Commit", commit.encode_to_vec()),
    ]
}

fn request(path: &str, message: &[u8], transmission: &Transmission) -> Request<TestBody> {
    let frames = stream::iter((transmission.frames)(&whole(message)));
    let body =
        if transmission.ends { frames.boxed() } else { frames.chain(stream::pending()).boxed() };
    let (name, value) = transmission.header;
    let request = Request::post(path).header(name, value).extension(Sampled);
    request.body(StreamBody::new(body)).expect("a request")
}

async fn outcome(responding: impl Future<Output = Result<Response<Body>, Infallible>>) -> Outcome {
    let Ok(response) = responding.await;
    let (parts, body) = response.into_parts();
    let is_traced = parts.extensions.get::<TracedDecision>().is_some();
    let body = body.collect().await.expect("a body");
    let trailers = body.trailers().cloned();
    let has_message = !body.to_bytes().is_empty();
    Outcome { status: parts.status, headers: parts.headers, is_traced, has_message, trailers }
}

#[test]
fn calls_without_the_router_are_answered_as_the_router_does() {
    let rule = Rule::token_bucket("all").limit(1_000_000).per(Duration::from_mins(1));
    let limiter = Limiter::builder().rule(rule.reservable(Duration::from_mins(1)));
    let limiter = limiter.build().expect("a limiter");
    let metrics = Arc::new(Metrics::new());
    let decisions = Decisions::new(&limiter, &metrics, &ApiSettings::default());
    let mut router = services(decisions.clone(), None, &limiter);
    let mut answered = 0;
    for (path, message) in calls() {
        for transmission in &TRANSMISSIONS {
            let Either::Left(called) = decisions.call(request(path, &message, transmission)) else {
                panic!("{path} is left to the router");
            };
            let called = outcome(called).now_or_never();
            let by_router =
                outcome(router.call(request(path, &message, transmission))).now_or_never();
            assert!(by_router.is_some(), "{path}, {}", transmission.name);
            assert_eq!(called, by_router, "{path}, {}", transmission.name);
            answered += usize::from(called.is_some_and(|outcome| outcome.has_message));
        }
    }
    assert!(answered > 40, "{answered} calls have a message");
}
