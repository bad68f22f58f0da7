//! The span of a call: its method, the decision with the deciding rule, and its status.
//!
//! A span has no data of the request, only of the verdict. Without traces there is no span.
//!
//! **Source:** `OpenTelemetry`, semantic conventions for gRPC (statuses that are errors of the
//! server) and for HTTP spans.

use axum::http::{Extensions, HeaderMap, Method, Request, StatusCode};
use rlaas_telemetry::traces::{CallSpan, HttpRequest, TraceHeaders, Traces};
use tonic::{Code, Status};

use rlaas_limiter::{DescriptorVerdict, RuleDecision, Source, Verdict};

/// The gRPC methods whose calls have spans.
const METHODS: [&str; 5] = [
    "ratelimit.v1.RateLimitService/Check",
    "ratelimit.v1.RateLimitService/CheckBatch",
    "ratelimit.v1.RateLimitService/CheckStream",
    "ratelimit.v1.RateLimitService/GetConfig",
    "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
];

/// Extension of a request whose call has a span: its response must carry a [`TracedDecision`].
#[derive(Clone, Copy, Debug)]
pub struct Sampled;

/// Extension of a response: the decision, for the span of the call.
#[derive(Clone, Debug)]
pub enum TracedDecision {
    /// Decision on one request.
    One {
        /// Whether the request is allowed.
        is_allowed: bool,
        /// The deciding rule; `None` if no rule matched.
        decided: Option<RuleDecision>,
    },
    /// Decisions on several requests.
    Batch(BatchStats),
}

/// Numbers of requests of a call by their result.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchStats {
    requests: i64,
    denied: i64,
    failed: i64,
}

/// The span of one call. It ends when it is dropped.
#[derive(Debug)]
pub struct RequestTrace {
    span: CallSpan,
    has_ended: bool,
}

/// Returns `true` if the response must carry a [`TracedDecision`].
pub(super) fn is_sampled(extensions: &Extensions) -> bool {
    extensions.get::<Sampled>().is_some()
}

impl TracedDecision {
    pub(super) fn from_verdict(verdict: &Verdict) -> Self {
        let (is_allowed, decided) = (verdict.is_allowed(), Some(verdict.deciding().clone()));
        Self::One { is_allowed, decided }
    }

    pub(super) fn from_descriptors(verdict: &DescriptorVerdict) -> Self {
        let decided = || verdict.answers.iter().flatten().map(|answer| &answer.decided);
        let denial = decided().find(|decided| !decided.decision.is_allowed());
        let decided = denial.or_else(|| decided().next()).cloned();
        Self::One { is_allowed: verdict.is_allowed(), decided }
    }
}

impl BatchStats {
    /// Counts one request.
    pub(super) fn count(&mut self, result: Result<&Verdict, &Status>) {
        self.requests += 1;
        match result {
            Ok(verdict) => self.denied += i64::from(!verdict.is_allowed()),
            Err(_) => self.failed += 1,
        }
    }
}

impl RequestTrace {
    /// Starts the span of a gRPC call. Returns `None` if the method has no spans or the call is not
    /// sampled.
    pub fn start_grpc<B>(traces: &Traces, request: &Request<B>) -> Option<Self> {
        let path = request.uri().path().strip_prefix('/')?;
        let method = METHODS.into_iter().find(|method| *method == path)?;
        Self::sampled(traces.start_grpc_span(method, trace_headers(request.headers())))
    }

    /// Starts the span of an HTTP request. Returns `None` if the request is not sampled. `route` is the
    /// path: no route has parameters.
    pub fn start_http<B>(
        traces: &Traces,
        scheme: &'static str,
        request: &Request<B>,
    ) -> Option<Self> {
        // An arbitrary method would be an unbounded attribute value.
        let method = match *request.method() {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            _ => "_OTHER",
        };
        let path = request.uri().path();
        let http = HttpRequest { method, scheme, route: path, path };
        Self::sampled(traces.start_http_span(http, trace_headers(request.headers())))
    }

    fn sampled(span: CallSpan) -> Option<Self> {
        span.is_sampled().then_some(Self { span, has_ended: false })
    }

    /// Records the decision.
    pub fn record_decision(&mut self, decision: Option<TracedDecision>) {
        match decision {
            Some(TracedDecision::One { is_allowed, decided }) => {
                self.span.set("rlaas.outcome", if is_allowed { "allowed" } else { "denied" });
                if let Some(decided) = decided.filter(|decided| decided.source != Source::NoRule) {
                    self.span.set("rlaas.rule", decided.rule.to_string());
                    self.span.set("rlaas.algorithm", decided.algorithm.name());
                    self.span.set("rlaas.source", decided.source.name());
                }
            }
            Some(TracedDecision::Batch(BatchStats { requests, denied, failed })) => {
                self.span.set("rlaas.requests", requests);
                self.span.set("rlaas.denied", denied);
                self.span.set("rlaas.failed", failed);
            }
            None => {}
        }
    }

    /// Records the status of an HTTP response.
    pub fn record_http_status(&mut self, status: StatusCode) {
        self.has_ended = true;
        self.span.set("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() {
            self.span.fail(status.as_str().to_owned());
        }
    }

    /// Records the status of a gRPC call if `trailers` (or headers) have one. Returns `true` if so.
    pub fn record_grpc_status(&mut self, trailers: &HeaderMap) -> bool {
        let status = Status::from_header_map(trailers);
        if let Some(status) = &status {
            self.end(status.code());
        }
        status.is_some()
    }

    fn end(&mut self, code: Code) {
        self.has_ended = true;
        let status = code_name(code);
        self.span.set("rpc.response.status_code", status);
        match code {
            Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => self.span.fail(status),
            _ => {}
        }
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Code::Cancelled);
        }
    }
}

/// Returns the trace context of the caller.
fn trace_headers(headers: &HeaderMap) -> TraceHeaders<'_> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    TraceHeaders { parent: header("traceparent"), state: header("tracestate") }
}

/// Returns the name of a status code in the gRPC specification.
pub(crate) const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
