//! Changes of keys: checked, claimed by their request id, made, and answered.

use std::time::Duration;

use prost::Message;
use prost_reflect::DynamicMessage;
use rlaas_auth::{Caller, CallerScope, Roles, deadline};
use rlaas_projects::registry::ChangeRank;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_telemetry::holder::Holder;
use tonic::{Code, Request, Status};
use tonic_types::Status as RpcStatus;
use tracing::debug;

use super::request_ids::{Claimed, ClaimedId, MAX_ANSWER, MAX_WAIT, hash};
use super::selector::ParsedSelector;
use super::{
    Administrator, Intent, MAX_CHANGE_TIME, MAX_TIME, PendingChange, admitted_selector, caller,
    messages, refusals,
};
use rlaas_core::algorithm::Limit;
use rlaas_core::clock::Deadline;
use rlaas_core::control::{KeyGrant, LimitFrame, OverrideKind};
use rlaas_core::plan::SelectedKey;
use rlaas_core::rules::{Grant, Key};
use rlaas_limiter::store::StoreError;
use rlaas_limiter::{ChangeError, KeyChange, KeyState, KeysChanged};
use rlaas_proto::json::POOL;
use rlaas_proto::status::{invalid_field, violation};
use rlaas_proto::values::{int64, units};
use rlaas_proto::{LOWERS_LIMIT, limit_words};

/// Longest time for telling other instances of a change.
const PUBLISH_TIME: Duration = Duration::from_secs(1);
/// Longest time that the record of an outcome may take.
pub(super) const MAX_OUTCOME_TIME: Duration = Duration::from_secs(2);
/// Most bytes of a reason.
pub(super) const MAX_REASON: usize = 1024;
/// Most bytes of a request id.
const MAX_REQUEST_ID: usize = 64;

/// Who asks for a change, how, and why.
#[derive(Clone, Debug)]
pub struct AdminCall {
    pub(super) actor: String,
    /// Which projects the caller may change.
    pub(super) scope: CallerScope,
    /// Name of the RPC.
    pub(super) action: &'static str,
    /// The reason that the caller gives.
    pub(super) reason: String,
    /// Whether an override may lower no limit.
    pub(super) raise_only: bool,
    /// Names the change, so that a retry of the caller does not repeat it. Empty: none.
    pub(super) request_id: String,
    /// Hash of the request, by which another one under the same request id is detected.
    pub(super) fingerprint: [u8; 16],
    /// The caller's.
    pub(super) deadline: Deadline,
}

impl AdminCall {
    /// Returns the call of a request whose reason may be empty.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` if the reason or the request id is too long.
    pub(super) fn new<T>(
        request: &Request<T>,
        action: &'static str,
        reason: &str,
        request_id: &str,
    ) -> Result<Self, Status> {
        if reason.len() > MAX_REASON {
            return Err(invalid_field("reason", &format!("must be at most {MAX_REASON} bytes")));
        }
        if request_id.len() > MAX_REQUEST_ID {
            let problem = format!("must be at most {MAX_REQUEST_ID} bytes");
            return Err(invalid_field("request_id", &problem));
        }
        let call = Self::by(caller(request)?, action, deadline(request.metadata()));
        Ok(Self { reason: reason.to_owned(), request_id: request_id.to_owned(), ..call })
    }

    /// Returns the call with the hash of its request, which is needed if it has a request id. To be made
    /// once the caller is admitted: the request may be large.
    pub(super) fn with_fingerprint(self, request: &impl Message) -> Self {
        if self.request_id.is_empty() {
            return self;
        }
        let name = format!("ratelimit.admin.v1.{}Request", self.action);
        let descriptor = POOL.get_message_by_name(&name).expect("a method of the services");
        let encoded = request.encode_to_vec();
        let message = DynamicMessage::decode(descriptor, &*encoded).expect("the same message");
        // As JSON its members have an order: attributes have none of their own. Times that JSON can't
        // express are in messages without attributes.
        let content = serde_json::to_value(&message).map(|json| json.to_string().into_bytes());
        let content = content.unwrap_or(encoded);
        Self { fingerprint: hash(&[self.action.as_bytes(), &content]), ..self }
    }

    /// Returns a call without reason and request id.
    pub fn by(caller: &Caller, action: &'static str, deadline: Deadline) -> Self {
        Self {
            actor: caller.actor().to_owned(),
            scope: caller.scope(),
            action,
            reason: String::new(),
            raise_only: false,
            request_id: String::new(),
            fingerprint: [0; 16],
            deadline,
        }
    }

    /// Returns the call of a request whose reason may not be empty.
    ///
    /// # Errors
    ///
    /// As [`AdminCall::new`], and if the reason is empty.
    pub(super) fn with_reason<T>(
        request: &Request<T>,
        action: &'static str,
        reason: &str,
        request_id: &str,
    ) -> Result<Self, Status> {
        if !(1..=MAX_REASON).contains(&reason.len()) {
            return Err(invalid_field("reason", &format!("must be 1 to {MAX_REASON} bytes")));
        }
        Self::new(request, action, reason, request_id)
    }

    /// Returns when it is the turn of the change among others.
    pub(super) fn rank(&self) -> ChangeRank {
        ChangeRank { scope: self.scope, is_revocation: self.action == "RevokeKey" }
    }

    /// Returns the intent of the change for the audit.
    pub(super) fn intent<'a>(
        &'a self,
        project_id: &'a str,
        target: &'a str,
        summary: String,
    ) -> Intent<'a> {
        Intent {
            actor: &self.actor,
            action: self.action,
            project_id,
            target,
            summary,
            reason: &self.reason,
            request_id: &self.request_id,
            before: Vec::new(),
        }
    }
}

/// A change of keys with all that its task needs.
#[derive(Clone)]
pub(super) struct ChangeOfKeys {
    pub(super) call: AdminCall,
    pub(super) holder: Holder,
    pub(super) project: String,
    pub(super) keys: Vec<SelectedKey>,
    pub(super) change: KeyChange,
}

impl Administrator {
    /// Changes the keys of a selector, if the caller has one of the roles in its project. A change that
    /// has begun ends although the caller goes away.
    ///
    /// # Errors
    ///
    /// A refusal. Nothing is changed, unless it says so.
    pub(super) async fn change<T: Message>(
        &self,
        request: &Request<T>,
        required: Roles,
        call: AdminCall,
        selector: Option<&proto::Selector>,
        change: KeyChange,
    ) -> Result<proto::Change, Status> {
        let caller = caller(request)?;
        let project = admitted_selector(caller, selector, required)?;
        let parsed = ParsedSelector::new(selector)?;
        if call.deadline.has_passed() {
            return Err(refusals::store(&StoreError::Expired));
        }
        let keys = self.select(project.as_str(), &parsed.selector())?;
        if matches!(change, KeyChange::SetOverride(_)) {
            self.refuse_other_hashes("selector", &keys, &parsed.values())?;
        }
        let keys = changeable(&change, keys)?;
        let (holder, deadline) = (caller.holder(project.as_str()), call.deadline);
        let call = call.with_fingerprint(request.get_ref());
        let call = AdminCall { deadline: deadline.or_within(MAX_TIME), ..call };
        let (account, rank) = (holder.clone(), call.rank());
        let change = ChangeOfKeys { call, holder, project: project.into(), keys, change };
        let administrator = self.clone();
        let made = Box::pin(async move { administrator.make(&change).await });
        self.shared.changes.run(account, rank, made, deadline).await
    }

    /// Makes a change, unless it was made before under its request id.
    pub(super) async fn make(&self, change: &ChangeOfKeys) -> Result<proto::Change, Status> {
        let call = &change.call;
        if call.request_id.is_empty() {
            return self.change_keys(change, None).await;
        }
        let ttl = self.limiter.idempotency_ttl().into();
        let claim = call.claim(&change.holder, ttl, MAX_WAIT);
        let mut claimed = match ClaimedId::claim(self.fleet(), claim, call.deadline).await? {
            Claimed::Before(answer) => {
                let answer = proto::Change::decode(&*answer).map_err(|_| refusals::unfinished())?;
                return Ok(proto::Change { replayed: true, ..answer });
            }
            Claimed::Now(claimed) => claimed,
        };
        let result = self.change_keys(change, Some(&mut claimed)).await;
        let deadline = Deadline::within(MAX_CHANGE_TIME);
        match &result {
            Ok(change) if change.encoded_len() <= MAX_ANSWER => {
                claimed.answered(change, deadline).await;
            }
            // The keys are left out.
            Ok(change) => {
                let (before, after) = (Vec::new(), Vec::new());
                claimed.answered(&proto::Change { before, after, ..*change }, deadline).await;
            }
            Err(_) => claimed.released(deadline).await,
        }
        result
    }

    /// Records the intent, changes the keys, and records the outcome. The caller's deadline is for
    /// what comes before the change: a change that has begun has time of its own.
    async fn change_keys(
        &self,
        change: &ChangeOfKeys,
        mut claimed: Option<&mut ClaimedId>,
    ) -> Result<proto::Change, Status> {
        let ChangeOfKeys { call, project, keys, change, .. } = change;
        let deadline = call.deadline;
        let before = Box::pin(self.limiter.inspect(keys, deadline)).await;
        let before = before.map_err(|error| refusals::store(&error))?;
        if let (KeyChange::SetOverride(set), true) = (change, call.raise_only) {
            refuse_lower(set.grant(), keys, &before)?;
        }
        if let Some(claimed) = &mut claimed {
            claimed.begin(deadline).await?;
        }
        let intent = Intent {
            before: before.into_iter().map(messages::key_state).collect(),
            ..call.intent(project, "", summary(change, keys.len()))
        };
        let pending = Box::pin(self.audit().begin(intent, deadline)).await;
        let pending = pending.map_err(|error| refusals::audit(&error))?;
        // A refund that is made again could return units twice.
        let is_kept = matches!(change, KeyChange::Refund(_));
        if let Some(claimed) = &mut claimed {
            claimed.set_kept(is_kept);
        }
        let changed = self.limiter.change(keys, change, Deadline::within(MAX_CHANGE_TIME)).await;
        record_outcome(pending, &changed).await;
        // After a failure too: some keys may have been changed.
        self.invalidate_deny_caches(keys).await;
        let changed = changed.map_err(|ChangeError { done, error }| {
            if !done.after.is_empty() || error.is_ambiguous() {
                return refusals::perhaps_changed(&error);
            }
            if let Some(claimed) = claimed {
                claimed.set_kept(false);
            }
            refusals::store(&error)
        })?;
        if !self.limiter.store().outlives_process() {
            let action = call.action;
            tracing::warn!(action, "a restart loses this change (store.memory.journal.path)");
        }
        Ok(messages::change(changed, self.limiter.everywhere_by()))
    }

    /// Makes the deny caches of all instances forget keys that were changed.
    async fn invalidate_deny_caches(&self, keys: &[SelectedKey]) {
        let keys: Vec<&Key> = keys.iter().map(|key| &key.hit.key).collect();
        let until = Deadline::within(PUBLISH_TIME);
        if let Err(error) = self.limiter.forget_everywhere(self.fleet(), &keys, until).await {
            // The others follow by the age of their entries all the same.
            debug!(%error, "other instances were not told of a change");
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
            let fate = if error.is_ambiguous() { "; more keys may be changed" } else { "" };
            let text = format!("store unavailable: {}{fate}", error.kind());
            pending.failed(unavailable(text), states(done), deadline).await;
        }
    }
}

/// Returns the error of a change for readers of the audit.
pub(super) fn unavailable(message: String) -> RpcStatus {
    RpcStatus { code: Code::Unavailable.into(), message, details: Vec::new() }
}

/// Returns a change in one line, without keys.
fn summary(change: &KeyChange, keys: usize) -> String {
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
                grant => {
                    let grant = messages::grant(grant).words(|units| units.to_string());
                    format!("grant {grant} to {keys} for {ttl}")
                }
            }
        }
    }
}

/// Returns the keys that a change is for: overrides are only for those of overridable rules.
fn changeable(change: &KeyChange, mut keys: Vec<SelectedKey>) -> Result<Vec<SelectedKey>, Status> {
    if matches!(change, KeyChange::Reset | KeyChange::Refund(_)) {
        return Ok(keys);
    }
    let met: Vec<String> = keys.iter().map(|key| key.rule.to_string()).collect();
    keys.retain(|key| key.hit.overridable);
    let KeyChange::SetOverride(change) = change else { return Ok(keys) };
    if keys.is_empty() {
        let more = if met.is_empty() {
            "it selects no key; a request must have what its rule matches".to_owned()
        } else {
            format!("it selects keys of {}; add the line to the rule", met.join(", "))
        };
        let must = format!("must select a key of a rule with `overridable: true`: {more}");
        return Err(violation(Code::FailedPrecondition, "NOT_OVERRIDABLE", "selector", &must));
    }
    for key in &keys {
        check_grant(change.grant(), frame(key))?;
    }
    Ok(keys)
}

/// Refuses a grant that is less than that of a key now, whatever bans it.
fn refuse_lower(grant: KeyGrant, keys: &[SelectedKey], before: &[KeyState]) -> Result<(), Status> {
    let numbers = |grant: Grant| {
        let all = units(grant);
        [all, grant.limit().map_or(all, Limit::burst)].map(int64)
    };
    for (key, KeyState { rule, below_ban, .. }) in keys.iter().zip(before) {
        let (now, new) = (numbers(*below_ban), numbers(grant.within(frame(key))));
        if let Some(lowered) = (0..now.len()).find(|at| new[*at] < now[*at]) {
            let words =
                |numbers: [i64; 2]| limit_words(numbers[lowered], |units| units.to_string());
            let (now, new, unit) = (words(now), words(new), ["", " at once"][lowered]);
            let must = format!("must not be below the limit in force: {rule} {now} → {new}{unit}");
            let code = Code::FailedPrecondition;
            return Err(violation(code, LOWERS_LIMIT, "grant.limit", &must));
        }
    }
    Ok(())
}

/// Returns what an override leaves as it is.
fn frame(key: &SelectedKey) -> LimitFrame {
    let max_debt = key.hit.grant.limit().and_then(Limit::max_debt);
    LimitFrame { algorithm: key.hit.algorithm, window: key.hit.window, max_debt }
}

fn check_grant(grant: KeyGrant, frame: LimitFrame) -> Result<(), Status> {
    let (algorithm, max) = (frame.algorithm.name(), frame.max_units());
    match grant {
        grant if grant.is_accepted_by(frame) => Ok(()),
        KeyGrant::Limited { units, .. } if units <= max => {
            let problem =
                format!("must be 0, or one that {algorithm} accepts with this limit and window");
            Err(invalid_field("grant.burst", &problem))
        }
        _ => Err(invalid_field("grant.limit", &format!("must be 1 to {max} for {algorithm}"))),
    }
}
