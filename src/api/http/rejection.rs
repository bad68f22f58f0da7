//! Errors for invalid requests: they name the field and what it must be, never its value.

use axum::http::StatusCode;

use crate::rules::{InvalidRequest, Violation};

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
