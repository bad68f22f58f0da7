//! The console: pages for people who want to see who is limited, why, and to change it.
//!
//! | path | page |
//! | --- | --- |
//! | `/console/now` | what is asked and refused, live |
//! | `/console/now-events` | tells the page that there is something new |
//! | `/console/instances` | the instances of the fleet |
//! | `/console/rules` | the rules in force |
//! | `/console/rule` | one rule: its decisions, the keys that it hits, its mode |
//! | `/console/key` | what refuses one id, what it has used, and changes of it |
//! | `/console/search` | leads to what has a name: an id, a rule, a project, an API key |
//! | `/console/exceptions` | bans and other limits of keys |
//! | `/console/audit` | who changed what, when and why |
//! | `/console/projects` | the projects, and a new one |
//! | `/console/project`, `/console/project-…` | one project, and its changes |
//! | `/console/use.csv` | what keys have used of the current window of a rule, as a file |
//! | `/console/usage.csv` | the usage of a project by day, as a file |
//! | `/console/change`, `/console/change-…` | the rules of a project as a text: edit, check, publish |
//! | `/console/history`, `/console/roll-back` | revisions of the rules of a project |
//! | `/console/assets/…` | styles, scripts and the icon |
//!
//! Pages are made here and work without scripts. They call the service by generated clients, in
//! process, and show its messages: this crate knows no store, no limiter, and not who may see what. All
//! pages are in one folder, and their links are relative, so that a proxy may serve them below any path
//! without telling it.
//!
//! The service admits visitors and checks their forms. It puts a [`Visitor`] into the extensions of each
//! request, and the [`FormFields`] of a form; a page without a visitor is refused.

mod action_words;
mod assets;
mod calls;
mod changes;
mod chart;
mod compression;
mod decisions;
mod fields;
mod form;
mod key_states;
mod layout;
mod live;
mod page_error;
mod pages;
mod request_fields;
mod rule_diff;
mod rule_words;
mod rules_text;
mod table;
mod text;
mod visit;

pub use calls::{CallProject, Services};
pub use fields::{FieldError, FormFields, Link};
pub use layout::{SECRET_FIELD, SignInPage, notice};
pub use live::is_watching;
pub use page_error::sentence;
pub use pages::{HOME, page_of};
pub use rules_text::{FieldHelp, RulesFormat, RulesReading};
pub use visit::{EndOfVisit, FormSecret, RoleScope, StoreInfo, VisitHost, Visitor};

use axum::Router;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::Markup;
use tokio::runtime::Handle;

use self::live::OpenStreams;

/// Paths of forms with the rules of a project, which may be long.
pub const LONG_FORMS: [&str; 2] = ["/console/change-check", "/console/change-publish"];

/// What the pages of all workers share.
#[derive(Clone, Debug)]
pub struct Console {
    /// Runtime for rendering, as blocking tasks.
    background: Handle,
    /// Rules files, as pages show and read them.
    rules_format: RulesFormat,
    /// The streams that visitors have open.
    streams: OpenStreams,
}

impl Console {
    /// Creates the console, which renders on a runtime: no decision waits for it.
    pub fn new(background: Handle, rules_format: RulesFormat) -> Self {
        Self { background, rules_format, streams: OpenStreams::default() }
    }

    /// Returns the routes for everybody.
    pub fn public_routes(&self) -> Router {
        Router::new()
            .route("/", get(|| async { moved_to("console/") }))
            .route("/console", get(|| async { moved_to("console/") }))
            .route("/console/", get(|| async { moved_to(HOME) }))
            .route("/console/assets/{name}", get(assets::respond))
            .with_state(self.clone())
    }

    /// Returns the routes for visitors.
    pub fn pages(&self) -> Router {
        Router::new()
            .route("/console/now", get(pages::now::show))
            .route("/console/now-events", get(live::events))
            .route("/console/instances", get(pages::instances::show))
            .route("/console/rules", get(pages::rules::show))
            .route("/console/rule", get(pages::rule::show).post(pages::rule::set_mode))
            .route("/console/use.csv", get(pages::rule::download))
            .route("/console/rule-update", post(pages::rule::update))
            .route("/console/key", get(pages::key::show).post(pages::key::change))
            .route("/console/search", post(pages::search::find))
            .route("/console/exceptions", get(pages::exceptions::show).post(pages::exceptions::end))
            .route("/console/audit", get(pages::audit::show))
            .route("/console/projects", get(pages::projects::show).post(pages::projects::create))
            .route("/console/project", get(pages::project::show))
            .route("/console/project-update", post(pages::project::update))
            .route("/console/project-delete", post(pages::project::delete))
            .route("/console/project-key-create", post(pages::project::create_key))
            .route("/console/project-key-update", post(pages::project::update_key))
            .route("/console/project-key-rotate", post(pages::project::rotate_key))
            .route("/console/project-key-revoke", post(pages::project::revoke_key))
            .route("/console/usage.csv", get(pages::project::download))
            .route("/console/change", get(pages::change::show))
            .route("/console/change-check", post(pages::change::check))
            .route("/console/change-publish", post(pages::change::publish))
            .route("/console/history", get(pages::history::show))
            .route("/console/roll-back", post(pages::history::roll_back))
            .layer(from_fn_with_state(self.clone(), compression::compress))
            .with_state(self.clone())
    }

    /// Responds with a page, which is rendered on the background thread: no decision waits for it.
    pub async fn page(
        &self,
        status: StatusCode,
        render: impl FnOnce() -> Markup + Send + 'static,
    ) -> Response {
        let rendered = self.blocking(move || render().into_string()).await;
        let Some(html) = rendered else { return internal_error() };
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        (status, [(header::CONTENT_TYPE, content_type)], html).into_response()
    }

    /// Does long work on the background thread. `None` if it can't: the server stops.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.background.spawn_blocking(work).await.ok()
    }
}

/// Returns the response to a request whose handler panicked.
pub fn internal_error() -> Response {
    let text = (StatusCode::INTERNAL_SERVER_ERROR, "internal error");
    with_security_headers(text.into_response())
}

/// Redirects to a page of the same folder.
pub fn moved_to(page: &str) -> Response {
    match HeaderValue::try_from(page) {
        Ok(location) => (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response(),
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}

/// Adds the headers that keep other pages, and scripts from elsewhere, out.
///
/// **Source:** Content Security Policy Level 3; Fetch Standard, "X-Content-Type-Options header".
pub fn with_security_headers(mut response: Response) -> Response {
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
