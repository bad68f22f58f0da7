//! Traces, as an OTLP collector receives them.

use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient as EnvoyClient;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest, GetConfigRequest};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use rlaas_testkit::process::{Rlaas, check, request, rlaas, run};
use rlaas_testkit::redis::free_port;
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::{TempDir, eventually};

pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
const CHECK: &str = "ratelimit.v1.RateLimitService/Check";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A collector that stores the exported batches, or refuses them.
#[derive(Clone, Default)]
struct Collector {
    got: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    refuses: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if self.refuses.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Status::permission_denied("not now"));
        }
        self.got.lock().expect("no panic").push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts the collector and returns the setting with its address.
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let service = TraceServiceServer::new(self.clone());
        let serving = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        format!("telemetry.otlp.endpoint=http://{address}")
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().expect("no panic");
        let scopes = got.iter().flat_map(|got| &got.resource_spans).flat_map(|of| &of.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        let got = self.got.lock().expect("no panic");
        got.iter().flat_map(Message::encode_to_vec).collect()
    }
}

/// Returns the attributes of a span as strings.
fn attributes(span: &Span) -> HashMap<&str, String> {
    let text = |value: Option<&Value>| match value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let attributes = span.attributes.iter();
    attributes
        .map(|of| (&*of.key, text(of.value.as_ref().and_then(|value| value.value.as_ref()))))
        .collect()
}

/// Formats an id as headers do.
fn hex(bytes: &[u8]) -> String {
    let number = bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
    format!("{number:0width$x}", width = 2 * bytes.len())
}

/// Returns a request in a trace of the caller, with these trace flags.
fn traced<T>(message: T, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-{CALLER}-{flags}");
    let parent = MetadataValue::try_from(parent).expect("ASCII");
    request.metadata_mut().insert("traceparent", parent);
    request.metadata_mut().insert("tracestate", MetadataValue::from_static("vendor=opaque"));
    request.metadata_mut().insert("authorization", MetadataValue::from_static("Bearer s3cret"));
    request
}

/// Returns a request whose contents must not appear in traces.
fn secret() -> CheckRequest {
    let attributes = HashMap::from([("s3cret-name".to_owned(), "s3cret-value".to_owned())]);
    CheckRequest { resource: "/s3cret".to_owned(), attributes, ..request("s3cret-user") }
}

/// Ends the server by SIGTERM, so that it exports its spans, and returns its log.
pub(super) async fn end(mut server: Rlaas) -> String {
    server.signal("TERM");
    let ended = async || server.has_ended();
    eventually("the server has ended", TIMEOUT, ended).await;
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    server.log()
}

/// Sends five checks, and ends the server, which must have logged neither a failure nor its token.
/// Returns what `/metrics` had before.
pub(super) async fn count_five_checks(server: Rlaas) -> String {
    let mut client = server.client().await;
    for _ in 0..5 {
        check(&mut client, "alice").await.expect("an answer");
    }
    let (_, scraped) = server.get("/metrics").await;
    let log = end(server).await;
    assert!(!log.contains("s3cret") && !log.contains("failed"), "{log}");
    scraped
}

#[tokio::test]
async fn spans_continue_the_trace_of_the_caller_and_carry_the_decision() {
    let collector = Collector::default();
    let server = Rlaas::start(&[&collector.start().await, "rate-limiter.max-requests=1"]);
    let mut client = server.client().await;
    for _ in 0..2 {
        client.check(traced(secret(), "01")).await.expect("an answer");
    }
    client.check(traced(request(""), "01")).await.expect_err("an empty id is rejected");
    end(server).await;

    let spans = collector.spans();
    let outcome = |span: &Span| attributes(span).get("rlaas.outcome").cloned();
    let outcomes: Vec<Option<String>> = spans.iter().map(outcome).collect();
    assert_eq!(outcomes, [Some("allowed".to_owned()), Some("denied".to_owned()), None]);
    for span in &spans {
        assert_eq!((span.name.as_str(), span.kind), (CHECK, 2), "the kind is SERVER");
        assert_eq!(hex(&span.trace_id), TRACE);
        assert_eq!(hex(&span.parent_span_id), CALLER);
        assert_eq!(span.trace_state, "vendor=opaque");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        assert_eq!(span.status.as_ref().map_or(0, |status| status.code), 0, "the status is unset");
    }
    let known = [
        ("rpc.system.name", "grpc"),
        ("rpc.method", CHECK),
        ("rpc.response.status_code", "OK"),
        ("rlaas.rule", "default"),
        ("rlaas.algorithm", "sliding-window-log"),
        ("rlaas.outcome", "denied"),
        ("rlaas.source", "store"),
    ];
    let known: HashMap<&str, String> = known.map(|(name, value)| (name, value.to_owned())).into();
    assert_eq!(attributes(&spans[1]), known, "there are no other attributes");
    assert_eq!(attributes(&spans[2])["rpc.response.status_code"], "INVALID_ARGUMENT");
    let bytes = String::from_utf8_lossy(&collector.bytes()).into_owned();
    assert!(bytes.contains("rlaas.rule") && !bytes.contains("s3cret"), "{bytes}");
}

#[tokio::test]
async fn each_call_has_one_span() {
    let collector = Collector::default();
    let server = Rlaas::start(&[&collector.start().await, "rate-limiter.max-requests=1"]);
    let mut client = server.client().await;
    let requests = vec![secret(), secret(), request("")];
    client
        .check_batch(CheckBatchRequest { requests, ..Default::default() })
        .await
        .expect("answers");
    let stream = client.check_stream(tokio_stream::iter([secret(), secret()])).await;
    let mut answers = stream.expect("a stream").into_inner();
    while let Some(answer) = answers.next().await {
        answer.expect("an answer");
    }
    client.get_config(GetConfigRequest::default()).await.expect("an answer");
    let request = RateLimitRequest { domain: "s3cret".to_owned(), ..RateLimitRequest::default() };
    EnvoyClient::new(server.channel().await).should_rate_limit(request).await.expect_err("no more");
    end(server).await;

    let spans = collector.spans();
    let methods: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    let service = |method| format!("ratelimit.v1.RateLimitService/{method}");
    let ours = ["CheckBatch", "CheckStream", "GetConfig"].map(service);
    let envoy = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    assert_eq!(methods, [&*ours[0], &ours[1], &ours[2], envoy]);
    assert_eq!(attributes(&spans[3])["rpc.response.status_code"], "INVALID_ARGUMENT");
    for span in &spans[..3] {
        assert_eq!(attributes(span)["rpc.response.status_code"], "OK", "{span:?}");
        assert!(span.parent_span_id.is_empty(), "the span starts a trace");
    }
    let batch = attributes(&spans[0]);
    let counts = ["rlaas.requests", "rlaas.denied", "rlaas.failed"].map(|name| &*batch[name]);
    assert_eq!(counts, ["3", "1", "1"]);
    assert!(!String::from_utf8_lossy(&collector.bytes()).contains("s3cret"));
}

#[tokio::test]
async fn http_spans_have_the_route_and_no_query() {
    let collector = Collector::default();
    let server = Rlaas::start(&[&collector.start().await, "rate-limiter.max-requests=1"]);
    let headers = format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n");
    for status in [200, 429] {
        let answer = server.get_with("/check?userId=s3cret", &headers).await;
        assert_eq!(answer.0, status);
    }
    assert_eq!(server.get_with("/check", &headers).await.0, 400);
    server.get_with("/metrics", &headers).await;
    server.get_with("/s3cret", &headers).await;
    end(server).await;

    let spans = collector.spans();
    let facts = |span: &Span| {
        let attributes = attributes(span);
        let fact = |name| attributes.get(name).cloned().unwrap_or_default();
        [fact("http.response.status_code"), fact("rlaas.outcome"), fact("rlaas.rule")]
    };
    let all: Vec<[String; 3]> = spans.iter().map(facts).collect();
    let expected = [["200", "allowed", "default"], ["429", "denied", "default"], ["400", "", ""]];
    assert_eq!(all, expected, "other paths have no spans");
    for span in &spans {
        assert_eq!((span.name.as_str(), hex(&span.trace_id).as_str()), ("GET /check", TRACE));
        assert_eq!(attributes(span)["http.request.method"], "GET");
        assert_eq!(attributes(span)["http.route"], "/check");
        assert_eq!(attributes(span)["url.path"], "/check");
        assert_eq!(attributes(span)["url.scheme"], "http");
    }
    assert!(!String::from_utf8_lossy(&collector.bytes()).contains("s3cret"));
}

#[tokio::test]
async fn http_spans_have_the_url_scheme() {
    let certificates = Certificates::make();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let dir = TempDir::new();
    let socket = path(dir.path("http.sock"));
    let collector = Collector::default();
    let server = Rlaas::start(&[
        &collector.start().await,
        &format!("server.tls.cert={}", path(certificates.certificate(Certificate::Server))),
        &format!("server.tls.key={}", path(certificates.key(Certificate::Server))),
        &format!("server.http=127.0.0.1:0,unix:{socket}"),
    ]);
    let ca = path(certificates.authority());
    let address = server.http().split(',').next().expect("an address").to_owned();
    for (options, url) in [
        (["--cacert", &ca], format!("https://{address}/check?userId=alice")),
        (["--unix-socket", &socket], "http://localhost/check?userId=alice".to_owned()),
    ] {
        let curl = Command::new("curl").args(["--silent", "--fail", &url]).args(options).output();
        assert_eq!(curl.expect("curl").stdout, b"User is allowed", "{url}");
    }
    end(server).await;
    let spans = collector.spans();
    let schemes: Vec<String> =
        spans.iter().map(|span| attributes(span)["url.scheme"].clone()).collect();
    assert_eq!(schemes, ["https", "http"]);
}

#[tokio::test]
async fn sampling_follows_the_caller_or_else_the_ratio() {
    let collector = Collector::default();
    let settings = [&*collector.start().await, "telemetry.otlp.sample-ratio=0"];
    let server = Rlaas::start(&settings);
    let mut client = server.client().await;
    check(&mut client, "alice").await.expect("an answer");
    client.check(traced(request("bob"), "00")).await.expect("an answer");
    client.check(traced(request("carol"), "01")).await.expect("an answer");
    end(server).await;
    let traces: Vec<String> = collector.spans().iter().map(|span| hex(&span.trace_id)).collect();
    assert_eq!(traces, [TRACE]);
}

#[tokio::test]
async fn store_failure_marks_the_span_as_an_error() {
    let collector = Collector::default();
    let unreachable = format!("store.redis.url=redis://127.0.0.1:{}", free_port());
    let server = Rlaas::start(&[&collector.start().await, "store.backend=redis", &unreachable]);
    check(&mut server.client().await, "alice").await.expect_err("the store is unreachable");
    end(server).await;
    let spans = collector.spans();
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(2));
    let attributes = attributes(span);
    assert_eq!(attributes["rpc.response.status_code"], "UNAVAILABLE");
    assert_eq!(attributes["error.type"], "UNAVAILABLE");
}

#[tokio::test]
async fn refusing_collector_is_logged_once_and_delays_no_call() {
    let collector = Collector::default();
    collector.refuses.store(true, Ordering::Relaxed);
    let mut command = rlaas(&["serve"]);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "20");
    let server = Rlaas::start_with(command, &[&collector.start().await]);
    let mut client = server.client().await;
    let refused = async || {
        check(&mut client, "alice").await.expect("an answer");
        collector.refused.load(Ordering::Relaxed) >= 3
    };
    eventually("batches are refused", TIMEOUT, refused).await;
    assert_eq!(server.log().matches("OTLP export failed").count(), 1, "{}", server.log());
    collector.refuses.store(false, Ordering::Relaxed);
    let logged = async || {
        check(&mut client, "alice").await.expect("an answer");
        server.log().contains("OTLP export succeeded again")
    };
    eventually("the recovery is logged", TIMEOUT, logged).await;
    let log = end(server).await;
    assert_eq!(log.matches("OTLP export failed").count(), 1, "{log}");
}

#[tokio::test]
async fn unreachable_collector_does_not_delay_shutdown() {
    // The backlog accepts connections, and nothing answers them.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent = listener.local_addr().expect("a bound port").port();
    for port in [silent, free_port()] {
        let server = Rlaas::start(&[&format!("telemetry.otlp.endpoint=http://127.0.0.1:{port}")]);
        let mut client = server.client().await;
        // More spans than the queue for a collector holds.
        for _ in 0..2_500 {
            check(&mut client, "alice").await.expect("an answer");
        }
        let log = end(server).await;
        assert!(log.contains("drained"), "{log}");
    }
}

#[test]
fn invalid_otlp_endpoint_or_ratio_is_rejected() {
    for (setting, valid) in [
        ("endpoint=ftp://collector:4317", "must be http://host:port or https://host:port"),
        ("endpoint=http://u:s3cret@collector:4317", "must be http://host:port or https://host"),
        ("sample-ratio=1.5", "must be a number from 0 to 1"),
        ("sample-ratio=often", "must be a number from 0 to 1"),
    ] {
        let (code, _, error) = run(&["serve", "--set", &format!("telemetry.otlp.{setting}")]);
        assert_eq!(code, 64);
        assert!(error.contains("telemetry.otlp.") && error.contains(valid), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}
