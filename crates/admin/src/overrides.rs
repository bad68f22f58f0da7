//! Overrides in messages, and their list.

use rlaas_limiter::Limiter;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::values::micros;
use tonic::{Request, Status};

use super::change::AdminCall;
use super::messages::{key_override, key_part};
use super::projects::{ADMIN, admitted};
use super::{EVERY_PROJECT, MAX_TIME, Note, caller, page_count, refusals};
use rlaas_auth::deadline;
use rlaas_core::algorithm::Limit;
use rlaas_core::control::{KeyGrant, OverrideChange, OverrideError, OverrideKind, OverridePage};
use rlaas_proto::status::{invalid_field, unknown_project};

/// Reads the grant of an override and the time until it ends.
///
/// # Errors
///
/// `INVALID_ARGUMENT`, with the field.
pub(super) fn change(
    grant: Option<&Grant>,
    ttl: Option<&prost_types::Duration>,
    call: &AdminCall,
) -> Result<OverrideChange, Status> {
    let grant = grant.ok_or_else(|| invalid_field("grant", "must be set"))?;
    change_to(key_grant(grant)?, ttl, call)
}

/// As [`change`], with a grant that is read.
pub(super) fn change_to(
    grant: KeyGrant,
    ttl: Option<&prost_types::Duration>,
    call: &AdminCall,
) -> Result<OverrideChange, Status> {
    let invalid_ttl = || invalid_field("ttl", "must be 1 s to 366 d");
    let ttl = ttl.and_then(micros).ok_or_else(invalid_ttl)?;
    let note = Note::of_new_override(&call.actor, &call.reason);
    OverrideChange::new(grant, ttl, &note).map_err(|error| match error {
        OverrideError::Units => invalid_units("grant.limit"),
        OverrideError::Ttl => invalid_ttl(),
        OverrideError::Note => invalid_field("reason", "must be 1 to 1024 bytes"),
    })
}

/// Reads a kind of overrides.
///
/// # Errors
///
/// `INVALID_ARGUMENT` if the kind is not known.
pub(super) fn kind(kind: i32) -> Result<OverrideKind, Status> {
    match proto::OverrideKind::try_from(kind) {
        Ok(proto::OverrideKind::Unspecified) => Ok(OverrideKind::Both),
        Ok(proto::OverrideKind::Ban) => Ok(OverrideKind::Ban),
        Ok(proto::OverrideKind::Grant) => Ok(OverrideKind::Grant),
        Err(_) => Err(invalid_field("kind", "must be OVERRIDE_KIND_BAN, OVERRIDE_KIND_GRANT or 0")),
    }
}

/// Returns a page of the overrides in force of a project, or of all in which the caller has the role: of
/// one rule or of all.
pub(super) async fn list(
    limiter: &Limiter,
    request: &Request<proto::ListOverridesRequest>,
) -> Result<proto::ListOverridesResponse, Status> {
    let message = request.get_ref();
    let proto::ListOverridesRequest { project_id, page_size, page_token, rule, kind } = message;
    let caller = caller(request)?;
    let rule = Some(rule.as_str()).filter(|rule| !rule.is_empty());
    let (kind, count) = (self::kind(*kind)?, page_count(*page_size)?);
    let every = project_id == EVERY_PROJECT;
    if !every {
        let project = admitted(caller, project_id, ADMIN)?;
        let snapshot = limiter.project_snapshot(project.as_str());
        let snapshot = snapshot.ok_or_else(|| unknown_project("project_id"))?;
        if rule.is_some_and(|name| !snapshot.rules.has_rule(name)) {
            return Err(refusals::unknown_rule());
        }
    }
    let deadline = deadline(request.metadata()).or_within(MAX_TIME);
    // A key has up to two; a page of one key has both.
    let keys = (count / 2).max(1);
    let page = limiter.store().list_overrides(page_token, keys, deadline).await;
    let mut page = page.map_err(|error| refusals::store(&error))?;
    page.keys.retain_mut(|key| {
        match kind {
            OverrideKind::Ban => key.record.clear(OverrideKind::Grant),
            OverrideKind::Grant => key.record.clear(OverrideKind::Ban),
            OverrideKind::Both => {}
        }
        let is_of = |name| {
            let snapshot = limiter.snapshot_of_key(&key.key);
            let rule = snapshot.and_then(|snapshot| snapshot.rules.describe(&key.key).0);
            rule.as_deref() == Some(name)
        };
        let is_listed = |id: &str| {
            if every { admitted(caller, id, ADMIN).is_ok() } else { id == project_id }
        };
        key.key.project_name().is_some_and(|project| is_listed(&project))
            && !key.record.is_empty()
            && rule.is_none_or(is_of)
    });
    Ok(self::page(page, limiter))
}

/// Returns a page of overrides as a message.
fn page(page: OverridePage, limiter: &Limiter) -> proto::ListOverridesResponse {
    let overrides = page.keys.iter().flat_map(|listed| {
        let snapshot = limiter.snapshot_of_key(&listed.key);
        let described = snapshot.map(|snapshot| snapshot.rules.describe(&listed.key));
        let (rule, parts) = described.unwrap_or_default();
        let key = proto::KeyRef {
            parts: parts.into_iter().map(key_part).collect(),
            id: listed.key.id().to_owned(),
            storage_key: limiter.store().key_name(&listed.key),
        };
        // Of a rule that is no longer in force the name in the key is left.
        let rule = rule.map_or_else(|| listed.key.rule().to_owned(), |rule| rule.to_string());
        let project = listed.key.project_name().unwrap_or_default();
        let message = |entry| key_override(&project, &rule, &key, entry);
        let overrides: Vec<_> = listed.record.iter().map(message).collect();
        overrides
    });
    proto::ListOverridesResponse {
        overrides: overrides.collect(),
        next_page_token: page.next.unwrap_or_default(),
    }
}

fn key_grant(grant: &Grant) -> Result<KeyGrant, Status> {
    let units = |units: i64| u64::try_from(units).ok().filter(|units| *units > 0);
    match (grant.kind, grant.burst) {
        (Some(Kind::Limit(limit)), burst) => {
            let limit = units(limit).ok_or_else(|| invalid_units("grant.limit"))?;
            let burst = if burst == 0 { Some(limit) } else { units(burst) };
            let burst = burst.ok_or_else(|| invalid_units("grant.burst"))?;
            Ok(KeyGrant::Limited { units: limit, burst })
        }
        (Some(Kind::Unlimited(true)), 0) => Ok(KeyGrant::Unlimited),
        (Some(Kind::Banned(true)), 0) => Ok(KeyGrant::Banned),
        (Some(Kind::Unlimited(true) | Kind::Banned(true)), _) => {
            Err(invalid_field("grant.burst", "must be unset without limit"))
        }
        _ => Err(invalid_field("grant", "must have limit, unlimited: true or banned: true")),
    }
}

fn invalid_units(field: &str) -> Status {
    invalid_field(field, &format!("must be 1 to {}", Limit::MAX_COUNTED))
}
