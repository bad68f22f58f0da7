//! Changes of API keys. A secret is shown in the response to the form alone: no link, no later page and
//! no log has it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use super::{ProjectForm, RefusedForm, change_call, link, respond};
use crate::admin::projects::{CreatedKey, ProjectError, RotatedKey};
use crate::clock::{Micros, Timestamp};
use crate::console::Console;
use crate::console::action::Action;
use crate::console::fields::FormFields;
use crate::console::layout::Frame;
use crate::console::page_error::PageError;
use crate::console::project_access::{ADMIN, field_of};
use crate::console::text::{foreign, time};
use crate::console::visitor::ConsoleVisitor;
use crate::projects::{ApiKey, Environment, InvalidProject, NewKey, Project, ProjectId};
use crate::proto_values::timestamp;

/// Times for which a replaced key may stay valid, in seconds; the second is the default.
pub(super) const GRACES: [(&str, &str); 6] = [
    ("0", "ends at once"),
    ("86400", "stays valid for 1 day"),
    ("3600", "stays valid for 1 hour"),
    ("604800", "stays valid for 7 days"),
    ("1209600", "stays valid for 14 days"),
    ("2592000", "stays valid for 30 days"),
];

/// Creates a key, and shows its secret.
pub(in crate::console) async fn create_key(
    State(console): State<Console>,
    action: Action,
) -> Result<Response, Response> {
    let Action { visitor, fields, .. } = action;
    let id = console.admitted(&visitor, fields.one("project"), ADMIN).await?;
    let created = match new_key(&fields) {
        Ok(key) => {
            let call = change_call(&visitor, "CreateKey", &fields);
            console.projects.create_key(&call, &id, key).await.map_err(PageError::from)
        }
        Err(error) => Err(error),
    };
    Ok(match created {
        Ok(created) => {
            let frame = console.frame(&visitor, "projects");
            console.page(StatusCode::OK, move || secret_page(&frame, &id, &created, None)).await
        }
        Err(error) => refuse(&console, &visitor, id, (ProjectForm::CreateKey, fields, error)).await,
    })
}

/// Replaces a key by a new one, and shows the secret of that.
pub(in crate::console) async fn rotate_key(
    State(console): State<Console>,
    action: Action,
) -> Result<Response, Response> {
    let Action { visitor, fields, .. } = action;
    let id = console.admitted(&visitor, fields.one("project"), ADMIN).await?;
    let rotated = match grace(&fields) {
        Ok(grace) => {
            let call = change_call(&visitor, "RotateKey", &fields);
            let key = fields.one("key").unwrap_or_default();
            console.projects.rotate_key(&call, &id, key, grace).await.map_err(PageError::from)
        }
        Err(error) => Err(error),
    };
    Ok(match rotated {
        Ok(RotatedKey { created, previous }) => {
            let frame = console.frame(&visitor, "projects");
            let render = move || secret_page(&frame, &id, &created, Some(&previous));
            console.page(StatusCode::OK, render).await
        }
        Err(error) => refuse(&console, &visitor, id, (ProjectForm::RotateKey, fields, error)).await,
    })
}

/// Revokes a key.
pub(in crate::console) async fn revoke_key(
    State(console): State<Console>,
    action: Action,
) -> Result<Response, Response> {
    let Action { visitor, fields, .. } = action;
    let id = console.admitted(&visitor, fields.one("project"), ADMIN).await?;
    let mut call = change_call(&visitor, "RevokeKey", &fields);
    // A key that is revoked again stays as it is.
    call.request_id = String::new();
    let key = fields.one("key").unwrap_or_default();
    Ok(match console.projects.revoke_key(&call, &id, key).await {
        Ok(key) => {
            let outcome = format!("API key {} was revoked.", key.id);
            console.done(&visitor, link(&id), &outcome)
        }
        Err(error) => {
            let refused = (ProjectForm::RevokeKey, fields, error.into());
            refuse(&console, &visitor, id, refused).await
        }
    })
}

async fn refuse(
    console: &Console,
    visitor: &ConsoleVisitor,
    id: ProjectId,
    (form, fields, error): (ProjectForm, FormFields, PageError),
) -> Response {
    let status = error.status;
    let refused = RefusedForm { form, fields, error, is_stale: false };
    let frame = console.frame(visitor, "projects");
    respond(console, visitor, (id, frame), status, Some(refused)).await
}

fn new_key(fields: &FormFields) -> Result<NewKey, PageError> {
    let field = |name| fields.one(name).map_err(PageError::invalid);
    let name = field("name")?;
    if name.len() > Project::MAX_NAME_LEN {
        return Err(ProjectError::from(InvalidProject::DisplayName).into());
    }
    let environment = match field("environment")? {
        "" => Environment::default(),
        text => text.parse().map_err(ProjectError::from)?,
    };
    let expires_at = Some(field("end")?).filter(|end| !end.is_empty()).map(end).transpose()?;
    Ok(NewKey { display_name: name.to_owned(), environment, expires_at })
}

/// Reads a time as browsers write one, in UTC.
fn end(text: &str) -> Result<Timestamp, PageError> {
    let is_time = [16, 19].contains(&text.len()) && text.is_ascii() && text.as_bytes()[10] == b'T';
    let seconds = if text.len() == 16 { ":00" } else { "" };
    let at = format!("{text}{seconds}Z").parse::<prost_types::Timestamp>().ok();
    let at = at.filter(|_| is_time).and_then(|at| u64::try_from(at.seconds).ok());
    let invalid =
        || PageError::invalid("End must be a time from 1970 to 9999, such as 2026-11-23T18:00");
    Ok(Timestamp::EPOCH + Micros::from_secs(at.ok_or_else(invalid)?))
}

fn grace(fields: &FormFields) -> Result<Micros, PageError> {
    let text = fields.one("grace").map_err(PageError::invalid)?;
    let seconds = GRACES.iter().any(|(value, _)| *value == text).then(|| text.parse::<u64>());
    let invalid = || PageError::invalid("The replaced key must be one of those in the list");
    seconds.and_then(Result::ok).map(Micros::from_secs).ok_or_else(invalid)
}

/// Shows a new secret, once.
fn secret_page(
    frame: &Frame,
    id: &ProjectId,
    created: &CreatedKey,
    previous: Option<&ApiKey>,
) -> Markup {
    let CreatedKey { key, secret } = created;
    let content = html! {
        @match secret {
            Some(secret) => {
                p.done role="status" { "API key " (foreign(&key.id)) " was created." }
                div.card.stack {
                    label for="api-key" { "The key. It is shown now, and never again" }
                    input.mono #api-key type="text" readonly value=(secret.expose()) autocomplete="off"
                        spellcheck="false" aria-describedby="api-key-hint";
                    p.hint #api-key-hint {
                        "Copy it before you leave this page. Clients send it as the header x-api-key."
                    }
                }
            }
            None => {
                p.notice role="status" {
                    "API key " (foreign(&key.id)) " was created by this form before, and its secret was \
                     shown then. If you have not kept it, replace the key."
                }
            }
        }
        @if let Some(previous) = previous {
            p {
                "It replaces the key " (foreign(&previous.id))
                @if let Some(end) = previous.expires_at { ", which is valid until " (time(Some(&timestamp(end)))) }
                "."
            }
        }
        p { a href=(link(id)) { "To the project " (foreign(field_of(id))) } }
    };
    frame.page("API key", &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_times_in_utc() {
        let second = Timestamp::EPOCH + Micros::from_secs(86_400);
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
