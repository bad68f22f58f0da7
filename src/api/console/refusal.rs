//! Requests that are refused before a page sees them.

use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use rlaas_auth::{AuthError, TokenError};
use rlaas_console::{Link, moved_to, notice, sentence};

use super::ConsoleContext;

/// The reason why a request is refused.
#[derive(Debug)]
pub(super) enum VisitError {
    /// The visitor must sign in.
    SignIn {
        /// Whether the browser showed a session, which has ended.
        had_session: bool,
    },
    /// The visitor may not see the page, or the form is of another page.
    Auth(AuthError),
    /// The form is of an older page: of another session, or of another instance.
    Outdated,
    /// The body is no form.
    Form,
}

impl From<AuthError> for VisitError {
    fn from(error: AuthError) -> Self {
        Self::Auth(error)
    }
}

impl VisitError {
    /// Returns the response: a page, or a redirect to the page for signing in.
    pub(super) async fn respond(self, context: &ConsoleContext, request: &Request<()>) -> Response {
        let (status, title, detail) = match self {
            Self::SignIn { had_session } => return to_sign_in(request, had_session),
            Self::Auth(AuthError::Token(TokenError::KeysUnavailable)) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Not available",
                "The keys of the issuer are not available. Try again.".to_owned(),
            ),
            Self::Auth(AuthError::Forbidden(required)) => (
                StatusCode::FORBIDDEN,
                "Not permitted",
                format!("The role {required} is required."),
            ),
            Self::Auth(error) => {
                (StatusCode::FORBIDDEN, "Not permitted", sentence(&error.to_string()))
            }
            Self::Outdated => (
                StatusCode::FORBIDDEN,
                "Nothing was changed",
                "The form is of an older page. Go back, load the page again, and repeat what you \
                 did."
                    .to_owned(),
            ),
            Self::Form => (
                StatusCode::BAD_REQUEST,
                "Nothing was changed",
                "The form can't be read: it must be at most 64 KiB of UTF-8, and 4 MiB if it has \
                 the rules of a project."
                    .to_owned(),
            ),
        };
        context.console.page(status, move || notice(title, &detail)).await
    }
}

/// Redirects to the page for signing in, which leads back to the page that was to be seen, or to that of
/// the form that was sent, unless it was itself the response to a form.
fn to_sign_in(request: &Request<()>, had_session: bool) -> Response {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let target = request.uri().path_and_query().map(PathAndQuery::as_str);
    let sender = request.headers().get(header::REFERER).map(HeaderValue::to_str);
    let page = if is_read { target } else { sender.and_then(Result::ok) };
    let next = page.and_then(|page| page.split_once("/console/")).map_or("", |(_, next)| next);
    let link =
        Link::to("sign-in").with("next", next).with("unsent", if is_read { "" } else { "1" });
    moved_to(link.with("ended", if had_session { "1" } else { "" }).as_str())
}
