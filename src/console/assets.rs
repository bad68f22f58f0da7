//! Styles, scripts and the icon: embedded, and named by their content, so that browsers keep them for
//! ever.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ring::digest::{SHA256, digest};
use rlaas_simulation::chart;

/// Digits of a hash in a name.
const HASH_DIGITS: usize = 16;
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// A file of the console.
#[derive(Debug)]
pub(super) struct Asset {
    content: Bytes,
    content_type: &'static str,
    /// Path below the folder of the pages.
    path: String,
}

/// The style sheet of every page.
pub(super) static STYLES: LazyLock<Asset> = LazyLock::new(|| {
    let styles = [
        include_str!("assets/console.css"),
        include_str!("assets/now.css"),
        include_str!("assets/projects.css"),
        include_str!("assets/key.css"),
        chart::STYLES,
    ];
    Asset::new("console.css", "text/css; charset=utf-8", styles.concat())
});
/// The script of every page.
pub(super) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console.js", "text/javascript; charset=utf-8", include_str!("assets/console.js"))
});
/// The script of pages that keep themselves up to date.
pub(super) static LIVE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("live.js", "text/javascript; charset=utf-8", include_str!("assets/live.js"))
});
/// The script that draws charts, and its library.
pub(super) static CHART: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("chart.js", "text/javascript; charset=utf-8", chart::SCRIPT));
/// The script that checks rules while they are typed.
pub(super) static CHANGE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("change.js", "text/javascript; charset=utf-8", include_str!("assets/change.js"))
});
/// The icon.
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")));

impl Asset {
    fn new(name: &str, content_type: &'static str, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let hash = digest(&SHA256, &content);
        let mut digits = String::new();
        for byte in &hash.as_ref()[..HASH_DIGITS / 2] {
            let _infallible = write!(digits, "{byte:02x}");
        }
        let (stem, extension) = name.split_once('.').expect("a name with an extension");
        Self { content, content_type, path: format!("assets/{stem}-{digits}.{extension}") }
    }

    /// Returns the path, relative to that of a page.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// Responds with a file.
pub(super) async fn respond(Path(name): Path<String>) -> Response {
    let all = [&*STYLES, &*SCRIPT, &*LIVE, &*CHART, &*CHANGE, &*ICON];
    let asset = all.into_iter().find(|asset| asset.path.strip_prefix("assets/") == Some(&*name));
    let Some(asset) = asset else { return StatusCode::NOT_FOUND.into_response() };
    let content_type = HeaderValue::from_static(asset.content_type);
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, FOR_EVER)];
    (headers, asset.content.clone()).into_response()
}
