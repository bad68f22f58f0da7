//! A mode that an administrator sets: `SetMode`.

use rlaas_auth::Role;
use rlaas_limiter::rules::{ModeScope, RuleMode};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::RuleMode as ModeMessage;
use rlaas_proto::values::micros;
use rlaas_telemetry::holder::Holder;
use tonic::{Request, Status};

use super::{ACTION, MAX_TIME_TO_LIVE};
use crate::change::AdminCall;
use crate::projects::{ADMIN, admitted};
use crate::{EVERY_PROJECT, caller, refusals};
use rlaas_core::clock::Micros;
use rlaas_proto::status::invalid_field;

/// Stands for every rule.
const EVERY_RULE: &str = "*";

/// A mode to set, or to end.
#[derive(Clone, Debug)]
pub(super) struct ModeChange {
    pub(super) call: AdminCall,
    /// On whose account the mode and its request id are held.
    pub(super) holder: Holder,
    /// The rules.
    pub(super) scope: ModeScope,
    /// The mode, and the time until it ends: at most 30 days. `None`: that of the
    /// configuration.
    pub(super) mode: Option<(RuleMode, Micros)>,
}

impl ModeChange {
    /// Reads the change that a caller asks for.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` if a field is not valid, `NOT_FOUND` or `PERMISSION_DENIED` if the caller lacks
    /// the role in the project.
    pub(super) fn new(request: &Request<proto::SetModeRequest>) -> Result<Self, Status> {
        let proto::SetModeRequest { project_id, rule, ttl, reason, request_id, mode } =
            request.get_ref();
        let call = AdminCall::with_reason(request, ACTION, reason, request_id)?;
        let caller = caller(request)?;
        if project_id != EVERY_PROJECT {
            admitted(caller, project_id, ADMIN)?;
        } else if !caller.has(Role::Admin) {
            return Err(refusals::forbidden(ADMIN));
        }
        let scope = scope(project_id, rule)?;
        let mode = match (self::mode(*mode)?, ttl) {
            (None, None) => None,
            (None, Some(_)) => return Err(invalid_field("ttl", "must be unset without a mode")),
            (Some(mode), ttl) => {
                let ttl = ttl.as_ref().and_then(micros);
                let ttl = ttl.filter(|ttl| (Micros::from_secs(1)..=MAX_TIME_TO_LIVE).contains(ttl));
                Some((mode, ttl.ok_or_else(|| invalid_field("ttl", "must be 1 s to 30 d"))?))
            }
        };
        let call = call.with_fingerprint(request.get_ref());
        Ok(Self { call, holder: caller.holder(project_id), scope, mode })
    }

    /// Returns the change in one line.
    pub(super) fn summary(&self) -> String {
        let ModeScope { project, rule } = &self.scope;
        let rules = match rule {
            Some(rule) => format!("rule {rule}"),
            None => "every rule".to_owned(),
        };
        let rules = match project.as_deref() {
            None => format!("{rules} of every project"),
            Some("") => rules,
            Some(project) => format!("{rules} of {project}"),
        };
        match self.mode {
            Some((mode, ttl)) => {
                let ttl = humantime::format_duration(ttl.into());
                format!("{rules}: mode {} for {ttl}", mode.name())
            }
            None => format!("{rules}: mode of the configuration"),
        }
    }

    /// Returns the change in one line, if it was made some time before it can be recorded.
    pub(super) fn summary_of_earlier(&self, ago: Micros) -> String {
        let ago = humantime::format_duration(Micros::from_secs(ago.as_secs_ceil()).into());
        format!("{}, set {ago} before while the store was away", self.summary())
    }
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
