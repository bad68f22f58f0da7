//! Metrics and traces, as a collector with TLS and a token receives them.

use std::collections::{BTreeSet, HashSet};
use std::fs::read_to_string;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, Metric, NumberDataPoint, Sum};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use super::traces::{TIMEOUT, count_five_checks, end};
use rlaas_testkit::process::{Rlaas, check, run};
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::{TempDir, eventually};

const TOKEN: &str = "Bearer s3cret-token";

/// A collector that checks what it is sent, and stores it.
#[derive(Clone, Default)]
struct TlsCollector {
    metrics: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
    spans: Arc<Mutex<usize>>,
    is_away: Arc<AtomicBool>,
}

impl TlsCollector {
    /// Starts the collector. Returns its address.
    async fn start(&self, certificates: &Certificates, certificate: Certificate) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let pem = |path: std::path::PathBuf| read_to_string(path).expect("a PEM file");
        let identity = Identity::from_pem(
            pem(certificates.certificate(certificate)),
            pem(certificates.key(certificate)),
        );
        let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity));
        let serving = server
            .expect("a certificate")
            .add_service(MetricsServiceServer::new(self.clone()))
            .add_service(TraceServiceServer::new(self.clone()));
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        format!("https://localhost:{port}")
    }

    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if token != Some(TOKEN) {
            return Err(Status::unauthenticated("no token"));
        }
        if self.is_away.load(Ordering::Relaxed) {
            return Err(Status::unavailable("not now"));
        }
        Ok(())
    }

    fn last(&self) -> ExportMetricsServiceRequest {
        self.metrics.lock().expect("no panic").last().cloned().expect("a push")
    }

    fn pushes(&self) -> usize {
        self.metrics.lock().expect("no panic").len()
    }
}

#[tonic::async_trait]
impl MetricsService for TlsCollector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.admit(&request)?;
        self.metrics.lock().expect("no panic").push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for TlsCollector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.admit(&request)?;
        let resources = request.into_inner().resource_spans;
        let scopes = resources.iter().flat_map(|of| &of.scope_spans);
        *self.spans.lock().expect("no panic") +=
            scopes.map(|scope| scope.spans.len()).sum::<usize>();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Returns a configuration that pushes to a collector.
fn config(endpoint: &str, ca: &std::path::Path, interval: &str) -> String {
    format!(
        "telemetry:\n  otlp:\n    endpoint: {endpoint}\n    ca: {}\n    headers: {{authorization: \
         '{TOKEN}'}}\n    metrics: true\n    metrics-interval: {interval}\n",
        ca.display()
    )
}

fn start(text: &str) -> Rlaas {
    let dir = TempDir::new();
    Rlaas::start_from(&dir.write("rlaas.yaml", text), &["rate-limiter.max-requests=2"])
}

fn attribute<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|of| of.key == name)?.value.as_ref()?;
    match found.value.as_ref()? {
        AnyValue::StringValue(text) => Some(text),
        other => panic!("{other:?}"),
    }
}

/// Checks what OTLP requires of a number.
fn check_number(point: &NumberDataPoint, is_sum: bool, of: &Metric) {
    assert!(point.time_unix_nano > 0 && point.value.is_some(), "{of:?}");
    assert_eq!(point.start_time_unix_nano > 0, is_sum, "{of:?}");
    assert!(point.start_time_unix_nano <= point.time_unix_nano, "{of:?}");
    check_attributes(&point.attributes);
}

/// Checks what OTLP requires of a histogram.
fn check_histogram(point: &HistogramDataPoint, of: &Metric) {
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1, "{of:?}");
    assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count, "{of:?}");
    assert!(point.explicit_bounds.is_sorted_by(|one, next| one < next), "{of:?}");
    assert!(point.explicit_bounds.iter().all(|bound| bound.is_finite()), "{of:?}");
    assert!(point.start_time_unix_nano > 0, "{of:?}");
    assert!(point.start_time_unix_nano <= point.time_unix_nano, "{of:?}");
    check_attributes(&point.attributes);
}

fn check_attributes(attributes: &[KeyValue]) {
    let names: HashSet<&str> = attributes.iter().map(|of| &*of.key).collect();
    assert_eq!(names.len(), attributes.len(), "{attributes:?}");
}

/// Checks what OTLP requires of metrics, and returns them.
fn checked(request: &ExportMetricsServiceRequest) -> Vec<Metric> {
    let [resource] = &request.resource_metrics[..] else { panic!("{request:?}") };
    let [scope] = &resource.scope_metrics[..] else { panic!("{request:?}") };
    for metric in &scope.metrics {
        match metric.data.as_ref().expect("data") {
            Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic }) => {
                assert_eq!((*aggregation_temporality, *is_monotonic), (2, true), "cumulative");
                assert!(metric.name.ends_with("_total") && !data_points.is_empty(), "{metric:?}");
                for point in data_points {
                    check_number(point, true, metric);
                }
            }
            Data::Gauge(gauge) => {
                assert!(!gauge.data_points.is_empty(), "{metric:?}");
                for point in &gauge.data_points {
                    check_number(point, false, metric);
                }
            }
            Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality, 2, "cumulative");
                assert!(!histogram.data_points.is_empty(), "{metric:?}");
                for point in &histogram.data_points {
                    check_histogram(point, metric);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    scope.metrics.clone()
}

/// Returns the value of a counter of a metric by the value of one of its labels.
fn counted(metrics: &[Metric], name: &str, label: &str, value: &str) -> u64 {
    let metric = metrics.iter().find(|metric| metric.name == name).expect(name);
    let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
    let points = sum.data_points.iter();
    let points = points.filter(|point| attribute(&point.attributes, label) == Some(value));
    let values = points.map(|point| match point.value {
        Some(Value::AsDouble(value)) => value.to_string().parse::<u64>().expect("a whole number"),
        other => panic!("{other:?}"),
    });
    values.sum()
}

#[tokio::test]
async fn metrics_and_traces_are_sent_over_tls_with_headers() {
    let (certificates, collector) = (Certificates::make(), TlsCollector::default());
    let endpoint = collector.start(&certificates, Certificate::Server).await;
    // Nothing but the end of the process pushes.
    let server = start(&config(&endpoint, &certificates.authority(), "1h"));
    let scraped = count_five_checks(server).await;

    assert_eq!((*collector.spans.lock().expect("no panic"), collector.pushes()), (5, 1));
    let push = collector.last();
    let resource = push.resource_metrics[0].resource.as_ref().expect("a resource");
    let of = |name| attribute(&resource.attributes, name).unwrap_or_default();
    assert_eq!([of("service.name"), of("service.version")], ["rlaas", env!("CARGO_PKG_VERSION")]);
    assert!(!of("service.instance.id").is_empty());
    let metrics = checked(&push);
    let decisions = |outcome| counted(&metrics, "rlaas_decisions_total", "outcome", outcome);
    assert_eq!(["allowed", "denied"].map(decisions), [2, 3]);
    let names: BTreeSet<&str> = metrics.iter().map(|metric| &*metric.name).collect();
    assert_eq!(names.len(), metrics.len(), "each once");
    let typed = scraped.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let typed = typed.filter_map(|line| line.split(' ').next());
    let with_series =
        |name: &&str| scraped.lines().any(|line| !line.starts_with('#') && line.starts_with(name));
    let expected: BTreeSet<&str> = typed.filter(with_series).collect();
    assert_eq!(names, expected, "the names are those of /metrics");
}

#[tokio::test]
async fn pushes_go_on_after_the_collector_was_away() {
    let (certificates, collector) = (Certificates::make(), TlsCollector::default());
    let endpoint = collector.start(&certificates, Certificate::Server).await;
    collector.is_away.store(true, Ordering::Relaxed);
    let server = start(&config(&endpoint, &certificates.authority(), "1s"));
    let mut client = server.client().await;
    let is_logged = async || server.log().contains("OTLP export of metrics failed");
    eventually("a failed push is logged", TIMEOUT, is_logged).await;
    check(&mut client, "alice").await.expect("an answer");
    collector.is_away.store(false, Ordering::Relaxed);
    let is_logged = async || server.log().contains("OTLP export of metrics succeeded again");
    eventually("the recovery is logged", TIMEOUT, is_logged).await;
    let log = end(server).await;
    assert_eq!(log.matches("OTLP export of metrics failed").count(), 1, "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    let metrics = checked(&collector.last());
    assert_eq!(counted(&metrics, "rlaas_decisions_total", "outcome", "allowed"), 1);
}

#[tokio::test]
async fn collector_with_a_foreign_certificate_gets_nothing() {
    let (certificates, collector) = (Certificates::make(), TlsCollector::default());
    for certificate in [Certificate::SelfSigned, Certificate::WrongHost, Certificate::Expired] {
        let endpoint = collector.start(&certificates, certificate).await;
        let server = start(&config(&endpoint, &certificates.authority(), "1h"));
        check(&mut server.client().await, "alice").await.expect("an answer");
        let log = end(server).await;
        assert!(log.contains("OTLP export of metrics failed"), "{certificate:?}: {log}");
    }
    assert_eq!((*collector.spans.lock().expect("no panic"), collector.pushes()), (0, 0));
}

#[test]
fn invalid_settings_are_rejected_without_their_values() {
    let dir = TempDir::new();
    let empty = dir.write("empty.pem", "");
    let http = "endpoint: 'http://127.0.0.1:1'";
    let https = "endpoint: 'https://127.0.0.1:1'";
    for (settings, key, valid) in [
        (format!("{http}, headers: {{'grpc-timeout': 1}}"), "headers", "names and values of HTTP"),
        (format!("{http}, headers: s3cret"), "headers", "names and values of HTTP headers"),
        (format!("{http}, headers: {{a: [s3cret]}}"), "headers", "names and values of HTTP"),
        (format!("{http}, ca: /etc/hosts"), "ca", ""),
        (format!("{https}, ca: /s3cret/none"), "ca", "must be the path of a file that can be read"),
        (format!("{https}, ca: '{}'", empty.display()), "ca", "at least one certificate"),
        (format!("{http}, metrics: true, metrics-interval: 1ms"), "metrics-interval", "from 1s"),
        ("metrics: true".to_owned(), "metrics", "requires an endpoint"),
    ] {
        let text = format!("telemetry: {{otlp: {{{settings}}}}}\n");
        let file = dir.write("rlaas.yaml", &text).display().to_string();
        let (code, _, error) = run(&["check-config", &file]);
        assert_eq!(code, 64, "{settings}: {error}");
        assert!(error.contains(&format!("telemetry.otlp.{key}")), "{settings}: {error}");
        assert!(error.contains(valid) && !error.contains("s3cret"), "{settings}: {error}");
    }
}
