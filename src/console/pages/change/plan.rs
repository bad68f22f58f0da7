//! What publishing would do: problems, warnings and differences. Nothing is written.

use std::collections::HashSet;
use std::time::Duration;

use super::form::{ChangeForm, PublishAs};
use super::read;
use crate::admin::projects::{ProjectError, RuleWarning, Trial, TriedRules, ValidatedRules};
use crate::clock::Deadline;
use crate::console::project_access::field_of;
use crate::console::project_problem::FormError;
use crate::console::{Console, RulesReading};
use crate::projects::dry_runs::{DryRunKind, Steps};
use crate::projects::registry::ProjectState;
use crate::projects::{Others, RuleChange, RulesFile};
use crate::rule_messages;
use crate::rules::Unmatched;
use crate::rules::spec::{Problem, RuleSpec};

/// Longest wait for a check or a preview, that of waiting for others included.
pub(super) const MAX_TIME: Duration = Duration::from_secs(20);
/// Most problems of a text, and most warnings, that are shown.
const MAX_SHOWN: usize = 500;

/// What publishing a text would do.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangePlan {
    /// With any nothing can be published.
    pub(super) problems: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) changes: Vec<RuleChange>,
    /// The rules as they would be published.
    pub(super) specs: Vec<RuleSpec>,
}

/// Returns what publishing the text of a form would do.
pub(super) async fn plan(console: &Console, form: &ChangeForm) -> Result<ChangePlan, FormError> {
    let publish_as = form.publish_as().map_err(FormError::invalid)?;
    let state = console.projects.project(&form.project)?;
    let of_files = console.projects.unmatched_of_files(&form.project);
    let RulesReading { file, mut problems } = read(console, &form.text).await;
    let about_file = problems_of_file(&state, &file, of_files);
    // Without rules there is nothing to try: the text can't be read at all.
    let is_readable = problems.iter().all(|problem| problem.field.is_some());
    let (found, mut plan) = if is_readable {
        let rules = file.rules;
        let work = move |trial: &Trial, steps: &mut Steps| tried(trial, steps, (rules, publish_as));
        let (kind, deadline) = (DryRunKind::Validation, Deadline::within(MAX_TIME));
        console.projects.dry_run(&form.project, kind, deadline, work).await?
    } else {
        (Vec::new(), ChangePlan::default())
    };
    problems.truncate(MAX_SHOWN);
    let of_text: Vec<_> = problems.iter().filter_map(|problem| problem.field.as_deref()).collect();
    // Of a rule whose text has problems the trial knows less.
    let is_new = |problem: &&Problem| {
        let rule = rule_of(&problem.field);
        !of_text
            .iter()
            .any(|field| *field == problem.field || (rule.is_some() && rule_of(field) == rule))
    };
    let further = found.iter().filter(is_new);
    let further: Vec<_> =
        further.map(|problem| format!("{}: {}", problem.field, problem.text)).collect();
    plan.problems = problems.into_iter().map(|problem| problem.text).collect();
    plan.problems.extend(about_file);
    plan.problems.extend(further);
    if !plan.problems.is_empty() {
        plan.changes.clear();
    }
    Ok(plan)
}

/// Returns the part of a path that names the rule.
fn rule_of(field: &str) -> Option<&str> {
    field.starts_with("rules[").then(|| field.split(']').next()).flatten()
}

/// Tries rules as they would be published.
fn tried(
    trial: &Trial,
    steps: &mut Steps,
    (rules, publish_as): (Vec<RuleSpec>, PublishAs),
) -> Result<(Vec<Problem>, ChangePlan), ProjectError> {
    let mut specs = Vec::with_capacity(rules.len());
    for rule in &rules {
        steps.pause()?;
        specs.push(rule_messages::at_run_time(rule));
    }
    let mut validated = validate(trial, specs.clone(), steps)?;
    if publish_as != PublishAs::Text && validated.problems.is_empty() {
        let changed: HashSet<&str> =
            validated.changes.iter().map(|change| change.name.as_str()).collect();
        let is_among =
            |spec: &RuleSpec| spec.name.value().is_some_and(|name| changed.contains(name.as_str()));
        specs = specs
            .into_iter()
            .map(|spec| {
                let is_changed = is_among(&spec);
                publish_as.apply(spec, is_changed)
            })
            .collect();
        validated = validate(trial, specs.clone(), steps)?;
    }
    let ValidatedRules { problems, warnings, changes, .. } = validated;
    let warnings = warnings.iter().take(MAX_SHOWN).map(warning).collect();
    Ok((problems, ChangePlan { problems: Vec::new(), warnings, changes, specs }))
}

fn validate(
    trial: &Trial,
    specs: Vec<RuleSpec>,
    steps: &mut Steps,
) -> Result<ValidatedRules, ProjectError> {
    trial.validate(TriedRules { specs, others: Others::Deleted }, steps)
}

fn warning(RuleWarning { position, warning }: &RuleWarning) -> String {
    let field = warning.field().map(|field| format!(".{field}")).unwrap_or_default();
    format!("rules[{position}]{field}: {warning}")
}

/// Returns the problems of what a text has beside rules.
fn problems_of_file(
    state: &ProjectState,
    file: &RulesFile,
    of_files: Option<Unmatched>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let id = &state.project.id;
    if file.project.as_ref().is_some_and(|named| named != id) {
        problems.push(format!("project: must be {}, or left out", field_of(id)));
    }
    let policy = of_files.unwrap_or_else(|| state.project.unmatched.into());
    if file.unmatched.is_some_and(|of| of != policy) {
        let policy = policy.name();
        problems.push(format!(
            "unmatched: must be {policy}, or left out: the page of the project changes it"
        ));
    }
    problems
}
