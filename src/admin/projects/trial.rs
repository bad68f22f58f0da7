//! Trials of rules: what a write would do, without the write.

use std::collections::HashMap;
use std::sync::Arc;

use super::rules::{file_rule_names, in_force_beside, problems_of_api_key};
use super::{ProjectAdministrator, ProjectError};
use crate::clock::{Deadline, Timestamp};
use crate::projects::registry::ProjectState;
use crate::projects::{
    Etag, Others, ProjectId, RuleChange, RuleWriteError, Warning, WriteStamp, warnings,
};
use crate::rules::spec::{Problem, RuleSpec, RulesSpec};
use crate::rules::{Rule, RuleSet};

/// A project as it is, on which rules are tried.
#[derive(Debug)]
pub struct Trial {
    state: Arc<ProjectState>,
    /// Rules of files, if the project has them.
    files: Option<Arc<RuleSet>>,
    /// Whether the rules may not use the attribute `api_key`.
    takes_no_api_key: bool,
    now: Timestamp,
}

/// Rules that would be written.
#[derive(Clone, Debug)]
pub struct TriedRules {
    /// The rules.
    pub specs: Vec<RuleSpec>,
    /// The fate of the other rules of the project.
    pub others: Others,
}

/// What a write would do.
#[derive(Clone, Debug)]
pub struct ValidatedRules {
    /// Problems; with any nothing would be written.
    pub problems: Vec<Problem>,
    /// Suspicious properties of the rules.
    pub warnings: Vec<RuleWarning>,
    /// Differences by name.
    pub changes: Vec<RuleChange>,
    /// Revision of the project that the changes start from.
    pub revision: u64,
}

/// A warning about a rule that would be written.
#[derive(Clone, Debug)]
pub struct RuleWarning {
    /// Position of the rule among those given.
    pub position: usize,
    /// The warning, about that rule or one that it makes useless.
    pub warning: Warning,
}

impl ProjectAdministrator {
    /// Runs `work` on a project as it is when its turn comes, in the queue of validations.
    ///
    /// # Errors
    ///
    /// [`ProjectError::NoProject`], [`ProjectError::Validation`], or that of `work`.
    pub async fn on_trial<T: Send + 'static>(
        &self,
        id: &ProjectId,
        deadline: Deadline,
        work: impl FnOnce(&Trial) -> Result<T, ProjectError> + Send + 'static,
    ) -> Result<T, ProjectError> {
        self.project(id)?;
        let (this, id) = (self.clone(), id.clone());
        let work = move || this.trial(&id).and_then(|trial| work(&trial));
        self.validations.run(deadline, work).await?
    }

    fn trial(&self, id: &ProjectId) -> Result<Trial, ProjectError> {
        Ok(Trial {
            state: self.project(id)?,
            files: self.files_beside(id),
            takes_no_api_key: self.takes_no_api_key(id),
            now: self.now(),
        })
    }
}

impl Trial {
    /// Returns what a write would do.
    ///
    /// # Errors
    ///
    /// [`ProjectError::Rules`], but for problems: these are no errors.
    pub fn validate(&self, tried: TriedRules) -> Result<ValidatedRules, ProjectError> {
        let given = tried.specs.clone();
        let mut problems = self.problems_of_names(&given);
        if self.takes_no_api_key {
            problems.extend(problems_of_api_key(&given));
        }
        let by = WriteStamp { at: self.now, etag: Etag(0) };
        let applied = self.state.rules.applied(tried.specs, tried.others, by);
        let applied = applied.and_then(|(rules, changes)| {
            Ok((in_force_beside(self.files.as_deref(), &rules)?, changes))
        });
        let (rules, mut changes) = match applied {
            Ok(applied) => applied,
            Err(RuleWriteError::Invalid(found)) => {
                problems.extend(found);
                (valid_among(&given)?, Vec::new())
            }
            Err(error) => return Err(error.into()),
        };
        if !problems.is_empty() {
            changes.clear();
        }
        let warnings = warnings_of(&given, &rules);
        Ok(ValidatedRules { problems, warnings, changes, revision: self.state.revision })
    }

    /// Returns the problems of rules that a file has.
    fn problems_of_names(&self, specs: &[RuleSpec]) -> Vec<Problem> {
        let problem = |(position, _)| Problem {
            field: format!("rules[{position}].name"),
            text: "must not be that of a rule of a file".to_owned(),
        };
        file_rule_names(self.files.as_deref(), specs).into_iter().map(problem).collect()
    }
}

/// Returns those rules that are valid by themselves.
fn valid_among(specs: &[RuleSpec]) -> Result<RuleSet, ProjectError> {
    let mut valid: HashMap<Arc<str>, Rule> = HashMap::new();
    for spec in specs {
        if let Ok(rule) = spec.build() {
            valid.entry(Arc::clone(&rule.name)).or_insert(rule);
        }
    }
    let none = RulesSpec::default().build().map_err(RuleWriteError::Invalid)?;
    Ok(none.with_more(valid.into_values()))
}

/// Returns the warnings that concern the rules given, in their order.
fn warnings_of(specs: &[RuleSpec], rules: &RuleSet) -> Vec<RuleWarning> {
    let names = specs.iter().enumerate();
    let names = names.filter_map(|(position, spec)| Some((spec.name.value()?.as_str(), position)));
    let positions: HashMap<&str, usize> = names.collect();
    let position = |warning: &Warning| {
        let of = [Some(warning.rule()), warning.stricter()];
        of.into_iter().flatten().find_map(|name| positions.get(name).copied())
    };
    let concerned = warnings(rules).into_iter().filter_map(|warning| {
        let position = position(&warning)?;
        Some(RuleWarning { position, warning })
    });
    let mut concerned: Vec<RuleWarning> = concerned.collect();
    concerned.sort_by_key(|warning| warning.position);
    concerned
}
