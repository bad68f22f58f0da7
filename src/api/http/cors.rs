//! Cross-origin requests for decisions: pages of the listed origins may read the responses.
//!
//! Only the routes of decisions take part, never those of administration. A browser sends no
//! credentials of its own accord; a page may send a token.
//!
//! **Source:** Fetch Standard, "CORS protocol".

use std::str::FromStr;

use axum::http::uri::Uri;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use thiserror::Error;

/// Paths of decisions.
const PATHS: [&str; 2] = ["/v1/check", "/check"];
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, POST");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type");
/// Headers that a page may read beside those that it always may.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "ratelimit, ratelimit-policy, ratelimit-limit, ratelimit-remaining, ratelimit-reset, retry-after",
);
/// Time in seconds for which a browser may keep the response to a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// An origin of pages: scheme, host, and port unless it is the default of the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOrigin(HeaderValue);

/// The error for a text that is not an origin.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("must be origins such as https://app.example or http://localhost:3000")]
pub struct PageOriginError;

/// The origins whose pages may read decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors(Vec<PageOrigin>);

/// The headers to add to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CorsHeaders {
    /// The origin of the page, if it is listed.
    origin: Option<HeaderValue>,
    is_preflight: bool,
}

impl FromStr for PageOrigin {
    type Err = PageOriginError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The path of a URI without one is a slash, which an origin must not have.
        let uri: Uri = text.parse().map_err(|_| PageOriginError)?;
        let default_port = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err(PageOriginError),
        };
        let authority = uri.authority().ok_or(PageOriginError)?.as_str();
        let is_bare = text.len() == uri.scheme_str().map_or(0, str::len) + 3 + authority.len();
        if !is_bare || authority.contains(['@', '*']) || uri.host().is_none_or(str::is_empty) {
            return Err(PageOriginError);
        }
        let text = text.to_ascii_lowercase();
        let text = text.strip_suffix(&format!(":{default_port}")).unwrap_or(&text);
        text.parse().map(Self).map_err(|_| PageOriginError)
    }
}

impl Cors {
    /// Maximum number of origins.
    pub const MAX: usize = 100;

    /// Allows pages of these origins; `None` if there are none.
    pub fn new(origins: Vec<PageOrigin>) -> Option<Self> {
        (!origins.is_empty()).then_some(Self(origins))
    }

    /// Returns the headers for the response to a request; `None` unless it is for decisions.
    pub(crate) fn headers_for<B>(&self, request: &Request<B>) -> Option<CorsHeaders> {
        if !PATHS.contains(&request.uri().path()) {
            return None;
        }
        let mut origins = request.headers().get_all(header::ORIGIN).iter();
        let origin = origins.next().filter(|_| origins.next().is_none());
        let is_listed = |origin: &&HeaderValue| self.0.iter().any(|listed| listed.0 == **origin);
        let is_preflight = request.method() == Method::OPTIONS
            && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        Some(CorsHeaders { origin: origin.filter(is_listed).cloned(), is_preflight })
    }
}

impl CorsHeaders {
    /// Adds the headers to a response.
    pub(crate) fn add_to(self, headers: &mut HeaderMap) {
        // The response differs by origin, also where the origin is not listed.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        let Some(origin) = self.origin else { return };
        let others: &[(HeaderName, HeaderValue)] = if self.is_preflight {
            &[
                (header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS),
                (header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS),
                (header::ACCESS_CONTROL_MAX_AGE, MAX_AGE),
            ]
        } else {
            &[(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS)]
        };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        for (name, value) in others {
            headers.insert(name, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_scheme_host_and_port() {
        for (text, origin) in [
            ("https://app.example", "https://app.example"),
            ("HTTPS://App.Example:443", "https://app.example"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            let parsed: PageOrigin = text.parse().expect("an origin");
            assert_eq!(parsed.0, origin, "{text}");
        }
        for text in [
            "",
            "*",
            "null",
            "app.example",
            "https://",
            "https://*.example",
            "https://app.example/",
            "https://app.example/x",
            "https://app.example?x",
            "https://a@app.example",
            "ftp://app.example",
            "https://app example",
        ] {
            assert_eq!(text.parse::<PageOrigin>(), Err(PageOriginError), "{text}");
        }
    }
}
