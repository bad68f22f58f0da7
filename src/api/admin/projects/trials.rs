//! `Validate`. Its work is done in a dry run: what takes long pauses again and again.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Rule;
use tonic::{Request, Response, Status};

use super::request::{OPERATE_OR_ADMIN, admitted, others};
use super::{errors, messages};
use crate::admin::projects::{
    ProjectAdministrator, ProjectError, RuleWarning, Trial, TriedRules, ValidatedRules,
};
use crate::api::admin::caller;
use crate::api::deadline::deadline;
use crate::projects::dry_runs::{DryRunKind, Steps, Stopped};
use crate::projects::{Others, ProjectId};
use crate::rule_messages;
use crate::rules::spec::Problem;

/// Most problems of an answer to `Validate`.
const MAX_PROBLEMS: usize = 1_000;

/// Answers `Validate`.
pub(super) async fn validate(
    administrator: &ProjectAdministrator,
    request: Request<proto::ValidateRequest>,
) -> Result<Response<proto::ValidateResponse>, Status> {
    let id = admitted(caller(&request)?, &request.get_ref().project_id, OPERATE_OR_ADMIN)?;
    let (deadline, of) = (deadline(request.metadata()), id.clone());
    let proto::ValidateRequest { rules, prune, .. } = request.into_inner();
    let validate = move |trial: &Trial, steps: &mut Steps| {
        let tried = tried(&rules, others(prune), steps)?;
        validated(&of, trial.validate(tried, steps)?, steps)
    };
    let answer = administrator.dry_run(&id, DryRunKind::Validation, deadline, validate).await;
    answer.map(Response::new).map_err(|error| errors::status(&error, ""))
}

/// Reads rules.
fn tried(rules: &[Rule], others: Others, steps: &mut Steps) -> Result<TriedRules, Stopped> {
    let mut specs = Vec::with_capacity(rules.len());
    for rule in rules {
        steps.pause()?;
        specs.push(rule_messages::spec(rule));
    }
    Ok(TriedRules { specs, others })
}

/// Returns the answer to `Validate`.
fn validated(
    id: &ProjectId,
    validated: ValidatedRules,
    steps: &mut Steps,
) -> Result<proto::ValidateResponse, ProjectError> {
    let ValidatedRules { problems, warnings, changes, revision } = validated;
    let mut all: Vec<proto::Problem> =
        errors::problems(problems, "").into_iter().map(error).collect();
    all.extend(warnings.iter().map(warning));
    all.truncate(MAX_PROBLEMS);
    let mut listed = Vec::with_capacity(changes.len());
    for change in &changes {
        steps.pause()?;
        listed.push(messages::change(id, change));
    }
    Ok(proto::ValidateResponse { problems: all, changes: listed, revision })
}

fn error(problem: Problem) -> proto::Problem {
    proto::Problem {
        severity: proto::problem::Severity::Error.into(),
        field: problem.field,
        message: problem.text,
    }
}

fn warning(RuleWarning { position, warning }: &RuleWarning) -> proto::Problem {
    let field = match warning.field() {
        None => String::new(),
        Some("match") => ".matchers".to_owned(),
        Some("limit") => ".max_requests".to_owned(),
        Some(field) => format!(".{}", field.replace('-', "_")),
    };
    proto::Problem {
        severity: proto::problem::Severity::Warning.into(),
        field: format!("rules[{position}]{field}"),
        message: warning.to_string(),
    }
}
