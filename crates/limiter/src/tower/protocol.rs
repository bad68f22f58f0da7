//! Responses to rejected requests, over HTTP and over gRPC.
//!
//! The details of a status are encoded by hand: one message of three fields is not worth a dependency on
//! prost and tonic. A test decodes it with both.
//!
//! **Source:** RFC 9457 (problem documents); gRPC over HTTP/2, "Responses" (Trailers-Only); `google/rpc/status.proto` and `google/rpc/error_details.proto`; RFC 4648, 4.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::clock::{Deadline, Micros};
use crate::grpc_timeout;
use crate::headers::{Header, LimitHeaders, quoted, retry_after};
use crate::problem::{self, detail, violated_policies};
use crate::summary::Summary;

/// Retry delay of a request that got no verdict.
const RETRY_AFTER_NO_ANSWER: Micros = Micros::from_secs(1);

/// HTTP: rejects with a status and a problem document.
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// gRPC: rejects with a status code, and with a `RetryInfo` if waiting helps.
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

/// A protocol whose response body is `B`. Implemented by [`Http`] and [`Grpc`].
pub trait Protocol<B>: private::Sealed {
    /// Returns the deadline of the caller.
    #[doc(hidden)]
    fn deadline(headers: &HeaderMap) -> Deadline;

    /// Returns the response to a rejected request.
    #[doc(hidden)]
    fn response(rejection: &Rejection) -> Response<B>;
}

mod private {
    pub trait Sealed {}
    impl Sealed for super::Http {}
    impl Sealed for super::Grpc {}
}

/// A rejected request, and the reason.
#[derive(Debug)]
pub struct Rejection {
    kind: RejectionKind,
    detail: String,
    headers: Vec<Header>,
    retry_after: Option<Micros>,
    /// Names of the policies that deny the request, as JSON strings.
    policies: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RejectionKind {
    Limited,
    NoRule,
    NoAnswer,
    Expired,
    Invalid,
    Internal,
}

impl RejectionKind {
    /// Returns the status over HTTP and the code over gRPC.
    const fn codes(self) -> (StatusCode, u8) {
        match self {
            Self::Limited => (StatusCode::TOO_MANY_REQUESTS, 8),
            Self::NoRule => (StatusCode::FORBIDDEN, 7),
            Self::NoAnswer => (StatusCode::SERVICE_UNAVAILABLE, 14),
            Self::Expired => (StatusCode::SERVICE_UNAVAILABLE, 4),
            Self::Invalid => (StatusCode::BAD_REQUEST, 3),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, 13),
        }
    }
}

impl Rejection {
    pub(super) fn from_verdict(verdict: &impl Summary, headers: LimitHeaders) -> Self {
        let limits = headers.for_verdict(verdict).into_iter();
        Self {
            kind: RejectionKind::Limited,
            detail: detail(verdict),
            headers: limits.chain(retry_after(verdict)).collect(),
            retry_after: verdict.retry_after(),
            policies: violated_policies(verdict).map(|name| quoted(&name)).collect(),
        }
    }

    pub(super) fn no_rule() -> Self {
        Self::new(RejectionKind::NoRule, "no rule matches")
    }

    pub(super) fn no_answer() -> Self {
        let retry_after = Some(RETRY_AFTER_NO_ANSWER);
        Self { retry_after, ..Self::new(RejectionKind::NoAnswer, "rate limiter unavailable") }
    }

    pub(super) fn expired() -> Self {
        Self::new(RejectionKind::Expired, "deadline exceeded")
    }

    pub(super) fn invalid(error: &dyn std::error::Error) -> Self {
        Self::new(RejectionKind::Invalid, error.to_string())
    }

    pub(super) fn no_header(name: &str) -> Self {
        Self::new(
            RejectionKind::Invalid,
            format!("header {name} must be present, in visible ASCII"),
        )
    }

    pub(super) fn no_peer() -> Self {
        Self::new(RejectionKind::Internal, "internal error")
    }

    fn new(kind: RejectionKind, detail: impl Into<String>) -> Self {
        let (headers, policies) = (Vec::new(), Vec::new());
        Self { kind, detail: detail.into(), headers, retry_after: None, policies }
    }

    /// Returns the problem document. No text in it needs escaping: details are fixed texts, and
    /// header names contain neither quotes nor backslashes.
    fn document(&self) -> String {
        let (status, _) = self.kind.codes();
        let (r#type, title) = match self.kind {
            RejectionKind::Limited => (problem::TYPE, problem::TITLE),
            _ => ("about:blank", status.canonical_reason().unwrap_or_default()),
        };
        let member = match self.kind {
            RejectionKind::Limited => {
                format!(r#","violated-policies":[{}]"#, self.policies.join(","))
            }
            RejectionKind::NoRule => r#","reason":"NO_RULE""#.to_owned(),
            _ => String::new(),
        };
        let (status, detail) = (status.as_u16(), &self.detail);
        format!(
            r#"{{"type":"{type}","title":"{title}","status":{status},"detail":"{detail}"{member}}}"#
        )
    }
}

impl<B: From<String>> Protocol<B> for Http {
    /// HTTP has no header for a deadline.
    fn deadline(_: &HeaderMap) -> Deadline {
        Deadline::NEVER
    }

    fn response(rejection: &Rejection) -> Response<B> {
        let mut response = Response::new(B::from(rejection.document()));
        *response.status_mut() = rejection.kind.codes().0;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        add(headers, &rejection.headers);
        if let (RejectionKind::NoAnswer, Some(wait)) = (rejection.kind, rejection.retry_after) {
            headers.insert(RETRY_AFTER, wait.as_secs_ceil().into());
        }
        response
    }
}

impl<B: Default> Protocol<B> for Grpc {
    fn deadline(headers: &HeaderMap) -> Deadline {
        let header = headers.get("grpc-timeout").and_then(|value| value.to_str().ok());
        header.map_or(Deadline::NEVER, grpc_timeout::deadline)
    }

    fn response(rejection: &Rejection) -> Response<B> {
        let mut response = Response::new(B::default());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let code = rejection.kind.codes().1;
        let message = match rejection.kind {
            RejectionKind::Limited => format!("rate limit exceeded: {}", rejection.detail),
            _ => rejection.detail.clone(),
        };
        let status =
            [("grpc-status", code.to_string()), ("grpc-message", message.replace('%', "%25"))];
        add(headers, &status);
        if let Some(wait) = rejection.retry_after {
            let details = with_retry_info(code, &message, wait);
            add(headers, &[("grpc-status-details-bin", details)]);
        }
        add(headers, &rejection.headers);
        response
    }
}

/// Adds headers to a response. Lists of policies are appended to, numbers are replaced.
pub(super) fn add(map: &mut HeaderMap, headers: &[Header]) {
    for (name, value) in headers {
        let Ok(value) = HeaderValue::from_str(value) else { continue };
        let header = HeaderName::from_static(name);
        match *name {
            "ratelimit-policy" | "ratelimit" => drop(map.append(header, value)),
            _ => drop(map.insert(header, value)),
        }
    }
}

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// Returns a status with a retry delay, in base64 without padding.
fn with_retry_info(code: u8, message: &str, retry_after: Micros) -> String {
    let micros = retry_after.as_micros();
    let mut duration = Vec::new();
    integer(&mut duration, 1, micros / 1_000_000);
    integer(&mut duration, 2, micros % 1_000_000 * 1_000);
    let mut retry_info = Vec::new();
    bytes(&mut retry_info, 1, &duration);
    let mut any = Vec::new();
    bytes(&mut any, 1, RETRY_INFO.as_bytes());
    bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    integer(&mut status, 1, code.into());
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    base64(&status)
}

fn integer(message: &mut Vec<u8>, field: u8, number: u64) {
    message.push(field << 3);
    varint(message, number);
}

fn bytes(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        message.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    message.push(number.to_le_bytes()[0]);
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = move |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        (0..=chunk.len()).map(digit).collect::<Vec<char>>()
    };
    bytes.chunks(3).flat_map(digits).collect()
}
