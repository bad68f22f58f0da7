//! `BanKey`: a ban of a key on every rule of a project that is keyed by its parts.
//!
//! The keys are changed in chunks, each as one change with an entry of the audit. Those with such a ban
//! already are left out, so that a repeat after an error sets those that are missing.

use std::collections::BTreeSet;

use rlaas_limiter::{KeyChange, KeyState};
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::{Request, Status};

use super::change::{AdminCall, ChangeOfKeys};
use super::projects::{ADMIN, admitted};
use super::{Administrator, MAX_TIME, caller, overrides, refusals};
use crate::api::status::invalid_field;
use crate::clock::{Clock, Micros, Timestamp};
use crate::control::{KeyGrant, OverrideKind};
use crate::plan::{KeyPart, SelectError, SelectedKey, Selector};
use crate::store::StoreError;

/// Most rules that are keyed by the parts.
const MAX_RULES: usize = 1_000;
/// Time by which a ban may end sooner than a new one that is not needed then.
const TOLERANCE: Micros = Micros::from_secs(60);

impl Administrator {
    /// Answers `BanKey`. Bans that have begun go on although the caller goes away.
    ///
    /// # Errors
    ///
    /// A refusal. Some bans may be set, unless it is for the request.
    pub(super) async fn ban_key(
        &self,
        request: &Request<proto::BanKeyRequest>,
    ) -> Result<proto::BanKeyResponse, Status> {
        let proto::BanKeyRequest { project_id, parts, ttl, reason } = request.get_ref();
        let call = AdminCall::with_reason(request, "BanKey", reason, "")?;
        let caller = caller(request)?;
        let project = admitted(caller, project_id, ADMIN)?;
        let ban = overrides::change_to(KeyGrant::Banned, ttl.as_ref(), &call)?;
        if call.deadline.has_passed() {
            return Err(refusals::store(&StoreError::Expired));
        }
        let snapshot = self.limiter().project_snapshot(project.as_str());
        let rules = &snapshot.ok_or_else(refusals::no_project)?.rules;
        let part =
            |part: &proto::KeyPart| KeyPart { name: part.name.clone(), value: part.value.clone() };
        let parts: Vec<KeyPart> = parts.iter().map(part).collect();
        let keys = rules.select_all(&parts).map_err(invalid_parts)?;
        if keys.len() > MAX_RULES {
            let problem = format!("must be those of the keys of at most {MAX_RULES} rules");
            return Err(invalid_field("parts", &problem));
        }
        let keyed_so: BTreeSet<&str> = keys.iter().map(|key| &*key.rule).collect();
        let flat = rules.iter().map(|rule| &*rule.name);
        let all: BTreeSet<&str> =
            flat.chain(rules.descriptors().iter().map(|one| &*one.name)).collect();
        let keyed_otherwise = all.difference(&keyed_so).map(|rule| (*rule).to_owned()).collect();
        let (keys, fixed): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| key.hit.overridable);
        let now = Clock::default().now();
        let enough_until = (now + ban.ttl() - TOLERANCE).max(now);
        let (holder, deadline) = (caller.holder(project.as_str()), call.deadline);
        let (project, change) = (project.into(), KeyChange::SetOverride(ban));
        let account = (holder.clone(), call.rank());
        let bans = ChangeOfKeys { call, holder, project, keys, change };
        let administrator = self.clone();
        let made = Box::pin(async move { administrator.ban(bans, enough_until).await });
        let set = self.shared.changes.run(account, made, deadline).await?;
        Ok(proto::BanKeyResponse { not_overridable: names(&fixed), keyed_otherwise, ..set })
    }

    /// Bans the keys, but for those with a ban that lasts.
    async fn ban(
        &self,
        mut bans: ChangeOfKeys,
        enough_until: Timestamp,
    ) -> Result<proto::BanKeyResponse, Status> {
        let mut keys = std::mem::take(&mut bans.keys);
        keys.sort_by(|one, other| one.rule.cmp(&other.rule));
        let mut response = proto::BanKeyResponse::default();
        for chunk in keys.chunks(Selector::MAX_KEYS) {
            // Of the caller's time, each chunk has as much as a change.
            let deadline = bans.call.deadline.or_within(MAX_TIME);
            let states = Box::pin(self.limiter().inspect(chunk, deadline)).await;
            let states = states.map_err(|error| refusals::store(&error))?;
            let is_banned = |state: &KeyState| {
                let mut overrides = state.overrides.iter();
                overrides.any(|one| one.kind() == OverrideKind::Ban && one.ends_at > enough_until)
            };
            let (before, missing): (Vec<_>, Vec<_>) =
                chunk.iter().cloned().zip(&states).partition(|(_, state)| is_banned(state));
            let of = |keys: Vec<(SelectedKey, _)>| keys.into_iter().map(|(key, _)| key).collect();
            let (before, keys): (Vec<_>, Vec<_>) = (of(before), of(missing));
            response.banned_before.extend(names(&before));
            if keys.is_empty() {
                continue;
            }
            response.banned.extend(names(&keys));
            let call = AdminCall { deadline, ..bans.call.clone() };
            let made = self.make(&ChangeOfKeys { call, keys, ..bans.clone() }).await?;
            response.everywhere_by = made.everywhere_by;
        }
        Ok(response)
    }
}

fn names(keys: &[SelectedKey]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().map(|key| key.rule.to_string()).collect();
    names.sort_unstable();
    names
}

fn invalid_parts(error: SelectError) -> Status {
    let text = error.to_string();
    // The text begins with the name of the field of a selector.
    invalid_field("parts", text.strip_prefix("selector.key.parts ").unwrap_or(&text))
}
