//! Rules of projects that were made at run time.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use rlaas_auth::{ConfiguredProjects, ProjectId, api_key_problems, key_attribute_problems};
use rlaas_projects::registry::Change;
use rlaas_projects::{
    Etag, ProjectRules, Revision, RuleChange, RuleRecord, RuleWriteError, WriteStamp,
};
use tonic::Status;

use super::change::{Applied, PlannedChange};
use super::{AdminCall, Projects, existing, refusals};
use rlaas_core::rules::spec::{Problem, RuleSpec};
use rlaas_core::rules::{Rule, RuleSet};

/// A rule after a write.
#[derive(Clone, Debug)]
pub struct WrittenRule {
    /// As stored.
    pub record: RuleRecord,
    /// Whether it was created.
    pub created: bool,
}

impl Projects {
    /// Writes one rule: creates, updates or deletes it. Returns the rule afterwards; `None` if it is deleted.
    ///
    /// # Errors
    ///
    /// A refusal.
    pub async fn write_rule<F>(
        &self,
        call: &AdminCall,
        planned: PlannedChange,
        apply: F,
    ) -> Result<Option<WrittenRule>, Status>
    where
        F: FnMut(&mut ProjectRules, WriteStamp) -> Result<Option<RuleChange>, Status>
            + Send
            + 'static,
    {
        let (files, name) = (self.files_beside(&planned.id), planned.target.clone());
        let attribute_problems = self.attribute_problems(&planned.id);
        let (own_name, mut apply) = (name.clone(), apply);
        let made = self.change_rules(call, planned, None, move |rules, by| {
            check_names(files.as_deref(), [own_name.as_str()])?;
            let change = apply(rules, by)?;
            let after = change.iter().filter_map(|change| change.after.as_ref());
            let problems = after.flat_map(|spec| attribute_problems(spec, "")).collect();
            no_problems(problems, "rule")?;
            Ok(change.into_iter().collect())
        });
        let Applied { revision: number, result, .. } = made.await?;
        let RulesAfter { rules, revision } = result;
        let mut changes = revision.iter().flat_map(|revision| &revision.changes);
        let created = changes.any(|change| change.before.is_none());
        let with_revision = |record: &RuleRecord| match &revision {
            Some(_) => RuleRecord { revision: NonZeroU64::new(number), ..record.clone() },
            None => record.clone(),
        };
        let record = rules.rule(&name).map(with_revision);
        Ok(record.map(|record| WrittenRule { record, created }))
    }

    /// Changes rules, as a new revision if they differ afterwards. With `expected`, only those of the
    /// project that has this revision.
    pub(super) async fn change_rules<F>(
        &self,
        call: &AdminCall,
        planned: PlannedChange,
        expected: Option<u64>,
        apply: F,
    ) -> Result<Applied<RulesAfter>, Status>
    where
        F: FnMut(&mut ProjectRules, WriteStamp) -> Result<Vec<RuleChange>, Status> + Send + 'static,
    {
        let etag = Etag::random().map_err(refusals::no_random_numbers)?;
        let by = WriteStamp { at: self.clock.now(), etag };
        let (actor, reason, action) = (call.actor.clone(), call.reason.clone(), call.action);
        let files = self.files_beside(&planned.id);
        let path = if planned.target.is_empty() { "" } else { "rule" };
        let mut apply = apply;
        let made = self.change(call, planned, move |state| {
            let state = existing(state)?;
            if expected.is_some_and(|expected| expected != state.revision) {
                return Err(refusals::stale("its revision is not expected_revision"));
            }
            let mut rules = state.rules.clone();
            let changes = apply(&mut rules, by)?;
            if files.is_some() {
                in_force_beside(files.as_deref(), &rules)
                    .map_err(|error| refusals::rules(error, path))?;
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
        made.await?.applied()
    }

    /// Returns what finds the uses of attributes that rules of a project may not use: those without one may use none of
    /// API keys.
    fn attribute_problems(&self, id: &ProjectId) -> fn(&RuleSpec, &str) -> Vec<Problem> {
        match (id.is_unnamed(), self.reads_keys()) {
            (false, _) => |_, _| Vec::new(),
            (true, false) => key_attribute_problems,
            (true, true) => api_key_problems,
        }
    }

    /// Returns the uses of attributes that rules of a project may not use.
    pub(super) fn problems_of_attributes(
        &self,
        id: &ProjectId,
        specs: &[RuleSpec],
    ) -> Vec<Problem> {
        let problems = self.attribute_problems(id);
        let specs = specs.iter().enumerate();
        specs.flat_map(|(at, spec)| problems(spec, &format!("rules[{at}]"))).collect()
    }

    /// Returns the rules of files of a project, if a file names it.
    pub fn files_beside(&self, id: &ProjectId) -> Option<Arc<RuleSet>> {
        self.registry.files_beside(id)
    }
}

/// The rules of a project after a write.
#[derive(Clone, Debug)]
pub(super) struct RulesAfter {
    pub(super) rules: ProjectRules,
    /// The new revision, without its number; `None`: nothing changed.
    pub(super) revision: Option<Revision>,
}

/// Checks that no file has one of the rules.
pub(super) fn check_names<'a>(
    files: Option<&RuleSet>,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(), Status> {
    let Some(files) = files else { return Ok(()) };
    let of_files: HashSet<&str> = files.iter().map(|rule| &*rule.name).collect();
    // No rule has the name of the default one: that is another problem.
    let is_of_file = |name: &&str| *name != Rule::DEFAULT && of_files.contains(name);
    match names.into_iter().find(is_of_file) {
        Some(name) => {
            let text = format!("a file has the rule {name}, so it can't be changed here");
            Err(refusals::of_file("RULE_OF_FILE", text))
        }
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

pub(super) fn no_problems(problems: Vec<Problem>, path: &str) -> Result<(), Status> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(refusals::rules(RuleWriteError::Invalid(problems), path))
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
