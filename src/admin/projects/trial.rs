//! Trials of rules: what a write would do, without the write.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_simulation::simulation::{HardestHit, SimulationSettings};

use super::rules::{file_rule_names, problems_of_api_key};
use super::{ProjectAdministrator, ProjectError};
use crate::admin::MAX_TIME;
use crate::clock::{Deadline, Micros, Timestamp};
use crate::projects::dry_runs::{DryRunKind, Steps, Stopped};
use crate::projects::registry::{ProjectState, Registry};
use crate::projects::{
    Etag, Others, ProjectId, ProjectRules, RuleChange, RuleWriteError, Warning, WriteStamp,
    warnings_in_steps,
};
use crate::rules::spec::{Problem, RuleSpec, RulesSpec};
use crate::rules::{Rule, RuleSet};
use crate::telemetry::record::{RecentError, RecentReport, RecentTraffic, WantedRequests};

/// Most keys that a preview lists for each rule.
const MAX_HIT_KEYS: usize = 20;
/// Shortest time of the past that a preview is for, unless less is kept.
const MIN_WINDOW: Micros = Micros::from_secs(60);

/// A project as it is, on which rules are tried.
#[derive(Debug)]
pub struct Trial {
    state: Arc<ProjectState>,
    /// Rules of files, if the project has them.
    files: Option<Arc<RuleSet>>,
    registry: Registry,
    /// Whether the rules may not use the attribute `api_key`.
    takes_no_api_key: bool,
    recent: Option<RecentTraffic>,
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
    /// Runs `work` on a project as it is when its turn comes: on a thread of its own, in steps. It
    /// ends if this future is dropped.
    ///
    /// # Errors
    ///
    /// [`ProjectError::NoProject`], [`ProjectError::DryRun`], or that of `work`.
    pub async fn dry_run<T: Send + 'static>(
        &self,
        id: &ProjectId,
        kind: DryRunKind,
        deadline: Deadline,
        work: impl FnOnce(&Trial, &mut Steps) -> Result<T, ProjectError> + Send + 'static,
    ) -> Result<T, ProjectError> {
        self.project(id)?;
        let (this, id_of_trial) = (self.clone(), id.clone());
        let work = move |steps: &mut Steps| {
            let worked = this.trial(&id_of_trial).and_then(|trial| work(&trial, steps));
            Ok(worked)
        };
        self.registry.dry_runs().run(id, kind, deadline, work).await?
    }

    /// Returns `true` if this instance keeps requests, on which rules can be tried.
    pub fn keeps_requests(&self) -> bool {
        let recorder = self.administrator.shared.metrics.recorder();
        recorder.is_some_and(|recorder| recorder.recent().is_some())
    }

    fn trial(&self, id: &ProjectId) -> Result<Trial, ProjectError> {
        let recorder = self.administrator.shared.metrics.recorder();
        Ok(Trial {
            state: self.project(id)?,
            files: self.files_beside(id),
            registry: self.registry.clone(),
            takes_no_api_key: self.takes_no_api_key(id),
            recent: recorder.and_then(|recorder| recorder.recent().cloned()),
            now: self.now(),
        })
    }
}

impl ProjectAdministrator {
    /// Returns the id of this instance, and those of the other ones that are known.
    pub async fn instances(&self, deadline: Deadline) -> (String, Vec<String>) {
        let instances = self.administrator.instances();
        let others = instances.others(deadline.or_within(MAX_TIME)).await.unwrap_or_default();
        (instances.id().to_owned(), others.into_iter().map(|other| other.id).collect())
    }
}

impl Trial {
    /// Returns the project as it is.
    pub fn state(&self) -> &ProjectState {
        &self.state
    }

    /// Returns what a write would do.
    ///
    /// # Errors
    ///
    /// [`ProjectError::DryRun`]. Problems of rules are no errors.
    pub fn validate(
        &self,
        tried: TriedRules,
        steps: &mut Steps,
    ) -> Result<ValidatedRules, ProjectError> {
        let given = tried.specs.clone();
        let mut problems = self.problems_of_names(&given);
        if self.takes_no_api_key {
            problems.extend(problems_of_api_key(&given));
        }
        let (mut changes, mut built) = (Vec::new(), None);
        match self.applied(tried, steps)? {
            Ok((rules, differences)) => match self.in_force(&rules, steps)? {
                Ok(rules) => (changes, built) = (differences, Some(rules)),
                Err(found) => problems.extend(found),
            },
            Err(RuleWriteError::Invalid(found)) => problems.extend(found),
            Err(error) => return Err(error.into()),
        }
        if !problems.is_empty() {
            changes.clear();
        }
        let rules = match built {
            Some(rules) => rules,
            None => valid_among(&given, steps)?,
        };
        let warnings = warnings_of(&given, &rules, steps)?;
        Ok(ValidatedRules { problems, warnings, changes, revision: self.state.revision })
    }

    /// Decides the requests that this instance keeps as a write would have them decided, and as the
    /// rules in force do. `window` is the time of the past; `None`: all that is kept.
    ///
    /// # Errors
    ///
    /// [`ProjectError::NoPreview`], [`ProjectError::PreviewWindow`], [`ProjectError::DryRun`],
    /// [`ProjectError::Rules`], [`ProjectError::FileRule`].
    pub fn preview(
        &self,
        tried: TriedRules,
        window: Option<Micros>,
        steps: &mut Steps,
    ) -> Result<RecentReport, ProjectError> {
        let recent = self.recent.as_ref().ok_or(ProjectError::NoPreview)?;
        let keep = recent.keep();
        let window = window.unwrap_or(keep);
        if window < MIN_WINDOW.min(keep) || window > keep {
            return Err(ProjectError::PreviewWindow { keep });
        }
        if let Some((_, name)) = file_rule_names(self.files.as_deref(), &tried.specs).first() {
            return Err(ProjectError::FileRule((*name).to_owned()));
        }
        let (rules, _) = self.applied(tried, steps)??;
        let candidate = self.in_force(&rules, steps)?.map_err(RuleWriteError::Invalid)?;
        let against = self.in_force(&self.state.rules, steps)?.map_err(RuleWriteError::Invalid)?;
        let settings = SimulationSettings {
            against: Some(against),
            top: MAX_HIT_KEYS,
            hardest: HardestHit::NewlyRefused,
            ..SimulationSettings::new(candidate)
        };
        let project = self.state.project.id.to_string();
        let since = self.now - window;
        let wanted = WantedRequests { project, descriptors: false, since };
        let report = recent.simulate(settings, &wanted, || steps.flow());
        report.map_err(|error| match error {
            RecentError::Stopped => Stopped.into(),
            error => ProjectError::Preview(error.to_string()),
        })
    }

    /// Returns the rules after a write, and the differences.
    fn applied(
        &self,
        tried: TriedRules,
        steps: &mut Steps,
    ) -> Result<Result<(ProjectRules, Vec<RuleChange>), RuleWriteError>, Stopped> {
        let by = WriteStamp { at: self.now, etag: Etag(0) };
        let TriedRules { specs, others } = tried;
        self.state.rules.applied(specs, others, by, &mut || steps.flow()).ok_or(Stopped)
    }

    /// Returns what would be in force with these rules.
    fn in_force(
        &self,
        rules: &ProjectRules,
        steps: &mut Steps,
    ) -> Result<Result<RuleSet, Vec<Problem>>, Stopped> {
        let in_force = self.registry.with_rules(&self.state, rules, &mut || steps.flow());
        in_force.ok_or(Stopped)
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
fn valid_among(specs: &[RuleSpec], steps: &mut Steps) -> Result<RuleSet, ProjectError> {
    let mut valid: HashMap<Arc<str>, Rule> = HashMap::new();
    for spec in specs {
        steps.pause()?;
        if let Ok(rule) = spec.build() {
            valid.entry(Arc::clone(&rule.name)).or_insert(rule);
        }
    }
    let none = RulesSpec::default().build().map_err(RuleWriteError::Invalid)?;
    Ok(none.with_more(valid.into_values()))
}

/// Returns the warnings that concern the rules given, in their order.
fn warnings_of(
    specs: &[RuleSpec],
    rules: &RuleSet,
    steps: &mut Steps,
) -> Result<Vec<RuleWarning>, Stopped> {
    let all = warnings_in_steps(rules, &mut || steps.flow()).ok_or(Stopped)?;
    let names = specs.iter().enumerate();
    let names = names.filter_map(|(position, spec)| Some((spec.name.value()?.as_str(), position)));
    let positions: HashMap<&str, usize> = names.collect();
    let position = |warning: &Warning| {
        let of = [Some(warning.rule()), warning.stricter()];
        of.into_iter().flatten().find_map(|name| positions.get(name).copied())
    };
    let concerned = all.into_iter().filter_map(|warning| {
        let position = position(&warning)?;
        Some(RuleWarning { position, warning })
    });
    let mut warnings: Vec<RuleWarning> = concerned.collect();
    warnings.sort_by_key(|warning| warning.position);
    Ok(warnings)
}
