//! Keys: what one id has used of each rule that it meets, and changes of that.
//!
//! | file | subject |
//! | --- | --- |
//! | `found` | the keys of an id, with their states |
//! | `render` | the page |
//! | `change` | the forms of changes, and from a form to the change |
//!
//! An id is looked for by a request that has it, or by the id of a key: the fields of the query.

mod change;
mod found;
mod render;

pub(crate) use change::change;

use axum::http::StatusCode;
use axum::response::Response;
use rlaas_proto::ratelimit::admin::v1::selector::Whose;
use rlaas_proto::ratelimit::admin::v1::{KeyRef, Selector};

use self::found::find;
use crate::calls::id_of;
use crate::fields::{FormFields, Link};
use crate::form::RefusedForm;
use crate::page_error::PageError;
use crate::request_fields::{REQUEST_FIELDS, request};
use crate::visit::Visit;

/// Shows the keys of an id.
pub(crate) async fn show(visit: Visit) -> Response {
    let search = visit.fields.clone();
    let search = search.check().map(|()| search).map_err(PageError::from);
    page(&visit, search, None).await
}

/// Responds with the page: with the keys if there is an id, and with the form of a change that was
/// refused.
async fn page(
    visit: &Visit,
    search: Result<FormFields, PageError>,
    refused: Option<RefusedForm>,
) -> Response {
    let (search, found) = match search {
        Err(error) => (FormFields::default(), Some(Err(error))),
        Ok(search) if is_given(&search) => {
            let found = find(&visit.visitor, &search).await;
            (search, Some(found))
        }
        Ok(search) => (search, None),
    };
    let status = match (&refused, &found) {
        (Some(refused), _) => refused.error.status,
        (None, Some(Err(error))) => error.status,
        (None, Some(Ok(found))) if found.store_problem.is_some() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    let page = render::KeyPage { frame: visit.frame("key"), search, found, refused };
    visit.console.page(status, move || page.render()).await
}

/// Returns `true` if there is something to look for.
fn is_given(search: &FormFields) -> bool {
    REQUEST_FIELDS.iter().chain(&["id"]).any(|name| !search.get(name).is_empty())
}

/// Returns the keys that are looked for: of one rule, or of every rule that the request meets.
fn selector(search: &FormFields, rule: &str) -> Result<Selector, PageError> {
    let whose = match search.get("id") {
        "" => Whose::Request(request(search)?),
        id => Whose::Key(KeyRef { id: id.to_owned(), ..KeyRef::default() }),
    };
    let project_id = id_of(search.get("project")).to_owned();
    Ok(Selector { whose: Some(whose), rule: rule.to_owned(), project_id })
}

/// Returns the link to what is found.
fn link(search: &FormFields) -> Link {
    let names = [&["project"][..], &REQUEST_FIELDS, &["rule", "id"]].concat();
    Link::like("key", search, &names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_id_survives_a_form() {
        let id = "\0\r\n\u{202e}%&=";
        let shown = Link::to("key").with("project", "shop").with("id", id);
        let search = FormFields::parse(shown.query().as_bytes()).expect("fields");
        assert_eq!((search.get("id"), link(&search).query()), (id, shown.query()));
        assert_eq!(link(&FormFields::default()).query(), "");
    }
}
