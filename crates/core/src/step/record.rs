//! All data of a key as one value, for stores that read and write it as a whole.

use std::collections::HashMap;

use super::{Slot, Slots, execute};
use crate::algorithm::{Decision, State};
use crate::clock::{Micros, Timestamp};
use crate::control::ControlRecord;
use crate::limit_history::LimitHistory;
use crate::operation::{Reply, StoreHit, StoreRequest};
use crate::reservation::Holds;
use crate::rules::Key;

/// All data that a store keeps for one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Record {
    state: State,
    /// Time of the latest change. A clock that steps back is frozen at it.
    seen: Timestamp,
    reset: Option<Reset>,
    /// Overrides of the key. Absent from records of earlier versions.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    control: Option<Box<ControlRecord>>,
    /// Limits by which the key was counted. Absent from records of earlier versions.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    limits: Option<Box<LimitHistory>>,
    /// Holds of the key. Absent from records of earlier versions.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Holds::is_empty"))]
    holds: Holds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
struct Reset {
    at: Timestamp,
    /// Time from which no refund can precede the reset.
    until: Timestamp,
}

impl Record {
    /// Returns the time from which the record makes no difference to any decision and may be
    /// deleted.
    pub fn expires_at(&self) -> Timestamp {
        let reset = self.reset.map_or(Timestamp::EPOCH, |reset| reset.until);
        let control = self.control.as_ref().map_or(Timestamp::EPOCH, |control| control.ends_at());
        let limits = self.limits.as_ref().map_or(Timestamp::EPOCH, |limits| limits.expires_at());
        self.state.expires_at().max(reset).max(control).max(limits).max(self.holds.last_end())
    }

    /// Returns `true` if the state has not expired. It expires at the end of its last millisecond,
    /// as in the other stores.
    fn is_alive(&self, time: Timestamp) -> bool {
        self.state != State::None && time < self.state.expires_at() + Micros::from_millis(1)
    }
}

/// The records of the keys of one request. A key without a record has no entry.
pub type Records<'a> = HashMap<&'a Key, Record>;

/// Decides every hit of a request on the records of its keys while the clock shows `time`.
///
/// Afterwards the caller writes the records that have changed: all of them in one transaction,
/// which fails if someone else has changed one meanwhile. Peeks change no record, and neither do
/// most denials.
///
/// ```
/// use rlaas_core::algorithm::{Algorithm, Cost, Limit};
/// use rlaas_core::clock::{Micros, Timestamp};
/// use rlaas_core::operation::{Shard, StoreRequest};
/// use rlaas_core::plan::Plan;
/// use rlaas_core::rules::{Request, Rule, RuleSet};
/// use rlaas_core::step::{Records, execute_on_records};
///
/// let limit = Limit::new(1, Micros::from_secs(60))?;
/// let rules = RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), Vec::new());
/// let plan = Plan::for_request(&rules, &Request::user("alice").build()?);
/// let hits: Vec<_> = plan.hits.iter().filter_map(|hit| hit.for_store()).collect();
/// let request = StoreRequest { hits: &hits, coupling: plan.coupling, shard: Shard(0), once: None, reservation: None };
///
/// let mut records = Records::new(); // Read these from the database.
/// let now = Timestamp::from_millis(1_700_000_100_000);
/// let mut is_allowed = || execute_on_records(request, now, &mut records).hits[0].decision.is_allowed();
/// assert!(is_allowed());
/// assert!(!is_allowed());
/// assert_eq!(records.len(), 1); // Write these to the database.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn execute_on_records<'a>(
    request: StoreRequest<'a>,
    time: Timestamp,
    records: &mut Records<'a>,
) -> Reply {
    execute(request, RecordSlots { hits: request.hits, time, records })
}

struct RecordSlots<'r, 'a> {
    hits: &'a [StoreHit<'a>],
    time: Timestamp,
    records: &'r mut Records<'a>,
}

impl<'a> Slots for RecordSlots<'_, 'a> {
    type Slot<'s>
        = RecordSlot<'s, 'a>
    where
        Self: 's;

    fn slot(&mut self, at: usize) -> RecordSlot<'_, 'a> {
        let StoreHit { key, window, .. } = self.hits[at];
        let seen = self.records.get(key).map_or(Timestamp::EPOCH, |record| record.seen);
        let now = self.time.freeze(seen, window.length());
        RecordSlot { key, time: self.time, now, records: self.records }
    }

    fn have_same_key(&self, left: usize, right: usize) -> bool {
        self.hits[left].key == self.hits[right].key
    }
}

struct RecordSlot<'r, 'a> {
    key: &'a Key,
    /// The time that the clock shows, by which states expire.
    time: Timestamp,
    now: Timestamp,
    records: &'r mut Records<'a>,
}

impl Slot for RecordSlot<'_, '_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn frozen_for(&self) -> Micros {
        self.now.since(self.time)
    }

    fn state(&self) -> &State {
        let record = self.records.get(self.key).filter(|record| record.is_alive(self.time));
        record.map_or(&State::None, |record| &record.state)
    }

    fn update(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Option<Decision> {
        let record = self.records.get_mut(self.key).filter(|record| record.is_alive(self.time))?;
        record.seen = self.now;
        Some(change(&mut record.state))
    }

    fn insert(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Decision {
        let record = self.records.entry(self.key).or_default();
        record.seen = self.now;
        record.state = State::None;
        change(&mut record.state)
    }

    fn record_reset(&mut self, until: Timestamp) {
        let reset = Reset { at: self.now, until };
        self.records.entry(self.key).or_default().reset = Some(reset);
    }

    fn was_reset_since(&self, taken_at: Timestamp) -> bool {
        let reset = self.records.get(self.key).and_then(|record| record.reset);
        reset.is_some_and(|reset| taken_at <= reset.at)
    }

    fn control(&self) -> Option<&ControlRecord> {
        self.records.get(self.key)?.control.as_deref()
    }

    fn set_control(&mut self, record: ControlRecord) {
        if !record.is_empty() {
            self.records.entry(self.key).or_default().control = Some(Box::new(record));
        } else if let Some(known) = self.records.get_mut(self.key) {
            known.control = None;
        }
    }

    fn limit_history(&self) -> Option<&LimitHistory> {
        let limits = self.records.get(self.key)?.limits.as_deref();
        limits.filter(|limits| limits.is_alive(self.time))
    }

    fn set_limit_history(&mut self, history: LimitHistory) {
        self.records.entry(self.key).or_default().limits = Some(Box::new(history));
    }

    fn holds(&self) -> Option<&Holds> {
        self.records.get(self.key).map(|record| &record.holds)
    }

    fn take_holds(&mut self) -> Holds {
        let record = self.records.get_mut(self.key);
        record.map_or_else(Holds::default, |record| std::mem::take(&mut record.holds))
    }

    fn set_holds(&mut self, holds: Holds) {
        if !holds.is_empty() || self.records.contains_key(self.key) {
            self.records.entry(self.key).or_default().holds = holds;
        }
    }
}
