//! The projects of a visitor: those that they have a role for. All others do not exist for them.

use axum::http::StatusCode;
use axum::response::Response;

use super::fields::{FieldError, UNNAMED, project_id};
use super::visitor::ConsoleVisitor;
use super::{ConsoleContext, layout};
use crate::api::auth::{Caller, Permission, Roles};
use crate::projects::ProjectId;

/// The role for changes of a project.
pub(super) const ADMIN: Roles = Permission::PROJECT_ADMIN.roles();
/// The roles for pages that show a project.
pub(super) const OPERATE_OR_ADMIN: Roles = Permission::PROJECT_OPERATE_OR_ADMIN.roles();

/// Reason why a visitor may not see or change a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessError {
    /// There is no such project, or none that the visitor has a role for.
    NoProject,
    /// The visitor has another role in it.
    LacksRole(Roles),
}

/// Returns the project of a field, in which the visitor has one of the roles.
pub(super) fn admitted(
    caller: &Caller,
    field: &str,
    required: Roles,
) -> Result<ProjectId, AccessError> {
    let id = project_id(field).ok_or(AccessError::NoProject)?;
    let held = caller.roles_in(&id);
    if held.intersects(required) {
        Ok(id)
    } else if held.intersects(OPERATE_OR_ADMIN) {
        Err(AccessError::LacksRole(required))
    } else {
        Err(AccessError::NoProject)
    }
}

/// Returns the id of a project as a field has it.
pub(super) fn field_of(id: &ProjectId) -> &str {
    if id.is_unnamed() { UNNAMED } else { id.as_str() }
}

impl ConsoleContext {
    /// Returns the project that a form or a query has, or the response to a visitor who lacks the role.
    pub(super) async fn admitted(
        &self,
        visitor: &ConsoleVisitor,
        project: Result<&str, FieldError>,
        required: Roles,
    ) -> Result<ProjectId, Response> {
        match admitted(&visitor.caller, project.unwrap_or_default(), required) {
            Ok(id) => Ok(id),
            Err(error) => Err(self.refuse_access(error).await),
        }
    }

    /// Returns the response to a visitor who may not see or change a project.
    pub(super) async fn refuse_access(&self, error: AccessError) -> Response {
        match error {
            AccessError::LacksRole(required) => self.lacks_role(required).await,
            AccessError::NoProject => {
                let detail = "There is no such project, or none that you have a role for.";
                self.page(StatusCode::NOT_FOUND, move || layout::notice("No such project", detail))
                    .await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let shop: ProjectId = "shop".parse().expect("an id");
        for id in [shop, ProjectId::UNNAMED] {
            assert_eq!(project_id(field_of(&id)), Some(id));
        }
        assert_eq!(project_id(""), None);
    }
}
