//! Changes of keys: from the fields of a form to the change, by the same operation as the API.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use rlaas_limiter::KeyChange;
use rlaas_proto::ratelimit::admin::v1::{Change, KeyState};
use rlaas_proto::ratelimit::v1::grant::Kind;

use super::forms::{ChangeDraft, ChangeKind, KIND, RULE, SEARCH};
use super::page;
use super::search::KeySearch;
use crate::admin::{AdminError, ChangeRequest, Note};
use crate::algorithm::{Cost, Limit};
use crate::clock::Deadline;
use crate::console::action::Action;
use crate::console::change_form::{REQUEST_ID, everywhere, replayed, ttl};
use crate::console::fields::FormFields;
use crate::console::page_error::{PageError, admitted};
use crate::console::text::{grouped, time_text};
use crate::console::visitor::ConsoleVisitor;
use crate::console::{Console, ConsoleContext};
use crate::control::{KeyGrant, OverrideChange, OverrideError, OverrideKind};
use crate::plan::{Selector, SelectorTarget};

/// Longest wait for a change.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Makes a change, and leads back to the keys. A change that is refused is shown again.
pub(in crate::console) async fn change(State(console): State<Console>, action: Action) -> Response {
    let Action { visitor, fields, .. } = action;
    let frame = console.frame(&visitor, "key");
    let search = match searched(&fields) {
        Ok(search) => search,
        Err(error) => return page(&console, &visitor, frame, Err(error), None).await,
    };
    match make(&console, &visitor, &fields, &search).await {
        Ok(outcome) => console.done(&visitor, search.link(), &outcome),
        Err(error) => {
            let draft = Some(ChangeDraft { fields, error });
            page(&console, &visitor, frame, Ok(search), draft).await
        }
    }
}

/// Returns the search that a form was shown for.
fn searched(fields: &FormFields) -> Result<KeySearch, PageError> {
    let encoded = fields.one(SEARCH)?;
    Ok(KeySearch::parse(&FormFields::parse(encoded.as_bytes())?)?)
}

/// Makes the change of a form, and returns what was done.
async fn make(
    console: &ConsoleContext,
    visitor: &ConsoleVisitor,
    fields: &FormFields,
    search: &KeySearch,
) -> Result<String, PageError> {
    let kind = ChangeKind::from_name(fields.one(KIND)?);
    let kind = kind.ok_or_else(|| PageError::invalid("change must be one of the page's"))?;
    let project = admitted(&visitor.caller, &search.project, kind.required())?;
    let (rule, reason) = (fields.one(RULE)?, fields.one("reason")?);
    let request_id = fields.one(REQUEST_ID)?;
    if rule.is_empty() || request_id.is_empty() {
        return Err(PageError::invalid("the form must be that of a key: load the page again"));
    }
    let attributes = search.request.attributes()?;
    let request;
    let target = if search.id.is_empty() {
        request = search.request.request(&attributes)?.in_project(project.as_str());
        SelectorTarget::Request(&request)
    } else {
        SelectorTarget::Id(&search.id)
    };
    let note = Note::of_new_override(visitor.caller.actor(), reason);
    let set = override_of(kind, fields, &note)?;
    let request_of = ChangeRequest {
        actor: visitor.caller.actor(),
        holder: visitor.caller.holder(project.as_str()),
        action: rpc(kind),
        project: project.as_str(),
        selector: Selector { target, rule: Some(rule) },
        change: match &set {
            Some(set) => KeyChange::SetOverride(set),
            None if kind == ChangeKind::Refund => KeyChange::Refund(units(fields)?),
            None if kind == ChangeKind::Unban => KeyChange::ClearOverride(OverrideKind::Ban),
            None if kind == ChangeKind::ClearLimit => KeyChange::ClearOverride(OverrideKind::Grant),
            None => KeyChange::Reset,
        },
        reason,
        request_id,
    };
    let changed = console.administrator.change(&request_of, Deadline::within(MAX_TIME)).await;
    let changed = changed.map_err(|error| match error {
        AdminError::NotOverridable => {
            PageError::invalid("rule must have `overridable: true` for bans and other limits")
        }
        error => error.into(),
    })?;
    // A long answer is repeated without its keys.
    if changed.before.is_empty() && !changed.replayed {
        return Ok(format!("Nothing was changed: the request does not meet rule {rule} any more."));
    }
    Ok(outcome(kind, rule, &changed) + console.loss(visitor, set.is_some()))
}

/// Returns the name of the change in the audit: that of its RPC.
const fn rpc(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Reset => "Reset",
        ChangeKind::Refund => "Refund",
        ChangeKind::Ban | ChangeKind::SetLimit => "SetOverride",
        ChangeKind::Unban | ChangeKind::ClearLimit => "ClearOverride",
    }
}

fn units(fields: &FormFields) -> Result<Cost, PageError> {
    let units = fields.one("units")?.trim().parse().ok().filter(|units| *units > 0);
    units.map(Cost::new).ok_or_else(|| PageError::invalid("units must be 1 to 4294967295"))
}

fn grant(fields: &FormFields) -> Result<KeyGrant, PageError> {
    let (limit, burst) = (fields.one("limit")?.trim(), fields.one("burst")?.trim());
    if limit.eq_ignore_ascii_case("unlimited") {
        let without = PageError::invalid("most at once must be empty without a limit");
        return if burst.is_empty() { Ok(KeyGrant::Unlimited) } else { Err(without) };
    }
    let number = |field: &str, text: &str| {
        let number = text.parse().ok().filter(|units| *units > 0);
        number.ok_or_else(|| invalid_units(field))
    };
    let units = number("limit", limit)?;
    let burst = if burst.is_empty() { units } else { number("most at once", burst)? };
    Ok(KeyGrant::Limited { units, burst })
}

fn invalid_units(field: &str) -> PageError {
    PageError::invalid(format!("{field} must be 1 to {}", Limit::MAX_UNITS))
}

/// Returns the override that a form sets; `None` if its change is another.
fn override_of(
    kind: ChangeKind,
    fields: &FormFields,
    note: &[u8],
) -> Result<Option<OverrideChange>, PageError> {
    let grant = match kind {
        ChangeKind::Ban => KeyGrant::Banned,
        ChangeKind::SetLimit => grant(fields)?,
        _ => return Ok(None),
    };
    let ttl = ttl(fields.one("ttl")?, OverrideChange::MAX_TTL)?;
    let change = OverrideChange::new(grant, ttl, note).map_err(|error| match error {
        OverrideError::Units => invalid_units("limit"),
        error => PageError::invalid(error.to_string()),
    });
    change.map(Some)
}

/// Returns a change in one sentence.
fn outcome(kind: ChangeKind, rule: &str, change: &Change) -> String {
    let of = |states: &[KeyState]| states.first().map(|state| state.used.max(0).unsigned_abs());
    let used = of(&change.before).zip(of(&change.after)).map(|(before, after)| {
        format!(": {} used before, {} now", grouped(before), grouped(after))
    });
    let used = used.unwrap_or_default();
    let text = match kind {
        ChangeKind::Reset => format!("The key of rule {rule} is reset{used}."),
        ChangeKind::Refund => format!("Units of the key of rule {rule} are refunded{used}."),
        ChangeKind::Ban => {
            format!("The key of rule {rule} is banned{}.", until(change, OverrideKind::Ban))
        }
        ChangeKind::Unban => format!("The key of rule {rule} is not banned any more."),
        ChangeKind::SetLimit => {
            let until = until(change, OverrideKind::Grant);
            format!("The key of rule {rule} has another limit{until}.")
        }
        ChangeKind::ClearLimit => {
            format!("The key of rule {rule} has the limit of the rule again.")
        }
    };
    let everywhere = everywhere(change.everywhere_by.as_ref());
    format!("{}{text}{everywhere}", replayed(change.replayed))
}

/// Returns the end of the override that a change has set.
fn until(change: &Change, kind: OverrideKind) -> String {
    let is_of_kind = |ban: bool| ban == (kind == OverrideKind::Ban);
    let set = change.after.iter().flat_map(|state| &state.overrides).find(|one| {
        let grant = one.grant.as_ref().and_then(|grant| grant.kind.as_ref());
        grant.is_some_and(|grant| is_of_kind(matches!(grant, Kind::Banned(_))))
    });
    let ends_at = set.and_then(|one| one.expires_at.as_ref());
    ends_at.map(|at| format!(" until {}", time_text(at))).unwrap_or_default()
}
