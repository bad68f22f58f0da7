//! The history of the rules of a project, and validation without a write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::change::MadeNow;
use super::rules::{RulesAfter, check_names, check_together, expected};
use super::{ProjectAdministrator, ProjectCall, ProjectError};
use crate::admin::MAX_TIME;
use crate::clock::Deadline;
use crate::projects::registry::{ProjectState, SyncError, run_blocking};
use crate::projects::{
    Etag, History, Others, ProjectId, Revision, RuleChange, RuleWriteError, WriteStamp, differences,
};
use crate::rules::spec::{Problem, RuleSpec};

/// Most validations that wait for another one.
const MAX_WAITING: usize = 8;

/// Rules that were written.
#[derive(Clone, Debug)]
pub struct RulesWritten {
    /// The newest revision of the rules; `None`: there was none yet, and nothing changed.
    pub revision: Option<Revision>,
    /// Differences by name.
    pub changes: Vec<RuleChange>,
}

/// What a write would do.
#[derive(Clone, Debug)]
pub struct ValidatedRules {
    /// Problems; with any nothing would be written.
    pub problems: Vec<Problem>,
    /// Differences by name.
    pub changes: Vec<RuleChange>,
    /// Revision of the project that the changes start from.
    pub revision: u64,
}

/// A revision, and its differences from another one.
#[derive(Clone, Debug)]
pub struct RevisionDiff {
    /// The revision.
    pub revision: Revision,
    /// Differences by name.
    pub changes: Vec<RuleChange>,
}

/// Runs one validation at a time, so that they leave time for decisions.
#[derive(Debug)]
pub(super) struct Validations {
    turn: Semaphore,
    waiting: AtomicUsize,
}

impl Default for Validations {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), waiting: AtomicUsize::new(0) }
    }
}

impl Validations {
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ProjectError> {
        let _waiting = Waiting::new(&self.waiting)?;
        let turn = self.turn.acquire().await.map_err(|_| ProjectError::TooManyValidations)?;
        let result = run_blocking(work).await;
        drop(turn);
        Ok(result)
    }
}

/// One that waits or runs.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Result<Self, ProjectError> {
        let waiting = Self(count);
        if count.fetch_add(1, Ordering::Relaxed) > MAX_WAITING {
            return Err(ProjectError::TooManyValidations);
        }
        Ok(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ProjectAdministrator {
    /// Returns what an [`apply_rules`](Self::apply_rules) would do, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`ProjectError`]. Problems of rules are no errors.
    pub async fn validate(
        &self,
        id: &ProjectId,
        specs: Vec<RuleSpec>,
        others: Others,
    ) -> Result<ValidatedRules, ProjectError> {
        let (state, files) = (self.project(id)?, self.files_beside(id));
        let by = WriteStamp { at: self.now(), etag: Etag(0) };
        let validated = self.validations.run(move || {
            let names = specs.iter().filter_map(|spec| spec.name.value());
            check_names(files.as_deref(), names.map(String::as_str))?;
            let mut rules = state.rules.clone();
            let changes = rules.apply(specs, others, by)?;
            if let Some(files) = &files {
                check_together(files, &rules)?;
            }
            Ok((changes, state.revision))
        });
        match validated.await? {
            Ok((changes, revision)) => {
                Ok(ValidatedRules { problems: Vec::new(), changes, revision })
            }
            Err(ProjectError::Rules(RuleWriteError::Invalid(problems))) => {
                let revision = self.project(id)?.revision;
                Ok(ValidatedRules { problems, changes: Vec::new(), revision })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the last revisions of the rules of a project.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn revisions(
        &self,
        id: &ProjectId,
        deadline: Deadline,
    ) -> Result<History, ProjectError> {
        self.project(id)?;
        let history = self.registry.history(id, deadline.or_within(MAX_TIME)).await;
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
        let (state, history) = self.state_and_history(id, deadline).await?;
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
                let (from, to) =
                    from.zip(rules_at(revision.number)).ok_or(ProjectError::NoRevision)?;
                differences(&from, &to)
            }
        };
        Ok(RevisionDiff { revision, changes })
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
        let (state, history) = self.state_and_history(id, call.deadline).await?;
        if expected_revision.is_some_and(|expected| expected != state.revision) {
            return Err(ProjectError::StaleRevision);
        }
        let rules = history.rules_at(number, &state.rules.specs());
        let specs: Vec<RuleSpec> = rules.ok_or(ProjectError::NoRevision)?.into_values().collect();
        let files = self.files_beside(id);
        let summary = format!("roll back to revision {number}");
        // The rules of the revision are known by those of now.
        let guard = expected(Some(state.revision));
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
        let history = self.revisions(id, deadline).await?;
        Ok(RulesWritten { revision: history.iter().next().cloned(), changes: Vec::new() })
    }

    /// Returns a project, and its history at that time.
    async fn state_and_history(
        &self,
        id: &ProjectId,
        deadline: Deadline,
    ) -> Result<(Arc<ProjectState>, History), ProjectError> {
        let deadline = deadline.or_within(MAX_TIME);
        loop {
            let state = self.project(id)?;
            let history = self.revisions(id, deadline).await?;
            // A write in between would be in one of them alone.
            let newest = history.iter().next().map_or(0, |revision| revision.number);
            if newest <= state.revision && self.project(id)?.revision == state.revision {
                return Ok((state, history));
            }
            self.registry.sync(deadline).await?;
        }
    }
}
