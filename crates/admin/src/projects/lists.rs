//! Lists in pages. A token has the place of the last item of the page before, so that items that
//! are made or deleted meanwhile move nothing.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use rlaas_auth::ProjectId;
use rlaas_projects::registry::ProjectState;
use rlaas_projects::{ApiKey, History, Revision, RevisionNumber};
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::Status;

use super::messages;
use crate::page_count;
use crate::refusals::invalid_page_token;
use rlaas_core::rules::RuleSet;

/// Most bytes of a token.
const MAX_TOKEN_LEN: usize = 256;

/// A place in a list of times, newest first, and ids.
type NewestFirst = (Reverse<u64>, String);

/// Returns a page of projects: newest first, the unnamed one last.
pub(super) fn projects(
    states: Vec<Arc<ProjectState>>,
    page_size: i32,
    token: &str,
) -> Result<(Vec<Arc<ProjectState>>, String), Status> {
    let place = |state: &Arc<ProjectState>| {
        let project = &state.project;
        // Those that were never written are before the unnamed one.
        let at = if project.id.is_unnamed() { 0 } else { project.created_at.as_micros().max(1) };
        (Reverse(at), project.id.to_string())
    };
    page(states, page_size, token, place, timed, timed_text)
}

/// An API key and its project.
type KeyOfProject<'a> = (&'a ProjectId, &'a ApiKey);

/// Returns a page of keys, newest first.
pub(super) fn keys<'a>(
    keys: Vec<KeyOfProject<'a>>,
    page_size: i32,
    token: &str,
) -> Result<(Vec<KeyOfProject<'a>>, String), Status> {
    let place = |(_, key): &(_, &ApiKey)| (Reverse(key.created_at.as_micros()), key.id.clone());
    page(keys, page_size, token, place, timed, timed_text)
}

/// Returns a function that returns `true` at the first revision after those of a page.
pub(super) fn is_last_of_revisions(
    page_size: i32,
    token: &str,
) -> Result<impl FnMut(RevisionNumber) -> bool + Send + use<>, Status> {
    let mut left = page_count(page_size)?;
    let before = token.parse().unwrap_or(RevisionNumber::MAX);
    Ok(move |number| {
        let is_after = number < before && left == 0;
        left -= usize::from(number < before && left > 0);
        is_after
    })
}

/// Returns a page of revisions, newest first.
pub(super) fn revisions<'a>(
    history: &'a History,
    page_size: i32,
    token: &str,
) -> Result<(Vec<&'a Revision>, String), Status> {
    let place = |revision: &&Revision| Reverse(revision.number);
    let parse = |token: &str| token.parse().ok().map(Reverse);
    page(history.iter().collect(), page_size, token, place, parse, |place| place.0.to_string())
}

/// Returns a page of rules by name; one that a file hides is after that of the file.
pub(super) fn rules(
    state: &ProjectState,
    files: Option<&RuleSet>,
    page_size: i32,
    token: &str,
) -> Result<(Vec<proto::ProjectRule>, String), Status> {
    let id = &state.project.id;
    let of_files = files.into_iter().flat_map(|files| files.iter().skip(1));
    let mut all: Vec<((String, bool), proto::ProjectRule)> = of_files
        .map(|rule| ((rule.name.to_string(), false), messages::file_rule(id, rule)))
        .collect();
    let names = files.into_iter().flat_map(RuleSet::iter);
    let names: HashSet<&str> = names.map(|rule| &*rule.name).collect();
    all.extend(state.rules.iter().map(|(name, record)| {
        let hidden = names.contains(name);
        ((name.to_owned(), hidden), messages::rule(id, record, hidden))
    }));
    let parse = |token: &str| {
        let (hidden, name) = token.split_once('.')?;
        Some((name.to_owned(), hidden == "1"))
    };
    let text = |(name, hidden): &(String, bool)| format!("{}.{name}", u8::from(*hidden));
    let (page, next) = page(all, page_size, token, |(place, _)| place.clone(), parse, text)?;
    Ok((page.into_iter().map(|(_, rule)| rule).collect(), next))
}

fn timed(token: &str) -> Option<NewestFirst> {
    let (at, id) = token.split_once('.')?;
    Some((Reverse(at.parse().ok()?), id.to_owned()))
}

fn timed_text((Reverse(at), id): &NewestFirst) -> String {
    format!("{at}.{id}")
}

/// Returns the items after those of the page before, in the order of their places, and the token of
/// the next page.
fn page<T, P: Ord>(
    items: Vec<T>,
    page_size: i32,
    token: &str,
    place: impl Fn(&T) -> P,
    parse: impl Fn(&str) -> Option<P>,
    text: impl Fn(&P) -> String,
) -> Result<(Vec<T>, String), Status> {
    let size = page_count(page_size)?;
    let mut items = items;
    items.sort_by_key(&place);
    if !token.is_empty() {
        let last = Some(token).filter(|token| token.len() <= MAX_TOKEN_LEN).and_then(parse);
        let last = last.ok_or_else(invalid_page_token)?;
        items.retain(|item| place(item) > last);
    }
    let has_more = items.len() > size;
    items.truncate(size);
    let next = items.last().filter(|_| has_more).map(|last| text(&place(last)));
    Ok((items, next.unwrap_or_default()))
}
