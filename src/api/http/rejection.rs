//! A request that is not decided because it is not valid: which field, and what is valid. Never the
//! value.

use axum::http::StatusCode;

use crate::rules::InvalidRequest;

/// Most characters of a name that a client has made up.
const MAX_NAME_CHARS: usize = 64;

/// Why a request is not valid.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    /// The field as metrics name it.
    pub(super) reason: &'static str,
    /// Names the field and what is valid.
    pub(super) detail: String,
    /// What is wrong with a name that the client has made up.
    name_problem: Option<&'static str>,
}

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// What clients may call it; the first is what it is called.
    pub(super) names: &'static [&'static str],
    /// The field as metrics name it.
    pub(super) reason: &'static str,
    /// What is valid.
    pub(super) valid: &'static str,
}

impl Rejection {
    /// The body as a whole.
    pub(super) fn body(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, reason: "body", detail: detail.into(), name_problem: None }
    }

    /// A name that a client has made up, or written twice.
    pub(super) fn client_name(name: &str, problem: &'static str) -> Self {
        let shown: String = name.escape_debug().take(MAX_NAME_CHARS).collect();
        Self {
            status: StatusCode::BAD_REQUEST,
            reason: "body",
            detail: format!("{shown}: {problem}"),
            name_problem: Some(problem),
        }
    }

    /// The same of a field of what stands at `path`.
    pub(super) fn below(self, path: &str) -> Self {
        Self { detail: format!("{path}.{}", self.detail), ..self }
    }

    /// The same with another detail, which has no name that a client has made up.
    pub(super) fn with_detail(self, detail: String) -> Self {
        Self { detail, name_problem: None, ..self }
    }

    /// Returns the detail without a name that the client has made up.
    pub(super) fn without_name(&self) -> &str {
        self.name_problem.unwrap_or(&self.detail)
    }

    /// What is out of bounds, under the name that this API has for the field.
    pub(super) fn out_of_bounds(invalid: InvalidRequest, fields: &[Field]) -> Self {
        let reason = invalid.field();
        let called = fields.iter().find(|field| field.reason == reason);
        let name = called.map_or(reason, |field| field.names[0]);
        // What is invalid begins with its name.
        let detail = invalid.to_string().replacen(reason, name, 1);
        Self { status: StatusCode::BAD_REQUEST, reason, detail, name_problem: None }
    }
}

impl Field {
    /// It is there, and not what it may be.
    pub(super) fn invalid(&self) -> Rejection {
        self.rejected(format!("{} must be {}", self.names[0], self.valid))
    }

    /// It is not there.
    pub(super) fn missing(&self) -> Rejection {
        self.rejected(format!("{}: missing", self.names[0]))
    }

    /// It is there more than once.
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
