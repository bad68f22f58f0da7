//! Styles, scripts and the icon: embedded, and named by their content, so that browsers keep them for
//! ever.

use std::fmt::Write as _;
use std::io::Read;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::read::GzEncoder;
use ring::digest::{SHA256, digest};

use super::{Console, internal_error};

/// Digits of a hash in a name.
const HASH_DIGITS: usize = 16;
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// A file of the console.
#[derive(Debug)]
pub(super) struct Asset {
    content: Bytes,
    /// The content as gzip.
    compressed: Bytes,
    content_type: &'static str,
    /// Path below the folder of the pages.
    path: String,
}

/// The style sheet of every page.
pub(super) static STYLES: LazyLock<Asset> = LazyLock::new(|| {
    let styles = [
        include_str!("../assets/console.css"),
        include_str!("../assets/now.css"),
        include_str!("../assets/projects.css"),
        include_str!("../assets/key.css"),
        include_str!("../assets/charts/uplot/uPlot.min.css"),
        "\n",
        include_str!("../assets/charts/chart.css"),
    ];
    Asset::new("console.css", "text/css; charset=utf-8", styles.concat())
});
/// The script of every page.
pub(super) static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::script("console.js", include_str!("../assets/console.js")));
/// The script of pages that keep themselves up to date.
pub(super) static LIVE: LazyLock<Asset> =
    LazyLock::new(|| Asset::script("live.js", include_str!("../assets/live.js")));
/// The script that draws charts, and its library.
pub(super) static CHART: LazyLock<Asset> = LazyLock::new(|| {
    let library = include_str!("../assets/charts/uplot/uPlot.iife.min.js");
    Asset::script("chart.js", [library, include_str!("../assets/charts/chart.js")].concat())
});
/// The script that checks rules while they are typed.
pub(super) static CHANGE: LazyLock<Asset> =
    LazyLock::new(|| Asset::script("change.js", include_str!("../assets/change.js")));
/// The script that finds rules while their name is typed.
pub(super) static RULES: LazyLock<Asset> =
    LazyLock::new(|| Asset::script("rules.js", include_str!("../assets/rules.js")));
/// The icon.
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")));

impl Asset {
    fn script(name: &str, content: impl Into<Bytes>) -> Self {
        Self::new(name, "text/javascript; charset=utf-8", content)
    }

    fn new(name: &str, content_type: &'static str, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let hash = digest(&SHA256, &content);
        let mut digits = String::new();
        for byte in &hash.as_ref()[..HASH_DIGITS / 2] {
            let _infallible = write!(digits, "{byte:02x}");
        }
        let (stem, extension) = name.split_once('.').expect("a name with an extension");
        let path = format!("assets/{stem}-{digits}.{extension}");
        let mut compressed = Vec::new();
        let encoded =
            GzEncoder::new(&content[..], Compression::best()).read_to_end(&mut compressed);
        encoded.expect("memory can be read");
        Self { content, compressed: compressed.into(), content_type, path }
    }

    /// Returns the path, relative to that of a page.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// Responds with a file, compressed for those that accept it. The first request compresses all files,
/// off the threads that decide.
pub(super) async fn respond(
    State(console): State<Console>,
    Path(name): Path<String>,
    request: HeaderMap,
) -> Response {
    let found = console.blocking(move || {
        let all = [&*STYLES, &*SCRIPT, &*LIVE, &*CHART, &*CHANGE, &*RULES, &*ICON];
        all.into_iter().find(|asset| asset.path.strip_prefix("assets/") == Some(&*name))
    });
    let Some(asset) = found.await else { return internal_error() };
    let Some(asset) = asset else { return StatusCode::NOT_FOUND.into_response() };
    let content_type = HeaderValue::from_static(asset.content_type);
    let vary = HeaderValue::from_static("accept-encoding");
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, FOR_EVER),
        (header::VARY, vary),
    ];
    let accepted = request.get_all(header::ACCEPT_ENCODING);
    if accepted.iter().any(|accepted| accepted.to_str().is_ok_and(takes_gzip)) {
        let encoding = [(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
        return (headers, encoding, asset.compressed.clone()).into_response();
    }
    (headers, asset.content.clone()).into_response()
}

/// Returns `true` for a header `accept-encoding` that names gzip, unless it rules it out.
fn takes_gzip(accepted: &str) -> bool {
    let mut codings = accepted
        .split(',')
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
        for accepted in ["gzip", "br;q=1, GZIP ; q=0.5", "deflate,gzip"] {
            assert!(takes_gzip(accepted), "{accepted}");
        }
        for accepted in ["", "br", "gzip;q=0", "xgzip", "*", "gzip;q=x"] {
            assert!(!takes_gzip(accepted), "{accepted}");
        }
        assert!(CHART.compressed.len() * 2 < CHART.content.len());
    }
}
