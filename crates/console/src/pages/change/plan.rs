//! What publishing would do: problems, warnings and differences. Nothing is written.

use std::sync::Arc;

use rlaas_proto::ratelimit::admin::v1::problem::Severity;
use rlaas_proto::ratelimit::admin::v1::{Project, RuleChange, ValidateRequest, ValidateResponse};
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
    pub(super) warnings: Vec<String>,
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
    let found = findings(&validated, Severity::Error);
    let found = if reading.problems.is_empty() { found } else { Vec::new() };
    let problems = [reading.problems, of_project, found].concat();
    Ok(ChangePlan {
        warnings: findings(&validated, Severity::Warning),
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

/// Returns the problems of a severity, each with its field.
fn findings(validated: &ValidateResponse, severity: Severity) -> Vec<String> {
    let found = validated.problems.iter().filter(|problem| problem.severity() == severity);
    found.map(|problem| format!("{}: {}", problem.field, problem.message)).collect()
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
