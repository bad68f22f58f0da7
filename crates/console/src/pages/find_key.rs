//! From an API key to its project, to revoke it: by its secret, the beginning of that, or its id.

use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{ApiKey, ListKeysRequest};

use crate::calls::{EVERY_PROJECT, READ_TIME, field_of, within};
use crate::fields::{FormFields, Link};
use crate::layout::{Frame, failure};
use crate::moved_to;
use crate::page_error::PageError;
use crate::visit::{Visit, Visitor};

/// Characters of the id of an API key.
const ID_LEN: usize = 8;
/// Problem of a text that is none of an API key.
const INVALID: &str =
    "an API key is found by its secret, or by the first 8 characters after its environment";

/// Leads to the project of an API key. The form is no query: it may have the secret, which must not be in
/// the address of a page.
pub(crate) async fn find(visit: Visit) -> Response {
    let found = find_one(&visit.visitor, &visit.fields).await;
    let error = match found {
        Ok(key) => return moved_to(&link(&key)),
        Err(error) => error,
    };
    let (status, frame) = (error.status, visit.frame("projects"));
    let render = move || {
        let content = html! {
            (form(&frame))
            (failure(&error.sentence()))
            p { a href="projects" { "All projects" } }
        };
        frame.page("Find an API key", &content)
    };
    visit.console.page(status, render).await
}

/// Returns the API key with the id in a form. Neither an error nor a call has more of what was typed.
async fn find_one(visitor: &Visitor, fields: &FormFields) -> Result<ApiKey, PageError> {
    fields.check()?;
    let id = key_id(fields.get("api_key")).ok_or_else(|| PageError::invalid(INVALID))?;
    let (project_id, key_id) = (EVERY_PROJECT.to_owned(), id.to_owned());
    let request = ListKeysRequest { project_id, key_id, ..ListKeysRequest::default() };
    let keys = visitor.projects().list_keys(within(READ_TIME, request)).await?.into_inner().keys;
    let unknown =
        || PageError::not_found(format!("no project that you have a role for has an API key {id}"));
    keys.into_iter().next().ok_or_else(unknown)
}

/// Returns the id of an API key, given by its secret, the beginning of that, or the id.
fn key_id(text: &str) -> Option<&str> {
    let text = text.trim();
    let random = text.strip_prefix("rlaas_").and_then(|rest| rest.split_once('_'));
    let id = random.map_or(text, |(_, random)| random).get(..ID_LEN)?;
    id.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(id)
}

/// Returns the link to an API key in the page of its project, with its forms open.
fn link(key: &ApiKey) -> String {
    let link = Link::to("project").with("id", field_of(&key.project_id)).with("key", &key.id);
    format!("{link}#key-{}", key.id)
}

/// Shows the form.
pub(super) fn form(frame: &Frame) -> Markup {
    html! {
        form.row method="post" action="key-find" {
            (frame.secret())
            div {
                label for="api_key" { "Find an API key: its prefix or secret" }
                input id="api_key" name="api_key" autocomplete="off" spellcheck="false" maxlength="128";
            }
            button { "Find" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_api_keys_are_cut_out_of_their_secrets() {
        for text in ["AbCd1234", " rlaas_live_AbCd1234\n", "rlaas_t2_AbCd1234xyz_9", "AbCd1234xyz"]
        {
            assert_eq!(key_id(text), Some("AbCd1234"), "{text}");
        }
        for text in [
            "",
            "rlaas_live_",
            "rlaas_live_AbC",
            "rlaas_AbCd1234",
            "<script>1",
            "éééé",
            "a b c d e",
        ] {
            assert_eq!(key_id(text), None, "{text}");
        }
    }
}
