//! The span of a call: which method, what was decided by which rule, and how it ended.
//!
//! Nothing of a request is told, only of its verdict. Where traces are off there is no span.
//!
//! **Source:** `OpenTelemetry`, semantic conventions for gRPC (statuses that are errors of the
//! server) and for HTTP spans.

use axum::http::{HeaderMap, Method, Request, StatusCode};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::limiter::{DescriptorVerdict, RuleDecision, Source, Verdict};
use crate::telemetry::traces::{CallSpan, Caller, HttpRequest, Traces};

/// The span of a call, if there is one. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Call(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    span: CallSpan,
    tally: Tally,
    is_answered: bool,
}

/// What became of the requests of a call that makes several.
#[derive(Debug, Default)]
struct Tally {
    requests: i64,
    denied: i64,
    failed: i64,
}

impl Call {
    /// Begins the span of a call to `method`, such as `package.Service/Method`.
    pub(super) fn begin(
        traces: Option<&Traces>,
        method: &'static str,
        metadata: &MetadataMap,
    ) -> Self {
        Self(traces.and_then(|traces| {
            let header = |name| metadata.get(name).and_then(|value| value.to_str().ok());
            let (parent, state) = (header("traceparent"), header("tracestate"));
            Open::sampled(traces.call(method, Caller { parent, state }))
        }))
    }

    /// Begins the span of a request over HTTP. `route` is a path without parameters, so that the path
    /// of the request is no more.
    pub(super) fn over_http<B>(
        traces: &Traces,
        scheme: &'static str,
        route: &str,
        request: &Request<B>,
    ) -> Self {
        let headers: &HeaderMap = request.headers();
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let (parent, state) = (header("traceparent"), header("tracestate"));
        // What a caller makes up is no name.
        let method = match *request.method() {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            _ => "_OTHER",
        };
        let path = request.uri().path();
        let request = HttpRequest { method, scheme, route, path };
        Self(Open::sampled(traces.request(request, Caller { parent, state })))
    }

    /// Notes the status of a response over HTTP, and what was decided if anything was.
    pub(super) fn responded(&mut self, status: StatusCode, told: Option<(bool, &RuleDecision)>) {
        let Some(open) = &mut self.0 else { return };
        open.is_answered = true;
        if let Some((is_allowed, decided)) = told {
            open.tell(is_allowed, Some(decided));
        }
        open.span.set("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() {
            open.span.fail(status.as_str().to_owned());
        }
    }

    /// Does anybody hear of this call?
    pub(super) fn is_told(&self) -> bool {
        self.0.is_some()
    }

    /// Notes how the only request of the call was decided, which ends it.
    pub(super) fn decided(&mut self, result: Result<&Verdict, &Status>) {
        let Some(open) = &mut self.0 else { return };
        if let Ok(verdict) = result {
            open.tell(verdict.is_allowed(), Some(verdict.deciding()));
        }
        open.answer(result.err().map_or(Code::Ok, Status::code));
    }

    /// Notes how the descriptors of the call were decided, which ends it.
    pub(super) fn settled(&mut self, result: Result<&DescriptorVerdict, &Status>) {
        let Some(open) = &mut self.0 else { return };
        if let Ok(verdict) = result {
            let decided = || verdict.answers.iter().flatten().map(|answer| &answer.decided);
            let denial = decided().find(|decided| !decided.decision.is_allowed());
            open.tell(verdict.is_allowed(), denial.or_else(|| decided().next()));
        }
        open.answer(result.err().map_or(Code::Ok, Status::code));
    }

    /// Counts one of several requests.
    pub(super) fn count(&mut self, result: Result<&Verdict, &Status>) {
        let Some(open) = &mut self.0 else { return };
        open.tally.requests += 1;
        match result {
            Ok(verdict) => open.tally.denied += i64::from(!verdict.is_allowed()),
            Err(_) => open.tally.failed += 1,
        }
    }

    /// Notes how a call with several requests ended.
    pub(super) fn answered(&mut self, code: Code) {
        if let Some(open) = &mut self.0 {
            open.answer(code);
        }
    }
}

impl Open {
    fn sampled(span: CallSpan) -> Option<Box<Self>> {
        let is_sampled = span.is_sampled();
        let open = Self { span, tally: Tally::default(), is_answered: false };
        is_sampled.then(|| Box::new(open))
    }

    /// Notes the outcome, and the rule that tells most of it.
    fn tell(&mut self, is_allowed: bool, decided: Option<&RuleDecision>) {
        self.span.set("rlaas.outcome", if is_allowed { "allowed" } else { "denied" });
        if let Some(decided) = decided.filter(|decided| decided.source != Source::NoRule) {
            self.span.set("rlaas.rule", decided.rule.to_string());
            self.span.set("rlaas.algorithm", decided.algorithm.name());
            self.span.set("rlaas.source", decided.source.name());
        }
    }

    fn answer(&mut self, code: Code) {
        self.is_answered = true;
        let status = name(code);
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

impl Drop for Open {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answer(Code::Cancelled);
        }
        let Tally { requests, denied, failed } = self.tally;
        if requests > 0 {
            self.span.set("rlaas.requests", requests);
            self.span.set("rlaas.denied", denied);
            self.span.set("rlaas.failed", failed);
        }
    }
}

/// The name of a status, as the specification of gRPC has it.
pub(crate) const fn name(code: Code) -> &'static str {
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
