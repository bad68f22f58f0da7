//! Pages in gzip, for browsers that accept it.
//!
//! A page shows texts of others beside the secret of its forms. It has the secret masked anew each time
//! ([`FormSecret::masked`](crate::FormSecret::masked)), so that the length of pages says nothing of it.
//!
//! **Source:** BREACH: reviving the CRIME attack (Gluck, Harris, Prado, 2013), section 3.4, "Masking secrets".

use std::io::Read;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use flate2::Compression;
use flate2::read::GzEncoder;

use super::{Console, internal_error};

/// The value of `content-encoding`.
pub(super) const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// Compresses a page. Streams, files and redirects stay as they are.
pub(super) async fn compress(
    State(console): State<Console>,
    request: Request,
    next: Next,
) -> Response {
    let is_accepted = request.method() != Method::HEAD && takes_gzip(request.headers());
    let response = next.run(request).await;
    let content_type = response.headers().get(header::CONTENT_TYPE);
    if !is_accepted || !content_type.is_some_and(|text| text.as_bytes().starts_with(b"text/html")) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // It is in memory.
    let Ok(body) = to_bytes(body, usize::MAX).await else { return internal_error() };
    let compressed = console.blocking(move || gzip(&body, Compression::fast())).await;
    let Some(compressed) = compressed else { return internal_error() };
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_ENCODING, GZIP);
    head.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(head, Body::from(compressed))
}

/// Returns a content as gzip.
pub(super) fn gzip(content: &[u8], level: Compression) -> Vec<u8> {
    let mut compressed = Vec::new();
    let encoded = GzEncoder::new(content, level).read_to_end(&mut compressed);
    encoded.expect("memory can be read");
    compressed
}

/// Returns `true` if a client names gzip, and does not rule it out.
pub(super) fn takes_gzip(request: &HeaderMap) -> bool {
    let accepted = request.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = accepted
        .filter_map(|accepted| accepted.to_str().ok())
        .flat_map(|accepted| accepted.split(','))
        .map(|coding| coding.trim().split_once(';').unwrap_or((coding.trim(), "")));
    codings.any(|(name, quality)| {
        let quality = quality.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
        name.trim().eq_ignore_ascii_case("gzip") && quality.is_ok_and(|quality| quality > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_those_that_accept_it() {
        let takes = |accepted: &'static str| {
            let accepted = HeaderValue::from_static(accepted);
            takes_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, accepted)]))
        };
        for accepted in ["gzip", "br;q=1, GZIP ; q=0.5", "deflate,gzip"] {
            assert!(takes(accepted), "{accepted}");
        }
        for accepted in ["", "br", "gzip;q=0", "xgzip", "*", "gzip;q=x"] {
            assert!(!takes(accepted), "{accepted}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
