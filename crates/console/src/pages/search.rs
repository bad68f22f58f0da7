//! The search in the head of every page: a user id, a customer, an API key, a rule or a project.

use axum::http::StatusCode;
use axum::response::Response;
use maud::html;
use rlaas_proto::ratelimit::admin::v1::{ApiKey, ListKeysRequest};
use rlaas_proto::{API_KEY_ID_LEN, API_KEY_PREFIX, TypedApiKey};

use super::{key, projects, rules};
use crate::calls::{EVERY_PROJECT, READ_TIME, field_of, within};
use crate::fields::{FormFields, Link};
use crate::moved_to;
use crate::page_error::PageError;
use crate::rule_words::rule_page;
use crate::text::foreign;
use crate::visit::{Visit, Visitor};

/// The field of the search.
pub(crate) const FIELD: &str = "find";
/// Longest text, in bytes: no id is longer.
const MAX_TEXT: usize = 1024;

/// Something with the name that was typed: what it is, and its page.
type Named = (String, Link);

/// Leads to the rule or the project with the name that was typed, or else to the page of ids; of several they are
/// listed. The form is no query: it may have the secret of an API key, which must not be in an address.
pub(crate) async fn find(visit: Visit) -> Response {
    match all_named(&visit).await {
        Err(error) => visit.console.refuse(error).await,
        Ok(all) if all.len() == 1 => moved_to(all[0].1.as_str()),
        Ok(all) => {
            let (frame, typed) = (visit.frame("search"), visit.fields.get(FIELD).to_owned());
            let render = move || {
                let content = html! {
                    p { "Several things have the name " (foreign(typed.trim())) ":" }
                    ul { @for (what, link) in &all { li { a href=(link) { (what) } } } }
                };
                frame.page("Search", &content)
            };
            visit.console.page(StatusCode::OK, render).await
        }
    }
}

/// Returns all that has the name that was typed, of what the visitor may see; without anything else it is taken
/// for an id.
async fn all_named(visit: &Visit) -> Result<Vec<Named>, PageError> {
    let typed = visit.fields.get(FIELD).trim();
    let id = |id: &str| ("a user id or customer".to_owned(), Link::to("key").with("user_id", id));
    if let Some((key, _)) = typed_key(&visit.visitor, typed).await {
        return Ok(vec![id(key.beginning)]);
    }
    if typed.len() > MAX_TEXT {
        return Err(PageError::invalid(format!("a search must be at most {MAX_TEXT} bytes")));
    }
    let names = rules_and_projects(visit.visitor.clone(), typed.to_owned());
    let mut all = visit.console.in_background(names).await?;
    if let Some(key) = key_with_id(&visit.visitor, typed).await {
        let beginning = format!("{API_KEY_PREFIX}{}_{typed}", key.environment);
        let what = format!("an API key of the project {}", key.project_id);
        all.push((what, Link::to("key").with("user_id", &beginning)));
    }
    let after_prefix = typed.split_once(API_KEY_PREFIX).map(|(_, rest)| rest);
    // A secret with another character in its id.
    let is_wrong =
        after_prefix.is_some_and(|rest| rest.contains('_')) && TypedApiKey::find(typed).is_none();
    if (all.is_empty() && !is_wrong) || key::is_in_use(&visit.visitor, typed).await {
        all.push(id(typed));
    }
    let must = "an API key must have at least the first 8 characters after its environment";
    if all.is_empty() { Err(PageError::invalid(must)) } else { Ok(all) }
}

/// Returns the rules and the projects of a visitor with exactly this name.
async fn rules_and_projects(visitor: Visitor, name: String) -> Result<Vec<Named>, PageError> {
    if name.is_empty() {
        return Ok(Vec::new());
    }
    let projects = projects::list(&visitor).await?.into_iter();
    let projects =
        projects.filter(|project| *field_of(&project.id) == *name || project.display_name == name);
    let link = |id: &str| Link::to("project").with("id", field_of(id));
    let projects = projects.map(|project| ("a project".to_owned(), link(&project.id)));
    let wanted = FormFields::default().with("name", &name);
    // The list has every rule with a part of the name.
    let rules = rules::list(visitor, wanted).await?.into_iter();
    let rules = rules.filter(|(_, rule)| rule.name == name).map(|(project, _)| {
        let what = format!("a rule of the project {}", field_of(&project));
        (what, rule_page(&project, &name))
    });
    Ok(projects.chain(rules).collect())
}

/// Returns what looks like an API key in a text, and the key, if the visitor may see it. A shorter text that is no
/// such key may be another id, such as `rlaas_team_engineer`.
pub(super) async fn typed_key<'a>(
    visitor: &Visitor,
    text: &'a str,
) -> Option<(TypedApiKey<'a>, Option<ApiKey>)> {
    let typed = TypedApiKey::find(text)?;
    let key = key_with_id(visitor, typed.id()).await;
    (key.is_some() || typed.is_secret()).then_some((typed, key))
}

/// Returns the API key with an id, of a project that the visitor has a role for.
pub(super) async fn key_with_id(visitor: &Visitor, id: &str) -> Option<ApiKey> {
    if id.len() != API_KEY_ID_LEN {
        return None;
    }
    let (project_id, key_id) = (EVERY_PROJECT.to_owned(), id.to_owned());
    let request = ListKeysRequest { project_id, key_id, ..ListKeysRequest::default() };
    let keys = visitor.projects().list_keys(within(READ_TIME, request)).await.ok()?;
    keys.into_inner().keys.into_iter().next()
}

/// Returns the link to an API key in the page of its project, with its forms open.
pub(super) fn key_link(key: &ApiKey) -> String {
    let link = Link::to("project").with("id", field_of(&key.project_id)).with("key", &key.id);
    format!("{link}#key-{}", key.id)
}
