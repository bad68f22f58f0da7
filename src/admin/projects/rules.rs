//! Rules of projects that were made at run time.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::change::{MadeNow, PlannedChange};
use super::revisions::RulesWritten;
use super::{ProjectAdministrator, ProjectCall, ProjectError, existing};
use crate::projects::registry::{Change, ProjectState};
use crate::projects::{
    Etag, Others, ProjectId, ProjectRules, Revision, RuleChange, RuleRecord, RuleWriteError,
    WriteStamp, api_key_problems,
};
use crate::rules::spec::{Problem, RuleSpec};
use crate::rules::{Rule, RuleSet};

/// Makes the rule afterwards of the one before; `None`: there is none.
pub type RuleEdit =
    Box<dyn FnMut(Option<&RuleSpec>) -> Result<RuleSpec, ProjectError> + Send + 'static>;

/// A rule to change.
#[derive(Clone, Debug)]
pub struct RuleSelection {
    /// Its project.
    pub project: ProjectId,
    /// Its name.
    pub name: String,
    /// If set, only the rule that has it.
    pub etag: Option<Etag>,
    /// Whether a rule that is missing is created.
    pub allow_missing: bool,
}

/// Rules to write together.
#[derive(Clone, Debug)]
pub struct RulesGiven {
    /// The rules.
    pub specs: Vec<RuleSpec>,
    /// The fate of the other rules of the project.
    pub others: Others,
    /// If set, only the project that has this revision.
    pub expected_revision: Option<u64>,
}

/// A rule after a write.
#[derive(Clone, Debug)]
pub struct WrittenRule {
    /// Its name.
    pub name: String,
    /// As stored.
    pub record: RuleRecord,
    /// Whether it was created.
    pub created: bool,
}

impl ProjectAdministrator {
    /// Creates a rule.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn create_rule(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        spec: RuleSpec,
    ) -> Result<WrittenRule, ProjectError> {
        let name = spec.name.value().cloned().unwrap_or_default();
        let summary = "create rule".to_owned();
        let made = self.write_rules(call, id, &name, summary, move |rules, by| {
            rules.create(spec.clone(), by).map(|change| vec![change]).map_err(ProjectError::from)
        });
        written(&name, made.await?)
    }

    /// Changes a rule.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn update_rule(
        &self,
        call: &ProjectCall,
        selection: RuleSelection,
        edit: RuleEdit,
    ) -> Result<WrittenRule, ProjectError> {
        let RuleSelection { project, name, etag, allow_missing } = selection;
        let (summary, mut edit) = ("update rule".to_owned(), edit);
        let of = name.clone();
        let made = self.write_rules(call, &project, &name, summary, move |rules, by| {
            let before = rules.rule(&of).map(|record| record.spec.clone());
            if before.is_none() && !allow_missing {
                return Err(RuleWriteError::NotFound.into());
            }
            if before.is_none() && etag.is_some() {
                return Err(RuleWriteError::Stale.into());
            }
            let after = edit(before.as_ref())?;
            let change = match before {
                None => Some(rules.create(after, by)?),
                Some(_) => rules.replace(after, etag, by)?,
            };
            Ok(change.into_iter().collect())
        });
        written(&name, made.await?)
    }

    /// Deletes a rule.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn delete_rule(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        name: &str,
        etag: Option<Etag>,
    ) -> Result<(), ProjectError> {
        let (summary, of) = ("delete rule".to_owned(), name.to_owned());
        let made = self.write_rules(call, id, name, summary, move |rules, _| {
            let change = rules.delete(&of, etag).map_err(ProjectError::from);
            change.map(|change| vec![change])
        });
        made.await.map(drop)
    }

    /// Writes many rules, all or none.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn apply_rules(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        given: RulesGiven,
    ) -> Result<RulesWritten, ProjectError> {
        let RulesGiven { specs, others, expected_revision } = given;
        let files = self.files_beside(id);
        let summary = format!("apply {} rules", specs.len());
        let guard = expected(expected_revision);
        self.check_api_key(id, &specs)?;
        let made = self.change_rules(call, id, "", summary, guard, move |rules, by| {
            let names = specs.iter().filter_map(|spec| spec.name.value());
            check_names(files.as_deref(), names.map(String::as_str))?;
            rules.apply(specs.clone(), others, by).map_err(ProjectError::from)
        });
        let made = made.await?;
        self.rules_written(id, made, call.deadline).await
    }

    /// Writes one rule.
    async fn write_rules<F>(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        name: &str,
        summary: String,
        apply: F,
    ) -> Result<MadeNow<RulesAfter>, ProjectError>
    where
        F: FnMut(&mut ProjectRules, WriteStamp) -> Result<Vec<RuleChange>, ProjectError>
            + Send
            + 'static,
    {
        let (files, of, mut apply) = (self.files_beside(id), name.to_owned(), apply);
        let takes_no_api_key = self.takes_no_api_key(id);
        self.change_rules(
            call,
            id,
            name,
            summary,
            |_| Ok(()),
            move |rules, by| {
                check_names(files.as_deref(), [of.as_str()])?;
                let changes = apply(rules, by)?;
                let after = changes.iter().filter_map(|change| change.after.as_ref());
                let problems = after.filter(|_| takes_no_api_key);
                no_problems(problems.flat_map(|spec| api_key_problems(spec, "")).collect())?;
                Ok(changes)
            },
        )
        .await
    }

    /// Changes rules, as a new revision if they differ afterwards.
    pub(super) async fn change_rules<G, F>(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        target: &str,
        summary: String,
        guard: G,
        apply: F,
    ) -> Result<MadeNow<RulesAfter>, ProjectError>
    where
        G: Fn(&ProjectState) -> Result<(), ProjectError> + Send + 'static,
        F: FnMut(&mut ProjectRules, WriteStamp) -> Result<Vec<RuleChange>, ProjectError>
            + Send
            + 'static,
    {
        let etag = Etag::random().map_err(|_| ProjectError::NoRandomNumbers)?;
        let by = WriteStamp { at: self.now(), etag };
        let (actor, reason, action) = (call.actor.clone(), call.reason.clone(), call.action);
        let files = self.files_beside(id);
        let mut apply = apply;
        let planned = PlannedChange::of_target(id, target, summary);
        let made = self.change(call, planned, move |state| {
            let state = existing(state)?;
            guard(state)?;
            let mut rules = state.rules.clone();
            let changes = apply(&mut rules, by)?;
            if files.is_some() {
                in_force_beside(files.as_deref(), &rules)?;
            }
            let revision = (!changes.is_empty()).then(|| Revision {
                number: 0,
                at: by.at,
                actor: actor.clone(),
                action: action.to_owned(),
                reason: reason.clone(),
                changes,
            });
            let result = RulesAfter { rules: rules.clone(), revision: revision.clone() };
            let after = Some((state.project.clone(), rules));
            Ok(Change { after, revision, result })
        });
        made.await?.now()
    }

    /// Returns `true` if rules of a project may not use the attribute `api_key`.
    pub(super) fn takes_no_api_key(&self, id: &ProjectId) -> bool {
        id.is_unnamed() && self.administrator.shared.takes_api_keys
    }

    /// Checks that rules do not use the attribute `api_key` if they may not.
    pub(super) fn check_api_key(
        &self,
        id: &ProjectId,
        specs: &[RuleSpec],
    ) -> Result<(), ProjectError> {
        if self.takes_no_api_key(id) { no_problems(problems_of_api_key(specs)) } else { Ok(()) }
    }

    /// Returns the rules of files of a project, if a file names it.
    pub fn files_beside(&self, id: &ProjectId) -> Option<Arc<RuleSet>> {
        self.registry.files().rules(id).cloned()
    }
}

/// The rules of a project after a write.
#[derive(Clone, Debug)]
pub(super) struct RulesAfter {
    pub(super) rules: ProjectRules,
    /// The new revision, without its number; `None`: nothing changed.
    pub(super) revision: Option<Revision>,
}

/// Returns a check of the revision.
pub(super) fn expected(
    revision: Option<u64>,
) -> impl Fn(&ProjectState) -> Result<(), ProjectError> {
    move |state| match revision {
        Some(revision) if revision != state.revision => Err(ProjectError::StaleRevision),
        _ => Ok(()),
    }
}

/// Checks that no file has one of the rules.
pub(super) fn check_names<'a>(
    files: Option<&RuleSet>,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(), ProjectError> {
    let Some(files) = files else { return Ok(()) };
    let of_files: HashSet<&str> = files.iter().map(|rule| &*rule.name).collect();
    // No rule has the name of the default one: that is another problem.
    let is_of_file = |name: &&str| *name != Rule::DEFAULT && of_files.contains(name);
    match names.into_iter().find(is_of_file) {
        Some(name) => Err(ProjectError::FileRule(name.to_owned())),
        None => Ok(()),
    }
}

/// Returns the positions and names of the rules that a file has.
pub(super) fn file_rule_names<'a>(
    files: Option<&RuleSet>,
    specs: &'a [RuleSpec],
) -> Vec<(usize, &'a str)> {
    let Some(files) = files else { return Vec::new() };
    let of_files: HashSet<&str> = files.iter().skip(1).map(|rule| &*rule.name).collect();
    let named = specs.iter().enumerate();
    let named = named.filter_map(|(at, spec)| Some((at, spec.name.value()?.as_str())));
    named.filter(|(_, name)| of_files.contains(name)).collect()
}

/// Returns the problems of rules that use the attribute `api_key` and may not.
pub(super) fn problems_of_api_key(specs: &[RuleSpec]) -> Vec<Problem> {
    let specs = specs.iter().enumerate();
    specs.flat_map(|(at, spec)| api_key_problems(spec, &format!("rules[{at}]"))).collect()
}

fn no_problems(problems: Vec<Problem>) -> Result<(), ProjectError> {
    if problems.is_empty() { Ok(()) } else { Err(RuleWriteError::Invalid(problems).into()) }
}

/// Returns the rules that would be in force beside those of files.
pub(super) fn in_force_beside(
    files: Option<&RuleSet>,
    rules: &ProjectRules,
) -> Result<RuleSet, RuleWriteError> {
    let built = rules.build().map_err(RuleWriteError::Invalid)?;
    let Some(files) = files else { return Ok(built) };
    let together = files.clone().with_more(built.iter().skip(1).cloned());
    if together.max_matches() <= RuleSet::MAX_MATCHES {
        return Ok(together);
    }
    let text = format!(
        "must have at most {} rules that one request can match, those of files included",
        RuleSet::MAX_MATCHES
    );
    let problem = Problem { field: "rules".to_owned(), text };
    Err(RuleWriteError::Invalid(vec![problem]))
}

fn written(name: &str, made: MadeNow<RulesAfter>) -> Result<WrittenRule, ProjectError> {
    let RulesAfter { rules, revision } = made.result;
    let mut record = rules.rule(name).cloned().ok_or(RuleWriteError::NotFound)?;
    if revision.is_some() {
        record.revision = NonZeroU64::new(made.revision);
    }
    let mut changes = revision.iter().flat_map(|revision| &revision.changes);
    let created = changes.any(|change| change.before.is_none());
    Ok(WrittenRule { name: name.to_owned(), record, created })
}
