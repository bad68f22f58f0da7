//! What publishing would do: problems, warnings and differences. Nothing is written.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::form::{ChangeForm, PublishAs};
use crate::admin::projects::{ProjectError, RuleWarning, Trial, TriedRules, ValidatedRules};
use crate::clock::Deadline;
use crate::console::project_access::field_of;
use crate::console::project_problem::FormError;
use crate::console::{Console, RulesReading, TextProblem};
use crate::projects::registry::ProjectState;
use crate::projects::{Others, RuleChange, RulesFile};
use crate::rule_messages;
use crate::rules::Unmatched;
use crate::rules::spec::{Problem, RuleSpec};

/// Longest wait for a check, that of waiting for others included.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Most problems, and most warnings, that are shown.
const MAX_SHOWN: usize = 500;
/// Most rules of a text: as many as all projects may have.
const MAX_RULES: usize = 100_000;

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
    /// Collects findings; the texts of those beyond the limit are never made.
    fn new(all: impl Iterator<Item = String>, count: usize) -> Self {
        Self { shown: all.take(MAX_SHOWN).collect(), count }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Returns what publishing the text of a form would do. It waits for other checks, and no decision
/// waits for it.
pub(super) async fn plan(console: &Console, form: &ChangeForm) -> Result<ChangePlan, FormError> {
    let checked = CheckedText {
        read: console.rules_format.read,
        text: Arc::clone(&form.text),
        publish_as: form.publish_as().map_err(FormError::invalid)?,
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
        let RulesReading { mut file, problems } = (self.read)(&self.text);
        let about_file = problems_of_file(trial.state(), &file, self.of_files);
        let rules = std::mem::take(&mut file.rules);
        // Without rules there is nothing to try: the text can't be read at all.
        let is_readable = problems.iter().all(|problem| problem.field.is_some());
        let (found, plan) = if is_readable {
            tried(trial, rules, self.publish_as)?
        } else {
            (Vec::new(), ChangePlan { revision: trial.state().revision, ..ChangePlan::default() })
        };
        let (further, found) = further(&problems, &found);
        let count = problems.len() + about_file.len() + found;
        let of_text = problems.into_iter().map(|problem| problem.text);
        let problems = Findings::new(of_text.chain(about_file).chain(further), count);
        let changes = if problems.is_empty() { plan.changes } else { Vec::new() };
        Ok(ChangePlan { problems, changes, ..plan })
    }
}

/// Returns the first problems that only the trial has found, and how many there are.
fn further(of_text: &[TextProblem], found: &[Problem]) -> (Vec<String>, usize) {
    let known = KnownFields::new(of_text);
    let further: Vec<_> = found.iter().filter(|problem| !known.has(&problem.field)).collect();
    let first = further.iter().take(MAX_SHOWN).map(ToString::to_string);
    (first.collect(), further.len())
}

/// The fields, and the rules, that a text has problems of. Of such a rule a trial knows less.
struct KnownFields<'a> {
    fields: HashSet<&'a str>,
    rules: HashSet<&'a str>,
}

impl<'a> KnownFields<'a> {
    fn new(problems: &'a [TextProblem]) -> Self {
        let fields: HashSet<&str> =
            problems.iter().filter_map(|problem| problem.field.as_deref()).collect();
        let rules = fields.iter().filter_map(|field| rule_of(field)).collect();
        Self { fields, rules }
    }

    fn has(&self, field: &str) -> bool {
        self.fields.contains(field) || rule_of(field).is_some_and(|rule| self.rules.contains(rule))
    }
}

/// Returns the part of a path that names the rule.
fn rule_of(field: &str) -> Option<&str> {
    field.starts_with("rules[").then(|| field.split(']').next()).flatten()
}

/// Tries rules as they would be published.
fn tried(
    trial: &Trial,
    rules: Vec<RuleSpec>,
    publish_as: PublishAs,
) -> Result<(Vec<Problem>, ChangePlan), ProjectError> {
    if rules.len() > MAX_RULES {
        let text =
            format!("must be at most {MAX_RULES}, as many as all projects may have together");
        let too_many = Problem { field: "rules".to_owned(), text };
        return Ok((vec![too_many], ChangePlan::default()));
    }
    let mut specs: Vec<_> = rules.iter().map(rule_messages::at_run_time).collect();
    let mut validated = validate(trial, specs.clone())?;
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
        validated = validate(trial, specs.clone())?;
    }
    let ValidatedRules { problems, warnings, changes, revision } = validated;
    let warnings = Findings::new(warnings.iter().map(warning), warnings.len());
    let problems_of_text = Findings::default();
    Ok((problems, ChangePlan { problems: problems_of_text, warnings, changes, specs, revision }))
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
    fn of_a_rule_with_problems_no_further_ones_are_shown() {
        let problem = |field: Option<&str>| {
            let text = "must be another".to_owned();
            TextProblem { field: field.map(str::to_owned), line: None, text }
        };
        let problems = [problem(Some("rules[1].limit")), problem(Some("unmatched")), problem(None)];
        let known = KnownFields::new(&problems);
        for (field, expected) in [
            ("rules[1].limit", true),
            ("rules[1].name", true),
            ("rules[1]", true),
            ("rules[11].name", false),
            ("rules[0].limit", false),
            ("rules", false),
            ("unmatched", true),
            ("unmatche", false),
        ] {
            assert_eq!(known.has(field), expected, "{field}");
        }
    }

    #[test]
    fn only_the_first_findings_are_shown() {
        let all = (0..MAX_SHOWN + 7).map(|number| number.to_string());
        let findings = Findings::new(all, MAX_SHOWN + 7);
        assert_eq!((findings.shown.len(), findings.count), (MAX_SHOWN, MAX_SHOWN + 7));
    }
}
