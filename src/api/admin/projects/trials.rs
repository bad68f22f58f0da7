//! `Validate`. Its work waits in the queue of validations.

use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::{Request, Response, Status};

use super::request::{OPERATE_OR_ADMIN, admitted, others};
use super::{errors, messages};
use crate::admin::projects::{
    ProjectAdministrator, RuleWarning, Trial, TriedRules, ValidatedRules,
};
use crate::api::admin::caller;
use crate::api::deadline::deadline;
use crate::projects::ProjectId;
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
    let validate = move |trial: &Trial| {
        let specs = rules.iter().map(rule_messages::spec).collect();
        let tried = TriedRules { specs, others: others(prune) };
        Ok(validated(&of, trial.validate(tried)?))
    };
    let answer = administrator.on_trial(&id, deadline, validate).await;
    answer.map(Response::new).map_err(|error| errors::status(&error, ""))
}

/// Returns the answer to `Validate`.
fn validated(id: &ProjectId, validated: ValidatedRules) -> proto::ValidateResponse {
    let ValidatedRules { problems, warnings, changes, revision } = validated;
    let mut all: Vec<proto::Problem> =
        errors::problems(problems, "").into_iter().map(error).collect();
    all.extend(warnings.iter().map(warning));
    all.truncate(MAX_PROBLEMS);
    let changes = changes.iter().map(|change| messages::change(id, change)).collect();
    proto::ValidateResponse { problems: all, changes, revision }
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
