//! `BanKey`: a ban of a key on every rule of a project, or of several, that is keyed by its parts; and the end
//! of such bans.
//!
//! The keys are changed in chunks, each as one change with an entry of the audit. Those with such a ban
//! already are left out, so that a repeat after an error sets those that are missing.

use std::collections::BTreeSet;

use rlaas_auth::ProjectId;
use rlaas_limiter::{KeyChange, KeyState};
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::{Code, Request, Status};

use super::change::{AdminCall, ChangeOfKeys};
use super::{Administrator, EVERY_PROJECT, MAX_TIME, caller, overrides, refusals};
use rlaas_core::clock::{Clock, Micros};
use rlaas_core::control::{KeyGrant, OverrideKind};
use rlaas_core::plan::{KeyPart, SelectedKey, Selector};
use rlaas_limiter::store::StoreError;
use rlaas_proto::status::invalid_field;

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
        projects: Vec<ProjectId>,
    ) -> Result<proto::BanKeyResponse, Status> {
        let message = request.get_ref();
        let action = if message.end { "ClearOverride" } else { "BanKey" };
        let call = AdminCall::with_reason(request, action, &message.reason, "")?;
        let change = if message.end {
            KeyChange::ClearOverride(OverrideKind::Ban)
        } else {
            let ttl = message.ttl.as_ref();
            KeyChange::SetOverride(overrides::change_to(KeyGrant::Banned, ttl, &call)?)
        };
        if call.deadline.has_passed() {
            return Err(refusals::store(&StoreError::Expired));
        }
        let is_every = message.project_id == EVERY_PROJECT;
        let mut response = proto::BanKeyResponse::default();
        // One project does not keep the others from being changed.
        let mut refused = None;
        for project in projects {
            let holder = caller(request)?.holder(project.as_str());
            let (call, keys, change) = (call.clone(), Vec::new(), change.clone());
            let bans = ChangeOfKeys { call, holder, project: project.into(), keys, change };
            let prefix = if is_every { prefix(&bans.project) } else { String::new() };
            match self.ban_in(bans, message).await {
                Ok(made) => add(&mut response, made, &prefix),
                // It was deleted meanwhile.
                Err(gone) if is_every && gone.code() == Code::NotFound => {}
                Err(status) => refused = refused.or(Some(status)),
            }
        }
        refused.map_or(Ok(response), Err)
    }

    /// Makes the bans of a project.
    async fn ban_in(
        &self,
        mut bans: ChangeOfKeys,
        message: &proto::BanKeyRequest,
    ) -> Result<proto::BanKeyResponse, Status> {
        let snapshot = self.limiter().project_snapshot(&bans.project);
        let rules = &snapshot.ok_or_else(refusals::no_project)?.rules;
        let part =
            |part: &proto::KeyPart| KeyPart { name: part.name.clone(), value: part.value.clone() };
        let parts: Vec<KeyPart> = message.parts.iter().map(part).collect();
        let keys = match &*parts {
            [KeyPart { name, value: Some(user) }] if message.end && name == "user_id" => {
                rules.select_user(user)
            }
            parts => rules.select_all(parts),
        };
        let keys = keys.map_err(|error| invalid_field("parts", &error.violation().must))?;
        if keys.len() > MAX_RULES {
            let problem = format!("must be those of the keys of at most {MAX_RULES} rules");
            return Err(invalid_field("parts", &problem));
        }
        if !message.end {
            let given: Vec<&str> = parts.iter().filter_map(|part| part.value.as_deref()).collect();
            self.refuse_other_hashes("parts", &keys, &given)?;
        }
        let keyed_so: BTreeSet<&str> = keys.iter().map(|key| &*key.rule).collect();
        let flat = rules.iter().map(|rule| &*rule.name);
        let all: BTreeSet<&str> =
            flat.chain(rules.descriptors().iter().map(|rule| &*rule.name)).collect();
        let keyed_otherwise = all.difference(&keyed_so).map(|rule| (*rule).to_owned()).collect();
        let (keys, fixed): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| key.hit.overridable);
        bans.keys = keys;
        let (holder, rank) = (bans.holder.clone(), bans.call.rank());
        let (administrator, deadline) = (self.clone(), bans.call.deadline);
        let made = Box::pin(async move { administrator.make_bans(bans).await });
        let set = self.shared.changes.run(holder, rank, made, deadline).await?;
        if message.end {
            return Ok(set);
        }
        Ok(proto::BanKeyResponse { not_overridable: names(&fixed), keyed_otherwise, ..set })
    }

    /// Bans the keys, but for those with a ban that lasts; or ends their bans.
    async fn make_bans(&self, mut bans: ChangeOfKeys) -> Result<proto::BanKeyResponse, Status> {
        let mut keys = std::mem::take(&mut bans.keys);
        keys.sort_by(|left, right| left.rule.cmp(&right.rule));
        let mut response = proto::BanKeyResponse::default();
        let now = Clock::default().now();
        let enough_until = match &bans.change {
            KeyChange::SetOverride(ban) => Some((now + ban.ttl() - TOLERANCE).max(now)),
            _ => None,
        };
        for chunk in keys.chunks(Selector::MAX_KEYS) {
            // Of the caller's time, each chunk has as much as a change.
            let deadline = bans.call.deadline.or_within(MAX_TIME);
            let states = Box::pin(self.limiter().inspect(chunk, deadline)).await;
            let states = states.map_err(|error| refusals::store(&error))?;
            let is_banned = |state: &KeyState| {
                let mut bans = state.overrides.iter().filter(|ban| ban.kind() == OverrideKind::Ban);
                bans.any(|ban| enough_until.is_none_or(|until| ban.ends_at > until))
            };
            let (banned, others): (Vec<_>, Vec<_>) =
                chunk.iter().cloned().zip(&states).partition(|(_, state)| is_banned(state));
            let keys_of =
                |keys: Vec<(SelectedKey, _)>| keys.into_iter().map(|(key, _)| key).collect();
            let (banned, others): (Vec<_>, Vec<_>) = (keys_of(banned), keys_of(others));
            let keys = if enough_until.is_some() {
                response.banned_before.extend(names(&banned));
                response.banned.extend(names(&others));
                others
            } else {
                response.ended.extend(names(&banned));
                banned
            };
            if keys.is_empty() {
                continue;
            }
            let call = AdminCall { deadline, ..bans.call.clone() };
            let made = self.make(&ChangeOfKeys { call, keys, ..bans.clone() }).await?;
            response.everywhere_by = made.everywhere_by;
        }
        Ok(response)
    }
}

/// Adds what was made in a project, which stands before the names of its rules.
fn add(all: &mut proto::BanKeyResponse, made: proto::BanKeyResponse, prefix: &str) {
    let named = |rules: Vec<String>| rules.into_iter().map(move |rule| format!("{prefix}{rule}"));
    all.banned.extend(named(made.banned));
    all.banned_before.extend(named(made.banned_before));
    all.not_overridable.extend(named(made.not_overridable));
    all.keyed_otherwise.extend(named(made.keyed_otherwise));
    all.ended.extend(named(made.ended));
    all.everywhere_by = made.everywhere_by.or(all.everywhere_by);
}

fn prefix(project: &str) -> String {
    if project.is_empty() { "_/".to_owned() } else { format!("{project}/") }
}

fn names(keys: &[SelectedKey]) -> Vec<String> {
    let mut names: Vec<String> = keys.iter().map(|key| key.rule.to_string()).collect();
    names.sort_unstable();
    names
}
