//! Modes of rules that are set at run time: `SetMode`.
//!
//! Each setting is a named value of the fleet. Instances are told of it by a message on the topic of
//! the catalogue, to which all listen, and read the settings every second as well: so it is obeyed
//! everywhere within [`EVERYWHERE_WITHIN`], also by instances that start later. What counts is the
//! latest setting (`rlaas_limiter::rules::ModeSettings`), and every instance puts back what the
//! store lacks: nothing is lost if the store is, and settings that were made while it was away
//! follow when it is back, unless there are later ones by then.
//!
//! The settings are not part of the catalogue: they have no revision that two writers could race
//! for, merge by their times, and can be set while the catalogues of store and instance conflict.

mod record;
mod request;
mod set;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use prost::Message;
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::{Catalogue, Fleet, NamedValue};
use rlaas_limiter::rules::{ModeScope, ModeSetting, ModeSettings};
use rlaas_projects::registry::MODES_SET;
use rlaas_proto::ratelimit::admin::v1::SetModeResponse;
use tokio::sync::{Mutex, Notify};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::debug;

use self::record::{ModeRecord, name};
use self::request::ModeChange;
use super::Instances;
use super::audit::{Audit, PendingChange};
use super::change::MAX_OUTCOME_TIME;
use rlaas_core::clock::{Clock, Deadline, Micros, Timestamp};
use rlaas_limiter::store::StoreError;

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
const MAX_TIME_TO_LIVE: Micros = Micros::from_secs(30 * 24 * 3600);
/// Most settings that wait for the store.
const MAX_UNWRITTEN: usize = 1000;
/// Looks at the settings after which the other instances are listed again.
const LOOKS_PER_LIST: u32 = 10;

/// The modes of this instance, which it shares with others.
#[derive(Debug)]
pub struct Modes {
    limiter: Limiter,
    fleet: Fleet,
    audit: Audit,
    instances: Instances,
    clock: Clock,
    state: Mutex<State>,
    /// Notified when others may have set modes.
    changed: Notify,
}

/// What this instance knows. Locked while it is compared with the store.
#[derive(Debug, Default)]
struct State {
    settings: ModeSettings,
    /// When a mode in force ends next.
    next_end: Option<Timestamp>,
    /// Oldest first.
    unwritten: VecDeque<Unwritten>,
    /// Ids of the other instances, as of the last list.
    others: BTreeSet<String>,
    looks: u32,
}

/// A setting that was made while the store was away.
#[derive(Debug)]
struct Unwritten {
    change: ModeChange,
    set_at: Timestamp,
    answer: SetModeResponse,
    /// Its entry in the audit, if there is one already.
    entry: Option<PendingChange>,
}

impl Modes {
    pub(super) fn new(
        limiter: Limiter,
        fleet: Fleet,
        audit: Audit,
        instances: Instances,
        clock: Clock,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Notify::new());
        Self { limiter, fleet, audit, instances, clock, state, changed }
    }

    /// Returns what is to be notified when others may have set modes: they are then obeyed at once.
    pub fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Obeys the modes that are set, for ever.
    pub(super) async fn run(&self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next_end = self.state.lock().await.next_end;
            let until_end = next_end.map(|end| end.since(self.clock.now()).into());
            let wait = async {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = self.changed.notified() => {}
                }
            };
            let _elapsed = timeout(until_end.unwrap_or(INTERVAL), wait).await;
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
        for (scope, setting) in &lacking {
            self.write(scope, *setting).await?;
        }
        if !lacking.is_empty() {
            self.publish().await;
        }
        while let Some(mut unwritten) = state.unwritten.pop_front() {
            if let Err(error) = self.record(&mut unwritten).await {
                state.unwritten.push_front(unwritten);
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

    /// Tells all instances that modes were set. Those that it does not reach read them soon.
    async fn publish(&self) {
        let deadline = Deadline::within(CALL_TIMEOUT);
        if let Err(error) = self.fleet.publish(Catalogue::TOPIC, MODES_SET, deadline).await {
            debug!(%error, "instances are not told of modes");
        }
    }

    /// Records a setting that was made while the store was away.
    async fn record(&self, unwritten: &mut Unwritten) -> Result<(), StoreError> {
        let entry = match unwritten.entry.take() {
            Some(entry) => entry,
            None => self.begin(&unwritten.change, Some(unwritten.set_at)).await?,
        };
        entry.done(Vec::new(), Deadline::within(MAX_OUTCOME_TIME)).await;
        Ok(())
    }

    /// Writes the intent of a change, which was made before if it has a time.
    async fn begin(
        &self,
        change: &ModeChange,
        set_at: Option<Timestamp>,
    ) -> Result<PendingChange, StoreError> {
        let ModeScope { project, rule } = &change.scope;
        let summary = match set_at {
            Some(set_at) => change.summary_of_earlier(self.clock.now().since(set_at)),
            None => change.summary(),
        };
        let (project, rule) = (project.as_deref().unwrap_or_default(), rule.as_deref());
        let intent = change.call.intent(project, rule.unwrap_or("*"), summary);
        self.audit.begin(intent, Deadline::within(CALL_TIMEOUT)).await
    }

    /// Puts in force what counts now.
    fn apply(&self, state: &mut State) {
        let now = self.clock.now();
        state.settings.forget_ended(now);
        state.next_end = state.settings.next_end(now);
        self.limiter.set_modes(&state.settings, now);
    }
}
