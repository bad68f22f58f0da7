//! The settlements of reservations that the memory store remembers, by holder and number: a table that is
//! bounded by its bytes. If it is full, those of the holder with most bytes that end first are forgotten. A
//! holder is a project; all callers without one are one holder.

#[cfg(feature = "journal")]
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::clock::{Micros, Timestamp};
#[cfg(feature = "journal")]
use crate::journal::{Block, Part};
use crate::observer::{Observer, StoreEvent};
use crate::reservation::RememberedSettlement;

/// Bytes that a settlement takes in the tables, aside from its rules.
const SETTLEMENT_BYTES: usize = 240;
/// Bytes that a rule of a settlement takes, aside from its name.
const RULE_BYTES: usize = 80;
/// Time between two sweeps of all holders.
const SWEEP_INTERVAL: Micros = Micros::from_secs(1);
/// Holder of the settlements of snapshots that do not say whose they are: that of no project.
pub(super) const UNKNOWN_HOLDER: &str = "%";

#[derive(Debug)]
pub(super) struct SettlementTable {
    /// By the encoded id of the project.
    holders: HashMap<Box<str>, HolderSettlements>,
    bytes: usize,
    max_bytes: usize,
    swept_at: Timestamp,
    /// Time until which those were remembered that have expired. The clock may show an earlier one since.
    expired_until: Timestamp,
    pub(super) observer: Arc<dyn Observer>,
}

#[derive(Debug, Default)]
struct HolderSettlements {
    /// By the number of the reservation.
    known: HashMap<u128, RememberedSettlement>,
    /// Ends and numbers of the same.
    by_end: BTreeSet<(Timestamp, u128)>,
    bytes: usize,
    /// Time until which those that were evicted should have been remembered.
    evicted_until: Timestamp,
}

impl SettlementTable {
    pub(super) fn new(max_bytes: usize, observer: Arc<dyn Observer>) -> Self {
        let (holders, start) = (HashMap::new(), Timestamp::EPOCH);
        let (swept_at, expired_until) = (start, start);
        Self { holders, bytes: 0, max_bytes, swept_at, expired_until, observer }
    }

    /// Returns the settlement of a reservation, if it is remembered.
    pub(super) fn get(&self, holder: &str, reservation: u128) -> Option<&RememberedSettlement> {
        let known_of = |holder: &str| self.holders.get(holder)?.known.get(&reservation);
        known_of(holder).or_else(|| known_of(UNKNOWN_HOLDER))
    }

    /// Returns the time until which those of the holder that are forgotten were to be remembered.
    pub(super) fn forgotten(&self, holder: &str) -> Timestamp {
        let holders =
            [holder, UNKNOWN_HOLDER].into_iter().filter_map(|name| self.holders.get(name));
        let evicted = holders.map(|holder| holder.evicted_until);
        evicted.fold(self.expired_until, Timestamp::max)
    }

    /// Adds a settlement, and makes space for it.
    pub(super) fn add(&mut self, holder: &str, number: u128, settlement: RememberedSettlement) {
        let holder = self.holders.entry(holder.into()).or_default();
        let freed = holder.forget(number).as_ref().map_or(0, bytes);
        let more = bytes(&settlement);
        holder.by_end.insert((settlement.expires_at(), number));
        holder.known.insert(number, settlement);
        holder.bytes += more;
        self.bytes = self.bytes + more - freed;
        self.make_space();
    }

    fn make_space(&mut self) {
        while self.bytes > self.max_bytes
            && let Some(largest) = self.holders.values_mut().max_by_key(|holder| holder.bytes)
            && let Some((end, number)) = largest.by_end.first().copied()
        {
            largest.evicted_until = largest.evicted_until.max(end);
            self.bytes -= largest.forget(number).as_ref().map_or(0, bytes);
            self.observer.store(StoreEvent::SettlementEvicted);
        }
    }

    /// Forgets what has expired.
    pub(super) fn sweep(&mut self, time: Timestamp) {
        if time.since(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = time;
        let (all, expired_until) = (&mut self.bytes, &mut self.expired_until);
        self.holders.retain(|_, holder| {
            while let Some((end, number)) = holder.by_end.first().copied()
                && end <= time
            {
                *all -= holder.forget(number).as_ref().map_or(0, bytes);
                *expired_until = end.max(*expired_until);
            }
            !holder.known.is_empty() || time < holder.evicted_until
        });
    }
}

impl HolderSettlements {
    fn forget(&mut self, number: u128) -> Option<RememberedSettlement> {
        let forgotten = self.known.remove(&number)?;
        self.by_end.remove(&(forgotten.expires_at(), number));
        self.bytes -= bytes(&forgotten);
        Some(forgotten)
    }
}

/// Returns about as many bytes as a settlement takes.
fn bytes(settlement: &RememberedSettlement) -> usize {
    let rules = settlement.settlements().iter().map(|(rule, _)| RULE_BYTES + rule.len());
    SETTLEMENT_BYTES + rules.sum::<usize>()
}

#[cfg(feature = "journal")]
impl SettlementTable {
    /// Adds what was evicted of a holder.
    pub(super) fn restore_evicted(&mut self, holder: &str, until: Timestamp) {
        let holder = self.holders.entry(holder.into()).or_default();
        holder.evicted_until = holder.evicted_until.max(until);
    }

    /// Copies the names of all holders.
    pub(super) fn holders(&self) -> Vec<Box<str>> {
        self.holders.keys().cloned().collect()
    }

    /// Copies up to `count` settlements of a holder before the one with this end and number, from the last to the first: the first
    /// ones are forgotten meanwhile. Returns the one before which the next call continues.
    pub(super) fn copy(
        &self,
        holder: &str,
        ends_at: Timestamp,
        number: u128,
        count: usize,
        block: &mut Block,
    ) -> Option<(Timestamp, u128)> {
        let (name, holder) = self.holders.get_key_value(holder)?;
        let mut last = None;
        for entry @ (_, number) in holder.by_end.range(..(ends_at, number)).rev().take(count) {
            if let Some(settlement) = holder.known.get(number) {
                block.push(&Part::SettlementOf(name, *number, Cow::Borrowed(settlement)));
            }
            last = Some(*entry);
        }
        if last.is_none() && holder.evicted_until > Timestamp::EPOCH {
            block.push(&Part::EvictedSettlements(name, holder.evicted_until));
        }
        last
    }
}
