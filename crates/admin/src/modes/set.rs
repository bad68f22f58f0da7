//! Setting a mode: on this instance, and in the store unless it is away.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rlaas_limiter::fleet::MAX_VALUES;
use rlaas_limiter::rules::{ModeSetting, ModeSettings};
use rlaas_proto::ratelimit::admin::v1::{Coverage, SetModeRequest, SetModeResponse};
use rlaas_proto::values::timestamp;
use rlaas_telemetry::holder::Holder;
use tonic::{Code, Request, Status};
use tracing::warn;

use super::{
    CALL_TIMEOUT, EVERYWHERE_WITHIN, MAX_TIME_TO_LIVE, MAX_UNWRITTEN, ModeChange, Modes, State,
    Unwritten,
};
use crate::change::{MAX_OUTCOME_TIME, unavailable};
use crate::request_ids::{ClaimError, Claimed, ClaimedId};
use crate::{Administrator, refusals};
use rlaas_core::clock::{Deadline, Micros};
use rlaas_limiter::store::StoreError;
use rlaas_proto::status::{unknown_project, with_reason};

impl Administrator {
    /// Sets the mode of rules for a time. A change that has begun ends although the caller goes
    /// away. While the store is away this instance alone obeys, and the answer says so.
    ///
    /// # Errors
    ///
    /// A refusal: nothing is changed, unless it says so.
    pub async fn set_mode(
        &self,
        request: &Request<SetModeRequest>,
    ) -> Result<SetModeResponse, Status> {
        let change = ModeChange::new(request)?;
        let deadline = change.call.deadline;
        if deadline.has_passed() {
            return Err(refusals::store(&StoreError::Expired));
        }
        if let Some(project) = &change.scope.project {
            let snapshot = self.limiter.project_snapshot(project);
            let snapshot = snapshot.ok_or_else(|| unknown_project("project_id"))?;
            if change.scope.rule.as_deref().is_some_and(|rule| !snapshot.rules.has_rule(rule)) {
                return Err(refusals::unknown_rule());
            }
        }
        let (holder, rank) = (change.holder.clone(), change.call.rank());
        let shared = Arc::clone(&self.shared);
        let made = Box::pin(async move { shared.modes.set(change).await });
        self.shared.changes.run(holder, rank, made, deadline).await
    }
}

impl Modes {
    /// Sets a mode, unless it was set before under its request id.
    async fn set(&self, change: ModeChange) -> Result<SetModeResponse, Status> {
        let mut state = self.state.lock().await;
        let is_same = |unwritten: &&Unwritten| {
            let (other, call) = (&unwritten.change.call, &change.call);
            !call.request_id.is_empty()
                && (&other.actor, &other.request_id) == (&call.actor, &call.request_id)
        };
        if let Some(before) = state.unwritten.iter().find(is_same) {
            if before.change.call.fingerprint != change.call.fingerprint {
                return Err(refusals::other_change());
            }
            return Ok(SetModeResponse { replayed: true, ..before.answer.clone() });
        }
        let mut claimed = None;
        let mut is_away = unless_away(self.read(&mut state.settings).await)?.is_none();
        if !is_away && !change.call.request_id.is_empty() {
            match self.claim(&change).await {
                Ok(Claimed::Now(id)) => claimed = Some(id),
                Ok(Claimed::Before(answer)) => {
                    let answer = SetModeResponse::decode(&*answer);
                    let answer = answer.map_err(|_| refusals::unfinished())?;
                    return Ok(SetModeResponse { replayed: true, ..answer });
                }
                Err(ClaimError::Store(error)) if says_away(&error) => is_away = true,
                Err(error) => return Err(error.into()),
            }
        }
        let result = self.set_claimed(&mut state, change, is_away).await;
        let deadline = Deadline::within(MAX_OUTCOME_TIME);
        match (&result, claimed) {
            (Ok(answer), Some(claimed)) => claimed.answered(answer, deadline).await,
            (Err(_), Some(claimed)) => claimed.released(deadline).await,
            (_, None) => {}
        }
        result
    }

    async fn claim(&self, change: &ModeChange) -> Result<Claimed, ClaimError> {
        let ttl = self.limiter.idempotency_ttl().into();
        // All other changes of modes wait for this one.
        let claim = change.call.claim(&change.holder, ttl, Duration::ZERO);
        let deadline = Deadline::within(CALL_TIMEOUT);
        let mut claimed = ClaimedId::claim(&self.fleet, claim, deadline).await?;
        if let Claimed::Now(id) = &mut claimed {
            id.begin(deadline).await?;
        }
        Ok(claimed)
    }

    async fn set_claimed(
        &self,
        state: &mut State,
        change: ModeChange,
        is_away: bool,
    ) -> Result<SetModeResponse, Status> {
        if state.unwritten.len() >= MAX_UNWRITTEN || !has_place(&state.settings, &change) {
            return Err(too_many_modes());
        }
        let mut entry = None;
        if !is_away {
            entry = unless_away(self.begin(&change, None).await)?;
        }
        let mut setting = self.setting(&state.settings, &change);
        let mut is_written = false;
        if let Some(pending) = entry.take() {
            match unless_away(self.write(&change.scope, setting).await) {
                Ok(written) => is_written = written.is_some(),
                Err(refusal) => {
                    let status = unavailable(refusal.message().to_owned());
                    let deadline = Deadline::within(MAX_OUTCOME_TIME);
                    pending.failed(status, Vec::new(), deadline).await;
                    return Err(refusal);
                }
            }
            entry = Some(pending);
        }
        if !is_written {
            // Others may have set modes of which this instance can't know.
            setting.kept_until = setting.kept_until.max(setting.set_at + MAX_TIME_TO_LIVE);
        }
        state.settings.merge(&change.scope, setting);
        self.apply(state);
        if is_written {
            self.publish().await;
        }
        let answer = self.answer(state, &change, setting, is_written).await;
        match entry {
            Some(entry) if is_written => {
                entry.done(Vec::new(), Deadline::within(MAX_OUTCOME_TIME)).await;
            }
            entry => {
                warn!(
                    actor = ?change.call.actor, change = change.summary(),
                    "mode set on this instance alone: the store is away"
                );
                let (set_at, answer) = (setting.set_at, answer.clone());
                state.unwritten.push_back(Unwritten { change, set_at, answer, entry });
            }
        }
        Ok(answer)
    }

    /// Returns the setting of a change that is made now: later than all that it replaces.
    fn setting(&self, known: &ModeSettings, change: &ModeChange) -> ModeSetting {
        let now = self.clock.now();
        let replaced = known.iter().filter(|(scope, _)| scope.overlaps(&change.scope));
        let latest = replaced.map(|(_, setting)| setting.set_at).max();
        let set_at = latest.map_or(now, |latest| now.max(latest + Micros::from_micros(1)));
        let ends_at = change.mode.map_or(set_at, |(_, ttl)| now + ttl);
        let kept_until = known.kept_until(&change.scope, ends_at);
        ModeSetting { set_at, ends_at, mode: change.mode.map(|(mode, _)| mode), kept_until }
    }

    async fn answer(
        &self,
        state: &mut State,
        change: &ModeChange,
        setting: ModeSetting,
        is_written: bool,
    ) -> SetModeResponse {
        if is_written
            && let Ok(others) = self.instances.others(Deadline::within(CALL_TIMEOUT)).await
        {
            state.others = others.into_iter().map(|other| other.id).collect();
        }
        let coverage = Coverage {
            instances: vec![self.instances.id().to_owned()],
            missing: state.others.iter().cloned().collect(),
        };
        SetModeResponse {
            ends_at: change.mode.map(|_| timestamp(setting.ends_at)),
            everywhere_by: is_written.then(|| timestamp(self.clock.now() + EVERYWHERE_WITHIN)),
            replayed: false,
            coverage: Some(coverage),
        }
    }
}

/// Returns `true` if there is a place for the setting of a change. That of every rule of every project
/// always finds one.
fn has_place(settings: &ModeSettings, change: &ModeChange) -> bool {
    if settings.get(&change.scope).is_some() || change.scope.project.is_none() {
        return true;
    }
    let of_projects = settings.iter().filter_map(|(scope, _)| scope.project.clone());
    let held: Vec<Holder> = of_projects.map(Holder::Project).collect();
    change.holder.has_capacity(MAX_VALUES - 1, held.iter())
}

/// Returns `true` if an error says that the store is away, rather than that it refuses.
fn says_away(error: &StoreError) -> bool {
    let refuses = matches!(error, StoreError::Journal(_) | StoreError::Custom { .. });
    !refuses && error.kind() != "noperm"
}

/// Returns the result of a call of the store; `None` if it is away.
fn unless_away<T>(result: Result<T, StoreError>) -> Result<Option<T>, Status> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if says_away(&error) => Ok(None),
        Err(error) if refusals::is_full(&error) => Err(too_many_modes()),
        Err(error) => Err(refusals::store(&error)),
    }
}

fn too_many_modes() -> Status {
    let text = "too many modes are set: nothing was changed";
    with_reason(Code::ResourceExhausted, "TOO_MANY_MODES", text.to_owned())
}
