//! Signing in and out.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rlaas_auth::{AuthError, Caller, ClientCertificate, ClientNetwork, Credential, TokenError};
use rlaas_console::{FormFields, HOME, SignInPage, moved_to, page_of};
use tracing::info;

use super::form::{Form, OwnForm};
use super::refusal::VisitError;
use super::{Context, cookies, origin_of};

/// Shows the form.
pub(super) async fn show(State(context): State<Context>, request: Request) -> Response {
    let (parts, _body) = request.into_parts();
    let request = Request::from_parts(parts, ());
    if !context.auth.requires_sign_in() {
        return match context.visitor(&request) {
            Ok(_visitor) => moved_to(HOME),
            Err(refusal) => refusal.respond(&context, &request).await,
        };
    }
    let query = request.uri().query().unwrap_or_default();
    let fields = FormFields::parse(query.as_bytes()).unwrap_or_default();
    let is_set = |name| fields.one(name).is_ok_and(|value| !value.is_empty());
    let problem = match (is_set("ended"), is_set("unsent")) {
        (_, true) => Some("Your session has ended. Nothing was changed.".to_owned()),
        (true, false) => Some("Your session has ended.".to_owned()),
        (false, false) => None,
    };
    let next = fields.one("next").unwrap_or_default();
    let page = SignInPage { problem, ..page(&context, &request, next) };
    respond(&context, StatusCode::OK, page).await
}

/// Opens a session for a visitor with a valid credential. A wrong token is answered later.
pub(super) async fn sign_in(State(context): State<Context>, form: OwnForm) -> Response {
    if !context.auth.requires_sign_in() {
        return moved_to(HOME);
    }
    let token = form.fields.one("token").unwrap_or_default().trim();
    let shown = if let Ok("certificate") = form.fields.one("by") {
        context.auth.sign_in_with_certificate(&form.request)
    } else {
        let shown = context.auth.sign_in_with_token(&form.request, token.as_bytes()).await;
        if shown.as_ref().is_err_and(|error| is_wrong(*error)) {
            let network = form.request.extensions().get().copied();
            let ClientNetwork(address) = network.unwrap_or(ClientNetwork(None));
            context.sessions.wrong_tokens().answer_later(address).await;
        }
        shown
    };
    let next = form.fields.one("next").unwrap_or_default();
    match shown {
        Ok((caller, credential)) => open(&context, &form.request, caller, credential, next).await,
        Err(error) => {
            let page = page(&context, &form.request, next);
            let page = SignInPage { problem: Some(problem(error)), ..page };
            respond(&context, status(error), page).await
        }
    }
}

/// Ends the session.
pub(super) async fn sign_out(State(context): State<Context>, form: Form) -> Response {
    let headers = form.request.headers();
    for id in cookies::session_ids(headers) {
        context.sessions.end(id);
    }
    let cookie = cookies::remove(headers, origin_of(&form.request));
    with_cookie(moved_to("sign-in"), cookie)
}

/// Opens a session, and leads to a page.
pub(super) async fn open(
    context: &Context,
    request: &Request<()>,
    caller: Caller,
    credential: Credential,
    next: &str,
) -> Response {
    // A session that somebody else knows must not become that of this visitor.
    for id in cookies::session_ids(request.headers()) {
        context.sessions.end(id);
    }
    let Ok(id) = context.sessions.open(caller.actor(), credential) else {
        return VisitError::Outdated.respond(context, request).await;
    };
    info!(actor = caller.actor(), "signed in to the console");
    let cookie = cookies::set(&id, request.headers(), origin_of(request));
    with_cookie(moved_to(page_of(next)), cookie)
}

fn with_cookie(response: Response, cookie: HeaderValue) -> Response {
    ([(header::SET_COOKIE, cookie)], response).into_response()
}

/// Returns the page with the form, for a sign-in that leads to `next`.
pub(super) fn page(context: &Context, request: &Request<()>, next: &str) -> SignInPage {
    SignInPage {
        cluster: context.cluster.clone(),
        next: next.to_owned(),
        has_certificate: has_certificate(request),
        issuer: context.auth.code_flow().map(|flow| flow.issuer().to_owned()),
        problem: None,
    }
}

/// Responds with the form, which may say why nobody is signed in.
pub(super) async fn respond(context: &Context, status: StatusCode, page: SignInPage) -> Response {
    context.console.page(status, move || page.render()).await
}

/// Returns `true` if a token is not known, unlike one without the role, or while nothing is known of it.
const fn is_wrong(error: AuthError) -> bool {
    match error {
        AuthError::Unauthenticated => true,
        AuthError::Token(error) => !matches!(error, TokenError::KeysUnavailable),
        _ => false,
    }
}

pub(super) fn status(error: AuthError) -> StatusCode {
    match error {
        AuthError::Forbidden(_) => StatusCode::FORBIDDEN,
        AuthError::Token(TokenError::KeysUnavailable) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::UNAUTHORIZED,
    }
}

pub(super) fn problem(error: AuthError) -> String {
    match error {
        AuthError::Unauthenticated => "The token or the certificate is not known.".to_owned(),
        AuthError::Forbidden(roles) => format!("The role {roles} is required."),
        other => format!("Not signed in: {other}."),
    }
}

fn has_certificate(request: &Request<()>) -> bool {
    let certificate = request.extensions().get();
    matches!(certificate, Some(ClientCertificate::Verified(names)) if !names.is_empty())
}
