//! The layer in services of axum and tonic, and in front of a service that responds at once.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, pending, poll_fn, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use http::{HeaderMap, Request, Response, StatusCode};
use rlaas_limiter::algorithm::{Algorithm, Decision, Limit, Outcome};
use rlaas_limiter::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_limiter::plan::RuleIndex;
use rlaas_limiter::rules::{Grant, Mode, Unmatched};
use rlaas_limiter::tower::{
    Decide, KeyExtractor, KeyParts, LayerBuilder, NoVerdict, OnNoAnswer, RateLimitLayer, local,
};
use rlaas_limiter::verdict::{RuleDecision, Source};
use rlaas_limiter::{Deadline, Limiter, Rule, Verdict, rules};
use tokio::net::TcpListener;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower_layer::Layer;
use tower_service::Service;

#[path = "../examples/axum.rs"]
#[allow(dead_code, reason = "its main function")]
mod axum_example;
#[path = "../examples/tonic.rs"]
#[allow(dead_code, reason = "its main function")]
mod tonic_example;

async fn call(app: &mut Router, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
    let Ok(response) = app.call(request).await;
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 4096).await.expect("a short body");
    (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
}

#[tokio::test]
async fn the_axum_example_limits_by_key() {
    let mut app = axum_example::app().expect("an app");
    let request = |key: &str| {
        let request = Request::get("/reports/7").header("x-api-key", key);
        request.body(Body::empty()).expect("a request")
    };
    for remaining in ["2", "1", "0"] {
        let (status, headers, body) = call(&mut app, request("alice")).await;
        assert_eq!((status, &*body), (StatusCode::OK, "a report\n"));
        assert_eq!(text(&headers, "ratelimit-policy"), "\"reports\";q=3;w=60");
        let limit = text(&headers, "ratelimit");
        assert!(limit.starts_with(&format!("\"reports\";r={remaining};t=")), "{limit}");
        assert!(!headers.contains_key("retry-after"));
    }
    let (status, headers, body) = call(&mut app, request("alice")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(&headers, "content-type"), "application/problem+json");
    assert_eq!(text(&headers, "ratelimit-policy"), "\"reports\";q=3;w=60");
    assert_eq!(text(&headers, "ratelimit"), "\"reports\";r=0;t=20");
    assert_eq!(text(&headers, "retry-after"), "20");
    let problem = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Quota Exceeded","status":429,"detail":"try again after 20 seconds","#,
        r#""violated-policies":["reports"]}"#
    );
    assert_eq!(body, problem);
    assert_eq!(call(&mut app, request("bob")).await.0, StatusCode::OK);
    // A request without a key is rejected.
    for (request, detail) in [
        (Request::get("/reports/7"), "header x-api-key must be present, in visible ASCII"),
        (Request::get("/reports/7").header("x-api-key", ""), "user_id must be 1 to 1024 bytes"),
    ] {
        let (status, headers, body) =
            call(&mut app, request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(text(&headers, "content-type"), "application/problem+json");
        assert_eq!(
            body,
            format!(
                r#"{{"type":"about:blank","title":"Bad Request","status":400,"detail":"{detail}"}}"#
            )
        );
    }
}

#[tokio::test]
async fn the_axum_example_limits_by_the_address_that_its_proxy_adds() {
    let mut app = axum_example::app().expect("an app");
    let proxy = ConnectInfo(SocketAddr::from(([10, 0, 0, 1], 1234)));
    let request = |forwarded: &str| {
        let request = Request::get("/login").extension(proxy).header("x-forwarded-for", forwarded);
        request.body(Body::empty()).expect("a request")
    };
    for forged in ["192.0.2.1, 198.51.100.7", "192.0.2.2, 198.51.100.7"] {
        let (status, headers, _) = call(&mut app, request(forged)).await;
        assert_eq!((status, text(&headers, "ratelimit-limit")), (StatusCode::OK, "2"));
    }
    let refused = call(&mut app, request("192.0.2.3, 198.51.100.7")).await;
    assert_eq!(refused.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(&refused.1, "ratelimit-remaining"), "0");
    assert_eq!(call(&mut app, request("198.51.100.8")).await.0, StatusCode::OK);
    let without_peer = Request::get("/login").body(Body::empty()).expect("a request");
    assert_eq!(call(&mut app, without_peer).await.0, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn the_tonic_example_says_when_to_retry() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let serving = tokio::spawn(tonic_example::serve(listener));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    let channel = endpoint.expect("an address").connect().await.expect("a server");
    let mut client = HealthClient::new(channel);
    for _ in 0..3 {
        let response = client.check(HealthCheckRequest::default()).await.expect("healthy");
        let policy = response.metadata().get("ratelimit-policy").expect("a header");
        assert_eq!(policy, "\"health\";q=3;w=60");
    }
    let status = client.check(HealthCheckRequest::default()).await.expect_err("a limit");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "rate limit exceeded: try again after 20 seconds");
    let wait = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let wait = wait.expect("a RetryInfo");
    assert!(wait > Duration::from_secs(10) && wait <= Duration::from_secs(20), "{wait:?}");
    assert_eq!(status.metadata().get("retry-after").expect("a header"), "20");
    assert!(status.metadata().contains_key("ratelimit"));
    serving.abort();
}

const LONG: Duration = Duration::from_secs(3600);

/// Responds with 200 at once, and counts calls.
#[derive(Clone, Default)]
struct Inner(Arc<AtomicUsize>);

impl Service<Request<()>> for Inner {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new("done".to_owned())))
    }
}

/// Returns the same outcome for every request, and counts the calls.
#[derive(Clone, Default)]
struct Decider {
    outcome: Option<Outcome>,
    hangs: bool,
    calls: Arc<AtomicUsize>,
}

impl Decider {
    fn new(outcome: Outcome) -> Self {
        Self { outcome: Some(outcome), ..Self::default() }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Decide for Decider {
    type Verdict = Verdict;

    async fn decide(&self, _: &rules::Request<'_>, _: Deadline) -> Result<Verdict, NoVerdict> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.hangs {
            pending::<()>().await;
        }
        let outcome = self.outcome.ok_or_else(|| NoVerdict::NoAnswer("away".into()))?;
        let limit = Limit::new(5, Micros::from_secs(60)).expect("a valid limit");
        let decision = RuleDecision {
            index: RuleIndex::Flat(0),
            rule: "odd \"rule\" 100%".into(),
            algorithm: Algorithm::Gcra,
            grant: Grant::Limited(limit),
            mode: Mode::Enforced,
            decision: Decision::uncounted(outcome),
            source: Source::Store,
            is_near_limit: false,
            is_held: false,
            held: 0,
        };
        Ok(Verdict::from_decisions([decision].into_iter().collect()))
    }
}

/// Responds with what a request has cost: its path; never to `/lost`.
#[derive(Clone)]
struct Costly;

impl Service<Request<()>> for Costly {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        Box::pin(async move {
            let units = &request.uri().path()[1..];
            if units == "lost" {
                pending::<()>().await;
            }
            Ok(Response::builder()
                .header("x-units", units)
                .body(String::new())
                .expect("a response"))
        })
    }
}

#[tokio::test]
async fn costs_are_reserved_and_settled_by_responses() {
    let tokens = Rule::token_bucket("tokens").limit(100).per(LONG).reservable(LONG);
    let limiter = Limiter::builder().rule(tokens).build().expect("a limiter");
    let key = KeyExtractor::custom(|_| Some(KeyParts::user("alice").cost(60)));
    let layer = RateLimitLayer::builder(local(limiter.clone()), key).settle_by(|response| {
        let units = response.headers.get("x-units").and_then(|value| value.to_str().ok());
        units.and_then(|units| units.parse().ok()).unwrap_or(0)
    });
    let mut service = layer.build().expect("a layer").layer(Costly);
    let left = || {
        let look = rules::Request::user("alice").cost(0).build().expect("a request");
        let looked = limiter.check_now(&look).expect("memory").expect("a verdict");
        looked.deciding().decision.remaining
    };
    // What is settled in the background is there when other tasks have run.
    let settled = async |units: i64| {
        while left() != units {
            tokio::task::yield_now().await;
        }
    };
    let mut call = |path: &str| service.call(Request::get(path).body(()).expect("a request"));
    assert_eq!(call("/25").await.expect("a response").status(), StatusCode::OK);
    settled(75).await;
    // While a request is under way its cost is held: there is none for another. It is dropped.
    let mut lost = call("/lost");
    let started = poll_fn(|context| Poll::Ready(lost.as_mut().poll(context))).await;
    assert!(started.is_pending());
    assert_eq!(left(), 15);
    let refused = call("/1").await.expect("a response");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(lost);
    settled(75).await;
    // More than was held becomes debt, and a response that says nothing costs nothing.
    assert_eq!(call("/none").await.expect("a response").status(), StatusCode::OK);
    settled(75).await;
    assert_eq!(call("/90").await.expect("a response").status(), StatusCode::OK);
    settled(-15).await;
}

#[tokio::test]
async fn what_no_repetition_decides_is_refused_whatever_the_policy() {
    let slots = Rule::concurrency("jobs").limit(1).hold(LONG);
    let limiter = Limiter::builder().rule(slots).build().expect("a limiter");
    let layer = RateLimitLayer::builder(local(limiter), everybody());
    let layer = layer.on_no_answer(OnNoAnswer::Allow).build().expect("a layer");
    let inner = Inner::default();
    let refused = http(&layer, &inner).await;
    assert_eq!((refused.status(), inner.0.load(Ordering::Relaxed)), (StatusCode::BAD_REQUEST, 0));
    assert!(refused.body().contains("rule jobs bounds work in flight: use Reserve"), "{refused:?}");
}

fn everybody() -> KeyExtractor {
    KeyExtractor::custom(|_| Some(KeyParts::user("everybody")))
}

fn layer(decider: &Decider) -> LayerBuilder<Decider> {
    RateLimitLayer::builder(decider.clone(), everybody())
}

async fn http<D>(layer: &RateLimitLayer<D>, inner: &Inner) -> Response<String>
where
    D: Decide + Send + Sync + 'static,
{
    let Ok(response) = layer.layer(inner.clone()).call(Request::new(())).await;
    response
}

async fn grpc<D>(layer: LayerBuilder<D>, timeout: &str, inner: &Inner) -> Option<Status>
where
    D: Decide + Send + Sync + 'static,
{
    let layer = layer.grpc().build().expect("a layer");
    let request = Request::post("/a.B/C").header("grpc-timeout", timeout);
    let request = request.body(()).expect("a request");
    let Ok(response) = layer.layer(inner.clone()).call(request).await;
    Status::from_header_map(response.headers())
}

#[tokio::test]
async fn a_rejected_request_does_not_reach_the_service() {
    let (inner, decider) = (Inner::default(), Decider::new(Outcome::Impossible));
    let response = http(&layer(&decider).build().expect("a layer"), &inner).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let policies = r#""violated-policies":["odd \"rule\" 100%25"]}"#;
    let expected = r#""detail":"waiting does not help","#.to_owned() + policies;
    assert!(response.body().ends_with(&expected), "{}", response.body());
    assert_eq!(inner.0.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_policy_decides_without_a_verdict() {
    let (inner, decider) = (Inner::default(), Decider::default());
    let refused = http(&layer(&decider).build().expect("a layer"), &inner).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text(refused.headers(), "retry-after"), "1");
    assert_eq!(
        refused.body(),
        r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"rate limiter unavailable"}"#
    );
    let status = grpc(layer(&decider), "1S", &inner).await.expect("a rejection");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(inner.0.load(Ordering::Relaxed), 0);
    let allow = layer(&decider).on_no_answer(OnNoAnswer::Allow);
    let passed = http(&allow.build().expect("a layer"), &inner).await;
    assert_eq!((passed.status(), passed.headers().len()), (StatusCode::OK, 0));
    assert_eq!(inner.0.load(Ordering::Relaxed), 1);
}

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG / 120, call).await.expect("an end")
}

#[tokio::test]
async fn a_wait_ends_at_the_timeout_or_the_deadline_of_the_caller() {
    let (inner, decider) = (Inner::default(), Decider { hangs: true, ..Decider::default() });
    let allow = || layer(&decider).on_no_answer(OnNoAnswer::Allow);
    let brief = Duration::from_millis(20);
    let passed = allow().timeout(brief).build().expect("a layer");
    assert_eq!(in_time(http(&passed, &inner)).await.status(), StatusCode::OK);
    assert!(in_time(grpc(allow().timeout(brief), "1H", &inner)).await.is_none());
    // A short deadline does not bypass the limit, even with a policy that allows.
    for timeout in ["20m", "1n"] {
        let status = in_time(grpc(allow().timeout(LONG), timeout, &inner)).await;
        assert_eq!(status.expect("a rejection").code(), Code::DeadlineExceeded, "{timeout}");
    }
    assert_eq!(inner.0.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn denials_are_cached_for_a_second_unless_another_time_is_set() {
    let start = Timestamp::from_millis(1_700_000_100_000);
    let denied = Outcome::Denied { retry_after: Micros::from_secs(60) };
    let inner = Inner::default();
    for (max_age, expected) in [
        (None, Micros::from_secs(1)),
        (Some(Duration::from_millis(300)), Micros::from_millis(300)),
        (Some(Duration::from_secs(3600)), Micros::from_secs(60)),
    ] {
        let (clock, decider) = (ManualClock::new(start), Decider::new(denied));
        let mut builder = layer(&decider).clock(Clock::Manual(clock.clone()));
        if let Some(max_age) = max_age {
            builder = builder.deny_cache_max_age(max_age);
        }
        let layer = builder.build().expect("a layer");
        assert_eq!(text(http(&layer, &inner).await.headers(), "retry-after"), "60");
        clock.set(start + (expected - Micros::from_micros(1)));
        let cached = http(&layer, &inner).await;
        assert_eq!(cached.status(), StatusCode::TOO_MANY_REQUESTS);
        let left = Micros::from_secs(60) - (expected - Micros::from_micros(1));
        assert_eq!(text(cached.headers(), "retry-after"), left.as_secs_ceil().to_string());
        assert_eq!(decider.calls(), 1);
        clock.set(start + expected);
        http(&layer, &inner).await;
        assert_eq!(decider.calls(), 2);
    }
    let decider = Decider::new(denied);
    let none = layer(&decider).deny_cache_max_age(Duration::ZERO).build().expect("a layer");
    for calls in 1..3 {
        http(&none, &inner).await;
        assert_eq!(decider.calls(), calls);
    }
}

#[tokio::test]
async fn retry_info_holds_waits_of_any_length() {
    for wait in [1, 999_999, 1_000_000, 59_123_456, 86_400_000_000, 40_000_000_000_001] {
        let wait = Duration::from_micros(wait);
        let decider = Decider::new(Outcome::Denied { retry_after: wait.into() });
        let status = grpc(layer(&decider), "1S", &Inner::default()).await.expect("a rejection");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let details = status.get_error_details();
        let retry_delay = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(retry_delay, Some(wait));
    }
}

#[tokio::test]
async fn requests_without_a_key_are_exempt_and_unmatched_ones_are_rejected_by_policy() {
    let inner = Inner::default();
    let strict = Limiter::builder().unmatched(Unmatched::Deny).build().expect("a limiter");
    let exempt = RateLimitLayer::builder(local(strict.clone()), KeyExtractor::custom(|_| None));
    let response = http(&exempt.build().expect("a layer"), &inner).await;
    assert_eq!(response.status(), StatusCode::OK);
    let unmatched = RateLimitLayer::builder(local(strict), everybody());
    let response = http(&unmatched.build().expect("a layer"), &inner).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(response.body().contains(r#""reason":"NO_RULE""#), "{}", response.body());
}

#[test]
fn an_invalid_layer_is_an_error_that_names_its_fields() {
    let peer = || KeyExtractor::peer(|_| None);
    let problems: HashMap<&str, KeyExtractor> = HashMap::from([
        ("key.header", KeyExtractor::header("no header")),
        ("key.forwarded_header", peer().trusted_proxies(1, "")),
        ("key.trusted_proxies", peer().trusted_proxies(0, "x-forwarded-for")),
    ]);
    for (field, key) in problems {
        let error = RateLimitLayer::builder(Decider::default(), key).build().expect_err(field);
        assert_eq!(error.0[0].field, field);
        assert!(error.to_string().starts_with(&format!("{field}: ")), "{error}");
    }
    let misplaced = KeyExtractor::header("x-api-key").trusted_proxies(1, "x-forwarded-for");
    let layer = RateLimitLayer::builder(Decider::default(), misplaced).timeout(Duration::ZERO);
    let fields: Vec<String> =
        layer.build().expect_err("two").0.into_iter().map(|problem| problem.field).collect();
    assert_eq!(fields, ["key.trusted_proxies", "timeout"]);
}
