//! What `rlaas rule apply` would change in a project, and the writes that change it.
//!
//! A request and an entry of the history have at most 4 MiB: what is larger is several revisions.

use std::collections::HashMap;

use anyhow::anyhow;
use prost::Message;
use rlaas_cli::text::{self, project as shown_id};
use rlaas_cli::{CommandError, ProjectClient, change_lines, counts, printable};
use rlaas_proto::ratelimit::admin::v1::problem::Severity;
use rlaas_proto::ratelimit::admin::v1::rule_change::Kind;
use rlaas_proto::ratelimit::admin::v1::{
    ApplyRulesRequest, Problem, ProjectRule, RuleChange, ValidateRequest, ValidateResponse,
};
use rlaas_proto::ratelimit::v1::Rule;
use rlaas_proto::ratelimit::v1::rule_origin::Kind as OriginKind;

use super::export::rules_of;
use super::fields;
use crate::rule_messages;

/// Most bytes of the rules of one request: an answer has them before and after.
const MAX_REQUEST: usize = 3 * 1024 * 1024;
/// Most bytes of the differences of one revision, as far as they can be known here.
const MAX_REVISION: usize = 3 * 1024 * 1024;

/// What would change in the rules of a project.
#[derive(Debug)]
pub(super) struct RulesPlan {
    pub(super) project_id: String,
    /// Of [`Severity::Warning`] alone.
    pub(super) warnings: Vec<Problem>,
    /// By name; those of rules that are deleted last, if there are several requests.
    pub(super) changes: Vec<RuleChange>,
    /// Revision of the project that they start from.
    pub(super) revision: u64,
    pub(super) writes: Vec<RulesWrite>,
}

/// One revision.
#[derive(Debug)]
pub(super) enum RulesWrite {
    /// Rules that are written together; the revision before is known when they are.
    Apply(Box<ApplyRulesRequest>),
    /// A rule that is deleted, and its etag.
    Delete(String, String),
}

impl RulesPlan {
    /// Asks the server what rules would change; with `prune` the others are deleted.
    pub(super) async fn new(
        projects: &mut ProjectClient,
        project_id: &str,
        rules: Vec<Rule>,
        prune: bool,
    ) -> Result<Self, CommandError> {
        let batches = batches(rules.clone(), MAX_REQUEST, Rule::encoded_len);
        let is_one = batches.len() <= 1;
        let mut plan = Self {
            project_id: project_id.to_owned(),
            warnings: Vec::new(),
            changes: Vec::new(),
            revision: 0,
            writes: Vec::new(),
        };
        for (number, rules) in batches.into_iter().enumerate() {
            let validated = plan.validate(projects, rules, prune && is_one).await?;
            if number > 0 && validated.revision != plan.revision {
                return Err(anyhow!("others change the project: nothing was changed").into());
            }
            plan.changes.extend(validated.changes);
            plan.revision = validated.revision;
        }
        let is_small = plan.changes.iter().map(recorded_len).sum::<usize>() <= MAX_REVISION;
        if is_one && is_small {
            plan.writes = vec![RulesWrite::Apply(Box::new(plan.request(rules, prune)))];
        } else {
            plan.write_in_parts(projects, &rules, prune).await?;
        }
        Ok(plan)
    }

    /// Returns `true` if nothing would change.
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the plan for people.
    pub(super) fn to_text(&self) -> String {
        let project = shown_id(&self.project_id);
        let warnings = self.warnings.iter().map(|Problem { field, message, .. }| {
            format!("  warning: {} {}\n", printable(field), printable(message))
        });
        let warnings: String = warnings.collect();
        if self.is_empty() {
            return format!("project {project}: no rule changes\n{warnings}");
        }
        let [created, updated, deleted] = counts(&self.changes);
        let head = format!(
            "project {project}: {created} to create, {updated} to update, {deleted} to delete"
        );
        let parts = match self.writes.len() {
            0 | 1 => String::new(),
            several => format!(", as {several} revisions"),
        };
        format!("{head}{parts}\n{warnings}{}", change_lines(&self.changes, fields))
    }

    /// Returns the plan as the answer of one validation.
    pub(super) fn to_response(&self) -> ValidateResponse {
        ValidateResponse {
            problems: self.warnings.clone(),
            changes: self.changes.clone(),
            revision: self.revision,
        }
    }

    async fn validate(
        &mut self,
        projects: &mut ProjectClient,
        rules: Vec<Rule>,
        prune: bool,
    ) -> Result<ValidateResponse, CommandError> {
        let names: Vec<String> = rules.iter().map(|rule| rule.name.clone()).collect();
        let request = ValidateRequest { project_id: self.project_id.clone(), rules, prune };
        let validated = projects.validate(request).await?.into_inner();
        let problems = validated.problems.iter().map(|problem| with_name(problem, &names));
        let (errors, warnings): (Vec<_>, Vec<_>) =
            problems.partition(|problem| problem.severity() == Severity::Error);
        self.warnings.extend(warnings);
        if errors.is_empty() {
            return Ok(validated);
        }
        let line = |problem: &Problem| {
            format!("{} {}", printable(&problem.field), printable(&problem.message))
        };
        let lines: Vec<String> = errors.iter().map(line).collect();
        Err(anyhow!("project {}: {}", shown_id(&self.project_id), lines.join("; ")).into())
    }

    fn request(&self, rules: Vec<Rule>, prune: bool) -> ApplyRulesRequest {
        let project_id = self.project_id.clone();
        ApplyRulesRequest { project_id, rules, prune, ..ApplyRulesRequest::default() }
    }

    /// Plans several revisions: of the rules that differ, then of those that are deleted.
    async fn write_in_parts(
        &mut self,
        projects: &mut ProjectClient,
        rules: &[Rule],
        prune: bool,
    ) -> Result<(), CommandError> {
        self.changes.retain(|change| change.kind() != Kind::Deleted);
        self.changes.sort_by(|one, other| one.rule_name.cmp(&other.rule_name));
        let given: HashMap<&str, &Rule> =
            rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
        let changed = self.changes.iter().filter_map(|change| {
            let rule: &Rule = given.get(change.rule_name.as_str())?;
            Some((rule.clone(), recorded_len(change)))
        });
        let len = |(rule, recorded): &(Rule, usize)| (*recorded).max(rule.encoded_len());
        for part in batches(changed.collect(), MAX_REVISION.min(MAX_REQUEST), len) {
            let rules = part.into_iter().map(|(rule, _)| rule).collect();
            self.writes.push(RulesWrite::Apply(Box::new(self.request(rules, false))));
        }
        if !prune {
            return Ok(());
        }
        let listed = rules_of(projects, &self.project_id).await?.rules;
        for ProjectRule { rule, etag, .. } in listed {
            let rule = rule.unwrap_or_default();
            let is_run_time =
                rule.origin.as_ref().is_some_and(|of| of.kind() == OriginKind::RunTime);
            if is_run_time && !given.contains_key(rule.name.as_str()) {
                self.writes.push(RulesWrite::Delete(rule.name.clone(), etag));
                let rule_name = rule.name.clone();
                let (kind, before) = (Kind::Deleted.into(), Some(rule));
                let change = RuleChange { kind, rule_name, before, ..RuleChange::default() };
                self.changes.push(change);
            }
        }
        Ok(())
    }
}

/// Returns the items in parts, in each of which the lengths are at most `most` together, or which
/// have one item. There is always one part.
fn batches<T>(items: Vec<T>, most: usize, len: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts = vec![Vec::new()];
    let mut used = 0;
    for item in items {
        let len = len(&item);
        if used + len > most && used > 0 {
            parts.push(Vec::new());
            used = 0;
        }
        used += len;
        parts.last_mut().expect("there is always one").push(item);
    }
    parts
}

/// Returns about how many bytes a difference has in the history.
fn recorded_len(change: &RuleChange) -> usize {
    let len = |rule: &Option<Rule>| {
        let spec = rule.as_ref().map(rule_messages::spec);
        spec.and_then(|spec| serde_json::to_vec(&spec).ok()).map_or(0, |json| json.len())
    };
    change.rule_name.len() + len(&change.before) + len(&change.after) + 64
}

/// Returns a problem with the name of the rule in place of its number.
fn with_name(problem: &Problem, names: &[String]) -> Problem {
    let field = problem.field.strip_prefix("rules[").and_then(|rest| rest.split_once(']'));
    let found = field.and_then(|(index, rest)| {
        let name = names.get(index.parse::<usize>().ok()?)?;
        // A warning of a configuration says both by itself.
        let warned = problem.message.strip_prefix(&format!("rule {name}: "));
        let message = warned.map(|text| text.strip_prefix("key-by: ").unwrap_or(text));
        let field = format!("rule {}: {}", text::value(name), rest.trim_start_matches('.'));
        Some((field, message.unwrap_or(&problem.message).to_owned()))
    });
    let (field, message) = found.unwrap_or((problem.field.clone(), problem.message.clone()));
    Problem { field, message, ..problem.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_names_its_rule_and_its_field_once() {
        let named = |field: &str, message: &str| {
            let (field, message) = (field.to_owned(), message.to_owned());
            let problem = Problem { field, message, ..Problem::default() };
            let problem = with_name(&problem, &["whole-shop".to_owned()]);
            format!("{} {}", problem.field, problem.message)
        };
        let warned = named("rules[0].key_by", "rule whole-shop: key-by: no matcher requires it");
        assert_eq!(warned, "rule whole-shop: key_by no matcher requires it");
        let refused = named("rules[0].max_requests", "must be at least 1");
        assert_eq!(refused, "rule whole-shop: max_requests must be at least 1");
        assert_eq!(named("rules[7].window", "missing"), "rules[7].window missing");
    }

    #[test]
    fn parts_are_as_long_as_they_may_be() {
        let parts = |items: &[usize]| batches(items.to_vec(), 10, |len| *len);
        assert_eq!(parts(&[]), [Vec::<usize>::new()]);
        assert_eq!(parts(&[4, 6, 1]), [vec![4, 6], vec![1]]);
        assert_eq!(parts(&[30, 1, 10]), [vec![30], vec![1], vec![10]]);
    }
}
