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
        let mut all = HeaderMap::new();
        Self::insert(headers, verdict, &mut all);
        Self(all)
    }

    /// Adds the rate limit headers to others, and `retry-after` if waiting helps.
    pub(super) fn insert(headers: LimitHeaders, verdict: &Verdict, all: &mut HeaderMap) {
        for (name, value) in headers.for_verdict(verdict).into_iter().chain(retry_after(verdict)) {
            let value = HeaderValue::try_from(value);
            let mut value = value.expect("names are encoded, numbers are ASCII");
            // HTTP/2 would keep each of these numbers in the table of headers of the connection, and
            // push the headers out of it that stay the same.
            value.set_sensitive(!matches!(name, "ratelimit-policy" | "ratelimit-limit"));
            all.insert(HeaderName::from_static(name), value);
        }
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
