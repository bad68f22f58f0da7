//! Changes of keys: from the fields of a form to the change.

use axum::extract::State;
use axum::response::Response;
use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::{
    Change, ClearOverrideRequest, KeyState, OverrideKind, RefundRequest, ResetRequest,
    SetOverrideRequest,
};
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;
use tonic::metadata::MetadataMap;

use super::forms::{ChangeDraft, ChangeKind, KIND, RULE, SEARCH};
use super::page;
use super::search::KeySearch;
use crate::Console;
use crate::calls::{CHANGE_TIME, within};
use crate::change_form::{REQUEST_ID, everywhere, replayed, ttl, warning};
use crate::fields::FormFields;
use crate::page_error::PageError;
use crate::text::{grouped, time_text};
use crate::visit::Visitor;

/// Longest time until an override ends, in days.
const MAX_DAYS: u64 = 366;
/// Most units of a limit.
const MAX_UNITS: i64 = 1_000_000_000;

/// Makes a change, and leads back to the keys. A change that is refused is shown again.
pub(crate) async fn change(
    State(console): State<Console>,
    visitor: Visitor,
    fields: FormFields,
) -> Response {
    let frame = visitor.frame("key");
    let search = match searched(&fields) {
        Ok(search) => search,
        Err(error) => return page(&console, &visitor, frame, Err(error), None).await,
    };
    match make(&visitor, &fields, &search).await {
        Ok(outcome) => visitor.done(search.link(), &outcome),
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
    visitor: &Visitor,
    fields: &FormFields,
    search: &KeySearch,
) -> Result<String, PageError> {
    let kind = ChangeKind::from_name(fields.one(KIND)?);
    let kind = kind.ok_or_else(|| PageError::invalid("change must be one of the page's"))?;
    let project = search.project_id();
    let (is_admin, is_operator) = (visitor.is_admin(project), visitor.is_operator(project));
    match (kind.needs_admin(), is_admin, is_operator) {
        (true, false, true) => return Err(PageError::forbidden("admin")),
        (false, true, false) => return Err(PageError::forbidden("operate")),
        _ => {}
    }
    let rule = fields.one(RULE)?;
    if rule.is_empty() || fields.one(REQUEST_ID)?.is_empty() {
        return Err(PageError::invalid("the form must be that of a key: load the page again"));
    }
    let (changed, warning) = send(visitor, fields, search, kind).await?;
    // A long answer is repeated without its keys.
    if changed.before.is_empty() && !changed.replayed {
        return Ok(format!("Nothing was changed: the request does not meet rule {rule} any more."));
    }
    Ok(outcome(kind, rule, &changed) + &warning)
}

/// Sends the change of a form. Returns its effect, and what the service warns of.
async fn send(
    visitor: &Visitor,
    fields: &FormFields,
    search: &KeySearch,
    kind: ChangeKind,
) -> Result<(Change, String), PageError> {
    let selector = KeySearch { rule: fields.one(RULE)?.to_owned(), ..search.clone() }.selector()?;
    let (selector, reason) = (Some(selector), fields.one("reason")?.to_owned());
    let request_id = fields.one(REQUEST_ID)?.to_owned();
    let mut client = visitor.admin();
    let made = |metadata: &MetadataMap, change: Option<Change>| {
        (change.unwrap_or_default(), warning(visitor, metadata))
    };
    Ok(match kind {
        ChangeKind::Reset => {
            let request = ResetRequest { selector, reason, request_id };
            let made_by = client.reset(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
        ChangeKind::Refund => {
            let units = units(fields)?;
            let request = RefundRequest { selector, units, reason, request_id };
            let made_by = client.refund(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
        ChangeKind::Ban | ChangeKind::SetLimit => {
            let (grant, ttl) = grant_of(kind, fields)?;
            let (grant, ttl) = (Some(grant), Some(ttl));
            let request = SetOverrideRequest { selector, grant, ttl, reason, request_id };
            let made_by = client.set_override(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
        ChangeKind::Unban | ChangeKind::ClearLimit => {
            let is_ban = kind == ChangeKind::Unban;
            let kind = if is_ban { OverrideKind::Ban } else { OverrideKind::Grant };
            let kind = kind.into();
            let request = ClearOverrideRequest { selector, kind, reason, request_id };
            let made_by = client.clear_override(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
    })
}

fn units(fields: &FormFields) -> Result<u64, PageError> {
    let units = fields.one("units")?.trim().parse().ok();
    let units = units.filter(|units| (1..=u64::from(u32::MAX)).contains(units));
    units.ok_or_else(|| PageError::invalid("units must be 1 to 4294967295"))
}

/// Returns the grant that a form sets, and the time until it ends.
fn grant_of(kind: ChangeKind, fields: &FormFields) -> Result<(Grant, Duration), PageError> {
    let grant = match kind {
        ChangeKind::Ban => Grant { kind: Some(Kind::Banned(true)), burst: 0 },
        _ => grant(fields)?,
    };
    Ok((grant, ttl(fields.one("ttl")?, MAX_DAYS)?))
}

fn grant(fields: &FormFields) -> Result<Grant, PageError> {
    let (limit, burst) = (fields.one("limit")?.trim(), fields.one("burst")?.trim());
    if limit.eq_ignore_ascii_case("unlimited") {
        let without = || PageError::invalid("most at once must be empty without a limit");
        let grant = Grant { kind: Some(Kind::Unlimited(true)), burst: 0 };
        return if burst.is_empty() { Ok(grant) } else { Err(without()) };
    }
    let number = |field: &str, text: &str| {
        let number = text.parse().ok().filter(|units| (1..=MAX_UNITS).contains(units));
        number.ok_or_else(|| PageError::invalid(format!("{field} must be 1 to {MAX_UNITS}")))
    };
    let units = number("limit", limit)?;
    let burst = if burst.is_empty() { 0 } else { number("most at once", burst)? };
    Ok(Grant { kind: Some(Kind::Limit(units)), burst })
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
