//! Styles, scripts and the icon: embedded, and named by their content, so that browsers keep them for
//! ever.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use ring::digest::{SHA256, digest};

use super::compression::{GZIP, gzip, takes_gzip};
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
        let compressed = gzip(&content, Compression::best()).into();
        Self { content, compressed, content_type, path }
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
    if takes_gzip(&request) {
        let encoding = [(header::CONTENT_ENCODING, GZIP)];
        return (headers, encoding, asset.compressed.clone()).into_response();
    }
    (headers, asset.content.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_less_than_half_as_long_in_gzip() {
        assert!(CHART.compressed.len() * 2 < CHART.content.len());
    }
}
