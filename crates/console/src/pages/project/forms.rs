//! Changes of a project and of its API keys. A secret is shown in the response to the form alone: no
//! link, no later page and no log has it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use prost_types::{Duration, Timestamp};
use rlaas_proto::ratelimit::admin::v1::{
    ApiKey, CreateKeyRequest, DeleteProjectRequest, Project, RevokeKeyRequest, RotateKeyRequest,
    UpdateProjectRequest,
};

use super::{ProjectForm, RefusedForm, project, respond};
use crate::Console;
use crate::calls::{CHANGE_TIME, field_of, id_of, within};
use crate::change_form::REQUEST_ID;
use crate::fields::{FormFields, Link};
use crate::layout::Frame;
use crate::page_error::PageError;
use crate::pages::projects::policy_named;
use crate::text::{foreign, time};
use crate::visit::Visitor;

/// Times for which a replaced key may stay valid, in seconds; the second is the default.
pub(super) const GRACES: [(&str, &str); 6] = [
    ("0", "ends at once"),
    ("86400", "stays valid for 1 day"),
    ("3600", "stays valid for 1 hour"),
    ("604800", "stays valid for 7 days"),
    ("1209600", "stays valid for 14 days"),
    ("2592000", "stays valid for 30 days"),
];

/// A change that was made.
enum FormOutcome {
    /// Said on the page to which it leads.
    Outcome(Link, String),
    /// A new key, shown once.
    Secret(Box<NewSecret>),
}

/// A new key, and the one that it replaces.
struct NewSecret {
    project: String,
    key: ApiKey,
    /// Empty if it was shown before.
    secret: String,
    previous: Option<ApiKey>,
}

/// Renames a project, or sets its policy.
pub(crate) async fn update(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let saved = save(&visitor, &fields).await;
    answer(&console, visitor, fields, ProjectForm::Settings, saved).await
}

/// Deletes a project.
pub(crate) async fn delete(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let deleted = try_delete(&visitor, &fields).await;
    answer(&console, visitor, fields, ProjectForm::Delete, deleted).await
}

/// Creates a key, and shows its secret.
pub(crate) async fn create_key(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let created = try_create_key(&visitor, &fields).await;
    answer(&console, visitor, fields, ProjectForm::CreateKey, created).await
}

/// Replaces a key by a new one, and shows the secret of that.
pub(crate) async fn rotate_key(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let rotated = try_rotate_key(&visitor, &fields).await;
    answer(&console, visitor, fields, ProjectForm::RotateKey, rotated).await
}

/// Revokes a key.
pub(crate) async fn revoke_key(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let revoked = try_revoke_key(&visitor, &fields).await;
    answer(&console, visitor, fields, ProjectForm::RevokeKey, revoked).await
}

/// Responds to a form. One that was refused is shown again.
async fn answer(
    console: &Console,
    visitor: Visitor,
    fields: FormFields,
    form: ProjectForm,
    made: Result<FormOutcome, PageError>,
) -> Response {
    let frame = visitor.frame("projects");
    let error = match made {
        Ok(FormOutcome::Outcome(link, text)) => return visitor.done(link, &text),
        Ok(FormOutcome::Secret(new)) => {
            return console.page(StatusCode::OK, move || secret_page(&frame, &new)).await;
        }
        Err(error) => error,
    };
    if error.is_of_access() {
        return console.refuse(error).await;
    }
    let id = fields.one("project").unwrap_or_default().to_owned();
    let is_stale = form == ProjectForm::Settings && error.reason == "STALE";
    let refused = RefusedForm { form, fields, error, is_stale };
    respond(console, &visitor, frame, &id, Some(refused)).await
}

fn link(id: &str) -> Link {
    Link::to("project").with("id", field_of(id))
}

/// Saves the properties of a project.
async fn save(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let id = visitor.admin_in(fields)?.to_owned();
    let project_of = Project {
        id: id.clone(),
        display_name: fields.one("name")?.to_owned(),
        unmatched: policy_named(fields.one("unmatched")?)?.into(),
        ..Project::default()
    };
    let request = UpdateProjectRequest {
        project: Some(project_of.clone()),
        // The etag lets a form be saved once.
        etag: fields.one("etag")?.to_owned(),
        reason: fields.one("reason")?.to_owned(),
        ..UpdateProjectRequest::default()
    };
    let saved = || FormOutcome::Outcome(link(&id), "The project was saved.".to_owned());
    let error = match visitor.projects().update_project(within(CHANGE_TIME, request)).await {
        Ok(_) => return Ok(saved()),
        Err(status) => PageError::from(status),
    };
    if error.reason != "STALE" {
        return Err(error);
    }
    // Perhaps the form was sent twice.
    let now = project(visitor, &id).await?;
    let typed = (&project_of.display_name, project_of.unmatched);
    if (&now.display_name, now.unmatched) == typed {
        return Ok(saved());
    }
    let problem = "Somebody else has changed the project since you loaded this page: nothing was \
                   saved. Compare, and save again if you want your values."
        .to_owned();
    Err(PageError { problem, ..error })
}

async fn try_delete(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let field = fields.one("project")?;
    // Its page says whether there is one, and whether it may be seen.
    let project_id = project(visitor, id_of(field)).await?.id;
    if !visitor.is_admin_of_all() {
        return Err(PageError::forbidden("admin"));
    }
    if fields.one("confirm")?.trim() != field {
        let problem = format!("Id to confirm must be {field}: the project was not deleted.");
        return Err(PageError::invalid(problem));
    }
    let reason = fields.one("reason")?.to_owned();
    let request = DeleteProjectRequest { project_id, etag: String::new(), reason };
    visitor.projects().delete_project(within(CHANGE_TIME, request)).await?;
    let outcome = format!("Project {field} was deleted, with its rules, keys and usage.");
    Ok(FormOutcome::Outcome(Link::to("projects"), outcome))
}

async fn try_create_key(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let project = visitor.admin_in(fields)?.to_owned();
    let end = Some(fields.one("end")?).filter(|end| !end.is_empty());
    let key = ApiKey {
        display_name: fields.one("name")?.to_owned(),
        environment: fields.one("environment")?.to_owned(),
        expires_at: end.map(self::end).transpose()?,
        ..ApiKey::default()
    };
    let request = CreateKeyRequest {
        project_id: project.clone(),
        key: Some(key),
        request_id: fields.one(REQUEST_ID)?.to_owned(),
        reason: fields.one("reason")?.to_owned(),
    };
    let created = visitor.projects().create_key(within(CHANGE_TIME, request)).await?.into_inner();
    let (key, secret) = (created.key.unwrap_or_default(), created.secret);
    Ok(FormOutcome::Secret(Box::new(NewSecret { project, key, secret, previous: None })))
}

async fn try_rotate_key(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let project = visitor.admin_in(fields)?.to_owned();
    let grace = fields.one("grace")?;
    let seconds = GRACES.iter().find(|(value, _)| *value == grace);
    let seconds = seconds.and_then(|(value, _)| value.parse().ok());
    let invalid = || PageError::invalid("The replaced key must be one of those in the list");
    let request = RotateKeyRequest {
        project_id: project.clone(),
        key_id: fields.one("key")?.to_owned(),
        grace: Some(Duration { seconds: seconds.ok_or_else(invalid)?, nanos: 0 }),
        request_id: fields.one(REQUEST_ID)?.to_owned(),
        reason: fields.one("reason")?.to_owned(),
    };
    let rotated = visitor.projects().rotate_key(within(CHANGE_TIME, request)).await?.into_inner();
    let (key, secret) = (rotated.key.unwrap_or_default(), rotated.secret);
    Ok(FormOutcome::Secret(Box::new(NewSecret {
        project,
        key,
        secret,
        previous: rotated.previous,
    })))
}

async fn try_revoke_key(visitor: &Visitor, fields: &FormFields) -> Result<FormOutcome, PageError> {
    let project_id = visitor.admin_in(fields)?.to_owned();
    let request = RevokeKeyRequest {
        project_id: project_id.clone(),
        key_id: fields.one("key")?.to_owned(),
        reason: fields.one("reason")?.to_owned(),
    };
    let revoked = visitor.projects().revoke_key(within(CHANGE_TIME, request)).await?.into_inner();
    let outcome = format!("API key {} was revoked.", revoked.key.unwrap_or_default().id);
    Ok(FormOutcome::Outcome(link(&project_id), outcome))
}

/// Reads a time as browsers write one, in UTC.
fn end(text: &str) -> Result<Timestamp, PageError> {
    let is_time = [16, 19].contains(&text.len()) && text.is_ascii() && text.as_bytes()[10] == b'T';
    let seconds = if text.len() == 16 { ":00" } else { "" };
    let at = format!("{text}{seconds}Z").parse::<Timestamp>().ok();
    at.filter(|at| is_time && at.seconds >= 0).ok_or_else(|| {
        PageError::invalid("End must be a time from 1970 to 9999, such as 2026-11-23T18:00")
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_times_in_utc() {
        let second = Timestamp { seconds: 86_400, nanos: 0 };
        for text in ["1970-01-02T00:00", "1970-01-02T00:00:00"] {
            assert_eq!(end(text), Ok(second), "{text}");
        }
        for text in [
            "1970-01-02",
            "1969-12-31T00:00",
            "1970-01-02 00:00",
            "1970-13-02T00:00",
            "1970-01-02T00:00Z",
            "１９７０-01",
            "x",
        ] {
            let error = end(text).expect_err(text);
            assert!(error.sentence().starts_with("End must be"), "{error:?}");
        }
    }
}
