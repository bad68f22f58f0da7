//! The rate limit headers of a verdict, over HTTP and in the metadata of gRPC.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use rlaas_limiter::Verdict;
use rlaas_limiter::headers::{LimitHeaders, retry_after};
use tonic::{Extensions, Response};

/// The headers of a verdict: an extension of responses to requests that have [`LimitHeaders`] as one.
#[derive(Clone, Debug)]
pub(super) struct VerdictHeaders(pub(super) HeaderMap);

impl VerdictHeaders {
    /// Returns the rate limit headers, and `retry-after` if waiting helps.
    pub(super) fn new(headers: LimitHeaders, verdict: &Verdict) -> Self {
        let all = headers.for_verdict(verdict).into_iter().chain(retry_after(verdict));
        let header = |(name, value)| {
            let value = HeaderValue::try_from(value).expect("names are encoded, numbers are ASCII");
            (HeaderName::from_static(name), value)
        };
        Self(all.map(header).collect())
    }

    /// Returns the response to a request with these extensions.
    pub(super) fn add<T>(extensions: &Extensions, verdict: &Verdict, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if let Some(headers) = extensions.get::<LimitHeaders>() {
            response.extensions_mut().insert(Self::new(*headers, verdict));
        }
        response
    }
}
