//! Projects in the shape of RLaaS on GoRL.

use rlaas_projects::registry::ProjectState;
use rlaas_proto::values::timestamp;
use serde::Serialize;

use super::rule::RuleView;
use crate::api::http::json_object::JsonObject;
use crate::api::http::problem::{Field, Rejection};

const NAME: Field =
    Field { names: &["project_name"], reason: "body", valid: "a string that is not empty" };

/// A project as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct ProjectView<'a> {
    id: &'a str,
    /// The name of the caller, to whom projects belong.
    user_id: &'a str,
    name: &'a str,
    /// The secret when the project is made: it is not stored, and never shown again.
    api_key: Option<&'a str>,
    created_at: String,
    rules: Vec<RuleView<'a>>,
}

impl<'a> ProjectView<'a> {
    pub(super) fn new(state: &'a ProjectState, caller: &'a str, secret: Option<&'a str>) -> Self {
        Self {
            id: state.project.id.as_str(),
            user_id: caller,
            name: &state.project.display_name,
            api_key: secret,
            created_at: timestamp(state.project.created_at).to_string(),
            rules: RuleView::all(state),
        }
    }
}

/// Reads the name of a new project.
///
/// # Errors
///
/// A [`Rejection`] that names the member.
pub(super) fn read_name(body: &[u8]) -> Result<String, Rejection> {
    let mut members = JsonObject::from_body(body)?;
    let name: Option<String> = members.take(&NAME)?;
    members.close()?;
    let name = name.ok_or_else(|| NAME.missing())?;
    if name.is_empty() { Err(NAME.invalid()) } else { Ok(name) }
}
