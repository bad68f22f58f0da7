//! `Validate` and `Preview`. Their work is done in dry runs: what takes long pauses again and again.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::Rule;
use rlaas_simulation::simulation::{CountsReport, HitKey, RuleReport};
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use super::request::{OPERATE_OR_ADMIN, admitted, others};
use super::{errors, messages};
use crate::admin::KeyView;
use crate::admin::projects::{
    ProjectAdministrator, ProjectError, RuleWarning, Trial, TriedRules, ValidatedRules,
};
use crate::api::admin::{WARNING, caller};
use crate::api::auth::Role;
use crate::api::deadline::deadline;
use crate::api::status::{admin, invalid_field};
use crate::clock::Micros;
use crate::projects::dry_runs::{DryRunKind, Steps, Stopped};
use crate::projects::{Others, ProjectId};
use crate::proto_values::{duration, micros, timestamp};
use crate::rule_messages;
use crate::rules::spec::Problem;
use crate::rules::{Key, Rule as CoreRule, RuleSet};
use crate::telemetry::record::RecentReport;

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

/// Answers `Preview`.
pub(super) async fn preview(
    administrator: &ProjectAdministrator,
    request: Request<proto::PreviewRequest>,
) -> Result<Response<proto::PreviewResponse>, Status> {
    let of = caller(&request)?;
    let id = admitted(of, &request.get_ref().project_id, OPERATE_OR_ADMIN)?;
    let deadline = deadline(request.metadata());
    let view = if of.roles_in(&id).contains(Role::Operate) {
        KeyView::Clear
    } else {
        let hasher = administrator.administrator().hasher();
        KeyView::hashed(hasher, deadline).await.map_err(|error| admin(&error))?
    };
    let proto::PreviewRequest { rules, prune, window, .. } = request.into_inner();
    let window = parse_window(window.as_ref())?;
    let preview = move |trial: &Trial, steps: &mut Steps| {
        let tried = tried(&rules, others(prune), steps)?;
        let report = trial.preview(tried, window, steps)?;
        Ok((previewed(&report, &view), shortfall(&report)))
    };
    let answer = administrator.dry_run(&id, DryRunKind::Preview, deadline, preview).await;
    let (mut message, warning) = answer.map_err(|error| errors::status(&error, ""))?;
    let (instance, missing) = administrator.instances(deadline).await;
    message.coverage = Some(proto::Coverage { instances: vec![instance], missing });
    let mut response = Response::new(message);
    if let Some(warning) = warning {
        response.metadata_mut().insert(WARNING, MetadataValue::from_static(warning));
    }
    Ok(response)
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

/// Reads the time of the past that a preview is for.
fn parse_window(window: Option<&prost_types::Duration>) -> Result<Option<Micros>, Status> {
    let Some(window) = window else { return Ok(None) };
    let window =
        micros(window).ok_or_else(|| invalid_field("window", "must be a positive duration"))?;
    Ok(Some(window))
}

/// Returns the answer to `Preview`, without its coverage. Keys are shown as the caller may see them.
fn previewed(report: &RecentReport, view: &KeyView) -> proto::PreviewResponse {
    let RecentReport { simulation, from, to, candidate, undecidable, .. } = report;
    let requests = simulation.all.requests.saturating_sub(simulation.invalid);
    let keys = |hits: &[HitKey]| hits.iter().map(|hit| top_key(hit, candidate, view)).collect();
    let applies = |rule: &&RuleReport| rule.counts.requests + rule.matched_before > 0;
    let rules = simulation.rules.iter().filter(applies);
    let mut rules: Vec<proto::RulePreview> = rules
        .map(|rule| proto::RulePreview {
            rule_name: rule.rule.clone(),
            hit_hardest: keys(&rule.hardest_hit),
            ..counts(&rule.counts)
        })
        .collect();
    rules.sort_by(|one, other| one.rule_name.cmp(&other.rule_name));
    let mut undecidable_rules = undecidable.clone();
    undecidable_rules.sort();
    undecidable_rules.dedup();
    let total = proto::RulePreview {
        decided: requests,
        hit_hardest: keys(&simulation.hardest_hit),
        ..counts(&simulation.all)
    };
    proto::PreviewResponse {
        since: from.map(timestamp),
        until: to.map(timestamp),
        requests,
        total: Some(total),
        rules,
        coverage: None,
        undecidable_rules,
    }
}

fn counts(counts: &CountsReport) -> proto::RulePreview {
    proto::RulePreview {
        decided: counts.requests,
        denied: counts.refused,
        denied_before: counts.refused_before,
        newly_denied: counts.allowed_to_refused,
        newly_allowed: counts.refused_to_allowed,
        longest_wait: counts.longest_wait.map(duration),
        ..proto::RulePreview::default()
    }
}

fn top_key(hit: &HitKey, rules: &RuleSet, view: &KeyView) -> proto::TopKey {
    let rule = if hit.rule == CoreRule::DEFAULT { "" } else { &*hit.rule };
    let key = Key::from_encoded_in(rules.project(), rule, &hit.id);
    let (_, parts) = rules.describe(&key);
    proto::TopKey { key: Some(view.key(parts, &hit.id)), count: hit.allowed_to_refused, error: 0 }
}

/// Returns the warning of a preview whose numbers are not those of all requests.
fn shortfall(report: &RecentReport) -> Option<&'static str> {
    if report.simulation.keys_dropped > 0 || !report.simulation.keys_are_exact {
        return Some("there were too many keys: some began afresh, and not all were counted");
    }
    (report.dropped > 0).then_some("some requests are missing: they were not recorded")
}
