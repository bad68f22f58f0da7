//! The history of the rules of a project.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::change::MadeNow;
use super::rules::{RulesAfter, check_names, expected};
use super::{ProjectAdministrator, ProjectCall, ProjectError};
use crate::admin::MAX_TIME;
use crate::clock::Deadline;
use crate::projects::registry::{ProjectState, SyncError, run_blocking};
use crate::projects::{
    History, Others, ProjectId, Revision, RevisionNumber, RuleChange, differences,
};
use crate::rules::spec::RuleSpec;

/// Rules that were written.
#[derive(Clone, Debug)]
pub struct RulesWritten {
    /// The newest revision of the rules; `None`: there was none yet, and nothing changed.
    pub revision: Option<Revision>,
    /// Differences by name.
    pub changes: Vec<RuleChange>,
}

/// A revision, and its differences from another one.
#[derive(Clone, Debug)]
pub struct RevisionDiff {
    /// The revision.
    pub revision: Revision,
    /// Differences by name.
    pub changes: Vec<RuleChange>,
}

impl ProjectAdministrator {
    /// Returns the last revisions of the rules of a project, newest first up to the first one for whose
    /// number `is_last` returns `true`.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn revisions_until(
        &self,
        id: &ProjectId,
        is_last: impl FnMut(RevisionNumber) -> bool + Send,
        deadline: Deadline,
    ) -> Result<History, ProjectError> {
        self.project(id)?;
        let deadline = deadline.or_within(MAX_TIME);
        let history = self.registry.history_until(id, is_last, deadline).await;
        history.map_err(|error| SyncError::from(error).into())
    }

    /// Returns a revision, and its differences from another one. Revision 0 is the newest; without
    /// a base it is compared with the one before, and base 0 has no rules.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn revision(
        &self,
        id: &ProjectId,
        number: u64,
        base: Option<u64>,
        deadline: Deadline,
    ) -> Result<RevisionDiff, ProjectError> {
        let oldest = match (number, base) {
            (0, None | Some(0)) => RevisionNumber::MAX,
            (0, Some(base)) | (base, Some(0) | None) => base,
            (number, Some(base)) => number.min(base),
        };
        let (state, history) = self.state_and_history(id, oldest, deadline).await?;
        run_blocking(move || revision_diff(&state, &history, number, base)).await
    }

    /// Makes the rules of a revision the rules again, as a new revision.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn roll_back(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        number: u64,
        expected_revision: Option<u64>,
    ) -> Result<RulesWritten, ProjectError> {
        self.registry.sync(call.deadline.or_within(MAX_TIME)).await?;
        let (state, history) = self.state_and_history(id, number, call.deadline).await?;
        if expected_revision.is_some_and(|expected| expected != state.revision) {
            return Err(ProjectError::StaleRevision);
        }
        let revision = state.revision;
        let rules = run_blocking(move || {
            let rules = history.rules_at(number, &state.rules.specs());
            rules.map(|rules| rules.into_values().collect::<Vec<RuleSpec>>())
        });
        let specs = rules.await.ok_or(ProjectError::NoRevision)?;
        self.check_api_key(id, &specs)?;
        let files = self.files_beside(id);
        let summary = format!("roll back to revision {number}");
        // The rules of the revision are known by those of now.
        let guard = expected(Some(revision));
        let made = self.change_rules(call, id, "", summary, guard, move |rules, by| {
            let names = specs.iter().filter_map(|spec| spec.name.value());
            check_names(files.as_deref(), names.map(String::as_str))?;
            rules.apply(specs.clone(), Others::Deleted, by).map_err(ProjectError::from)
        });
        let made = made.await?;
        self.rules_written(id, made, call.deadline).await
    }

    /// Returns what a write has made.
    pub(super) async fn rules_written(
        &self,
        id: &ProjectId,
        made: MadeNow<RulesAfter>,
        deadline: Deadline,
    ) -> Result<RulesWritten, ProjectError> {
        let RulesAfter { revision, .. } = made.result;
        if let Some(revision) = revision {
            let changes = revision.changes.clone();
            let revision = Revision { number: made.revision, ..revision };
            return Ok(RulesWritten { revision: Some(revision), changes });
        }
        let history = self.revisions_until(id, |_| true, deadline).await?;
        Ok(RulesWritten { revision: history.iter().next().cloned(), changes: Vec::new() })
    }

    /// Returns a project, and its history at that time back to the revision `oldest`.
    async fn state_and_history(
        &self,
        id: &ProjectId,
        oldest: RevisionNumber,
        deadline: Deadline,
    ) -> Result<(Arc<ProjectState>, History), ProjectError> {
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
            self.registry.sync(deadline).await?;
        }
    }
}

/// Returns a revision, and its differences from `base`; `None`: from the one before.
fn revision_diff(
    state: &ProjectState,
    history: &History,
    number: u64,
    base: Option<u64>,
) -> Result<RevisionDiff, ProjectError> {
    let found = match number {
        0 => history.iter().next(),
        number => history.revision(number),
    };
    let revision = found.cloned().ok_or(ProjectError::NoRevision)?;
    let changes = match base {
        None => revision.changes.clone(),
        Some(base) => {
            let current = state.rules.specs();
            let rules_at = |number| history.rules_at(number, &current);
            let from = if base == 0 { Some(BTreeMap::new()) } else { rules_at(base) };
            let (from, to) = from.zip(rules_at(revision.number)).ok_or(ProjectError::NoRevision)?;
            differences(&from, &to)
        }
    };
    Ok(RevisionDiff { revision, changes })
}
