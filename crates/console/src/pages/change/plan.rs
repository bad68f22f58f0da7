//! What publishing would do: problems, warnings and differences. Nothing is written.

use std::collections::HashSet;
use std::sync::Arc;

use rlaas_proto::ratelimit::admin::v1::problem::Severity;
use rlaas_proto::ratelimit::admin::v1::{
    Problem, Project, RuleChange, ValidateRequest, ValidateResponse,
};
use rlaas_proto::ratelimit::v1::Rule;

use super::form::ChangeForm;
use super::run_blocking;
use crate::Console;
use crate::calls::{CHANGE_TIME, field_of, within};
use crate::page_error::PageError;
use crate::pages::projects::policy_value;
use crate::rules_text::RulesReading;
use crate::visit::Visitor;

/// What publishing a text would do.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangePlan {
    /// With any nothing can be published.
    pub(super) problems: Vec<String>,
    /// Of rules that would be changed, or of all if none would.
    pub(super) warnings: Vec<String>,
    /// Of rules that would stay as they are.
    pub(super) other_warnings: Vec<String>,
    pub(super) changes: Vec<RuleChange>,
    /// The rules as they would be published.
    pub(super) rules: Vec<Rule>,
    /// Revision of the project that the plan starts from.
    pub(super) revision: u64,
}

/// Returns what publishing the text of a form would do.
pub(super) async fn plan(
    console: &Console,
    visitor: &Visitor,
    form: &ChangeForm,
    project: &Project,
) -> Result<ChangePlan, PageError> {
    let (read, text) = (console.rules_format.read, Arc::clone(&form.text));
    // No decision waits for a long text.
    let mut reading = run_blocking(move || read(&text)).await?;
    let mut of_project = problems_of_project(project, &reading);
    let is_alone = matches!(&*reading.rules, [only] if only.name == form.rule);
    if !form.rule.is_empty() && !is_alone {
        of_project.push(format!("rules: must have the rule {} alone", form.rule));
    }
    let rules = std::mem::take(&mut reading.rules);
    let validated = validate(visitor, form, &rules).await?;
    // A text with problems has those of its rules already, with their lines.
    let is_error = |problem: &&Problem| problem.severity() == Severity::Error;
    let found = texts(validated.problems.iter().filter(is_error));
    let found = if reading.problems.is_empty() { found } else { Vec::new() };
    let problems = [reading.problems, of_project, found].concat();
    let (warnings, other_warnings) = warnings(&validated, &rules);
    Ok(ChangePlan {
        warnings,
        other_warnings,
        changes: if problems.is_empty() { validated.changes } else { Vec::new() },
        rules,
        revision: validated.revision,
        problems,
    })
}

async fn validate(
    visitor: &Visitor,
    form: &ChangeForm,
    rules: &[Rule],
) -> Result<ValidateResponse, PageError> {
    let (project_id, rules) = (form.project.clone(), rules.to_vec());
    let request = ValidateRequest { project_id, rules, prune: form.rule.is_empty() };
    Ok(visitor.projects().validate(within(CHANGE_TIME, request)).await?.into_inner())
}

/// Returns the rule that a problem is about, by its field, such as `rules[3].window`.
fn rule_of<'a>(problem: &Problem, rules: &'a [Rule]) -> Option<&'a Rule> {
    let (position, _) = problem.field.strip_prefix("rules[")?.split_once(']')?;
    rules.get(position.parse::<usize>().ok()?)
}

/// Returns the warnings of rules that would be changed, or of all if none would, and those of the others.
fn warnings(validated: &ValidateResponse, rules: &[Rule]) -> (Vec<String>, Vec<String>) {
    let changed = validated.changes.iter().map(|change| &*change.rule_name);
    let changed: HashSet<&str> = changed.collect();
    let is_warning = |problem: &&Problem| problem.severity() == Severity::Warning;
    let (own, others): (Vec<&Problem>, Vec<&Problem>) =
        validated.problems.iter().filter(is_warning).partition(|problem| {
            let rule = rule_of(problem, rules).filter(|_| !changed.is_empty());
            rule.is_none_or(|rule| changed.contains(&*rule.name))
        });
    (texts(own), texts(others))
}

/// Returns problems as texts, each with its field.
fn texts<'a>(problems: impl IntoIterator<Item = &'a Problem>) -> Vec<String> {
    let problems = problems.into_iter();
    problems.map(|problem| format!("{}: {}", problem.field, problem.message)).collect()
}

/// Returns the problems of what a text has beside rules.
fn problems_of_project(project: &Project, text: &RulesReading) -> Vec<String> {
    let mut problems = Vec::new();
    let id = &project.id;
    if text.project.as_ref().is_some_and(|named| named != id) {
        problems.push(format!("project: must be {}, or left out", field_of(id)));
    }
    let policy = policy_value(project.unmatched());
    if text.unmatched.is_some_and(|unmatched| unmatched != project.unmatched()) {
        problems.push(format!(
            "unmatched: must be {policy}, or left out: the page of the project changes it"
        ));
    }
    problems
}
