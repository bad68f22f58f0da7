//! What publishing would do: problems, warnings and differences. Nothing is written.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::form::{ChangeForm, PublishAs};
use crate::admin::projects::{ProjectError, RuleWarning, Trial, TriedRules, ValidatedRules};
use crate::clock::Deadline;
use crate::console::page_error::PageError;
use crate::console::project_access::field_of;
use crate::console::{Console, RulesReading};
use crate::projects::registry::ProjectState;
use crate::projects::{Others, RuleChange, RulesFile};
use crate::rule_messages;
use crate::rules::Unmatched;
use crate::rules::spec::RuleSpec;

/// Longest wait for a check, that of waiting for others included.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Most problems, and most warnings, that are shown.
const MAX_SHOWN: usize = 500;

/// What publishing a text would do.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangePlan {
    /// With any nothing can be published.
    pub(super) problems: Findings,
    pub(super) warnings: Findings,
    pub(super) changes: Vec<RuleChange>,
    /// The rules as they would be published.
    pub(super) specs: Vec<RuleSpec>,
    /// Revision of the project that the plan starts from.
    pub(super) revision: u64,
}

/// Problems or warnings, of which only the first are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    pub(super) shown: Vec<String>,
    /// How many there are, those that are not shown included.
    pub(super) count: usize,
}

impl Findings {
    fn new(mut all: Vec<String>) -> Self {
        let count = all.len();
        all.truncate(MAX_SHOWN);
        Self { shown: all, count }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Returns what publishing the text of a form would do. It waits for other checks, and no decision
/// waits for it.
pub(super) async fn plan(console: &Console, form: &ChangeForm) -> Result<ChangePlan, PageError> {
    let checked = CheckedText {
        read: console.rules_format.read,
        text: Arc::clone(&form.text),
        publish_as: form.publish_as().map_err(PageError::invalid)?,
        of_files: console.projects.unmatched_of_files(&form.project),
    };
    let deadline = Deadline::within(MAX_TIME);
    let work = move |trial: &Trial| checked.plan(trial);
    Ok(console.projects.on_trial(&form.project, deadline, work).await?)
}

/// A text to check.
struct CheckedText {
    read: fn(&str) -> RulesReading,
    text: Arc<str>,
    publish_as: PublishAs,
    /// The policy that files have for the project.
    of_files: Option<Unmatched>,
}

impl CheckedText {
    fn plan(&self, trial: &Trial) -> Result<ChangePlan, ProjectError> {
        let RulesReading { file, problems: of_text } = (self.read)(&self.text);
        let (validated, specs) = tried(trial, &file.rules, self.publish_as)?;
        let ValidatedRules { problems: found, warnings, changes, revision } = validated;
        // A text with problems has those of its rules already, with their lines.
        let found = if of_text.is_empty() { found } else { Vec::new() };
        let of_file = problems_of_file(trial.state(), &file, self.of_files);
        let problems = of_text.into_iter().chain(of_file);
        let problems = problems.chain(found.iter().map(ToString::to_string));
        let problems = Findings::new(problems.collect());
        let changes = if problems.is_empty() { changes } else { Vec::new() };
        let warnings = Findings::new(warnings.iter().map(warning).collect());
        Ok(ChangePlan { problems, warnings, changes, specs, revision })
    }
}

/// Tries rules as they would be published, and returns them.
fn tried(
    trial: &Trial,
    rules: &[RuleSpec],
    publish_as: PublishAs,
) -> Result<(ValidatedRules, Vec<RuleSpec>), ProjectError> {
    let specs: Vec<_> = rules.iter().map(rule_messages::at_run_time).collect();
    let validated = validate(trial, specs.clone())?;
    if publish_as == PublishAs::Text || !validated.problems.is_empty() {
        return Ok((validated, specs));
    }
    let changed: HashSet<&str> =
        validated.changes.iter().map(|change| change.name.as_str()).collect();
    let applied = specs.into_iter().map(|spec| {
        let differs = spec.name.value().is_some_and(|name| changed.contains(name.as_str()));
        publish_as.apply(spec, differs)
    });
    let specs: Vec<_> = applied.collect();
    Ok((validate(trial, specs.clone())?, specs))
}

fn validate(trial: &Trial, specs: Vec<RuleSpec>) -> Result<ValidatedRules, ProjectError> {
    trial.validate(TriedRules { specs, others: Others::Deleted })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_findings_are_shown() {
        let all = (0..MAX_SHOWN + 7).map(|number| number.to_string());
        let findings = Findings::new(all.collect());
        assert_eq!((findings.shown.len(), findings.count), (MAX_SHOWN, MAX_SHOWN + 7));
    }
}
