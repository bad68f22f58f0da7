//! `Validate`: what a write of rules would do, without the write. It waits in the queue of validations.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_auth::{ProjectId, deadline};
use rlaas_core::rules::warnings::{Warning, warnings};
use rlaas_projects::{Etag, RuleWriteError, WriteStamp};
use rlaas_proto::rule_messages;
use tonic::{Request, Status};

use super::rules::{file_rule_names, in_force_beside};
use super::{OPERATE_OR_ADMIN, Projects, admitted, messages, others, proto, refusals};
use crate::caller;
use rlaas_core::rules::spec::{Problem, RuleSpec, RulesSpec};
use rlaas_core::rules::{Rule, RuleSet};

/// Most problems of an answer.
const MAX_PROBLEMS: usize = 1_000;

impl Projects {
    /// Answers `Validate`.
    pub(super) async fn validated(
        &self,
        request: Request<proto::ValidateRequest>,
    ) -> Result<proto::ValidateResponse, Status> {
        let id = admitted(caller(&request)?, &request.get_ref().project_id, OPERATE_OR_ADMIN)?;
        self.project(&id)?;
        let (this, deadline) = (self.clone(), deadline(request.metadata()));
        let message = request.into_inner();
        let validated = self.validations.run(deadline, move || this.validate(&id, &message)).await;
        validated.map_err(refusals::validation)?
    }

    /// Returns what a write would do. Problems of rules are no errors.
    fn validate(
        &self,
        id: &ProjectId,
        message: &proto::ValidateRequest,
    ) -> Result<proto::ValidateResponse, Status> {
        let (state, files) = (self.project(id)?, self.files_beside(id));
        let given: Vec<RuleSpec> = message.rules.iter().map(rule_messages::spec).collect();
        let of_files = file_rule_names(files.as_deref(), &given).into_iter();
        let mut problems: Vec<Problem> = of_files
            .map(|(position, _)| Problem {
                field: format!("rules[{position}].name"),
                text: "must not be that of a rule of a file".to_owned(),
            })
            .collect();
        problems.extend(self.problems_of_attributes(id, &given));
        let by = WriteStamp { at: self.clock.now(), etag: Etag(0) };
        let applied = state.rules.applied(given.clone(), others(message.prune), by);
        let applied = applied
            .and_then(|(rules, changes)| Ok((in_force_beside(files.as_deref(), &rules)?, changes)));
        let (rules, mut changes) = match applied {
            Ok(applied) => applied,
            Err(RuleWriteError::Invalid(found)) => {
                problems.extend(found);
                (valid_among(&given)?, Vec::new())
            }
            Err(error) => return Err(refusals::rules(error, "")),
        };
        if !problems.is_empty() {
            changes.clear();
        }
        let problems = refusals::problems(problems, "").into_iter().map(problem_message);
        let warnings = warnings_of(&given, &rules);
        Ok(proto::ValidateResponse {
            problems: problems.chain(warnings).take(MAX_PROBLEMS).collect(),
            changes: changes.iter().map(|change| messages::change(id, change)).collect(),
            revision: state.revision,
        })
    }
}

/// Returns those rules that are valid by themselves.
fn valid_among(specs: &[RuleSpec]) -> Result<RuleSet, Status> {
    let mut valid: HashMap<Arc<str>, Rule> = HashMap::new();
    for spec in specs {
        if let Ok(rule) = spec.build() {
            valid.entry(Arc::clone(&rule.name)).or_insert(rule);
        }
    }
    let none = RulesSpec::default().build();
    let none = none.map_err(|problems| refusals::rules(RuleWriteError::Invalid(problems), ""))?;
    Ok(none.with_more(valid.into_values()))
}

/// Returns the warnings that concern the rules given, in their order.
fn warnings_of(specs: &[RuleSpec], rules: &RuleSet) -> Vec<proto::Problem> {
    let names = specs.iter().enumerate();
    let names = names.filter_map(|(position, spec)| Some((spec.name.value()?.as_str(), position)));
    let positions: HashMap<&str, usize> = names.collect();
    let position = |warning: &Warning| {
        let of_warning = [Some(warning.rule()), warning.stricter()];
        of_warning.into_iter().flatten().find_map(|name| positions.get(name).copied())
    };
    let concerned = warnings(rules).into_iter().filter_map(|warning| {
        let position = position(&warning)?;
        Some((position, warning))
    });
    let mut concerned: Vec<(usize, Warning)> = concerned.collect();
    concerned.sort_by_key(|(position, _)| *position);
    let message = |(position, warning): &(usize, Warning)| {
        let is_own = positions.get(warning.rule()) == Some(position);
        warning_message(*position, warning, is_own)
    };
    concerned.iter().map(message).collect()
}

/// Returns the message of a warning, which names its rule unless the field does.
fn warning_message(position: usize, warning: &Warning, is_own: bool) -> proto::Problem {
    let field = match warning.field() {
        None => String::new(),
        Some("match") => ".matchers".to_owned(),
        Some("limit") => ".max_requests".to_owned(),
        Some(field) => format!(".{}", field.replace('-', "_")),
    };
    proto::Problem {
        severity: proto::problem::Severity::Warning.into(),
        field: format!("rules[{position}]{field}"),
        message: if is_own { warning.text() } else { warning.to_string() },
    }
}

fn problem_message(problem: Problem) -> proto::Problem {
    proto::Problem {
        severity: proto::problem::Severity::Error.into(),
        field: problem.field,
        message: problem.text,
    }
}
