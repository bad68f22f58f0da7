//! Changes: checked, claimed by their request id, made, and answered.

use std::time::Duration;

use prost::Message;
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic_types::Status as RpcStatus;
use tracing::debug;

use super::messages;
use super::request_ids::{Claim, Claimed, ClaimedId, MAX_ANSWER, MAX_WAIT, hash};
use super::{AdminError, Administrator, Intent, MAX_CHANGE_TIME, MAX_TIME, PendingChange};
use crate::clock::Deadline;
use crate::control::{KeyGrant, LimitFrame, OverrideChange, OverrideKind};
use crate::plan::{SelectedKey, Selector, SelectorTarget};
use crate::rules::Key;
use crate::store::StoreError;
use crate::telemetry::holder::Holder;
use rlaas_limiter::fleet::Fleet;
use rlaas_limiter::{ChangeError, KeyChange, KeysChanged, Limiter};

/// Longest time for telling other instances of a change.
const PUBLISH_TIME: Duration = Duration::from_secs(1);
/// Longest time that the record of an outcome may take.
pub(super) const MAX_OUTCOME_TIME: Duration = Duration::from_secs(2);
/// `google.rpc.Code.UNAVAILABLE`.
pub(super) const UNAVAILABLE: i32 = 14;
/// Most bytes of a reason; it has at least one.
pub(super) const MAX_REASON: usize = 1024;
/// Most bytes of a request id.
pub(super) const MAX_REQUEST_ID: usize = 64;

/// A change that a caller asks for.
#[derive(Clone, Debug)]
pub struct ChangeRequest<'a> {
    /// The caller.
    pub actor: &'a str,
    /// On whose account its request id is held.
    pub holder: Holder,
    /// Name of the RPC.
    pub action: &'static str,
    /// The project of the keys.
    pub project: &'a str,
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
    /// Changes keys. A change that has begun ends although the caller goes away.
    ///
    /// # Errors
    ///
    /// [`AdminError`]. Nothing is changed, unless it is [`AdminError::Change`], or
    /// [`AdminError::Running`].
    pub async fn change(
        &self,
        request: &ChangeRequest<'_>,
        deadline: Deadline,
    ) -> Result<proto::Change, AdminError> {
        check_bounds(request.reason, request.request_id)?;
        if deadline.has_passed() {
            return Err(StoreError::Expired.into());
        }
        let keys = self.select(request.project, &request.selector)?;
        let change = CheckedChange {
            actor: request.actor.to_owned(),
            holder: request.holder.clone(),
            action: request.action,
            project: request.project.to_owned(),
            reason: request.reason.to_owned(),
            request_id: request.request_id.to_owned(),
            keys: request.changeable(keys)?,
            change: OwnedChange::new(request.change),
            fingerprint: fingerprint(request),
            deadline: deadline.or_within(MAX_TIME),
        };
        let administrator = self.clone();
        let made = Box::pin(async move { administrator.make(&change).await });
        self.shared.changes.run(made, deadline).await
    }

    /// Makes a change, unless it was made before under its request id.
    async fn make(&self, change: &CheckedChange) -> Result<proto::Change, AdminError> {
        if change.request_id.is_empty() {
            return self.change_keys(change, None).await;
        }
        let claim = Claim {
            actor: &change.actor,
            holder: &change.holder,
            request_id: &change.request_id,
            fingerprint: change.fingerprint,
            ttl: self.limiter.idempotency_ttl().into(),
            max_wait: MAX_WAIT,
        };
        let fleet = &self.shared.fleet;
        let mut claimed = match ClaimedId::claim(fleet, claim, change.deadline).await? {
            Claimed::Before(answer) => {
                let answer = proto::Change::decode(&*answer).map_err(|_| AdminError::Unfinished)?;
                return Ok(proto::Change { replayed: true, ..answer });
            }
            Claimed::Now(claimed) => claimed,
        };
        let result = self.change_keys(change, Some(&mut claimed)).await;
        let deadline = Deadline::within(MAX_CHANGE_TIME);
        let is_refund = matches!(change.change.borrowed(), KeyChange::Refund(_));
        match &result {
            Ok(change) if change.encoded_len() <= MAX_ANSWER => {
                claimed.answered(change, deadline).await;
            }
            // The keys are left out.
            Ok(change) => {
                let (before, after) = (Vec::new(), Vec::new());
                claimed.answered(&proto::Change { before, after, ..*change }, deadline).await;
            }
            Err(AdminError::Change(_)) if is_refund => {}
            Err(_) => claimed.released(deadline).await,
        }
        result
    }

    /// Records the intent, changes the keys, and records the outcome. The caller's deadline is for
    /// what comes before the change: a change that has begun has time of its own.
    async fn change_keys(
        &self,
        change: &CheckedChange,
        claimed: Option<&mut ClaimedId>,
    ) -> Result<proto::Change, AdminError> {
        let CheckedChange { actor, action, project, reason, request_id, keys, deadline, .. } =
            change;
        let made = change.change.borrowed();
        let before = Box::pin(self.limiter.inspect(keys, *deadline)).await?;
        if let Some(claimed) = claimed {
            claimed.begin(*deadline).await?;
        }
        let intent = Intent {
            actor,
            action,
            project_id: project,
            target: "",
            summary: summary(made, keys.len()),
            reason,
            request_id,
            before: before.into_iter().map(messages::key_state).collect(),
        };
        let pending = Box::pin(self.shared.audit.begin(intent, *deadline)).await?;
        let changed = self.limiter.change(keys, made, Deadline::within(MAX_CHANGE_TIME)).await;
        record_outcome(pending, &changed).await;
        // After a failure too: some keys may have been changed.
        tell_others(&self.limiter, &self.shared.fleet, keys).await;
        let changed = changed?;
        if !self.limiter.store().outlives_process() {
            tracing::warn!(action, "a restart loses this change (store.memory.journal.path)");
        }
        Ok(messages::change(changed, self.limiter.everywhere_by()))
    }
}

/// A valid change with all that its task needs.
struct CheckedChange {
    actor: String,
    holder: Holder,
    action: &'static str,
    project: String,
    reason: String,
    request_id: String,
    keys: Vec<SelectedKey>,
    change: OwnedChange,
    fingerprint: [u8; 16],
    /// The caller's.
    deadline: Deadline,
}

/// Makes the deny caches of all instances forget keys that were changed.
async fn tell_others(limiter: &Limiter, fleet: &Fleet, keys: &[SelectedKey]) {
    let keys: Vec<&Key> = keys.iter().map(|key| &key.hit.key).collect();
    let until = Deadline::within(PUBLISH_TIME);
    if let Err(error) = limiter.forget_everywhere(fleet, &keys, until).await {
        // The others follow by the age of their entries all the same.
        debug!(%error, "other instances were not told of a change");
    }
}

/// A change without borrowed parts.
enum OwnedChange {
    Simple(KeyChange<'static>),
    SetOverride(OverrideChange),
}

impl OwnedChange {
    fn new(change: KeyChange<'_>) -> Self {
        match change {
            KeyChange::Reset => Self::Simple(KeyChange::Reset),
            KeyChange::Refund(units) => Self::Simple(KeyChange::Refund(units)),
            KeyChange::ClearOverride(kind) => Self::Simple(KeyChange::ClearOverride(kind)),
            KeyChange::SetOverride(change) => Self::SetOverride(change.clone()),
        }
    }

    fn borrowed(&self) -> KeyChange<'_> {
        match self {
            Self::Simple(change) => *change,
            Self::SetOverride(change) => KeyChange::SetOverride(change),
        }
    }
}

/// Records the outcome of a change. It has time of its own: the change may have taken all of its
/// caller's.
async fn record_outcome(pending: PendingChange, changed: &Result<KeysChanged, ChangeError>) {
    let deadline = Deadline::within(MAX_OUTCOME_TIME);
    let states = |keys: &KeysChanged| keys.after.iter().cloned().map(messages::key_state).collect();
    match changed {
        Ok(keys) => pending.done(states(keys), deadline).await,
        Err(ChangeError { done, error }) => {
            pending.failed(outcome_error(error), states(done), deadline).await;
        }
    }
}

/// Returns the error of a change for readers of the audit.
fn outcome_error(error: &StoreError) -> RpcStatus {
    let fate = if error.is_ambiguous() { "; more keys may be changed" } else { "" };
    let message = format!("store unavailable: {}{fate}", error.kind());
    RpcStatus { code: UNAVAILABLE, message, details: Vec::new() }
}

/// Returns a change in one line, without keys.
fn summary(change: KeyChange<'_>, keys: usize) -> String {
    let keys = if keys == 1 { "1 key".to_owned() } else { format!("{keys} keys") };
    match change {
        KeyChange::Reset => format!("reset {keys}"),
        KeyChange::Refund(units) => format!("refund {} units to {keys}", units.units()),
        KeyChange::ClearOverride(OverrideKind::Both) => format!("clear overrides of {keys}"),
        KeyChange::ClearOverride(OverrideKind::Ban) => format!("clear bans of {keys}"),
        KeyChange::ClearOverride(OverrideKind::Grant) => format!("clear grants of {keys}"),
        KeyChange::SetOverride(change) => {
            let ttl = humantime::format_duration(change.ttl().into());
            match change.grant() {
                KeyGrant::Banned => format!("ban {keys} for {ttl}"),
                KeyGrant::Unlimited => format!("grant unlimited to {keys} for {ttl}"),
                KeyGrant::Limited { units, burst } if burst == units => {
                    format!("grant {units} to {keys} for {ttl}")
                }
                KeyGrant::Limited { units, burst } => {
                    format!("grant {units}, burst {burst}, to {keys} for {ttl}")
                }
            }
        }
    }
}

/// Checks the fields that all changes have.
pub(super) fn check_bounds(reason: &str, request_id: &str) -> Result<(), AdminError> {
    if !(1..=MAX_REASON).contains(&reason.len()) {
        return Err(AdminError::Reason);
    }
    if request_id.len() > MAX_REQUEST_ID {
        return Err(AdminError::RequestId);
    }
    Ok(())
}

impl ChangeRequest<'_> {
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
    let ChangeRequest { action, project, selector, change, reason, .. } = request;
    let mut texts = vec![*action, *reason, selector.rule.unwrap_or_default()];
    if !project.is_empty() {
        texts.extend(["project", project]);
    }
    // Attributes have no order.
    let mut attributes: Vec<(&str, &str)> = Vec::new();
    match &selector.target {
        SelectorTarget::Request(request) => {
            texts.extend(["request", request.user_id(), request.resource()]);
            attributes.extend(request.attributes().iter());
            attributes.sort_unstable();
            texts.extend(attributes.iter().flat_map(|(name, value)| [*name, *value]));
        }
        SelectorTarget::Parts(parts) => {
            texts.push("parts");
            for part in *parts {
                texts.push(&part.name);
                texts.extend(part.value.as_deref().map_or(["absent", ""], |value| ["is", value]));
            }
        }
        SelectorTarget::Id(id) => texts.extend(["id", id]),
        SelectorTarget::Descriptor { domain, entries } => {
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
