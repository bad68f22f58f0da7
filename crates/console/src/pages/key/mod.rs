//! Keys: what one id has used of each rule that it meets, and changes of that.
//!
//! | file | subject |
//! | --- | --- |
//! | `search` | the id that a visitor looks for |
//! | `found` | its keys, with their states |
//! | `render` | the page |
//! | `forms` | the forms of changes |
//! | `change` | from a form to the change |

mod change;
mod forms;
mod found;
mod render;
mod search;

pub(crate) use change::change;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;

use self::forms::ChangeDraft;
use self::found::find;
use self::search::KeySearch;
use crate::Console;
use crate::fields::FormFields;
use crate::layout::Frame;
use crate::page_error::PageError;
use crate::visit::Visitor;

/// Shows the keys of an id.
pub(crate) async fn show(
    State(console): State<Console>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Response {
    let fields = FormFields::parse(query.unwrap_or_default().as_bytes());
    let frame = match &fields {
        Ok(fields) => visitor.frame_after_change("key", fields),
        Err(_) => visitor.frame("key"),
    };
    let search = fields.and_then(|fields| KeySearch::parse(&fields)).map_err(PageError::from);
    page(&console, &visitor, frame, search, None).await
}

/// Responds with the page: with the keys if there is an id, and with the form of a change that was
/// refused.
async fn page(
    console: &Console,
    visitor: &Visitor,
    frame: Frame,
    search: Result<KeySearch, PageError>,
    draft: Option<ChangeDraft>,
) -> Response {
    let (search, found) = match search {
        Err(error) => (KeySearch::default(), Some(Err(error))),
        Ok(search) if search.is_given() => {
            let found = find(visitor, &search).await;
            (search, Some(found))
        }
        Ok(search) => (search.with_project_of(visitor), None),
    };
    let status = match (&draft, &found) {
        (Some(draft), _) => draft.error.status,
        (None, Some(Err(error))) => error.status,
        (None, Some(Ok(found))) if found.store_problem.is_some() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    let page = render::KeyPage { frame, search, found, draft };
    console.page(status, move || page.render()).await
}
