//! Endpoints for clients of two other services: `GET /check` of RLaaS Users Service, which limits by
//! user, and `POST /check` of RLaaS on GoRL, which limits by endpoint and key.
//!
//! Bodies and statuses are those of the other services. The rate limit headers are added.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{self, RawQuery, State};
use axum::http::{Extensions, StatusCode};
use axum::response::{IntoResponse, Response};
use rlaas_auth::{AuthError, Tenant};
use rlaas_limiter::headers::retry_after;
use rlaas_proto::WARNING;
use serde_json::json;
use tonic::Code;

use super::json_object::JsonObject;
use super::problem::{Field, Rejection};
use super::{HttpState, body, query};
use crate::api::status;
use crate::api::undecided;
use crate::rules::{Request, RequestFields};
use rlaas_limiter::{CheckError, Verdict};

const USER_ID: Field = Field { names: &["userId"], reason: "user_id", valid: "a string" };
const ENDPOINT: Field = Field { names: &["endpoint"], reason: "resource", valid: "a string" };
const KEY: Field = Field { names: &["key"], reason: "user_id", valid: "a string" };
const API_KEY: Field = Field { names: &["api_key"], reason: "attributes", valid: "a string" };
/// The name of the attribute that holds the API key.
const API_KEY_ATTRIBUTE: &str = "api_key";

/// The reason why there is no verdict.
pub(super) enum CompatError {
    Rejected(Rejection),
    /// The caller may not request decisions.
    Refused(AuthError),
    /// No rule matches, and `unmatched` is `deny`.
    NoRule,
    /// The request is not one that its rules decide.
    Invalid(String),
    /// Any other error: the other services have one response for all of them.
    Undecided,
}

/// `GET /check?userId=alice`.
pub(super) async fn by_user(
    State(state): State<HttpState>,
    RawQuery(query): RawQuery,
    extensions: Extensions,
) -> Result<Response, CompatError> {
    let user_id = query::parameter(query.as_deref().unwrap_or_default(), &USER_ID);
    let user_id = user_id.map_err(|rejection| state.count(rejection))?;
    let request = LegacyCheck { user_id, ..LegacyCheck::default() };
    let tenant = Tenant::from_extensions(&extensions);
    let verdict = request.decide(&state, tenant, &[USER_ID]).await?;
    let response = if verdict.is_allowed() {
        "User is allowed".into_response()
    } else {
        let wait = retry_after(&verdict).map(|(_, seconds)| seconds);
        let when = wait.map_or(String::new(), |wait| format!("...Try after {wait} seconds."));
        (StatusCode::TOO_MANY_REQUESTS, format!("User is not allowed{when}")).into_response()
    };
    Ok(state.with_headers(&verdict, response))
}

/// `POST /check`.
pub(super) async fn by_endpoint(
    State(state): State<HttpState>,
    request: extract::Request,
) -> Result<Response, CompatError> {
    let (parts, body) = request.into_parts();
    let body = body::read(body).await.map_err(|rejection| state.count(rejection))?;
    let fields = read(&body).map_err(|rejection| state.count(rejection))?;
    let key = fields.attributes.get(API_KEY_ATTRIBUTE).map(String::as_str);
    let tenant = match state.auth.as_ref().filter(|auth| auth.api_keys().are_on()) {
        Some(auth) => {
            let mut opening = extract::Request::from_parts(parts, ());
            Some(auth.admit_with_body(&mut opening, key).await.map_err(CompatError::Refused)?)
        }
        None => None,
    };
    let warning = state.auth.as_ref().filter(|_| tenant.is_none() && key.is_some());
    let warning = warning.map(|auth| [(WARNING, auth.api_keys().unchecked_warning())]);
    let verdict = fields.decide(&state, tenant.as_ref(), &[ENDPOINT, KEY, API_KEY]).await?;
    let response = if verdict.is_allowed() {
        Json(json!({ "allowed": true })).into_response()
    } else {
        (StatusCode::TOO_MANY_REQUESTS, "Rate limit exceeded").into_response()
    };
    Ok((warning, state.with_headers(&verdict, response)).into_response())
}

fn read(body: &[u8]) -> Result<LegacyCheck, Rejection> {
    let mut members = JsonObject::from_body(body)?;
    let (resource, user_id) = (members.take(&ENDPOINT)?, members.take(&KEY)?);
    let api_key: Option<String> = members.take(&API_KEY)?;
    // Unknown members are rejected before missing ones: an unknown one may be a misspelled one.
    members.close()?;
    let attributes = api_key.map(|api_key| (API_KEY_ATTRIBUTE.to_owned(), api_key));
    Ok(LegacyCheck {
        user_id: user_id.ok_or_else(|| KEY.missing())?,
        resource: resource.ok_or_else(|| ENDPOINT.missing())?,
        attributes: attributes.into_iter().collect(),
    })
}

/// The fields of a request, not validated yet.
#[derive(Default)]
struct LegacyCheck {
    user_id: String,
    resource: String,
    attributes: HashMap<String, String>,
}

impl LegacyCheck {
    async fn decide(
        mut self,
        state: &HttpState,
        tenant: Option<&Tenant>,
        fields: &[Field],
    ) -> Result<Verdict, CompatError> {
        Tenant::set_attributes(tenant, &mut self.attributes);
        let project = tenant.map_or("", Tenant::project);
        let Self { user_id, resource, attributes } = &self;
        let request = Request::new(RequestFields {
            user_id,
            resource,
            attributes,
            cost: None,
            dry_run: false,
        })
        .map_err(|invalid| {
            undecided::count(&state.limiter, project, Code::InvalidArgument);
            state.count(Rejection::out_of_bounds(invalid, fields))
        })?;
        let request = request.in_project(project);
        state.decide(tenant, &request).await.map_err(|error| match error {
            CheckError::NoRule => CompatError::NoRule,
            error if status::http(&error) == StatusCode::BAD_REQUEST => {
                CompatError::Invalid(status::text(&error))
            }
            _ => CompatError::Undecided,
        })
    }
}

impl From<Rejection> for CompatError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl IntoResponse for CompatError {
    fn into_response(self) -> Response {
        match self {
            Self::Rejected(Rejection { status, detail, .. }) => (status, detail).into_response(),
            Self::Refused(error) => super::refusal(error),
            Self::NoRule => (StatusCode::FORBIDDEN, "NO_RULE: no rule matches").into_response(),
            Self::Invalid(detail) => (StatusCode::BAD_REQUEST, detail).into_response(),
            Self::Undecided => {
                (StatusCode::INTERNAL_SERVER_ERROR, "Internal error").into_response()
            }
        }
    }
}
