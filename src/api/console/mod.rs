//! Visitors of the console: how they sign in, and what each of their requests may see and do.
//!
//! | path | does |
//! | --- | --- |
//! | `/console/sign-in`, `/console/sign-out` | begins and ends sessions |
//! | `/console/oidc-sign-in`, `/console/oidc-callback` | the way to the issuer, and back |
//!
//! All other paths are those of `rlaas_console`, whose pages know neither credentials nor roles. For each
//! of their requests the visitor is admitted anew (`visit`); a form must be one of a page that was made
//! for its visitor (`form`).

mod cookies;
mod form;
mod oidc_sign_in;
mod refusal;
mod seal;
mod sessions;
mod sign_in;
mod visit;
mod wrong_tokens;

pub use sessions::Sessions;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{get, post};
use rlaas_auth::{Auth, PeerLocality, RequestKind, RequestOrigin};
use rlaas_console::{Console, with_security_headers};
use tokio::runtime::Handle;

use self::form::Form;
use rlaas_admin::Administrator;

/// What admits visitors. Each worker has its own.
#[derive(Debug)]
pub struct ConsoleContext {
    /// The limiter, whose store pages name, and the instances.
    pub administrator: Administrator,
    /// Name of the cluster for people; empty: none.
    pub cluster: String,
    /// The services, which pages call in this process.
    pub services: Router,
    /// Admits visitors.
    pub auth: Arc<Auth>,
    /// The sessions of the instance.
    pub sessions: Arc<Sessions>,
    /// The pages.
    pub console: Console,
    /// Runtime for connections to an issuer, and for work that several visitors wait for.
    pub outbound: Handle,
}

/// The context, as handlers have it.
type Context = Arc<ConsoleContext>;

/// Returns the routes of the console.
pub fn router(context: ConsoleContext) -> Router {
    let context = Arc::new(context);
    let console = context.console.clone();
    Router::new()
        .route("/console/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/console/sign-out", post(sign_in::sign_out))
        .route("/console/oidc-sign-in", get(oidc_sign_in::begin))
        .route("/console/oidc-callback", get(oidc_sign_in::end))
        .with_state(Arc::clone(&context))
        .merge(console.pages().route_layer(from_fn_with_state(context, admit)))
        .merge(console.public_routes())
        .fallback(|| async { (StatusCode::NOT_FOUND, "unknown page: see /console") })
        .layer(map_response(async |response: Response| with_security_headers(response)))
}

/// Admits the visitor of a page, and checks the form that they send.
async fn admit(State(context): State<Context>, mut request: Request, next: Next) -> Response {
    if request.method() == Method::POST {
        return match Form::read(request, &context).await {
            Ok(form) => next.run(form.into_request()).await,
            Err(refusal) => refusal,
        };
    }
    let head = head_of(&request);
    match context.visitor(&head) {
        Ok(visitor) => {
            request.extensions_mut().insert(visitor);
            next.run(request).await
        }
        Err(refusal) => refusal.respond(&context, &head).await,
    }
}

/// Returns a request without its body.
fn head_of(request: &Request) -> Request<()> {
    let mut head = Request::new(());
    head.method_mut().clone_from(request.method());
    head.uri_mut().clone_from(request.uri());
    head.headers_mut().clone_from(request.headers());
    head.extensions_mut().clone_from(request.extensions());
    head
}

/// Returns where a request comes from; without the extension nothing is known of it.
fn origin_of(request: &Request<()>) -> RequestOrigin {
    let remote = RequestOrigin { kind: RequestKind::Http, peer: PeerLocality::Remote };
    request.extensions().get().copied().unwrap_or(remote)
}
