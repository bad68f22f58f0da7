//! The change that a form asks for. The form must come from a page of this server that was made for its
//! visitor.

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use axum::response::Response;

use super::fields::FormFields;
use super::visit_error::VisitError;
use super::visitor::ConsoleVisitor;
use super::{Console, MAX_FORM_BYTES, MAX_RULES_BYTES, origin_of};

/// The content type of forms.
const FORM: &str = "application/x-www-form-urlencoded";
/// The field with the secret.
pub(super) const SECRET_FIELD: &str = "secret";

/// A form that its visitor has sent.
#[derive(Debug)]
pub(super) struct Action {
    pub(super) visitor: ConsoleVisitor,
    pub(super) fields: FormFields,
    pub(super) request: Request<()>,
}

/// A form with the rules of a project, which may be long.
#[derive(Debug)]
pub(super) struct RulesAction(pub(super) Action);

/// A form of this server's pages, whoever sends it: to sign in there is no session yet.
#[derive(Debug)]
pub(super) struct OwnForm {
    pub(super) fields: FormFields,
    pub(super) request: Request<()>,
}

impl OwnForm {
    async fn read(request: Request, console: &Console, most: usize) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, ());
        // Before it is refused: a client that still sends would miss the response.
        let body = to_bytes(body, most).await.ok();
        let own = Self::checked(&request, console);
        let fields = match (own, body) {
            (Err(refusal), _) => Err(refusal),
            (Ok(()), None) => Err(VisitError::Form),
            (Ok(()), Some(body)) if body.len() <= MAX_FORM_BYTES => {
                FormFields::parse(&body).map_err(|_| VisitError::Form)
            }
            (Ok(()), Some(body)) => {
                // No decision waits for a long form.
                let parsed = console.background.spawn_blocking(move || FormFields::parse(&body));
                parsed.await.ok().and_then(Result::ok).ok_or(VisitError::Form)
            }
        };
        match fields {
            Ok(fields) => Ok(Self { fields, request }),
            Err(refusal) => Err(refusal.respond(console, &request).await),
        }
    }

    fn checked(request: &Request<()>, console: &Console) -> Result<(), VisitError> {
        console.auth.check_own_page(request, origin_of(request).kind)?;
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case(FORM) { Ok(()) } else { Err(VisitError::Form) }
    }
}

impl FromRequest<Console> for OwnForm {
    type Rejection = Response;

    async fn from_request(request: Request, console: &Console) -> Result<Self, Response> {
        Self::read(request, console, MAX_FORM_BYTES).await
    }
}

impl FromRequest<Console> for Action {
    type Rejection = Response;

    async fn from_request(request: Request, console: &Console) -> Result<Self, Response> {
        Self::read(request, console, MAX_FORM_BYTES).await
    }
}

impl FromRequest<Console> for RulesAction {
    type Rejection = Response;

    async fn from_request(request: Request, console: &Console) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let head = Request::from_parts(parts, ());
        // A stranger sends no more than to other pages.
        let most = console.visitor(&head).map_or(MAX_FORM_BYTES, |_| MAX_RULES_BYTES);
        let request = head.map(|()| body);
        Action::read(request, console, most).await.map(Self)
    }
}

impl Action {
    async fn read(request: Request, console: &Console, most: usize) -> Result<Self, Response> {
        let OwnForm { fields, request } = OwnForm::read(request, console, most).await?;
        let visitor = console.visitor(&request).and_then(|visitor| {
            let secret = fields.one(SECRET_FIELD).unwrap_or_default();
            if visitor.form_secret.is(secret) { Ok(visitor) } else { Err(VisitError::Outdated) }
        });
        match visitor {
            Ok(visitor) => Ok(Self { visitor, fields, request }),
            Err(refusal) => Err(refusal.respond(console, &request).await),
        }
    }
}
