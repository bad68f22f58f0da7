//! The protocols of listeners, and the differences between them.

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response};
use rlaas_auth::{AuthError, Permission, RequestKind};
use rlaas_telemetry::traces::Traces;
use tonic::Status;

use crate::api::http::OverTls;
use crate::api::{self, Interruption, RequestTrace};

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// gRPC over HTTP/2.
    Grpc,
    /// HTTP/1.1; over TLS also HTTP/2, as the client chooses by ALPN.
    Http,
    /// HTTP for browsers: the pages of the console, which admits its visitors itself.
    Console,
    /// HTTP for scrapers: `/metrics` alone.
    Metrics,
}

impl Protocol {
    /// All protocols. What there is for each of them is in this order.
    pub(super) const ALL: [Self; 4] = [Self::Grpc, Self::Http, Self::Console, Self::Metrics];

    /// Returns the value of the label `api` of metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
            Self::Console => "console",
            Self::Metrics => "metrics",
        }
    }

    /// Returns what a request requires of its caller, or `None` if everybody may make it.
    pub(super) fn permission_of(self, method: &Method, path: &str) -> Option<Permission> {
        match self {
            Self::Grpc => api::permission_of(path),
            Self::Http => api::http::permission_of(method, path),
            Self::Console | Self::Metrics => None,
        }
    }

    /// Returns `true` if the body of a request may have an API key.
    pub(super) fn takes_key_in_body(self, method: &Method, path: &str) -> bool {
        self == Self::Http && api::http::takes_key_in_body(method, path)
    }

    /// Returns `true` if the response to a request may last.
    pub(super) fn is_stream(self, path: &str) -> bool {
        match self {
            Self::Grpc => api::is_stream(path),
            Self::Http => api::http::is_stream(path),
            Self::Console | Self::Metrics => false,
        }
    }

    /// Returns the kind of a request, by which the checks of web pages differ.
    pub(super) fn kind_of<B>(self, request: &Request<B>) -> RequestKind {
        match self {
            Self::Grpc => RequestKind::Grpc,
            _ if request.extensions().get::<OverTls>().is_some() => RequestKind::Https,
            Self::Http | Self::Console | Self::Metrics => RequestKind::Http,
        }
    }

    /// Starts the trace of a request if it is sampled. Over HTTP only requests for decisions are
    /// traced, of the console none.
    pub(super) fn trace<B>(self, traces: &Traces, request: &Request<B>) -> Option<RequestTrace> {
        match self {
            Self::Grpc => RequestTrace::start_grpc(traces, request),
            Self::Console | Self::Metrics => None,
            Self::Http => {
                let permission = self.permission_of(request.method(), request.uri().path());
                let scheme = request.extensions().get::<OverTls>().map_or("http", |_| "https");
                matches!(permission, Some(Permission::Decisions | Permission::Descriptors))
                    .then(|| RequestTrace::start_http(traces, scheme, request))
                    .flatten()
            }
        }
    }

    /// Returns the response to a request that its caller may not make.
    pub(super) async fn refuse(self, error: AuthError, request: Request<Body>) -> Response<Body> {
        match self {
            Self::Grpc => match self.permission_of(request.method(), request.uri().path()) {
                Some(permission) if permission.is_administrative() => {
                    api::refused_admin(error).into_http()
                }
                _ => api::refused(error).into_http(),
            },
            Self::Http | Self::Console | Self::Metrics => api::http::refuse(error, request).await,
        }
    }

    /// Corrects the status of a gRPC response to a message that can't be decoded: tonic calls it
    /// an internal error, but it is the caller's.
    pub(super) fn correct_status<B>(self, response: &mut Response<B>) {
        const UNDECODABLE: &[u8] = b"failed%20to%20decode%20Protobuf%20message";
        let headers = response.headers_mut();
        let starts = |text: &HeaderValue| text.as_bytes().starts_with(UNDECODABLE);
        let is_undecodable = self == Self::Grpc
            && headers.get(Status::GRPC_STATUS).is_some_and(|code| code == "13")
            && headers.get(Status::GRPC_MESSAGE).is_some_and(starts);
        if is_undecodable {
            headers.insert(Status::GRPC_STATUS, HeaderValue::from_static("3"));
        }
    }

    /// Returns the response to a request whose handler panicked.
    pub(super) fn internal_error(self) -> Response<Body> {
        match self {
            Self::Grpc => Status::from(Interruption::Panic).into_http(),
            #[cfg(feature = "admin")]
            Self::Console => rlaas_console::internal_error(),
            _ => api::http::internal_error(),
        }
    }
}
