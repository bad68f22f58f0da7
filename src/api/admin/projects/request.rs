//! Requests about projects: who may make them, and what they ask for.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;
use tonic::{Request, Status};

use super::errors::{forbidden, no_project};
use crate::admin::projects::{ProjectCall, ProjectUpdate};
use crate::api::admin::caller;
use crate::api::admin::lists::parsed;
use crate::api::auth::{Caller, Permission, Roles};
use crate::api::deadline::deadline;
use crate::api::status::invalid_field;
use crate::clock::Timestamp;
use crate::projects::{Others, ProjectId};
use crate::rule_messages;
use crate::rules::Unmatched;
use crate::rules::spec::RuleSpec;

/// The role for changes of a project.
pub(in crate::api::admin) const ADMIN: Roles = Permission::PROJECT_ADMIN.roles();
/// The role for calls that see or repair the state of keys.
pub(in crate::api::admin) const OPERATE: Roles = Permission::PROJECT_OPERATE.roles();
/// The roles for calls that show a project.
pub(in crate::api) const OPERATE_OR_ADMIN: Roles = Permission::PROJECT_OPERATE_OR_ADMIN.roles();

/// Returns the project of a call whose caller has one of the roles in it.
pub(in crate::api) fn admitted(
    caller: &Caller,
    id: &str,
    required: Roles,
) -> Result<ProjectId, Status> {
    let unknown = no_project;
    // What is no id is the id of no project.
    let id = if id.is_empty() { Ok(ProjectId::UNNAMED) } else { id.parse() };
    let id: ProjectId = id.map_err(|_| unknown())?;
    let held = caller.roles_in(&id);
    if held.intersects(required) {
        Ok(id)
    } else if held.intersects(OPERATE_OR_ADMIN) {
        Err(forbidden(required))
    } else {
        Err(unknown())
    }
}

/// Returns who asks for a change, and why.
pub(super) fn change_call<T>(
    request: &Request<T>,
    action: &'static str,
    reason: &str,
    request_id: &str,
) -> Result<ProjectCall, Status> {
    let caller = caller(request)?;
    Ok(ProjectCall {
        actor: caller.actor().to_owned(),
        action,
        reason: reason.to_owned(),
        request_id: request_id.to_owned(),
        scope: caller.scope(),
        deadline: deadline(request.metadata()),
    })
}

pub(super) fn unmatched(value: i32) -> Result<Unmatched, Status> {
    match UnmatchedPolicy::try_from(value) {
        Ok(UnmatchedPolicy::Unspecified | UnmatchedPolicy::Deny) => Ok(Unmatched::Deny),
        Ok(UnmatchedPolicy::DefaultRule) => Ok(Unmatched::DefaultRule),
        Ok(UnmatchedPolicy::Allow) => Ok(Unmatched::Allow),
        Err(_) => Err(invalid_field(
            "project.unmatched",
            "must be UNMATCHED_POLICY_DEFAULT_RULE, UNMATCHED_POLICY_ALLOW or \
             UNMATCHED_POLICY_DENY",
        )),
    }
}

/// Returns the changes that a mask names; without one all.
pub(super) fn project_update(
    project: &proto::Project,
    mask: Option<&prost_types::FieldMask>,
) -> Result<ProjectUpdate, Status> {
    let (name, policy) = (project.display_name.clone(), unmatched(project.unmatched)?);
    let Some(mask) = mask.filter(|mask| !mask.paths.is_empty()) else {
        return Ok(ProjectUpdate { display_name: Some(name), unmatched: Some(policy) });
    };
    let mut update = ProjectUpdate { display_name: None, unmatched: None };
    for path in &mask.paths {
        match path.as_str() {
            "display_name" => update.display_name = Some(name.clone()),
            "unmatched" => update.unmatched = Some(policy),
            _ => return Err(invalid_field("update_mask", "must name display_name or unmatched")),
        }
    }
    Ok(update)
}

/// Parses the end of a key.
pub(super) fn end(time: &prost_types::Timestamp) -> Result<Timestamp, Status> {
    parsed("key.expires_at", time)
}

pub(super) fn others(prune: bool) -> Others {
    if prune { Others::Deleted } else { Others::Kept }
}

pub(super) fn specs(rules: &[rlaas_proto::ratelimit::v1::Rule]) -> Vec<RuleSpec> {
    rules.iter().map(rule_messages::spec).collect()
}
