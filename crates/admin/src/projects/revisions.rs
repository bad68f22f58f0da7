//! The history of the rules of a project.

use std::collections::BTreeMap;
use std::sync::Arc;

use rlaas_auth::{ProjectId, deadline, run_blocking};
use rlaas_projects::registry::{ProjectState, SyncError};
use rlaas_projects::{History, Others, Revision, RevisionNumber, RuleChange, differences};
use rlaas_proto::rule_messages;
use tonic::{Request, Response, Status};

use super::change::PlannedChange;
use super::rules::{RulesAfter, check_names, no_problems};
use super::{ADMIN, AdminCall, OPERATE_OR_ADMIN, Projects, admitted, messages, proto, refusals};
use crate::{MAX_TIME, caller};
use rlaas_core::clock::Deadline;
use rlaas_core::rules::spec::RuleSpec;

/// Rules to write together.
struct RulesGiven {
    specs: Vec<RuleSpec>,
    /// The fate of the other rules of the project.
    others: Others,
    /// If set, only the project that has this revision.
    expected: Option<u64>,
}

/// A revision of the rules, and the differences from another one, as messages.
type Differences = (Option<proto::Revision>, Vec<proto::RuleChange>);

impl Projects {
    /// Returns the last revisions of the rules of a project, newest first up to the first one for whose
    /// number `is_last` returns `true`.
    pub(super) async fn revisions_until(
        &self,
        id: &ProjectId,
        is_last: impl FnMut(RevisionNumber) -> bool + Send,
        deadline: Deadline,
    ) -> Result<History, Status> {
        self.project(id)?;
        let deadline = deadline.or_within(MAX_TIME);
        let history = self.registry.history_until(id, is_last, deadline).await;
        history.map_err(|error| refusals::read(&SyncError::from(error)))
    }

    /// Answers `GetRevision`. Revision 0 is the newest; without a base it is compared with the one before,
    /// and base 0 has no rules.
    pub(super) async fn revision(
        &self,
        request: &Request<proto::GetRevisionRequest>,
    ) -> Result<proto::GetRevisionResponse, Status> {
        let proto::GetRevisionRequest { project_id, revision, base_revision } = request.get_ref();
        let id = admitted(caller(request)?, project_id, OPERATE_OR_ADMIN)?;
        let (number, base) = (*revision, *base_revision);
        let oldest = match (number, base) {
            (0, None | Some(0)) => RevisionNumber::MAX,
            (0, Some(base)) | (base, Some(0) | None) => base,
            (number, Some(base)) => number.min(base),
        };
        let deadline = deadline(request.metadata());
        let (state, history) = self.state_and_history(&id, oldest, deadline).await?;
        let found = run_blocking(move || {
            let (revision, changes) = revision_diff(&state, &history, number, base)?;
            Ok::<_, Status>(in_messages(&id, Some(&revision), &changes))
        });
        let (revision, changes) = found.await?;
        Ok(proto::GetRevisionResponse { revision, changes })
    }

    /// Answers `Rollback`: makes the rules of a revision the rules again, as a new revision.
    pub(super) async fn roll_back(
        &self,
        request: &Request<proto::RollbackRequest>,
    ) -> Result<proto::RollbackResponse, Status> {
        let proto::RollbackRequest { project_id, revision: number, expected_revision, reason } =
            request.get_ref();
        let call = AdminCall::new(request, "Rollback", reason, "")?;
        let id = admitted(caller(request)?, project_id, ADMIN)?;
        let synced = self.registry.sync_as(call.rank(), call.deadline.or_within(MAX_TIME)).await;
        synced.map_err(refusals::sync)?;
        let number = *number;
        let (state, history) = self.state_and_history(&id, number, call.deadline).await?;
        if expected_revision.is_some_and(|expected| expected != state.revision) {
            return Err(refusals::stale("its revision is not expected_revision"));
        }
        let rules = run_blocking(move || {
            let rules = history.rules_at(number, &state.rules.specs());
            rules.map(|rules| rules.into_values().collect::<Vec<RuleSpec>>())
        });
        let specs = rules.await.ok_or_else(refusals::no_revision)?;
        let planned = PlannedChange::new(&id, "", format!("roll back to revision {number}"));
        let expected = *expected_revision;
        let given = RulesGiven { specs, others: Others::Deleted, expected };
        let (revision, changes) = self.apply_all(&call, planned, given).await?;
        Ok(proto::RollbackResponse { revision, changes })
    }

    /// Answers `ApplyRules`: writes many rules, all or none.
    pub(super) async fn apply(
        &self,
        request: Request<proto::ApplyRulesRequest>,
    ) -> Result<Response<proto::ApplyRulesResponse>, Status> {
        let message = request.get_ref();
        let call = AdminCall::new(&request, "ApplyRules", &message.reason, "")?;
        let id = admitted(caller(&request)?, &message.project_id, ADMIN)?;
        let proto::ApplyRulesRequest { rules, prune, expected_revision, .. } = request.into_inner();
        let specs = run_blocking(move || rules.iter().map(rule_messages::spec).collect::<Vec<_>>());
        let (specs, expected) = (specs.await, expected_revision);
        let rules = if specs.len() == 1 { "rule" } else { "rules" };
        let planned = PlannedChange::new(&id, "", format!("apply {} {rules}", specs.len()));
        let given = RulesGiven { specs, others: super::others(prune), expected };
        let (revision, changes) = self.apply_all(&call, planned, given).await?;
        Ok(Response::new(proto::ApplyRulesResponse { revision, changes }))
    }

    async fn apply_all(
        &self,
        call: &AdminCall,
        planned: PlannedChange,
        RulesGiven { specs, others, expected }: RulesGiven,
    ) -> Result<Differences, Status> {
        let id = planned.id.clone();
        no_problems(self.problems_of_attributes(&id, &specs), "")?;
        let files = self.files_beside(&id);
        let made = self.change_rules(call, planned, expected, move |rules, by| {
            let names = specs.iter().filter_map(|spec| spec.name.value());
            check_names(files.as_deref(), names.map(String::as_str))?;
            let applied = rules.apply(specs.clone(), others, by);
            applied.map_err(|error| refusals::rules(error, ""))
        });
        let made = made.await?;
        let RulesAfter { revision, .. } = made.result;
        let (revision, changes) = if let Some(revision) = revision {
            let changes = revision.changes.clone();
            (Some(Revision { number: made.revision, ..revision }), changes)
        } else {
            let history = self.revisions_until(&id, |_| true, call.deadline).await?;
            (history.iter().next().cloned(), Vec::new())
        };
        // There may be thousands of changes.
        Ok(run_blocking(move || in_messages(&id, revision.as_ref(), &changes)).await)
    }

    /// Returns a project, and its history at that time back to the revision `oldest`.
    async fn state_and_history(
        &self,
        id: &ProjectId,
        oldest: RevisionNumber,
        deadline: Deadline,
    ) -> Result<(Arc<ProjectState>, History), Status> {
        let deadline = deadline.or_within(MAX_TIME);
        loop {
            let state = self.project(id)?;
            let is_last = |number| number <= oldest;
            let history = self.revisions_until(id, is_last, deadline).await?;
            // A write in between would be in one of them alone.
            let newest = history.iter().next().map_or(0, |revision| revision.number);
            if newest <= state.revision && self.project(id)?.revision == state.revision {
                return Ok((state, history));
            }
            self.registry.sync(deadline).await.map_err(|error| refusals::read(&error))?;
        }
    }
}

fn in_messages(id: &ProjectId, revision: Option<&Revision>, changes: &[RuleChange]) -> Differences {
    let revision = revision.map(|revision| messages::revision(id, revision));
    (revision, changes.iter().map(|change| messages::change(id, change)).collect())
}

/// Returns a revision, and its differences from `base`; `None`: from the one before.
fn revision_diff(
    state: &ProjectState,
    history: &History,
    number: u64,
    base: Option<u64>,
) -> Result<(Revision, Vec<RuleChange>), Status> {
    let found = match number {
        0 => history.iter().next(),
        number => history.revision(number),
    };
    let revision = found.cloned().ok_or_else(refusals::no_revision)?;
    let changes = match base {
        None => revision.changes.clone(),
        Some(base) => {
            let current = state.rules.specs();
            let rules_at = |number| history.rules_at(number, &current);
            let from = if base == 0 { Some(BTreeMap::new()) } else { rules_at(base) };
            let (from, to) =
                from.zip(rules_at(revision.number)).ok_or_else(refusals::no_revision)?;
            differences(&from, &to)
        }
    };
    Ok((revision, changes))
}
