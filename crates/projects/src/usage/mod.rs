//! Usage of projects: requests and units by UTC day, over all instances, and the last use of API
//! keys.
//!
//! Each instance writes the running total of a day under a name of its own, so a write that is
//! repeated counts once, and no instance overwrites another. It writes what has changed every 10
//! seconds, and when it stops. While the store is away it goes on counting; only what it has not
//! written when it is killed is lost.
//!
//! | map of registers | a value for each |
//! | --- | --- |
//! | `p:PROJECT:usage:DAY`, `usage:DAY` without a project | instance: its write, and its totals |
//! | `…usage:DAY:key:ID`, `…usage:DAY:rule:NAME` | the same of an API key, of a rule |
//! | `…usage:DAY:keys`, `…usage:DAY:rules` | id or name that has such a map |
//! | `usage:instances:DAY` | instance: whether it will write more of the day |
//! | `p:PROJECT:last_used` | API key: hour of its last use |

mod day;
mod last_used;
mod list;
mod totals;

pub use day::{Day, InvalidDay};
pub use list::{DailyUsage, UsageBy, UsagePage, UsagePlace, UsageQuery};
pub use totals::RequestUsage;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rlaas_core::clock::{Clock, Deadline, Micros, jittered};
use rlaas_limiter::fleet::{Fleet, Register};
use rlaas_limiter::store::StoreError;
use rlaas_telemetry::metrics::Metrics;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

use self::totals::{Counters, Part, Totals, UnwrittenTotal};
use crate::Keyring;

/// Days that usage is kept.
pub const KEPT_DAYS: u32 = 40;
/// Time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two looks at the clock: after a step it may take as long to notice another day.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that a write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest time that the last write may take.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A step back of the clock from one day to the day before is frozen up to this time.
const FROZEN_STEP: Micros = Micros::from_secs(600);
/// Time that usage stays in the store after the last write of a day: longer than it is shown.
const TTL: Duration = Duration::from_hours(24 * 42);
/// Time that it is known which instances count on a day.
const INSTANCES_TTL: Duration = Duration::from_hours(72);
/// Values of an instance's register: it goes on counting on the day, or has written all of it.
const COUNTING: &[u8] = b"1";
const FINISHED: &[u8] = b"2";
/// Most maps that are read or removed in one call.
const MAPS_PER_CALL: usize = 1_000;

/// The usage that this instance counts and shows. Clones share it.
#[derive(Clone, Debug)]
pub struct UsageRecorder(Arc<SharedRecorder>);

#[derive(Debug)]
struct SharedRecorder {
    fleet: Fleet,
    metrics: Arc<Metrics>,
    keyring: Keyring,
    clock: Clock,
    state: Mutex<State>,
    /// Held while something is written.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    totals: Totals,
    /// Day of the last reading.
    day: Day,
    is_failing: bool,
}

/// Whether this instance goes on counting after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Counting,
    Stopped,
}

impl UsageRecorder {
    /// Creates a recorder of what `metrics` and `keyring` count, as an instance of this id. Nothing
    /// is written before it runs.
    pub fn new(
        fleet: Fleet,
        metrics: Arc<Metrics>,
        keyring: Keyring,
        instance: &str,
        clock: Clock,
    ) -> Self {
        let state =
            State { totals: Totals::new(instance), day: Day::at(clock.now()), is_failing: false };
        let (state, writing) = (Mutex::new(state), tokio::sync::Mutex::default());
        Self(Arc::new(SharedRecorder { fleet, metrics, keyring, clock, state, writing }))
    }

    /// Writes what was counted every 10 s, for ever, and reads the counters at midnight.
    pub async fn run(&self) {
        // Instances that start together do not write together.
        let mut until_write = jittered(WRITE_INTERVAL);
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            let midnight = self.state().day.plus(1).start();
            let until_midnight = midnight.since(self.0.clock.now()).into();
            let is_tick = timeout(until_midnight, ticks.tick()).await.is_ok();
            if self.is_another_day() {
                self.read().await;
            }
            until_write -= if is_tick { LOOK_INTERVAL.min(until_write) } else { Duration::ZERO };
            if until_write.is_zero() {
                self.write().await;
                until_write = WRITE_INTERVAL;
            }
        }
    }

    /// Writes what was counted since the last write.
    pub async fn write(&self) {
        self.write_all(Phase::Counting, Deadline::within(WRITE_TIMEOUT)).await;
    }

    /// Writes what was counted for the last time.
    pub async fn stop(&self) {
        self.write_all(Phase::Stopped, Deadline::within(LAST_WRITE_TIMEOUT)).await;
    }

    /// Removes the usage and the last uses of a project.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if some is possibly left. It is removed with the next write that succeeds.
    pub async fn remove(&self, project: &str, deadline: Deadline) -> Result<(), StoreError> {
        let _turn = self.0.writing.lock().await;
        self.read().await;
        self.0.remove(project, deadline).await
    }

    /// Returns `true` if the day of the last reading is not the one by the clock.
    fn is_another_day(&self) -> bool {
        self.0.clock.follow_wall_time();
        Day::at(self.0.clock.now()) != self.state().day
    }

    /// Assigns what was counted since the last reading to its day.
    async fn read(&self) {
        let recorder = self.clone();
        // It takes 20 ms for 100,000 rules.
        let read = spawn_blocking(move || recorder.read_now()).await;
        debug_assert!(read.is_ok(), "reading does not panic");
    }

    fn read_now(&self) {
        self.0.clock.follow_wall_time();
        let mut state = self.state();
        let counters = Counters {
            keys: self.0.keyring.requests(),
            rules: self.0.metrics.all_rule_totals(),
            projects: self.0.metrics.project_counters(),
        };
        let before = state.day;
        state.totals.read(before, counters);
        let now = self.0.clock.now();
        let is_frozen = now < before.start() && before.start().since(now) <= FROZEN_STEP;
        if !is_frozen {
            state.day = Day::at(now);
        }
    }

    async fn write_all(&self, phase: Phase, deadline: Deadline) {
        let _turn = self.0.writing.lock().await;
        self.read().await;
        let written = self.try_write(phase, deadline).await;
        let was_failing = std::mem::replace(&mut self.state().is_failing, written.is_err());
        match written {
            Ok(()) if was_failing => info!("usage of projects is written again"),
            Ok(()) => {}
            Err(error) if was_failing => debug!(%error, "usage of projects is not written"),
            Err(error) => warn!(%error, "usage of projects is not written: it stays in memory"),
        }
    }

    /// Writes everything that can be written, and returns the first error.
    async fn try_write(&self, phase: Phase, deadline: Deadline) -> Result<(), StoreError> {
        let removed = self.remove_removed(deadline).await;
        let written = self.write_totals(deadline).await;
        let used = self.write_last_uses(deadline).await;
        let closed = self.close_days(phase, deadline).await;
        removed.and(written).and(used).and(closed)
    }

    /// Removes the usage of projects that were removed. It is done when this instance writes no
    /// more of them.
    async fn remove_removed(&self, deadline: Deadline) -> Result<(), StoreError> {
        let removed = std::mem::take(&mut self.state().totals.removed);
        for (at, project) in removed.iter().enumerate() {
            if let Err(error) = self.0.remove(project, deadline).await {
                self.state().totals.removed.extend_from_slice(&removed[at..]);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes totals, and that this instance counts on its open days. If the store does not know one of
    /// which it had totals, it has lost what was written, and all is written again.
    async fn write_totals(&self, deadline: Deadline) -> Result<(), StoreError> {
        loop {
            let (write, unwritten, counting) = self.state().totals.unwritten();
            let names: Vec<_> = unwritten.iter().map(name_register).collect();
            let registers = unwritten.iter().map(|total| register(write, total));
            let registers: Vec<_> = registers.chain(names.iter().flatten().cloned()).collect();
            let raised = self.0.fleet.raise(&registers, TTL, deadline).await;
            let of_day =
                |(day, name, _): &(Day, String, bool)| register_of_day(*day, name, COUNTING);
            let registers: Vec<_> = counting.iter().map(of_day).collect();
            let counts = self.0.fleet.raise(&registers, INSTANCES_TTL, deadline).await;
            let mut days = counting.iter().zip(&counts);
            if days.any(|((_, _, has_written), held)| *has_written && matches!(held, Ok(false))) {
                warn!("the store has lost usage of projects: what is in memory is written again");
                self.state().totals.lost();
                self.0.keyring.forget_reports();
                continue;
            }
            let (totals, mut of_names) = raised.split_at(unwritten.len());
            let done =
                unwritten.into_iter().zip(&names).zip(totals).filter(|((_, name), total)| {
                    // A total without its name can't be found.
                    let is_named = match (name, of_names) {
                        (Some(_), [first, rest @ ..]) => {
                            of_names = rest;
                            first.is_ok()
                        }
                        _ => name.is_none(),
                    };
                    is_named && total.is_ok()
                });
            let done: Vec<UnwrittenTotal> = done.map(|((total, _), _)| total).collect();
            self.state().totals.written(done);
            return raised.into_iter().chain(counts).try_for_each(|raised| raised.map(drop));
        }
    }

    /// Writes that this instance has written all of the days that are over for it.
    async fn close_days(&self, phase: Phase, deadline: Deadline) -> Result<(), StoreError> {
        let finished = {
            let state = self.state();
            state.totals.finished(Some(state.day).filter(|_| phase == Phase::Counting))
        };
        let registers = finished.iter().map(|(day, name)| register_of_day(*day, name, FINISHED));
        let registers: Vec<_> = registers.collect();
        let raised = self.0.fleet.raise(&registers, INSTANCES_TTL, deadline).await;
        let closed = registers.into_iter().zip(&raised).filter(|(_, raised)| raised.is_ok());
        let names: Vec<_> = closed.map(|(register, _)| register.name).collect();
        self.state().totals.close(&names);
        raised.into_iter().try_for_each(|raised| raised.map(drop))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedRecorder {
    /// Removes every map that a project may have by now, and the lists of their names last.
    async fn remove(&self, project: &str, deadline: Deadline) -> Result<(), StoreError> {
        let today = Day::at(self.clock.now());
        let mut maps = vec![last_used::map(project)];
        let mut lists = Vec::new();
        for day in today.minus(KEPT_DAYS + 2).up_to(today.plus(1)) {
            let map = |part| map_of(project, day, &part);
            maps.extend([map(Part::Whole), map(Part::Rule(Arc::default()))]);
            let by = [UsageBy::Key, UsageBy::Rule];
            let of_day = by.map(|by| map_of_names(project, day, by));
            let names = self.fleet.registers(&of_day, deadline).await?;
            for (by, names) in by.into_iter().zip(names) {
                maps.extend(names.iter().map(|(name, _)| map(by.part(name))));
            }
            lists.extend(of_day);
        }
        for some in maps.chunks(MAPS_PER_CALL).chain([&*lists]) {
            self.fleet.remove_registers(some, deadline).await?;
        }
        Ok(())
    }
}

/// Returns the beginning of the names of a project's maps.
fn prefix(project: &str) -> String {
    if project.is_empty() { String::new() } else { format!("p:{project}:") }
}

/// Returns the map with the totals of a part of a project on a day.
fn map_of(project: &str, day: Day, part: &Part) -> String {
    let whole = format!("{}usage:{day}", prefix(project));
    match part {
        Part::Whole => whole,
        Part::Key(id) => format!("{whole}:key:{id}"),
        Part::Rule(name) => format!("{whole}:rule:{name}"),
    }
}

/// Returns the map with the names of a project's totals on a day.
fn map_of_names(project: &str, day: Day, by: UsageBy) -> String {
    let kind = if by == UsageBy::Key { "keys" } else { "rules" };
    format!("{}usage:{day}:{kind}", prefix(project))
}

/// Returns the map of the instances that count on a day.
fn map_of_instances(day: Day) -> String {
    format!("usage:instances:{day}")
}

fn register_of_day(day: Day, name: &str, value: &[u8]) -> Register {
    Register { map: map_of_instances(day), name: name.to_owned(), value: value.to_owned() }
}

/// Returns the register of a total. A later write has a larger value.
fn register(write: u64, unwritten: &UnwrittenTotal) -> Register {
    let UnwrittenTotal { day, name, project, part, total, .. } = unwritten;
    let RequestUsage { allowed, denied, units } = total;
    let value = format!("{write:012} {allowed} {denied} {units}").into_bytes();
    Register { map: map_of(project, *day, part), name: name.clone(), value }
}

/// Returns the register with the name of a total, if it has one. It is written each time, because another
/// instance may have removed the project.
fn name_register(UnwrittenTotal { day, project, part, .. }: &UnwrittenTotal) -> Option<Register> {
    let (by, name) = match part {
        Part::Key(id) => (UsageBy::Key, id),
        Part::Rule(name) if !name.is_empty() => (UsageBy::Rule, name),
        Part::Whole | Part::Rule(_) => return None,
    };
    let map = map_of_names(project, *day, by);
    Some(Register { map, name: name.to_string(), value: b"1".to_vec() })
}

/// Returns the total in a register; `None` if a later release has written it.
fn parse_total(value: &[u8]) -> Option<RequestUsage> {
    let mut numbers = str::from_utf8(value).ok()?.split(' ').skip(1).map(str::parse::<u64>);
    let mut number = || numbers.next()?.ok();
    Some(RequestUsage { allowed: number()?, denied: number()?, units: number()? })
}
