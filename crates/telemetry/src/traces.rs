//! Traces: one span for each call, exported by OTLP over gRPC. Off unless an endpoint is set.
//!
//! A call with a W3C trace context continues the trace of its caller, and the caller decides
//! whether it is sampled. A thread of its own exports the spans from a bounded queue; spans that do
//! not fit are dropped. No call waits for the collector.
//!
//! **Source:** W3C Trace Context; `OpenTelemetry`, semantic conventions for gRPC.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{ExporterBuildError, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter,
    SpanProcessor,
};
use thiserror::Error;
use tonic::transport;
use tracing::{info, warn};

use super::otlp::{CollectorSettings, EXPORT_TIMEOUT, SampleRatio, resource};

/// Maximum time to export the remaining spans at the end of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The error if the exporter can't be built.
#[derive(Debug, Error)]
pub enum TracesError {
    /// The connection has no TLS.
    #[error("telemetry.otlp.endpoint")]
    Connection(#[from] transport::Error),
    /// The exporter is refused.
    #[error("telemetry.otlp")]
    Exporter(#[from] ExporterBuildError),
}

/// Creates spans. Clones share the exporter.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The headers of W3C trace context.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceHeaders<'a> {
    /// The header `traceparent`.
    pub parent: Option<&'a str>,
    /// The header `tracestate`.
    pub state: Option<&'a str>,
}

/// The attributes of the span of a request over HTTP.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// A known method, or `_OTHER`.
    pub method: &'static str,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The path of the route.
    pub route: &'a str,
    /// The path of the request, without its query.
    pub path: &'a str,
}

/// The span of one call. It ends when it is dropped.
#[derive(Debug)]
pub struct CallSpan(Span);

impl Traces {
    /// Starts the exporter, as that of `instance`. Its connection runs on the calling runtime.
    ///
    /// # Errors
    ///
    /// [`TracesError`] if the exporter can't be built.
    pub fn start(
        collector: &CollectorSettings,
        sample_ratio: SampleRatio,
        instance: &str,
    ) -> Result<Self, TracesError> {
        let endpoint = collector.endpoint.to_string();
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic();
        let exporter = exporter.with_channel(collector.channel()?);
        let exporter = exporter.with_metadata(collector.headers.metadata());
        let exporter = exporter.with_timeout(EXPORT_TIMEOUT).build()?;
        let exporter = LoggingExporter { exporter, endpoint, is_failing: AtomicBool::new(false) };
        let processor = BatchSpanProcessor::builder(exporter).build();
        Ok(Self::with_processor(processor, sample_ratio, instance))
    }

    /// Gives ended spans to `processor`.
    pub fn with_processor(
        processor: impl SpanProcessor + 'static,
        sample_ratio: SampleRatio,
        instance: &str,
    ) -> Self {
        let sampler = Sampler::TraceIdRatioBased(sample_ratio.0);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_resource(resource(instance))
            .build();
        Self { tracer: provider.tracer("rlaas"), provider }
    }

    /// Starts the span of a call to a gRPC method, such as `package.Service/Method`.
    pub fn start_grpc_span(&self, method: &'static str, headers: TraceHeaders<'_>) -> CallSpan {
        let attributes =
            [KeyValue::new("rpc.system.name", "grpc"), KeyValue::new("rpc.method", method)];
        self.start_span(method.into(), attributes, headers)
    }

    /// Starts the span of a request over HTTP.
    pub fn start_http_span(&self, request: HttpRequest<'_>, headers: TraceHeaders<'_>) -> CallSpan {
        let HttpRequest { method, scheme, route, path } = request;
        let attributes = [
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route.to_owned()),
            KeyValue::new("url.path", path.to_owned()),
            KeyValue::new("url.scheme", scheme),
        ];
        self.start_span(format!("{method} {route}").into(), attributes, headers)
    }

    /// Exports the remaining spans. Blocks for at most one second, while the runtime of
    /// [`Traces::start`] must continue to run.
    pub fn shutdown(&self) {
        // `LoggingExporter` logs failed exports. A timeout is not logged: the process ends anyway.
        let _logged = self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
    }
}

impl Traces {
    fn start_span<const N: usize>(
        &self,
        name: Cow<'static, str>,
        attributes: [KeyValue; N],
        headers: TraceHeaders<'_>,
    ) -> CallSpan {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        let span = self.tracer.span_builder(name).with_kind(SpanKind::Server);
        CallSpan(self.tracer.build_with_context(span.with_attributes(attributes), &parent))
    }
}

impl CallSpan {
    /// Returns `true` if the span is recorded. Otherwise attributes have no effect.
    pub fn is_sampled(&self) -> bool {
        self.0.is_recording()
    }

    /// Sets an attribute. `value` must not be an id, a key or a value of the request.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.set_attribute(KeyValue::new(name, value));
    }

    /// Marks the span as failed by an error of the server, with the name of its status.
    pub fn fail(&mut self, status: impl Into<Value>) {
        self.set("error.type", status);
        self.0.set_status(Status::error(""));
    }
}

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.parent,
            "tracestate" => self.state,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// Logs the first failure of an export, and the first success after it.
#[derive(Debug)]
struct LoggingExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    endpoint: String,
    is_failing: AtomicBool,
}

impl SpanExporter for LoggingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let endpoint = &self.endpoint;
        match (&result, self.is_failing.swap(result.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => warn!(endpoint, %error, "OTLP export failed"),
            (Ok(()), true) => info!(endpoint, "OTLP export succeeded again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
