//! The form that a request has. It must come from a page of this server that was made for its visitor.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use axum::response::Response;
use rlaas_console::{FormFields, LONG_FORMS, SECRET_FIELD, Visitor};

use super::refusal::VisitError;
use super::{ConsoleContext, Context, origin_of};

/// The content type of forms.
const FORM: &str = "application/x-www-form-urlencoded";
/// Longest body of a form, in bytes. A selector and a reason fit, even with every byte escaped.
const MAX_FORM_BYTES: usize = 64 * 1024;
/// Longest body of a form with the rules of a project, in bytes: as long as a request over gRPC.
const MAX_RULES_BYTES: usize = 4 * 1024 * 1024;

/// A form that its visitor has sent.
#[derive(Debug)]
pub(super) struct Form {
    visitor: Visitor,
    fields: FormFields,
    pub(super) request: Request<()>,
}

/// A form of this server's pages, whoever sends it: to sign in there is no session yet.
#[derive(Debug)]
pub(super) struct OwnForm {
    pub(super) fields: FormFields,
    pub(super) request: Request<()>,
}

impl OwnForm {
    async fn read(
        request: Request,
        context: &ConsoleContext,
        most: usize,
    ) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, ());
        // Before it is refused: a client that still sends would miss the response.
        let body = to_bytes(body, most).await.ok();
        let own = Self::checked(&request, context);
        let fields = match (own, body) {
            (Err(refusal), _) => Err(refusal),
            (Ok(()), None) => Err(VisitError::Form),
            (Ok(()), Some(body)) if body.len() <= MAX_FORM_BYTES => {
                FormFields::parse(&body).map_err(|_| VisitError::Form)
            }
            (Ok(()), Some(body)) => {
                // No decision waits for a long form.
                let parsed = context.console.blocking(move || FormFields::parse(&body)).await;
                parsed.and_then(Result::ok).ok_or(VisitError::Form)
            }
        };
        match fields {
            Ok(fields) => Ok(Self { fields, request }),
            Err(refusal) => Err(refusal.respond(context, &request).await),
        }
    }

    fn checked(request: &Request<()>, context: &ConsoleContext) -> Result<(), VisitError> {
        context.auth.check_own_page(request, origin_of(request).kind)?;
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case(FORM) { Ok(()) } else { Err(VisitError::Form) }
    }
}

impl FromRequest<Context> for OwnForm {
    type Rejection = Response;

    async fn from_request(request: Request, context: &Context) -> Result<Self, Response> {
        Self::read(request, context, MAX_FORM_BYTES).await
    }
}

impl FromRequest<Context> for Form {
    type Rejection = Response;

    async fn from_request(request: Request, context: &Context) -> Result<Self, Response> {
        Self::read(request, context).await
    }
}

impl Form {
    pub(super) async fn read(request: Request, context: &Context) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let head = Request::from_parts(parts, ());
        // A stranger sends no more than to other pages.
        let is_long = LONG_FORMS.contains(&head.uri().path()) && context.visitor(&head).is_ok();
        let most = if is_long { MAX_RULES_BYTES } else { MAX_FORM_BYTES };
        let request = head.map(|()| body);
        let OwnForm { fields, request } = OwnForm::read(request, context, most).await?;
        let visitor = context.visitor(&request).and_then(|visitor| {
            let secret = fields.one(SECRET_FIELD).unwrap_or_default();
            if visitor.form_secret.is(secret) { Ok(visitor) } else { Err(VisitError::Outdated) }
        });
        match visitor {
            Ok(visitor) => Ok(Self { visitor, fields, request }),
            Err(refusal) => Err(refusal.respond(context, &request).await),
        }
    }

    /// Returns the request as pages take it: with the visitor and the fields.
    pub(super) fn into_request(self) -> Request {
        let mut request = self.request.map(|()| Body::empty());
        request.extensions_mut().insert(self.visitor);
        request.extensions_mut().insert(self.fields);
        request
    }
}
