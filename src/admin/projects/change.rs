//! Changes of projects: claimed by their request id, tried, recorded, and made.

use prost::Message;
use tonic_types::Status as RpcStatus;

use super::{ProjectAdministrator, ProjectError};
use crate::admin::change::{MAX_OUTCOME_TIME, MAX_REASON, MAX_REQUEST_ID};
use crate::admin::request_ids::{Claim, Claimed, ClaimedId, MAX_WAIT, hash};
use crate::admin::{AdminError, Intent, MAX_CHANGE_TIME, MAX_TIME};
use crate::clock::Deadline;
use crate::projects::ProjectId;
use crate::projects::registry::{CallerScope, Change, ProjectState, SyncError, run_blocking};
use crate::telemetry::holder::Holder;

/// Who asks for a change, how, and why.
#[derive(Clone, Debug)]
pub struct ProjectCall {
    /// The caller.
    pub actor: String,
    /// Name of the RPC.
    pub action: &'static str,
    /// The reason that the caller gives: up to 1024 bytes.
    pub reason: String,
    /// Names the change, so that a retry of the caller does not repeat it: up to 64 bytes. Empty:
    /// none.
    pub request_id: String,
    /// Which projects the caller may change.
    pub scope: CallerScope,
    /// The caller's.
    pub deadline: Deadline,
}

/// A change that is not made yet.
#[derive(Clone, Debug)]
pub(super) struct PlannedChange {
    pub(super) id: ProjectId,
    /// Name of the rule or id of the key; empty for others.
    pub(super) target: String,
    /// The change in one line.
    pub(super) summary: String,
    /// Remembered under the request id.
    pub(super) answer: String,
    /// Fields of the request, by which another change under the same id is detected.
    pub(super) fields: Vec<String>,
}

/// A change that was made.
#[derive(Clone, Debug)]
pub(super) struct MadeNow<T> {
    pub(super) id: ProjectId,
    /// Revision of the project.
    pub(super) revision: u64,
    pub(super) result: T,
}

/// A change that was made by this call, or by an earlier one with its request id.
#[derive(Clone, Debug)]
pub(super) enum Made<T> {
    Now(MadeNow<T>),
    /// The answer that was remembered.
    Before(String),
}

impl PlannedChange {
    /// Plans a change of a project that may be made again.
    pub(super) fn of_project(id: &ProjectId, summary: String) -> Self {
        let (target, answer) = (String::new(), String::new());
        Self { id: id.clone(), target, summary, answer, fields: Vec::new() }
    }

    /// The same, of a rule or a key.
    pub(super) fn of_target(id: &ProjectId, target: &str, summary: String) -> Self {
        Self { target: target.to_owned(), ..Self::of_project(id, summary) }
    }
}

impl<T> Made<T> {
    /// Returns what was made by a call that has no request id.
    pub(super) fn now(self) -> Result<MadeNow<T>, ProjectError> {
        match self {
            Self::Now(made) => Ok(made),
            Self::Before(_) => Err(AdminError::OtherChange.into()),
        }
    }
}

impl ProjectCall {
    fn check_bounds(&self) -> Result<(), AdminError> {
        if self.reason.len() > MAX_REASON {
            return Err(AdminError::OptionalReason);
        }
        if self.request_id.len() > MAX_REQUEST_ID {
            return Err(AdminError::RequestId);
        }
        Ok(())
    }

    fn holder(&self, id: &ProjectId) -> Holder {
        match self.scope {
            CallerScope::AllProjects => Holder::AllProjects,
            CallerScope::SomeProjects => Holder::Project(id.to_string()),
        }
    }

    fn fingerprint(&self, planned: &PlannedChange) -> [u8; 16] {
        let mut texts = vec![self.action.as_bytes(), self.reason.as_bytes()];
        texts.extend(planned.fields.iter().map(String::as_bytes));
        hash(&texts)
    }
}

impl ProjectAdministrator {
    /// Changes a project. A change that has begun ends although the caller goes away.
    pub(super) async fn change<T, F>(
        &self,
        call: &ProjectCall,
        planned: PlannedChange,
        apply: F,
    ) -> Result<Made<T>, ProjectError>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, ProjectError> + Send + 'static,
        T: Send + 'static,
    {
        call.check_bounds()?;
        let (this, owned) = (self.clone(), call.clone());
        let made = Box::pin(async move { this.make(&owned, planned, apply).await });
        self.administrator.shared.changes.run(made, call.deadline).await
    }

    /// Makes a change, unless it was made before under its request id.
    async fn make<T, F>(
        &self,
        call: &ProjectCall,
        planned: PlannedChange,
        apply: F,
    ) -> Result<Made<T>, ProjectError>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, ProjectError> + Send + 'static,
        T: Send + 'static,
    {
        let deadline = call.deadline.or_within(MAX_TIME);
        if call.request_id.is_empty() {
            return self
                .record_and_write(call, planned, (None, deadline), apply)
                .await
                .map(Made::Now);
        }
        let claim = Claim {
            actor: &call.actor,
            holder: &call.holder(&planned.id),
            request_id: &call.request_id,
            fingerprint: call.fingerprint(&planned),
            ttl: self.administrator.limiter().idempotency_ttl().into(),
            max_wait: MAX_WAIT,
        };
        let fleet = self.administrator.fleet();
        let mut claimed = match ClaimedId::claim(fleet, claim, deadline).await? {
            Claimed::Now(claimed) => claimed,
            Claimed::Before(answer) => {
                let answer = String::decode(&*answer).map_err(|_| AdminError::Unfinished)?;
                return Ok(Made::Before(answer));
            }
        };
        let answer = planned.answer.clone();
        let result =
            self.record_and_write(call, planned, (Some(&mut claimed), deadline), apply).await;
        let deadline = Deadline::within(MAX_CHANGE_TIME);
        match &result {
            Ok(_) => claimed.answered(&answer, deadline).await,
            // A retry would perhaps make it twice.
            Err(error) if error.is_ambiguous() => {}
            Err(_) => claimed.released(deadline).await,
        }
        result.map(Made::Now)
    }

    /// Tries the change on the project as it is, records the intent, writes, and records the
    /// outcome.
    async fn record_and_write<T, F>(
        &self,
        call: &ProjectCall,
        planned: PlannedChange,
        (claimed, deadline): (Option<&mut ClaimedId>, Deadline),
        apply: F,
    ) -> Result<MadeNow<T>, ProjectError>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, ProjectError> + Send + 'static,
        T: Send + 'static,
    {
        let PlannedChange { id, target, summary, .. } = planned;
        let is_conflict = match self.registry.sync(deadline).await {
            Err(SyncError::Conflict) => true,
            synced => synced.map(|()| false)?,
        };
        let before = self.registry.project(&id);
        let mut apply = apply;
        let (apply, tried) = run_blocking(move || {
            let tried = apply(before.as_deref())
                .map(|change| (change.after.is_none(), change.only_ends_keys(before.as_deref())));
            (apply, tried)
        })
        .await;
        let (deletes, only_ends_keys) = tried?;
        if is_conflict && !only_ends_keys {
            return Err(SyncError::Conflict.into());
        }
        if let Some(claimed) = claimed {
            claimed.begin(deadline).await?;
        }
        let intent = Intent {
            actor: &call.actor,
            action: call.action,
            project_id: id.as_str(),
            target: &target,
            summary,
            reason: &call.reason,
            request_id: &call.request_id,
            before: Vec::new(),
        };
        let pending = self.administrator.audit().begin(intent, deadline).await;
        let pending = pending.map_err(AdminError::from)?;
        let deadline = Deadline::within(MAX_CHANGE_TIME);
        let written = self.registry.change_as(call.scope, &id, deadline, apply).await;
        let written = written.map_err(ProjectError::from);
        let deadline = Deadline::within(MAX_OUTCOME_TIME);
        match written.as_ref().map(|changed| changed.revision) {
            Ok(revision) if deletes => pending.done_as_deletion(revision, deadline).await,
            Ok(revision) => pending.done_as_revision(revision, deadline).await,
            Err(error) => pending.failed(outcome_error(error), Vec::new(), deadline).await,
        }
        let changed = written?;
        Ok(MadeNow { id, revision: changed.revision, result: changed.result })
    }
}

/// Returns the error of a change for readers of the audit.
pub(super) fn outcome_error(error: &ProjectError) -> RpcStatus {
    let code = if error.is_unavailable() { tonic::Code::Unavailable } else { tonic::Code::Aborted };
    let fate = if error.is_ambiguous() { "; it may have been made" } else { "" };
    RpcStatus { code: code.into(), message: format!("{error}{fate}"), details: Vec::new() }
}
