//! One project: its API keys, its usage by day and its properties.
//!
//! | file | subject |
//! | --- | --- |
//! | `view` | the page |
//! | `keys` | the part with the API keys |
//! | `key_forms` | changes of API keys |
//! | `usage` | the part with the usage, and its download |
//! | `settings` | changes of the project |

mod key_forms;
mod keys;
mod settings;
mod usage;
mod view;

pub(in crate::console) use self::key_forms::{create_key, revoke_key, rotate_key};
pub(in crate::console) use self::settings::{delete, update};
pub(in crate::console) use self::usage::download;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;

use self::usage::MonthOfUsage;
use crate::admin::projects::{ProjectAdministrator, ProjectCall};
use crate::api::auth::Role;
use crate::clock::{Deadline, Timestamp};
use crate::console::Console;
use crate::console::change_form::REQUEST_ID;
use crate::console::fields::{FormFields, Link};
use crate::console::layout::Frame;
use crate::console::page_error::PageError;
use crate::console::project_access::{ADMIN, AccessError, OPERATE_OR_ADMIN, field_of};
use crate::console::visitor::ConsoleVisitor;
use crate::projects::ProjectId;
use crate::projects::registry::ProjectState;
use crate::rules::Unmatched;

/// Longest wait for a change.
pub(super) const MAX_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the store where a page shows something without it as well.
const MAX_READ_TIME: Duration = Duration::from_secs(2);

/// A form of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProjectForm {
    Settings,
    Delete,
    CreateKey,
    /// Of one key.
    RotateKey,
    RevokeKey,
}

/// A form that was refused: what was typed, and why.
#[derive(Debug)]
struct RefusedForm {
    form: ProjectForm,
    fields: FormFields,
    error: PageError,
    /// Whether the project has changed since the visitor loaded the page.
    is_stale: bool,
}

/// All that the page shows.
#[derive(Debug)]
struct ProjectPage {
    frame: Frame,
    state: Arc<ProjectState>,
    /// The policy that files have for the project.
    of_files: Option<Unmatched>,
    is_of_file: bool,
    projects: ProjectAdministrator,
    now: Timestamp,
    /// When each key was last used.
    uses: HashMap<String, Timestamp>,
    usage: MonthOfUsage,
    /// Whether the visitor may change the project.
    is_admin: bool,
    /// Whether the visitor may delete it.
    is_admin_of_all: bool,
    refused: Option<RefusedForm>,
}

/// Shows a project.
pub(in crate::console) async fn show(
    State(console): State<Console>,
    visitor: ConsoleVisitor,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let query = FormFields::parse(query.unwrap_or_default().as_bytes()).unwrap_or_default();
    let id = console.admitted(&visitor, query.one("id"), OPERATE_OR_ADMIN).await?;
    let frame = console.frame_after_change(&visitor, "projects", &query);
    Ok(respond(&console, &visitor, (id, frame), StatusCode::OK, None).await)
}

/// Returns the page of a project that the visitor may see.
async fn respond(
    console: &Console,
    visitor: &ConsoleVisitor,
    (id, frame): (ProjectId, Frame),
    status: StatusCode,
    refused: Option<RefusedForm>,
) -> Response {
    let Ok(state) = console.projects.project(&id) else {
        return console.refuse_access(AccessError::NoProject).await;
    };
    let deadline = Deadline::within(MAX_READ_TIME);
    let (uses, usage) = tokio::join!(
        console.projects.last_uses(&id, deadline),
        MonthOfUsage::read(console, &id, deadline)
    );
    let projects = &console.projects;
    let page = ProjectPage {
        frame,
        of_files: projects.unmatched_of_files(&id),
        is_of_file: projects.files_beside(&id).is_some(),
        projects: projects.clone(),
        state,
        now: projects.clock().now(),
        uses,
        usage,
        is_admin: visitor.caller.roles_in(&id).intersects(ADMIN),
        is_admin_of_all: visitor.caller.has(Role::Admin),
        refused,
    };
    console.page(status, move || page.render()).await
}

impl ProjectPage {
    /// Returns what was typed in a refused form, or else the value that the form begins with.
    fn value<'a>(&'a self, form: ProjectForm, name: &'static str, first: &'a str) -> &'a str {
        match &self.refused {
            Some(refused) if refused.form == form => refused.fields.one(name).unwrap_or_default(),
            _ => first,
        }
    }

    /// Returns the id of the change of a refused form, or else an empty one.
    fn request_id(&self, form: ProjectForm) -> &str {
        let refused = self.refused.as_ref().filter(|of| of.form == form);
        refused.map_or("", |refused| refused.error.request_id(&refused.fields))
    }
}

/// Returns the link to the page of a project.
fn link(id: &ProjectId) -> Link {
    Link::to("project").with("id", field_of(id))
}

/// Returns who asks for a change, and why.
fn change_call(visitor: &ConsoleVisitor, action: &'static str, fields: &FormFields) -> ProjectCall {
    ProjectCall {
        actor: visitor.caller.actor().to_owned(),
        action,
        reason: fields.one("reason").unwrap_or_default().to_owned(),
        request_id: fields.one(REQUEST_ID).unwrap_or_default().to_owned(),
        scope: visitor.caller.scope(),
        deadline: Deadline::within(MAX_TIME),
    }
}
