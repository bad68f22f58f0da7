//! Changes of a project and of its API keys. A secret is shown in the response to the form alone: no
//! link, no later page and no log has it.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{ApiKey, Project, UpdateProjectRequest};

use super::respond;
use crate::calls::{CHANGE_TIME, field_of, id_of, project, within};
use crate::fields::{FormFields, Link};
use crate::form::{Field, FieldChoice, FieldKind, Form};
use crate::layout::Frame;
use crate::page_error::PageError;
use crate::pages::projects::{NAME, POLICY};
use crate::text::{foreign, time};
use crate::visit::{Visit, Visitor};

/// Times for which a replaced key may stay valid.
const GRACES: [FieldChoice; 6] = [
    ("0", "ends at once", "0s"),
    ("86400", "stays valid for 1 day", "86400s"),
    ("3600", "stays valid for 1 hour", "3600s"),
    ("604800", "stays valid for 7 days", "604800s"),
    ("1209600", "stays valid for 14 days", "1209600s"),
    ("2592000", "stays valid for 30 days", "2592000s"),
];
const KEY: Field = Field::new("key", "key_id", FieldKind::Hidden);
const ATTRIBUTES: Field = Field::new("attributes", "key.attributes", FieldKind::Attributes)
    .labelled("Attributes")
    .hint("What requests with the key have as attributes.key.NAME.")
    .example("plan=pro, daily=500");
pub(super) const SETTINGS: Form = Form::new(
    "project-update",
    "UpdateProjectRequest",
    &[
        Field::PROJECT.at("project.id"),
        // It lets a form be saved once.
        Field::new("etag", "etag", FieldKind::Hidden),
        NAME,
        POLICY,
        Field::REASON,
    ],
    "Save",
)
.tone("primary");
pub(super) const DELETE: Form = Form::new(
    "project-delete",
    "DeleteProjectRequest",
    &[
        Field::PROJECT,
        Field::new("confirm", "", FieldKind::Text)
            .labelled("Id to confirm")
            .hint("Type the id of the project.")
            .max(63),
        Field::REASON,
    ],
    "Delete project",
)
.hint("Its keys end within 2 s, its rules and its usage are lost. The id is not given again for 366 days.")
.tone("danger");
pub(super) const CREATE_KEY: Form = Form::new(
    "project-key-create",
    "CreateKeyRequest",
    &[
        Field::PROJECT,
        Field::REQUEST_ID,
        NAME.at("key.display_name"),
        Field::new("environment", "key.environment", FieldKind::Text)
            .labelled("Environment")
            .hint("Part of the key: lower case letters and digits, such as live or test.")
            .max(16),
        Field::new("end", "key.expires_at", FieldKind::Time)
            .labelled("End (UTC)")
            .hint("Empty: it has none."),
        ATTRIBUTES,
        Field::REASON,
    ],
    "Create API key",
)
.tone("primary");
pub(super) const UPDATE_KEY: Form = Form::new(
    "project-key-update",
    "UpdateKeyRequest",
    &[Field::PROJECT, KEY.at("key.id"), ATTRIBUTES, Field::REASON],
    "Save attributes",
);
pub(super) const ROTATE_KEY: Form = Form::new(
    "project-key-rotate",
    "RotateKeyRequest",
    &[
        Field::PROJECT,
        KEY,
        Field::REQUEST_ID,
        Field::new("grace", "grace", FieldKind::Choice(&GRACES)).labelled("The replaced key"),
        Field::REASON,
    ],
    "Replace by a new key",
);
pub(super) const REVOKE_KEY: Form = Form::new(
    "project-key-revoke",
    "RevokeKeyRequest",
    &[Field::PROJECT, KEY, Field::REASON],
    "Revoke now",
)
.tone("danger");

/// A change that was made.
enum FormOutcome {
    /// Said on the page to which it leads.
    Outcome(Link, String),
    /// A new key, shown once.
    Secret(Box<NewSecret>),
}

/// A new key, and the one that it replaces.
#[derive(Default)]
struct NewSecret {
    project: String,
    key: ApiKey,
    /// Empty if it was shown before.
    secret: String,
    previous: Option<ApiKey>,
}

/// Renames a project, or sets its policy.
pub(crate) async fn update(visit: Visit) -> Response {
    let saved = save(&visit.visitor, &visit.fields).await;
    answer(visit, &SETTINGS, saved).await
}

/// Deletes a project.
pub(crate) async fn delete(visit: Visit) -> Response {
    let deleted = try_delete(&visit.visitor, &visit.fields).await;
    answer(visit, &DELETE, deleted).await
}

/// Creates a key, and shows its secret.
pub(crate) async fn create_key(visit: Visit) -> Response {
    let created = try_create_key(&visit.visitor, &visit.fields).await;
    answer(visit, &CREATE_KEY, created).await
}

/// Replaces the attributes of a key.
pub(crate) async fn update_key(visit: Visit) -> Response {
    let updated = try_update_key(&visit.visitor, &visit.fields).await;
    answer(visit, &UPDATE_KEY, updated).await
}

/// Replaces a key by a new one, and shows the secret of that.
pub(crate) async fn rotate_key(visit: Visit) -> Response {
    let rotated = try_rotate_key(&visit.visitor, &visit.fields).await;
    answer(visit, &ROTATE_KEY, rotated).await
}

/// Revokes a key.
pub(crate) async fn revoke_key(visit: Visit) -> Response {
    let revoked = try_revoke_key(&visit.visitor, &visit.fields).await;
    answer(visit, &REVOKE_KEY, revoked).await
}

/// Responds to a form. One that was refused is shown again.
async fn answer(
    visit: Visit,
    form: &'static Form,
    made: Result<FormOutcome, PageError>,
) -> Response {
    let Visit { console, visitor, fields } = &visit;
    match made {
        Ok(FormOutcome::Outcome(link, text)) => visitor.done(link, &text),
        Ok(FormOutcome::Secret(new)) => {
            let frame = visit.frame("projects");
            console.page(StatusCode::OK, move || secret_page(&frame, &new)).await
        }
        Err(error) if error.is_of_access() => console.refuse(error).await,
        Err(error) => {
            let refused = form.refused(fields.clone(), error);
            respond(&visit, fields.get("project"), Some(refused)).await
        }
    }
}

fn link(id: &str) -> Link {
    Link::to("project").with("id", field_of(id))
}

/// Saves the properties of a project.
async fn save(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let id = visitor.admin_in(fields)?;
    let request: UpdateProjectRequest = SETTINGS.message(fields)?;
    let typed = request.project.clone().unwrap_or_default();
    let saved = || FormOutcome::Outcome(link(id), "The project was saved.".to_owned());
    let error = match visitor.projects().update_project(within(CHANGE_TIME, request)).await {
        Ok(_) => return Ok(saved()),
        Err(status) => PageError::from(status),
    };
    if error.reason != "STALE" {
        return Err(error);
    }
    // Perhaps the form was sent twice.
    let Project { display_name, unmatched, .. } = project(visitor, id).await?;
    if (display_name, unmatched) == (typed.display_name, typed.unmatched) {
        return Ok(saved());
    }
    let problem = "Somebody else has changed the project since you loaded this page: nothing was \
                   saved. Compare, and save again if you want your values."
        .to_owned();
    Err(PageError { problem, ..error })
}

async fn try_delete(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let field = fields.get("project");
    // Its page says whether there is one, and whether it may be seen.
    project(visitor, id_of(field)).await?;
    if !visitor.is_admin_of_all() {
        return Err(PageError::forbidden("admin"));
    }
    if fields.get("confirm").trim() != field {
        let problem = format!("Id to confirm must be {field}: the project was not deleted.");
        return Err(PageError::invalid(problem));
    }
    let request = within(CHANGE_TIME, DELETE.message(fields)?);
    visitor.projects().delete_project(request).await?;
    let outcome = format!("Project {field} was deleted, with its rules, keys and usage.");
    Ok(FormOutcome::Outcome(Link::to("projects"), outcome))
}

async fn try_create_key(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let project = visitor.admin_in(fields)?.to_owned();
    let request = within(CHANGE_TIME, CREATE_KEY.message(fields)?);
    let created = visitor.projects().create_key(request).await?.into_inner();
    let (key, secret) = (created.key.unwrap_or_default(), created.secret);
    let new = NewSecret { project, key, secret, ..NewSecret::default() };
    Ok(FormOutcome::Secret(Box::new(new)))
}

async fn try_update_key(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let id = visitor.admin_in(fields)?;
    let request = within(CHANGE_TIME, UPDATE_KEY.message(fields)?);
    let updated = visitor.projects().update_key(request).await?.into_inner();
    let outcome = format!("API key {} was saved.", updated.key.unwrap_or_default().id);
    Ok(FormOutcome::Outcome(link(id), outcome))
}

async fn try_rotate_key(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let project = visitor.admin_in(fields)?.to_owned();
    let request = within(CHANGE_TIME, ROTATE_KEY.message(fields)?);
    let rotated = visitor.projects().rotate_key(request).await?.into_inner();
    let (key, secret) = (rotated.key.unwrap_or_default(), rotated.secret);
    let new = NewSecret { project, key, secret, previous: rotated.previous };
    Ok(FormOutcome::Secret(Box::new(new)))
}

async fn try_revoke_key(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let id = visitor.admin_in(fields)?;
    let request = within(CHANGE_TIME, REVOKE_KEY.message(fields)?);
    let revoked = visitor.projects().revoke_key(request).await?.into_inner();
    let outcome = format!("API key {} was revoked.", revoked.key.unwrap_or_default().id);
    Ok(FormOutcome::Outcome(link(id), outcome))
}

/// Shows a new secret, once.
fn secret_page(frame: &Frame, new: &NewSecret) -> Markup {
    let NewSecret { project, key, secret, previous } = new;
    let content = html! {
        @if secret.is_empty() {
            p.notice role="status" {
                "API key " (foreign(&key.id)) " was created by this form before, and its secret was \
                 shown then. If you have not kept it, replace the key."
            }
        } @else {
            p.done role="status" { "API key " (foreign(&key.id)) " was created." }
            div.card.stack {
                label for="api-key" { "The key. It is shown now, and never again" }
                input.mono #api-key type="text" readonly value=(secret) autocomplete="off"
                    spellcheck="false" aria-describedby="api-key-hint";
                p.hint #api-key-hint {
                    "Copy it before you leave this page. Clients send it as the header x-api-key."
                }
            }
        }
        @if let Some(previous) = previous {
            p {
                "It replaces the key " (foreign(&previous.id))
                @if previous.expires_at.is_some() { ", which is valid until " (time(previous.expires_at.as_ref())) }
                "."
            }
        }
        p { a href=(link(project)) { "To the project " (foreign(field_of(project))) } }
    };
    frame.page("API key", &content)
}
