//! Stands before the decisions and admits only whom [`Auth`] does.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::body;
use super::problem::Problem;
use crate::api::auth::{Auth, Refusal, Role};

/// What a caller without a known token may show.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer");

/// Admits who may ask for decisions.
pub(super) async fn admit(
    State(auth): State<Arc<Auth>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    match auth.admit(&request, Role::Check) {
        Ok(()) => Ok(next.run(request).await),
        Err(refusal) => {
            body::discard(request).await;
            Err(refusal)
        }
    }
}

/// Admits who may see the rules.
pub(super) async fn admit_admin(
    State(auth): State<Arc<Auth>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    auth.admit(&request, Role::Admin)?;
    Ok(next.run(request).await)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let detail = self.to_string();
        match self {
            Self::Unauthenticated => {
                let problem = Problem::new(StatusCode::UNAUTHORIZED, detail);
                ([(header::WWW_AUTHENTICATE, CHALLENGE)], problem).into_response()
            }
            Self::Forbidden(_) => Problem::new(StatusCode::FORBIDDEN, detail).into_response(),
        }
    }
}
