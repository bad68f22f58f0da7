//! Changes: checked, claimed by their request id, made, and answered.

use rlaas_proto::ratelimit::admin::v1 as proto;

use super::request_ids::{Claimed, ClaimedId, hash};
use super::{AdminError, Administrator, MAX_TIME, Shared};
use crate::api::admin::messages;
use crate::clock::Deadline;
use crate::control::{KeyGrant, LimitFrame};
use crate::plan::{SelectedKey, Selector, Target};
use rlaas_limiter::KeyChange;

/// Most bytes of a reason; it has at least one.
pub(super) const MAX_REASON: usize = 1024;
/// Most bytes of a request id.
pub(super) const MAX_REQUEST_ID: usize = 64;

/// A change that a caller asks for.
#[derive(Clone, Copy, Debug)]
pub struct ChangeRequest<'a> {
    /// The caller.
    pub actor: &'a str,
    /// Name of the RPC.
    pub action: &'static str,
    /// The keys.
    pub selector: Selector<'a>,
    /// The change.
    pub change: KeyChange<'a>,
    /// The reason that the caller gives: 1 to 1024 bytes.
    pub reason: &'a str,
    /// Names the change, so that a retry of the caller does not repeat it: up to 64 bytes. Empty:
    /// none.
    pub request_id: &'a str,
}

impl Administrator {
    /// Changes keys.
    ///
    /// # Errors
    ///
    /// [`AdminError`]. Nothing is changed, unless it is [`AdminError::Change`].
    pub async fn change(
        &self,
        request: &ChangeRequest<'_>,
        deadline: Deadline,
    ) -> Result<proto::Change, AdminError> {
        request.check_bounds()?;
        let deadline = deadline.or_within(MAX_TIME);
        let keys = self.select(&request.selector)?;
        let keys = request.changeable(keys)?;
        if request.request_id.is_empty() {
            return self.change_keys(request, &keys, deadline).await;
        }
        let Shared { fleet, settings, .. } = &*self.shared;
        let fingerprint = fingerprint(request);
        let (actor, id) = (request.actor, request.request_id);
        let ttl = settings.idempotency_ttl;
        let claimed = ClaimedId::claim(fleet, actor, id, fingerprint, ttl, deadline).await?;
        let claimed = match claimed {
            Claimed::Before(answer) => return Ok(*answer),
            Claimed::Now(claimed) => claimed,
        };
        let result = self.change_keys(request, &keys, deadline).await;
        // The claim must not stay because the caller's time was over: it has its own.
        let deadline = Deadline::within(MAX_TIME);
        match &result {
            Ok(change) => claimed.answered(change, deadline).await,
            Err(AdminError::Change(_)) if matches!(request.change, KeyChange::Refund(_)) => {}
            Err(_) => claimed.released(deadline).await,
        }
        result
    }

    async fn change_keys(
        &self,
        request: &ChangeRequest<'_>,
        keys: &[SelectedKey],
        deadline: Deadline,
    ) -> Result<proto::Change, AdminError> {
        let changed = self.limiter.change(keys, request.change, deadline).await?;
        if !self.limiter.store().outlives_process() {
            let action = request.action;
            tracing::warn!(action, "a restart loses this change (store.memory.journal.path)");
        }
        let Shared { settings, clock, .. } = &*self.shared;
        let everywhere_by = clock.now() + settings.deny_cache_max_age.into();
        Ok(messages::change(changed, everywhere_by))
    }
}

impl ChangeRequest<'_> {
    fn check_bounds(&self) -> Result<(), AdminError> {
        if !(1..=MAX_REASON).contains(&self.reason.len()) {
            return Err(AdminError::Reason);
        }
        if self.request_id.len() > MAX_REQUEST_ID {
            return Err(AdminError::RequestId);
        }
        Ok(())
    }

    /// Returns the keys that the change is for: overrides are only for those of overridable rules.
    fn changeable(&self, mut keys: Vec<SelectedKey>) -> Result<Vec<SelectedKey>, AdminError> {
        let change = match self.change {
            KeyChange::Reset | KeyChange::Refund(_) | KeyChange::ClearOverride(_) => None,
            KeyChange::SetOverride(change) => Some(change),
        };
        if matches!(self.change, KeyChange::ClearOverride(_)) {
            keys.retain(|key| key.hit.overridable);
        }
        if let Some(change) = change {
            keys.retain(|key| key.hit.overridable);
            if keys.is_empty() {
                return Err(AdminError::NotOverridable);
            }
            for key in &keys {
                let frame = frame(key);
                if !change.grant().is_accepted_by(frame) {
                    return Err(not_accepted(change.grant(), frame));
                }
            }
        }
        Ok(keys)
    }
}

/// Returns what an override leaves as it is.
fn frame(key: &SelectedKey) -> LimitFrame {
    let max_debt = key.hit.grant.limit().and_then(crate::algorithm::Limit::max_debt);
    LimitFrame { algorithm: key.hit.algorithm, window: key.hit.window, max_debt }
}

/// Returns the hash of a change, by which another one under the same request id is detected.
fn fingerprint(request: &ChangeRequest<'_>) -> [u8; 16] {
    let ChangeRequest { action, selector, change, reason, .. } = request;
    let mut texts = vec![*action, *reason, selector.rule.unwrap_or_default()];
    // Attributes have no order.
    let mut attributes: Vec<(&str, &str)> = Vec::new();
    match &selector.target {
        Target::Request(request) => {
            texts.extend(["request", request.user_id(), request.resource()]);
            attributes.extend(request.attributes().iter());
            attributes.sort_unstable();
            texts.extend(attributes.iter().flat_map(|(name, value)| [*name, *value]));
        }
        Target::Parts(parts) => {
            texts.push("parts");
            for part in *parts {
                texts.push(&part.name);
                texts.extend(part.value.as_deref().map_or(["absent", ""], |value| ["is", value]));
            }
        }
        Target::Id(id) => texts.extend(["id", id]),
        Target::Descriptor { domain, entries } => {
            texts.extend(["envoy", domain]);
            texts.extend(entries.iter().flat_map(|(key, value)| [*key, *value]));
        }
    }
    let change = match change {
        KeyChange::Reset => String::new(),
        KeyChange::Refund(units) => units.units().to_string(),
        KeyChange::ClearOverride(kind) => format!("{kind:?}"),
        KeyChange::SetOverride(change) => {
            format!("{:?} for {} µs", change.grant(), change.ttl().as_micros())
        }
    };
    texts.push(&change);
    let texts: Vec<&[u8]> = texts.into_iter().map(str::as_bytes).collect();
    hash(&texts)
}

fn not_accepted(grant: KeyGrant, frame: LimitFrame) -> AdminError {
    let algorithm = frame.algorithm.name();
    match grant {
        KeyGrant::Limited { units, .. } if u64::from(units) <= frame.max_units() => {
            AdminError::Burst { algorithm }
        }
        _ => AdminError::TooManyUnits { algorithm, max: frame.max_units() },
    }
}
