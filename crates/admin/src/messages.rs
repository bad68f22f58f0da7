//! States of keys and changes as messages. The audit and the registry of instances store them too, so
//! their format never changes.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::rule_messages::mode;
use rlaas_proto::values::{algorithm, duration, int64, timestamp, units};

use super::Note;
use rlaas_core::algorithm::{Outcome, Window};
use rlaas_core::clock::Timestamp;
use rlaas_core::control::{KeyGrant, KeyOverride};
use rlaas_core::plan::{GrantSource, KeyPart};
use rlaas_core::rules::{Grant, HashedValue, Key, KeyHasher};
use rlaas_limiter::{KeyState, KeysChanged};

/// Returns the message of a change.
pub(crate) fn change(keys: KeysChanged, everywhere_by: Timestamp) -> proto::Change {
    proto::Change {
        before: keys.before.into_iter().map(key_state).collect(),
        after: keys.after.into_iter().map(key_state).collect(),
        everywhere_by: Some(timestamp(everywhere_by)),
        replayed: false,
    }
}

/// Returns the message of the state of a key.
pub(crate) fn key_state(state: KeyState) -> proto::KeyState {
    let (used, limit) = (state.used(), state.limit().copied());
    let KeyState {
        rule,
        key,
        parts,
        storage_key,
        grant,
        grant_from,
        limit_from,
        overrides,
        decision,
        held,
        ..
    } = state;
    let project = key.project_name();
    let key_ref = key_ref(parts, &key, storage_key);
    let project = project.unwrap_or_default();
    let message = |entry| key_override(&project, &rule, &key_ref, entry);
    let overrides = overrides.iter().map(message).collect();
    let retry_after = match decision.outcome {
        Outcome::Denied { retry_after } => Some(duration(retry_after)),
        Outcome::Allowed | Outcome::Impossible => None,
    };
    let windows = limit.map(|limit| limit.windows());
    let counts_windows = windows.filter(|_| !state.algorithm.has_slots());
    let at = Some(decision.at).filter(|at| *at != Timestamp::EPOCH);
    proto::KeyState {
        rule: rule.to_string(),
        algorithm: algorithm(state.algorithm).into(),
        mode: mode(state.mode).into(),
        key: Some(key_ref),
        limit: int64(units(grant)),
        used: int64(used),
        remaining: if grant == Grant::Unlimited { i64::MAX } else { decision.remaining },
        retry_after,
        reset_after: Some(duration(decision.reset_after)),
        reset_at: at.map(|at| timestamp(at + decision.reset_after)),
        window: counts_windows.map(|windows| duration(windows.length_at(decision.at))),
        zone: windows.and_then(Window::calendar).map_or("", |calendar| calendar.zone()).to_owned(),
        grant_from: self::grant_from(grant_from).into(),
        held: held.as_ref().map_or(0, |held| int64(held.units)),
        holds: held.map_or(0, |held| i32::try_from(held.holds).unwrap_or(i32::MAX)),
        overrides,
        limit_from: limit_from.map(|from| from.to_string()).unwrap_or_default(),
    }
}

/// Returns the message of an override of a key of a rule in a project.
pub(crate) fn key_override(
    project: &str,
    rule: &str,
    key: &proto::KeyRef,
    entry: &KeyOverride,
) -> proto::KeyOverride {
    let Note { created_at_us, actor, reason } = Note::from_bytes(&entry.note);
    proto::KeyOverride {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        key: Some(key.clone()),
        grant: Some(grant(entry.grant)),
        created_at: Some(timestamp(Timestamp::from_micros(created_at_us))),
        expires_at: Some(timestamp(entry.ends_at)),
        actor,
        reason,
    }
}

/// Returns the message of a grant of a key.
pub(crate) fn grant(grant: KeyGrant) -> v1::Grant {
    let (kind, burst) = match grant {
        KeyGrant::Limited { units, burst } => {
            // Unset is the same as the limit.
            let burst = if burst == units { 0 } else { int64(burst) };
            (Kind::Limit(int64(units)), burst)
        }
        KeyGrant::Unlimited => (Kind::Unlimited(true), 0),
        KeyGrant::Banned => (Kind::Banned(true), 0),
    };
    v1::Grant { kind: Some(kind), burst }
}

/// Replaces the values of the parts of a key by hashes, but those that its id holds as hashes.
pub(crate) fn hide_values(key: &mut proto::KeyRef, hasher: &KeyHasher) {
    // Components of the id: the values, or for descriptors keys and values in turn. A value is shown
    // as a hash if its component is one; a value that looks like a hash has other components.
    let id: Vec<&str> = key.id.split(':').collect();
    let components = if id.len() == key.parts.len() { 1 } else { 2 };
    for (position, part) in key.parts.iter_mut().enumerate() {
        let Some(value) = &mut part.value else { continue };
        let component = id.get(components * (position + 1) - 1);
        let is_hashed = value.strip_prefix('#').is_some_and(|hash| {
            HashedValue::show_hashed(hash).is_some() && component == Some(&hash)
        });
        if !is_hashed {
            *value = hasher.shown(value);
        }
    }
}

/// Returns the message that names a key.
pub(crate) fn key_ref(parts: Vec<KeyPart>, key: &Key, storage_key: String) -> proto::KeyRef {
    let parts = parts.into_iter().map(key_part).collect();
    proto::KeyRef { parts, id: key.id().to_owned(), storage_key }
}

/// Returns the message of the origin of a grant.
pub(crate) const fn grant_from(source: GrantSource) -> proto::GrantFrom {
    match source {
        GrantSource::Rule => proto::GrantFrom::Rule,
        GrantSource::RuleOverride => proto::GrantFrom::RuleOverride,
        GrantSource::Request => proto::GrantFrom::Request,
        GrantSource::KeyOverride => proto::GrantFrom::KeyOverride,
    }
}

/// Returns the message of a part of a key.
pub(crate) fn key_part(part: KeyPart) -> proto::KeyPart {
    proto::KeyPart { name: part.name, value: part.value }
}
