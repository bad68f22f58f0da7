//! Signing in and out.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rlaas_auth::{AuthError, Caller, ClientCertificate, Credential, TokenError};
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
    let next = fields.one("next").unwrap_or_default().to_owned();
    let has_certificate = has_certificate(&request);
    let page = SignInPage { next, has_certificate, issuer: issuer(&context), problem };
    context.console.page(StatusCode::OK, move || page.render()).await
}

/// Opens a session for a visitor with a valid credential.
pub(super) async fn sign_in(State(context): State<Context>, form: OwnForm) -> Response {
    if !context.auth.requires_sign_in() {
        return moved_to(HOME);
    }
    let token = form.fields.one("token").unwrap_or_default().trim();
    let shown = match form.fields.one("by") {
        Ok("certificate") => context.auth.sign_in_with_certificate(&form.request),
        _ => context.auth.sign_in_with_token(&form.request, token.as_bytes()).await,
    };
    let next = form.fields.one("next").unwrap_or_default();
    match shown {
        Ok((caller, credential)) => open(&context, &form.request, caller, credential, next).await,
        Err(error) => {
            let page = SignInPage {
                next: next.to_owned(),
                has_certificate: has_certificate(&form.request),
                issuer: issuer(&context),
                problem: Some(problem(error)),
            };
            error_page(&context, status(error), page).await
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

/// Responds with the form, which says why nobody is signed in.
pub(super) async fn error_page(
    context: &Context,
    status: StatusCode,
    page: SignInPage,
) -> Response {
    context.console.page(status, move || page.render()).await
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

fn issuer(context: &Context) -> Option<String> {
    context.auth.code_flow().map(|flow| flow.issuer().to_owned())
}

pub(super) fn has_certificate(request: &Request<()>) -> bool {
    let certificate = request.extensions().get();
    matches!(certificate, Some(ClientCertificate::Verified(names)) if !names.is_empty())
}
