//! Signing in and out.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use tracing::info;

use super::action::{Action, OwnForm};
use super::fields::{FormFields, Link};
use super::text::foreign;
use super::visit_error::VisitError;
use super::{Console, cookies, layout, moved_to, origin_of, pages};
use crate::api::auth::{AuthError, Caller, ClientCertificate, Credential, TokenError};

/// Longest path and query that a sign-in leads back to.
const MAX_NEXT: usize = 8 * 1024;

/// The texts of the page, beside its form.
#[derive(Debug, Default)]
pub(super) struct SignInPage {
    /// The page that the sign-in leads to.
    pub(super) next: String,
    pub(super) has_certificate: bool,
    /// The issuer, if visitors can sign in there.
    pub(super) issuer: Option<String>,
    pub(super) problem: Option<String>,
}

/// Shows the form.
pub(super) async fn show(State(console): State<Console>, request: Request) -> Response {
    let (parts, _body) = request.into_parts();
    let request = Request::from_parts(parts, ());
    if !console.auth.requires_sign_in() {
        return match console.visitor(&request) {
            Ok(_visitor) => moved_to(pages::HOME),
            Err(refusal) => refusal.respond(&console, &request).await,
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
    let page = SignInPage { next, has_certificate, issuer: issuer(&console), problem };
    console.page(StatusCode::OK, move || page.render()).await
}

/// Opens a session for a visitor with a valid credential.
pub(super) async fn sign_in(State(console): State<Console>, form: OwnForm) -> Response {
    if !console.auth.requires_sign_in() {
        return moved_to(pages::HOME);
    }
    let token = form.fields.one("token").unwrap_or_default().trim();
    let shown = match form.fields.one("by") {
        Ok("certificate") => console.auth.sign_in_with_certificate(&form.request),
        _ => console.auth.sign_in_with_token(&form.request, token.as_bytes()).await,
    };
    let next = form.fields.one("next").unwrap_or_default();
    match shown {
        Ok(shown) => open(&console, &form.request, shown, next).await,
        Err(error) => {
            let page = SignInPage {
                next: next.to_owned(),
                has_certificate: has_certificate(&form.request),
                issuer: issuer(&console),
                problem: Some(problem(error)),
            };
            error_page(&console, status(error), page).await
        }
    }
}

/// Ends the session.
pub(super) async fn sign_out(State(console): State<Console>, action: Action) -> Response {
    let headers = action.request.headers();
    for id in cookies::session_ids(headers) {
        console.sessions.end(id);
    }
    let cookie = cookies::remove(headers, origin_of(&action.request));
    with_cookie(moved_to("sign-in"), cookie)
}

/// Opens a session, and leads to a page.
pub(super) async fn open(
    console: &Console,
    request: &Request<()>,
    (caller, credential): (Caller, Credential),
    next: &str,
) -> Response {
    // A session that somebody else knows must not become that of this visitor.
    for id in cookies::session_ids(request.headers()) {
        console.sessions.end(id);
    }
    let Ok(id) = console.sessions.open(caller.actor(), credential) else {
        return VisitError::Outdated.respond(console, request).await;
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
    console: &Console,
    status: StatusCode,
    page: SignInPage,
) -> Response {
    console.page(status, move || page.render()).await
}

/// Returns the page that a sign-in leads to: one of the console, or the first.
pub(super) fn page_of(next: &str) -> &str {
    let page = next.split('?').next().unwrap_or_default();
    let is_page = pages::ALL.contains(&page) && next.len() <= MAX_NEXT;
    if is_page && next.bytes().all(|byte| byte.is_ascii_graphic()) { next } else { pages::HOME }
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

fn issuer(console: &Console) -> Option<String> {
    console.auth.code_flow().map(|flow| flow.issuer().to_owned())
}

pub(super) fn has_certificate(request: &Request<()>) -> bool {
    let certificate = request.extensions().get();
    matches!(certificate, Some(ClientCertificate::Verified(names)) if !names.is_empty())
}

impl SignInPage {
    fn render(&self) -> Markup {
        let next = page_of(&self.next);
        layout::bare(
            "Sign in",
            &html! {
                @if let Some(problem) = &self.problem {
                    p.problem role="alert" { (foreign(problem)) }
                }
                @if let Some(issuer) = &self.issuer {
                    div.stack {
                        a.button.primary href=(Link::to("oidc-sign-in").with("next", next)) {
                            "Sign in with " (foreign(issuer))
                        }
                    }
                    p.or { span { "or" } }
                }
                form.stack method="post" action="sign-in" {
                    input type="hidden" name="next" value=(next);
                    label for="token" { "Token" }
                    input #token type="password" name="token" required autocomplete="current-password"
                        spellcheck="false" autofocus[self.issuer.is_none()];
                    p.hint { "A token that " code { "auth.tokens" } " lists, or one of your issuer." }
                    button.primary[self.issuer.is_none()] name="by" value="token" { "Sign in with a token" }
                }
                @if self.has_certificate {
                    form.stack method="post" action="sign-in" {
                        input type="hidden" name="next" value=(next);
                        button name="by" value="certificate" { "Sign in with your certificate" }
                    }
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_pages_of_the_console_only() {
        for next in ["instances", "instances?a=b%20c"] {
            assert_eq!(page_of(next), next);
        }
        for next in [
            "",
            "//evil.example",
            "https://evil.example/",
            "/\\evil.example",
            "instances/../..",
            "instances\r\nSet-Cookie: a=b",
            "instances?\u{202e}",
            "javascript:alert(1)",
            "sign-out",
            &format!("instances?{}", "a".repeat(MAX_NEXT)),
        ] {
            assert_eq!(page_of(next), pages::HOME, "{next}");
        }
    }
}
