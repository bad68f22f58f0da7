//! Modes of rules that are set at run time: `SetMode`.
//!
//! Each setting is a named value of the fleet, which instances read every second: so it is obeyed
//! everywhere within [`EVERYWHERE_WITHIN`], also by instances that start later. What counts is the
//! latest setting (`rlaas_limiter::rules::ModeSettings`), and every instance puts back what the
//! store lacks: nothing is lost if the store is, and settings that were made while it was away
//! follow when it is back, unless there are later ones by then. There is no message to others,
//! because it would take a connection and save less than a second.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::{Fleet, NamedValue, OutOfBounds};
use rlaas_limiter::rules::{ModeScope, ModeSetting, ModeSettings, RuleMode};
use rlaas_proto::ratelimit::admin::v1::{Coverage, SetModeResponse};
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic_types::Status as RpcStatus;
use tracing::{debug, warn};

use super::audit::{Audit, Intent, PendingChange};
use super::change::{MAX_OUTCOME_TIME, UNAVAILABLE, check_bounds};
use super::request_ids::{Claim, Claimed, ClaimedId, hash, hex};
use super::{AdminError, Administrator, Instances};
use crate::clock::{Clock, Deadline, Micros, Timestamp};
use crate::plan::SelectError;
use crate::proto_values::timestamp;
use crate::store::StoreError;

/// Name of the map of settings.
const MAP: &str = "modes";
/// Name of the RPC in the audit.
const ACTION: &str = "SetMode";
/// Time between two looks at the settings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time of one call of the store: it is away if it does not answer.
const CALL_TIMEOUT: Duration = Duration::from_millis(800);
/// Time until every instance decides by a setting.
const EVERYWHERE_WITHIN: Micros = Micros::from_secs(2);
/// Longest time until a mode ends.
pub(crate) const MAX_TIME_TO_LIVE: Micros = Micros::from_secs(30 * 24 * 3600);
/// Most settings that wait for the store.
const MAX_UNWRITTEN: usize = 1000;
/// Looks at the settings after which the other instances are listed again.
const LOOKS_PER_LIST: u32 = 10;

/// A mode to set, or to end.
#[derive(Clone, Debug)]
pub struct ModeChange {
    /// The caller.
    pub actor: String,
    /// The rules.
    pub scope: ModeScope,
    /// The mode, and the time until it ends: at most 30 days. `None`: that of the
    /// configuration.
    pub mode: Option<(RuleMode, Micros)>,
    /// The reason that the caller gives: 1 to 1024 bytes.
    pub reason: String,
    /// Names the change, so that a retry does not repeat it: up to 64 bytes. Empty: none.
    pub request_id: String,
}

/// The modes of this instance, which it shares with others.
#[derive(Debug)]
pub struct Modes {
    limiter: Limiter,
    fleet: Fleet,
    audit: Audit,
    instances: Instances,
    clock: Clock,
    state: Mutex<State>,
}

/// What this instance knows. Locked while it is compared with the store.
#[derive(Debug, Default)]
struct State {
    settings: ModeSettings,
    /// When a mode in force ends next.
    next_end: Option<Timestamp>,
    unwritten: Vec<Unwritten>,
    /// Ids of the other instances, as of the last list.
    others: BTreeSet<String>,
    looks: u32,
}

/// A setting that was made while the store was away.
#[derive(Debug)]
struct Unwritten {
    change: ModeChange,
    answer: SetModeResponse,
    /// Its entry in the audit, if there is one already.
    entry: Option<PendingChange>,
}

/// A setting as it is stored. Later versions add fields.
#[derive(Clone, PartialEq, Message)]
struct ModeRecord {
    /// `None`: every project.
    #[prost(string, optional, tag = "1")]
    project: Option<String>,
    /// `None`: every rule.
    #[prost(string, optional, tag = "2")]
    rule: Option<String>,
    /// 0: that of the configuration. Else a position in [`RuleMode::ALL`], counted from 1.
    #[prost(uint32, tag = "3")]
    mode: u32,
    #[prost(uint64, tag = "4")]
    set_at_us: u64,
    #[prost(uint64, tag = "5")]
    ends_at_us: u64,
    #[prost(uint64, tag = "6")]
    kept_until_us: u64,
}

impl Administrator {
    /// Sets the mode of rules for a time. A change that has begun ends although the caller goes
    /// away. While the store is away this instance alone obeys, and the answer says so.
    ///
    /// # Errors
    ///
    /// [`AdminError`]: nothing is changed, unless it is [`AdminError::Running`].
    pub async fn set_mode(
        &self,
        change: ModeChange,
        deadline: Deadline,
    ) -> Result<SetModeResponse, AdminError> {
        check_bounds(&change.reason, &change.request_id)?;
        if deadline.has_passed() {
            return Err(StoreError::Expired.into());
        }
        if let Some(project) = &change.scope.project {
            let snapshot = self.limiter.project_snapshot(project);
            let snapshot = snapshot.ok_or(AdminError::UnknownProject)?;
            if change.scope.rule.as_deref().is_some_and(|rule| !snapshot.rules.has_rule(rule)) {
                return Err(SelectError::UnknownRule.into());
            }
        }
        let shared = Arc::clone(&self.shared);
        let made = Box::pin(async move { shared.modes.set(change).await });
        self.shared.changes.run(made, deadline).await
    }
}

impl Modes {
    pub(super) fn new(
        limiter: Limiter,
        fleet: Fleet,
        audit: Audit,
        instances: Instances,
        clock: Clock,
    ) -> Self {
        Self { limiter, fleet, audit, instances, clock, state: Mutex::default() }
    }

    /// Obeys the modes that are set, for ever.
    pub(super) async fn run(&self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next_end = self.state.lock().await.next_end;
            let until_end = next_end.map(|end| end.since(self.clock.now()).into());
            let _elapsed = timeout(until_end.unwrap_or(INTERVAL), ticks.tick()).await;
            self.obey().await;
        }
    }

    /// Compares the settings with those of the store once, and puts in force what counts now.
    pub async fn obey(&self) {
        self.clock.follow_wall_time();
        let mut state = self.state.lock().await;
        // What ends now must not wait for the store.
        self.apply(&mut state);
        let looked = self.exchange(&mut state).await;
        self.apply(&mut state);
        if let Err(error) = looked {
            // The store's own log says when it is away.
            debug!(%error, "modes are not compared with the store");
        }
    }

    /// Takes over later settings of the store, writes those that it lacks, and records in the audit
    /// what was done while it was away.
    async fn exchange(&self, state: &mut State) -> Result<(), StoreError> {
        let mut lacking = self.read(&mut state.settings).await?;
        lacking.retain(|(_, setting)| setting.kept_until > self.clock.now());
        for (scope, setting) in lacking {
            self.write(&scope, setting).await?;
        }
        while let Some(mut unwritten) = state.unwritten.pop() {
            if let Err(error) = self.record(&mut unwritten).await {
                state.unwritten.push(unwritten);
                return Err(error);
            }
        }
        if state.looks.is_multiple_of(LOOKS_PER_LIST) {
            let others = self.instances.others(Deadline::within(CALL_TIMEOUT)).await?;
            state.others = others.into_iter().map(|other| other.id).collect();
        }
        state.looks = state.looks.wrapping_add(1);
        Ok(())
    }

    /// Adds the settings of the store, and returns those that it lacks, or has in an earlier form.
    async fn read(
        &self,
        settings: &mut ModeSettings,
    ) -> Result<Vec<(ModeScope, ModeSetting)>, StoreError> {
        let values = self.fleet.values(MAP, Deadline::within(CALL_TIMEOUT)).await?;
        let mut stored = ModeSettings::default();
        for NamedValue { value, .. } in values {
            if let Some((scope, setting)) = ModeRecord::read(&value) {
                stored.merge(&scope, setting);
                settings.merge(&scope, setting);
            }
        }
        let lacks = |(scope, setting): &(&ModeScope, &ModeSetting)| {
            stored.get(scope).is_none_or(|stored| stored < *setting)
        };
        let lacking = settings.iter().filter(lacks);
        Ok(lacking.map(|(scope, setting)| (scope.clone(), *setting)).collect())
    }

    /// Writes a setting. A claim comes first, because a journal keeps maps of claims alone.
    async fn write(&self, scope: &ModeScope, setting: ModeSetting) -> Result<(), StoreError> {
        let (name, value) = (name(scope), ModeRecord::new(scope, setting).encode_to_vec());
        let ttl = setting.kept_until.since(self.clock.now()).into();
        let deadline = || Deadline::within(CALL_TIMEOUT);
        let held = self.fleet.claim(MAP, &name, &value, ttl, deadline()).await?;
        match held {
            None => Ok(()),
            Some(_) => self.fleet.put(MAP, &name, &value, ttl, deadline()).await,
        }
    }

    /// Records a setting that was made while the store was away.
    async fn record(&self, unwritten: &mut Unwritten) -> Result<(), StoreError> {
        let entry = match unwritten.entry.take() {
            Some(entry) => entry,
            None => self.begin(&unwritten.change).await?,
        };
        entry.done(Vec::new(), Deadline::within(MAX_OUTCOME_TIME)).await;
        Ok(())
    }

    async fn begin(&self, change: &ModeChange) -> Result<PendingChange, StoreError> {
        let intent = Intent {
            actor: &change.actor,
            action: ACTION,
            project_id: "",
            target: change.scope.rule.as_deref().unwrap_or("*"),
            summary: change.summary(),
            reason: &change.reason,
            request_id: &change.request_id,
            before: Vec::new(),
        };
        let begun = self.audit.begin(intent, Deadline::within(CALL_TIMEOUT)).await;
        begun.map_err(|error| error.0)
    }

    /// Sets a mode, unless it was set before under its request id.
    async fn set(&self, change: ModeChange) -> Result<SetModeResponse, AdminError> {
        let mut state = self.state.lock().await;
        let is_same = |one: &&Unwritten| {
            let ModeChange { actor, request_id, .. } = &one.change;
            !request_id.is_empty() && (actor, request_id) == (&change.actor, &change.request_id)
        };
        if let Some(before) = state.unwritten.iter().find(is_same) {
            if before.change.fingerprint() != change.fingerprint() {
                return Err(AdminError::OtherChange);
            }
            return Ok(SetModeResponse { replayed: true, ..before.answer.clone() });
        }
        let mut claimed = None;
        let mut is_away = unless_away(self.read(&mut state.settings).await)?.is_none();
        if !is_away && !change.request_id.is_empty() {
            match self.claim(&change).await {
                Ok(Claimed::Now(id)) => claimed = Some(id),
                Ok(Claimed::Before(answer)) => {
                    let answer = SetModeResponse::decode(&*answer);
                    let answer = answer.map_err(|_| AdminError::Unfinished)?;
                    return Ok(SetModeResponse { replayed: true, ..answer });
                }
                Err(AdminError::Store(error)) if says_away(&error) => is_away = true,
                Err(error) => return Err(error),
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

    async fn claim(&self, change: &ModeChange) -> Result<Claimed, AdminError> {
        let claim = Claim {
            actor: &change.actor,
            request_id: &change.request_id,
            fingerprint: change.fingerprint(),
            ttl: self.limiter.idempotency_ttl().into(),
        };
        ClaimedId::claim(&self.fleet, claim, Deadline::within(CALL_TIMEOUT)).await
    }

    async fn set_claimed(
        &self,
        state: &mut State,
        change: ModeChange,
        is_away: bool,
    ) -> Result<SetModeResponse, AdminError> {
        if state.unwritten.len() >= MAX_UNWRITTEN {
            return Err(AdminError::TooManyModes);
        }
        let mut entry = None;
        if !is_away {
            entry = unless_away(self.begin(&change).await)?;
        }
        let mut setting = self.setting(&state.settings, &change);
        let mut is_written = false;
        if let Some(pending) = entry.take() {
            match unless_away(self.write(&change.scope, setting).await) {
                Ok(written) => is_written = written.is_some(),
                Err(error) => {
                    let (message, details) = (error.to_string(), Vec::new());
                    let status = RpcStatus { code: UNAVAILABLE, message, details };
                    let deadline = Deadline::within(MAX_OUTCOME_TIME);
                    pending.failed(status, Vec::new(), deadline).await;
                    return Err(error);
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
        let answer = self.answer(state, &change, setting, is_written).await;
        match entry {
            Some(entry) if is_written => {
                entry.done(Vec::new(), Deadline::within(MAX_OUTCOME_TIME)).await;
            }
            entry => {
                warn!(
                    actor = ?change.actor, change = change.summary(),
                    "mode set on this instance alone: the store is away"
                );
                let answer = answer.clone();
                state.unwritten.push(Unwritten { change, answer, entry });
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

    /// Puts in force what counts now.
    fn apply(&self, state: &mut State) {
        let now = self.clock.now();
        state.settings.forget_ended(now);
        state.next_end = state.settings.next_end(now);
        self.limiter.set_modes(&state.settings, now);
    }
}

impl ModeChange {
    /// Returns the change in one line.
    fn summary(&self) -> String {
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

    /// Returns the hash of the change, by which another one under the same request id is detected.
    fn fingerprint(&self) -> [u8; 16] {
        let (mode, ttl) = self.mode.map_or(("", 0), |(mode, ttl)| (mode.name(), ttl.as_micros()));
        let scope = name(&self.scope);
        let texts = [ACTION, &scope, mode, &self.reason].map(str::as_bytes);
        hash(&[&texts[..], &[&ttl.to_be_bytes()]].concat())
    }
}

impl ModeRecord {
    fn new(scope: &ModeScope, setting: ModeSetting) -> Self {
        let ModeSetting { set_at, ends_at, mode, kept_until } = setting;
        let position = mode.and_then(|mode| RuleMode::ALL.iter().position(|one| *one == mode));
        Self {
            project: scope.project.clone(),
            rule: scope.rule.clone(),
            mode: position.map_or(0, |at| u32::try_from(at + 1).unwrap_or_default()),
            set_at_us: set_at.as_micros(),
            ends_at_us: ends_at.as_micros(),
            kept_until_us: kept_until.as_micros(),
        }
    }

    /// Reads a setting; `None` if it can't be read, or has a mode of a later version.
    fn read(bytes: &[u8]) -> Option<(ModeScope, ModeSetting)> {
        let record = Self::decode(bytes).ok()?;
        let mode = match usize::try_from(record.mode).ok()?.checked_sub(1) {
            None => None,
            Some(at) => Some(*RuleMode::ALL.get(at)?),
        };
        let setting = ModeSetting {
            set_at: Timestamp::from_micros(record.set_at_us),
            ends_at: Timestamp::from_micros(record.ends_at_us),
            mode,
            kept_until: Timestamp::from_micros(record.kept_until_us),
        };
        Some((ModeScope { project: record.project, rule: record.rule }, setting))
    }
}

/// Returns the name of a setting in its map.
fn name(scope: &ModeScope) -> String {
    let part =
        |part: &Option<String>| part.clone().map_or_else(String::new, |one| format!("={one}"));
    hex(&hash(&[part(&scope.project).as_bytes(), part(&scope.rule).as_bytes()]))
}

/// Returns `true` if an error says that the store is away, rather than that it refuses.
fn says_away(error: &StoreError) -> bool {
    let refuses = matches!(error, StoreError::Journal(_) | StoreError::Custom { .. });
    !refuses && error.kind() != "noperm"
}

/// Returns the result of a call of the store; `None` if it is away.
fn unless_away<T>(result: Result<T, StoreError>) -> Result<Option<T>, AdminError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if says_away(&error) => Ok(None),
        Err(StoreError::Custom { source, .. })
            if matches!(source.downcast_ref(), Some(OutOfBounds::Values)) =>
        {
            Err(AdminError::TooManyModes)
        }
        Err(error) => Err(error.into()),
    }
}
