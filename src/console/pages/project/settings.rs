//! Changes of a project: its name, its policy, and its end.

use axum::extract::State;
use axum::response::Response;

use super::{ProjectForm, RefusedForm, change_call, link, respond};
use crate::admin::projects::{ProjectError, ProjectUpdate};
use crate::api::auth::{Permission, Role};
use crate::console::Console;
use crate::console::action::Action;
use crate::console::fields::{FormFields, Link};
use crate::console::page_error::PageError;
use crate::console::pages::projects::policy_named;
use crate::console::project_access::{ADMIN, OPERATE_OR_ADMIN, field_of};
use crate::console::visitor::ConsoleVisitor;
use crate::projects::{Etag, ProjectId};
use crate::rules::Unmatched;

/// Renames a project, or sets its policy.
pub(in crate::console) async fn update(
    State(console): State<Console>,
    action: Action,
) -> Result<Response, Response> {
    let Action { visitor, fields, .. } = action;
    let id = console.admitted(&visitor, fields.one("project"), ADMIN).await?;
    Ok(match save(&console, &visitor, &id, &fields).await {
        Ok(()) => console.done(&visitor, link(&id), "The project was saved."),
        Err((error, is_stale)) => {
            let status = error.status;
            let refused = RefusedForm { form: ProjectForm::Settings, fields, error, is_stale };
            let frame = console.frame(&visitor, "projects");
            respond(&console, &visitor, (id, frame), status, Some(refused)).await
        }
    })
}

/// Saves the properties of a project. Returns why not, and whether it has changed meanwhile.
async fn save(
    console: &Console,
    visitor: &ConsoleVisitor,
    id: &ProjectId,
    fields: &FormFields,
) -> Result<(), (PageError, bool)> {
    let invalid = |error| (PageError::invalid(error), false);
    let name = fields.one("name").map_err(invalid)?;
    let etag = fields.one("etag").map_err(invalid)?;
    // A file may have the policy: the form has none then.
    let unmatched = match fields.one("unmatched").map_err(invalid)? {
        "" if console.projects.unmatched_of_files(id).is_some() => None,
        unmatched => Some(policy_named(unmatched).map_err(|error| (error, false))?),
    };
    let mut call = change_call(visitor, "UpdateProject", fields);
    // The etag lets a form be saved once; a request id would be remembered without its values.
    call.request_id = String::new();
    let update = ProjectUpdate { display_name: Some(name.to_owned()), unmatched };
    let saved = console.projects.update(&call, id, update, Etag::quoted(etag)).await;
    match saved {
        Err(ProjectError::StaleProject) if is_as_typed(console, id, name, unmatched) => Ok(()),
        Err(ProjectError::StaleProject) => {
            let text = "Somebody else has changed the project since you loaded this page: nothing \
                        was saved. Compare, and save again if you want your values."
                .to_owned();
            Err((PageError { problem: text, ..ProjectError::StaleProject.into() }, true))
        }
        saved => saved.map(drop).map_err(|error| (error.into(), false)),
    }
}

/// Returns `true` if the project is as the form would make it: a form that was sent twice.
fn is_as_typed(
    console: &Console,
    id: &ProjectId,
    name: &str,
    unmatched: Option<Unmatched>,
) -> bool {
    console.projects.project(id).is_ok_and(|state| {
        let policy: Unmatched = state.project.unmatched.into();
        state.project.display_name == name && unmatched.is_none_or(|typed| typed == policy)
    })
}

/// Deletes a project.
pub(in crate::console) async fn delete(
    State(console): State<Console>,
    action: Action,
) -> Result<Response, Response> {
    let Action { visitor, fields, .. } = action;
    let id = console.admitted(&visitor, fields.one("project"), OPERATE_OR_ADMIN).await?;
    if !visitor.caller.has(Role::Admin) {
        return Err(console.lacks_role(Permission::ADMIN.roles()).await);
    }
    let typed = fields.one("confirm").unwrap_or_default().trim();
    let deleted = if typed == field_of(&id) {
        let call = change_call(&visitor, "DeleteProject", &fields);
        console.projects.delete(&call, &id, None).await.map_err(PageError::from)
    } else {
        let id = field_of(&id);
        let text = format!("Id to confirm must be {id}: the project was not deleted.");
        Err(PageError::invalid(text))
    };
    Ok(match deleted {
        Ok(()) => {
            let outcome = format!("Project {id} was deleted, with its rules, keys and usage.");
            console.done(&visitor, Link::to("projects"), &outcome)
        }
        Err(error) => {
            let form = ProjectForm::Delete;
            let status = error.status;
            let refused = RefusedForm { form, fields, error, is_stale: false };
            let frame = console.frame(&visitor, "projects");
            respond(&console, &visitor, (id, frame), status, Some(refused)).await
        }
    })
}
