//! Problem documents: the bodies of errors of `/v1/check`, and of unknown paths and methods. Rejections of
//! requests, which become one or what an older API sends.
//!
//! **Source:** RFC 9457.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rlaas_proto::ratelimit::v1::check_response::Reason;
use serde::Serialize;

use crate::api::status;
use crate::rules::{InvalidRequest, Violation};
use rlaas_limiter::CheckError;

pub(super) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The wait that a 503 suggests, in seconds: the store may be available again by then.
const RETRY_AFTER: (HeaderName, &str) = (header::RETRY_AFTER, "1");

/// A problem document.
#[derive(Debug, Serialize)]
pub(super) struct ProblemDocument {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    /// The reason as a constant for programs, where the status alone is ambiguous.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl ProblemDocument {
    /// Creates a problem of type `about:blank`: the status says everything except the detail.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or_default();
        let (status, detail) = (status.as_u16(), detail.into());
        Self { r#type: "about:blank", title, status, detail, reason: None }
    }
}

impl From<Rejection> for ProblemDocument {
    fn from(rejection: Rejection) -> Self {
        Self::new(rejection.status, rejection.detail)
    }
}

impl From<CheckError> for ProblemDocument {
    fn from(error: CheckError) -> Self {
        let reason = match error {
            CheckError::NoRule => Some(Reason::NoRule.as_str_name()),
            _ => None,
        };
        Self { reason, ..Self::new(status::http(&error), status::text(&error)) }
    }
}

impl IntoResponse for ProblemDocument {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or_default();
        let text = serde_json::to_vec(&self).expect("strings, numbers and lists are JSON");
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], text).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER.0, HeaderValue::from_static(RETRY_AFTER.1));
        }
        response
    }
}

/// Maximum number of characters shown of a name that the client chose.
const MAX_NAME_CHARS: usize = 64;

/// The reason why a request is not valid.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    /// The name of the field in metrics.
    pub(super) reason: &'static str,
    /// The text for the client: the field and what it must be.
    pub(super) detail: String,
    /// The same text without the name, if the client chose the name. For logs.
    name_problem: Option<&'static str>,
}

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// The spellings that clients may use. Errors use the first.
    pub(super) names: &'static [&'static str],
    /// The name of the field in metrics.
    pub(super) reason: &'static str,
    /// A valid value, such as `a string`: the end of "must be …".
    pub(super) valid: &'static str,
}

impl Rejection {
    /// Rejects the body as a whole.
    pub(super) fn body(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, reason: "body", detail: detail.into(), name_problem: None }
    }

    /// Rejects a name that the client chose: unknown, or given twice.
    pub(super) fn client_name(name: &str, problem: &'static str) -> Self {
        let shown: String = name.escape_debug().take(MAX_NAME_CHARS).collect();
        Self {
            status: StatusCode::BAD_REQUEST,
            reason: "body",
            detail: format!("{shown}: {problem}"),
            name_problem: Some(problem),
        }
    }

    /// Prefixes the field with the path of the object that contains it.
    pub(super) fn below(self, path: &str) -> Self {
        Self { detail: format!("{path}.{}", self.detail), ..self }
    }

    /// Replaces the detail by one without a name that the client chose.
    pub(super) fn with_detail(self, detail: String) -> Self {
        Self { detail, name_problem: None, ..self }
    }

    /// Returns the detail without a name that the client chose.
    pub(super) fn without_name(&self) -> &str {
        self.name_problem.unwrap_or(&self.detail)
    }

    /// Rejects a field that is out of bounds, by the name that this API has for the field.
    pub(super) fn out_of_bounds(invalid: InvalidRequest, fields: &[Field]) -> Self {
        let Violation { path: reason, must } = invalid.violation();
        let field = fields.iter().find(|field| field.reason == reason);
        let name = field.map_or(reason, |field| field.names[0]);
        let detail = format!("{name} {must}");
        Self { status: StatusCode::BAD_REQUEST, reason, detail, name_problem: None }
    }
}

impl Field {
    /// Rejects an invalid value.
    pub(super) fn invalid(&self) -> Rejection {
        self.rejected(format!("{} must be {}", self.names[0], self.valid))
    }

    /// Rejects a request without the field.
    pub(super) fn missing(&self) -> Rejection {
        self.rejected(format!("{}: missing", self.names[0]))
    }

    /// Rejects a request that has the field more than once.
    pub(super) fn duplicate(&self) -> Rejection {
        self.rejected(format!("{}: given twice", self.names[0]))
    }

    fn rejected(&self, detail: String) -> Rejection {
        Rejection {
            status: StatusCode::BAD_REQUEST,
            reason: self.reason,
            detail,
            name_problem: None,
        }
    }
}
