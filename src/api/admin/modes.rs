//! `SetMode`: from the message to the change.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::RuleMode as ModeMessage;
use tonic::Status;

use super::lists::EVERY_PROJECT;
use super::projects::{ADMIN, admitted, forbidden};
use crate::admin::{MAX_TIME_TO_LIVE, ModeChange};
use crate::api::auth::{Caller, Role};
use crate::api::status::invalid_field;
use crate::clock::Micros;
use crate::proto_values::micros;
use crate::rules::{ModeScope, RuleMode};

/// Stands for every rule.
const EVERY_RULE: &str = "*";

/// Reads the change that a caller asks for.
///
/// # Errors
///
/// `INVALID_ARGUMENT` if a field is not valid, `NOT_FOUND` or `PERMISSION_DENIED` if the caller lacks
/// the role in the project.
pub(super) fn change(
    caller: &Caller,
    message: &proto::SetModeRequest,
) -> Result<ModeChange, Status> {
    let proto::SetModeRequest { project_id, rule, ttl, reason, request_id, .. } = message;
    if project_id != EVERY_PROJECT {
        admitted(caller, project_id, ADMIN)?;
    } else if !caller.has(Role::Admin) {
        return Err(forbidden(ADMIN));
    }
    let scope = scope(project_id, rule)?;
    let mode = match (mode(message.mode)?, ttl) {
        (None, None) => None,
        (None, Some(_)) => return Err(invalid_field("ttl", "must be unset without a mode")),
        (Some(mode), ttl) => {
            let ttl = ttl.as_ref().and_then(micros);
            let ttl = ttl.filter(|ttl| (Micros::from_secs(1)..=MAX_TIME_TO_LIVE).contains(ttl));
            Some((mode, ttl.ok_or_else(|| invalid_field("ttl", "must be 1 s to 30 d"))?))
        }
    };
    let (actor, holder) = (caller.actor().to_owned(), caller.holder(project_id));
    let (reason, request_id) = (reason.clone(), request_id.clone());
    Ok(ModeChange { actor, holder, scope, mode, reason, request_id })
}

fn scope(project: &str, rule: &str) -> Result<ModeScope, Status> {
    if rule.is_empty() {
        return Err(invalid_field("rule", "must be the name of a rule, or \"*\""));
    }
    let rule = Some(rule).filter(|rule| *rule != EVERY_RULE).map(str::to_owned);
    match (project, rule) {
        (EVERY_PROJECT, None) => Ok(ModeScope { project: None, rule: None }),
        (EVERY_PROJECT, Some(_)) => {
            Err(invalid_field("rule", "must be \"*\" with the project \"-\""))
        }
        (project, rule) => Ok(ModeScope { project: Some(project.to_owned()), rule }),
    }
}

fn mode(mode: i32) -> Result<Option<RuleMode>, Status> {
    match ModeMessage::try_from(mode) {
        Ok(ModeMessage::Unspecified) => Ok(None),
        Ok(ModeMessage::Enforce) => Ok(Some(RuleMode::Enforce)),
        Ok(ModeMessage::Shadow) => Ok(Some(RuleMode::Shadow)),
        Ok(ModeMessage::Off) => Ok(Some(RuleMode::Off)),
        Err(_) => Err(invalid_field("mode", "must be a known RuleMode")),
    }
}
