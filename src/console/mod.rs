//! The console: pages for people who want to see who is limited, why, and to change it.
//!
//! | path | page |
//! | --- | --- |
//! | `/console/now` | what is asked and refused, live |
//! | `/console/now-events` | tells the page that there is something new |
//! | `/console/instances` | the instances of the fleet |
//! | `/console/rules` | the rules in force |
//! | `/console/rule` | one rule: its decisions, the keys that it hits, its mode |
//! | `/console/key` | what one id has used, and changes of it |
//! | `/console/audit` | who changed what, when and why |
//! | `/console/projects` | the projects, and a new one |
//! | `/console/project`, `/console/project-…` | one project, and its changes |
//! | `/console/usage.csv` | the usage of a project by day, as a file |
//! | `/console/change`, `/console/change-…` | the rules of a project as a text: edit, check, publish |
//! | `/console/history`, `/console/roll-back` | revisions of the rules of a project |
//! | `/console/sign-in`, `/console/sign-out` | sessions of visitors |
//! | `/console/oidc-sign-in`, `/console/oidc-callback` | the way to the issuer, and back |
//! | `/console/assets/…` | styles, scripts and the icon |
//!
//! Pages are made here and work without scripts. They call the operations of [`crate::api::admin`] that gRPC
//! and HTTP call too, and know nothing of messages on the wire. All pages are in one folder, and their
//! links are relative, so that a proxy may serve them below any path without telling it.
//!
//! A visitor is admitted for each request (`visitor`); what a page changes needs a form of that page
//! (`action`).

mod action;
mod assets;
mod calls;
mod change_form;
mod chart;
mod cookies;
mod decisions;
mod fields;
mod layout;
mod live;
mod oidc_sign_in;
mod outcome;
mod page_error;
mod pages;
mod request_fields;
mod rule_diff;
mod rule_words;
mod rules_text;
mod seal;
mod sessions;
mod sign_in;
mod streams;
mod table;
mod text;
mod used_sign_ins;
mod visit_error;
mod visitor;

pub use rules_text::{FieldHelp, RulesFormat, RulesReading};
pub use sessions::Sessions;
pub use streams::OpenStreams;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::Markup;
use tokio::runtime::Handle;

use crate::api::admin::Administrator;
use crate::api::auth::{Auth, PeerLocality, RequestKind};

/// Longest body of a form, in bytes. A selector and a reason fit, even with every byte escaped.
const MAX_FORM_BYTES: usize = 64 * 1024;
/// Longest body of a form with the rules of a project, in bytes: as long as a request over gRPC.
const MAX_RULES_BYTES: usize = 4 * 1024 * 1024;

/// The services that the pages use. Each worker has its own.
#[derive(Debug)]
pub struct ConsoleContext {
    /// Operations on keys.
    pub administrator: Administrator,
    /// The services, which pages call in this process.
    pub services: Router,
    /// Admits visitors.
    pub auth: Arc<Auth>,
    /// The sessions of the instance.
    pub sessions: Arc<Sessions>,
    /// The streams that visitors have open.
    pub streams: OpenStreams,
    /// Rules files, as pages show and read them.
    pub rules_format: RulesFormat,
    /// Runtime for rendering, as blocking tasks.
    pub background: Handle,
    /// Runtime for connections to an issuer, and for work that several visitors wait for.
    pub outbound: Handle,
}

/// Where a request comes from. Extension of every request to the console.
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin {
    /// Whether it arrived over TLS.
    pub kind: RequestKind,
    /// Place that its connection comes from.
    pub peer: PeerLocality,
}

/// The pages, as handlers have them.
type Console = Arc<ConsoleContext>;

/// Returns the routes of the console.
pub fn router(context: ConsoleContext) -> Router {
    Router::new()
        .route("/", get(|| async { moved_to("console/") }))
        .route("/console", get(|| async { moved_to("console/") }))
        .route("/console/", get(|| async { moved_to(pages::HOME) }))
        .route("/console/now", get(pages::now::show))
        .route("/console/now-events", get(live::events))
        .route("/console/instances", get(pages::instances::show))
        .route("/console/rules", get(pages::rules::show))
        .route("/console/rule", get(pages::rule::show).post(pages::rule::set_mode))
        .route("/console/key", get(pages::key::show).post(pages::key::change))
        .route("/console/audit", get(pages::audit::show))
        .route("/console/projects", get(pages::projects::show).post(pages::projects::create))
        .route("/console/project", get(pages::project::show))
        .route("/console/project-update", post(pages::project::update))
        .route("/console/project-delete", post(pages::project::delete))
        .route("/console/project-key-create", post(pages::project::create_key))
        .route("/console/project-key-rotate", post(pages::project::rotate_key))
        .route("/console/project-key-revoke", post(pages::project::revoke_key))
        .route("/console/usage.csv", get(pages::project::download))
        .route("/console/change", get(pages::change::show))
        .route("/console/change-check", post(pages::change::check))
        .route("/console/change-publish", post(pages::change::publish))
        .route("/console/history", get(pages::history::show))
        .route("/console/roll-back", post(pages::history::roll_back))
        .route("/console/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/console/sign-out", post(sign_in::sign_out))
        .route("/console/oidc-sign-in", get(oidc_sign_in::begin))
        .route("/console/oidc-callback", get(oidc_sign_in::end))
        .route("/console/assets/{name}", get(assets::respond))
        .fallback(|| async { (StatusCode::NOT_FOUND, "unknown page: see /console") })
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(map_response(secured))
        .with_state(Arc::new(context))
}

/// Returns the response to a request whose handler panicked.
pub fn internal_error() -> Response {
    let text = (StatusCode::INTERNAL_SERVER_ERROR, "internal error");
    with_security_headers(text.into_response())
}

impl ConsoleContext {
    /// Responds with a page, which is rendered on the background thread: no decision waits for it.
    async fn page(
        &self,
        status: StatusCode,
        render: impl FnOnce() -> Markup + Send + 'static,
    ) -> Response {
        let rendered = self.background.spawn_blocking(move || render().into_string()).await;
        let Ok(html) = rendered else { return internal_error() };
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        (status, [(header::CONTENT_TYPE, content_type)], html).into_response()
    }
}

/// Redirects to a page of the same folder.
fn moved_to(page: &str) -> Response {
    match HeaderValue::try_from(page) {
        Ok(location) => (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response(),
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}

async fn secured(response: Response) -> Response {
    with_security_headers(response)
}

/// Adds the headers that keep other pages, and scripts from elsewhere, out.
///
/// **Source:** Content Security Policy Level 3; Fetch Standard, "X-Content-Type-Options header".
fn with_security_headers(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, &str); 7] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
             object-src 'none'; require-trusted-types-for 'script'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer` forms would be sent with `Origin: null`.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (
            HeaderName::from_static("permissions-policy"),
            "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        ),
    ];
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Files say it themselves; what a page shows is for its visitor and for now.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Returns where a request comes from; without the extension nothing is known of it.
fn origin_of(request: &Request<()>) -> RequestOrigin {
    let remote = RequestOrigin { kind: RequestKind::Http, peer: PeerLocality::Remote };
    request.extensions().get().copied().unwrap_or(remote)
}
