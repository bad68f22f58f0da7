//! Changes of projects: claimed by their request id, tried on the project as it is, recorded in the audit,
//! and made. A change that is refused is not recorded.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rlaas_auth::{CallerScope, ProjectId, run_blocking};
use rlaas_projects::registry::{
    CatalogueSource, Change, ChangeError, ChangeRequest, ProjectState, RestoreError,
};
use rlaas_telemetry::holder::Holder;
use tonic::{Code, Request, Status};
use tonic_types::Status as RpcStatus;

use super::{Projects, proto, refusals};
use crate::change::{AdminCall, MAX_OUTCOME_TIME};
use crate::request_ids::{Claimed, ClaimedId, MAX_WAIT};
use crate::{MAX_CHANGE_TIME, MAX_TIME, refusals as common};
use rlaas_core::clock::Deadline;
use rlaas_proto::status::invalid_field;

/// Longest time of a restore. 10,000 projects with 10 rules each take some seconds.
const MAX_RESTORE_TIME: Duration = Duration::from_mins(2);

/// A change that is not made yet.
#[derive(Clone, Debug)]
pub struct PlannedChange {
    pub(super) id: ProjectId,
    /// Name of the rule or id of the key; empty for others.
    pub(super) target: String,
    /// The change in one line.
    pub(super) summary: String,
    /// Remembered under the request id.
    pub(super) answer: String,
}

/// A change that was made.
#[derive(Clone, Debug)]
pub(super) struct Applied<T> {
    pub(super) id: ProjectId,
    /// Revision of the project.
    pub(super) revision: u64,
    pub(super) result: T,
}

/// A change that was made by this call, or by an earlier one with its request id.
#[derive(Clone, Debug)]
pub(super) enum Made<T> {
    Applied(Applied<T>),
    /// The answer that was remembered.
    Replayed(String),
}

impl PlannedChange {
    /// Plans a change of a project, or of a rule or key of it if `target` is not empty.
    pub fn new(id: &ProjectId, target: &str, summary: String) -> Self {
        Self { id: id.clone(), target: target.to_owned(), summary, answer: String::new() }
    }
}

impl<T> Made<T> {
    /// Returns what was made by a call that has no request id.
    pub(super) fn applied(self) -> Result<Applied<T>, Status> {
        match self {
            Self::Applied(made) => Ok(made),
            Self::Replayed(_) => Err(common::other_change()),
        }
    }
}

impl Projects {
    /// Changes a project. A change that has begun ends although the caller goes away.
    pub(super) async fn change<T, F>(
        &self,
        call: &AdminCall,
        planned: PlannedChange,
        apply: F,
    ) -> Result<Made<T>, Status>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, Status> + Send + 'static,
        T: Send + 'static,
    {
        let (this, owned) = (self.clone(), call.clone());
        let holder = holder(call, &planned);
        let made = Box::pin(async move {
            let deadline = owned.deadline.or_within(MAX_TIME);
            this.make(&AdminCall { deadline, ..owned }, planned, apply).await
        });
        self.administrator.shared.changes.run(holder, call.rank(), made, call.deadline).await
    }

    /// Makes a change, unless it was made before under its request id.
    async fn make<T, F>(
        &self,
        call: &AdminCall,
        planned: PlannedChange,
        apply: F,
    ) -> Result<Made<T>, Status>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, Status> + Send + 'static,
        T: Send + 'static,
    {
        if call.request_id.is_empty() {
            return self.record_and_write(call, planned, None, apply).await.map(Made::Applied);
        }
        let holder = holder(call, &planned);
        let ttl = self.administrator.limiter().idempotency_ttl().into();
        let claim = call.claim(&holder, ttl, MAX_WAIT);
        let fleet = self.administrator.fleet();
        let mut claimed = match ClaimedId::claim(fleet, claim, call.deadline).await? {
            Claimed::Now(claimed) => claimed,
            Claimed::Before(answer) => {
                let answer = String::decode(&*answer).map_err(|_| common::unfinished())?;
                return Ok(Made::Replayed(answer));
            }
        };
        let answer = planned.answer.clone();
        let made = self.record_and_write(call, planned, Some(&mut claimed), apply).await;
        let deadline = Deadline::within(MAX_CHANGE_TIME);
        match &made {
            Ok(_) => claimed.answered(&answer, deadline).await,
            Err(_) => claimed.released(deadline).await,
        }
        made.map(Made::Applied)
    }

    /// Tries the change on the project as it is, records the intent, writes, and records the
    /// outcome.
    async fn record_and_write<T, F>(
        &self,
        call: &AdminCall,
        planned: PlannedChange,
        mut claimed: Option<&mut ClaimedId>,
        apply: F,
    ) -> Result<Applied<T>, Status>
    where
        F: FnMut(Option<&ProjectState>) -> Result<Change<T>, Status> + Send + 'static,
        T: Send + 'static,
    {
        let PlannedChange { id, target, summary, .. } = planned;
        let (rank, deadline) = (call.rank(), call.deadline);
        let before = self.registry.project(&id);
        let has_key =
            |state: Arc<ProjectState>| state.project.keys.iter().any(|key| key.id == target);
        let synced = if rank.is_revocation && before.is_some_and(has_key) {
            // It is looked for again when it is its turn.
            Ok(())
        } else {
            self.registry.sync_as(rank, deadline).await
        };
        let only_ends = match synced {
            Err(error) if rank.ends_keys_after(&error) && !deadline.has_passed() => Some(error),
            synced => synced.map(|()| None).map_err(refusals::sync)?,
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
        if let Some(error) = only_ends.filter(|_| !only_ends_keys) {
            return Err(refusals::sync(error));
        }
        if let Some(claimed) = &mut claimed {
            claimed.begin(deadline).await?;
        }
        let intent = call.intent(id.as_str(), &target, summary);
        let pending = self.administrator.audit().begin(intent, deadline).await;
        let pending = pending.map_err(|error| common::audit(&error))?;
        if let Some(claimed) = &mut claimed {
            // A retry would perhaps make it twice.
            claimed.set_kept(true);
        }
        let deadline = Deadline::within(MAX_CHANGE_TIME);
        let written = self.registry.change(ChangeRequest { id: &id, rank, deadline }, apply).await;
        let deadline = Deadline::within(MAX_OUTCOME_TIME);
        match written {
            Ok(changed) => {
                match changed.revision {
                    revision if deletes => pending.done_as_deletion(revision, deadline).await,
                    revision => pending.done_as_revision(revision, deadline).await,
                }
                Ok(Applied { id, revision: changed.revision, result: changed.result })
            }
            Err(error) => {
                let is_away = matches!(error, ChangeError::Unavailable(_));
                let is_ambiguous =
                    matches!(&error, ChangeError::Unavailable(error) if error.is_ambiguous());
                if let Some(claimed) = claimed {
                    claimed.set_kept(is_ambiguous);
                }
                let status = refusals::written(error);
                let outcome = outcome(status.message(), is_away, is_ambiguous);
                pending.failed(outcome, Vec::new(), deadline).await;
                Err(status)
            }
        }
    }

    /// Ends a conflict of catalogues: keeps that of one side.
    pub(super) async fn restored(
        &self,
        request: &Request<proto::RestoreCatalogueRequest>,
    ) -> Result<proto::RestoreCatalogueResponse, Status> {
        let message = request.get_ref();
        let from = match message.from() {
            proto::CatalogueSource::Instance => CatalogueSource::Instance,
            proto::CatalogueSource::Store => CatalogueSource::Store,
            proto::CatalogueSource::Unspecified => {
                let problem = "must be CATALOGUE_SOURCE_INSTANCE or CATALOGUE_SOURCE_STORE";
                return Err(invalid_field("from", problem));
            }
        };
        let call = AdminCall::with_reason(request, "RestoreCatalogue", &message.reason, "")?;
        let (this, deadline, expected) = (self.clone(), call.deadline, message.expected_revision);
        let rank = call.rank();
        let made = Box::pin(async move { this.restore(&call, from, expected).await });
        let changes = &self.administrator.shared.changes;
        let catalogue_revision = changes.run(Holder::AllProjects, rank, made, deadline).await?;
        Ok(proto::RestoreCatalogueResponse { catalogue_revision })
    }

    async fn restore(
        &self,
        call: &AdminCall,
        from: CatalogueSource,
        expected: u64,
    ) -> Result<u64, Status> {
        let deadline = call.deadline.or_within(MAX_TIME);
        let checked = self.registry.check_restore(from, expected, deadline).await;
        checked.map_err(|error| refusals::restore(&error))?;
        let side = match from {
            CatalogueSource::Instance => "instance",
            CatalogueSource::Store => "store",
        };
        let intent = call.intent("", "", format!("restore catalogue {expected} from {side}"));
        let pending = self.administrator.audit().begin(intent, deadline).await;
        let pending = pending.map_err(|error| common::audit(&error))?;
        let deadline = Deadline::within(MAX_RESTORE_TIME);
        let restored = self.registry.restore_catalogue(from, expected, deadline).await;
        let deadline = Deadline::within(MAX_OUTCOME_TIME);
        match &restored {
            Ok(revision) => pending.done_as_revision(*revision, deadline).await,
            Err(error) => {
                let is_away = matches!(error, RestoreError::Store(_));
                let is_ambiguous =
                    matches!(error, RestoreError::Store(cause) if cause.is_ambiguous());
                let text = refusals::restore(error).message().to_owned();
                pending.failed(outcome(&text, is_away, is_ambiguous), Vec::new(), deadline).await;
            }
        }
        restored.map_err(|error| refusals::restore(&error))
    }
}

/// Returns on whose account a change is made.
fn holder(call: &AdminCall, planned: &PlannedChange) -> Holder {
    match call.scope {
        CallerScope::AllProjects => Holder::AllProjects,
        CallerScope::SomeProjects => Holder::Project(planned.id.to_string()),
    }
}

/// Returns the error of a change for readers of the audit.
fn outcome(text: &str, is_away: bool, is_ambiguous: bool) -> RpcStatus {
    let code = if is_away { Code::Unavailable } else { Code::Aborted };
    let fate = if is_ambiguous { "; it may have been made" } else { "" };
    RpcStatus { code: code.into(), message: format!("{text}{fate}"), details: Vec::new() }
}
