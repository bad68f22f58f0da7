//! The settlements of reservations that the memory store remembers, by holder and number: a table that is
//! bounded by its bytes. If it is full, the oldest ones of the holder with most bytes are forgotten. A holder
//! is a project; all callers without one are one holder.

#[cfg(feature = "journal")]
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
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
    /// Number of settlements so far.
    count: u64,
    swept_at: Timestamp,
    /// Time until which those were remembered that have expired. The clock may show an earlier one since.
    expired_until: Timestamp,
    pub(super) observer: Arc<dyn Observer>,
}

#[derive(Debug, Default)]
struct HolderSettlements {
    /// By the number of the reservation, each with a number of its own.
    known: HashMap<u128, (u64, RememberedSettlement)>,
    /// Both numbers, those of the oldest first. The settlement may have been replaced since.
    order: VecDeque<(u128, u64)>,
    bytes: usize,
    /// Time until which those that were evicted should have been remembered.
    evicted_until: Timestamp,
}

impl SettlementTable {
    pub(super) fn new(max_bytes: usize, observer: Arc<dyn Observer>) -> Self {
        let (holders, start) = (HashMap::new(), Timestamp::EPOCH);
        let (swept_at, expired_until) = (start, start);
        Self { holders, bytes: 0, max_bytes, count: 0, swept_at, expired_until, observer }
    }

    /// Returns the settlement of a reservation, if it is remembered.
    pub(super) fn get(&self, holder: &str, reservation: u128) -> Option<&RememberedSettlement> {
        let of = |holder: &str| self.holders.get(holder)?.known.get(&reservation);
        of(holder).or_else(|| of(UNKNOWN_HOLDER)).map(|(_, settlement)| settlement)
    }

    /// Returns the time until which those of the holder that are forgotten were to be remembered.
    pub(super) fn forgotten(&self, holder: &str) -> Timestamp {
        let holders = [holder, UNKNOWN_HOLDER].into_iter().filter_map(|one| self.holders.get(one));
        let evicted = holders.map(|holder| holder.evicted_until);
        evicted.fold(self.expired_until, Timestamp::max)
    }

    /// Adds a settlement, and makes space for it.
    pub(super) fn add(&mut self, holder: &str, number: u128, settlement: RememberedSettlement) {
        let entry = (number, self.insert(holder, number, settlement));
        self.holder(holder).order.push_back(entry);
        self.make_space();
    }

    /// Inserts a settlement, which gets a number of its own. Its place in the order is the caller's.
    fn insert(&mut self, holder: &str, reservation: u128, settlement: RememberedSettlement) -> u64 {
        self.count += 1;
        let (number, bytes) = (self.count, bytes(&settlement));
        let holder = self.holder(holder);
        let earlier = holder.known.insert(reservation, (number, settlement));
        let freed = earlier.map_or(0, |(_, earlier)| self::bytes(&earlier));
        holder.bytes = holder.bytes + bytes - freed;
        self.bytes = self.bytes + bytes - freed;
        number
    }

    fn holder(&mut self, holder: &str) -> &mut HolderSettlements {
        self.holders.entry(holder.into()).or_default()
    }

    fn make_space(&mut self) {
        while self.bytes > self.max_bytes
            && let Some(largest) = self.holders.values_mut().max_by_key(|holder| holder.bytes)
        {
            let Some(evicted) = largest.forget_oldest() else { continue };
            largest.evicted_until = largest.evicted_until.max(evicted.expires_at());
            self.bytes -= bytes(&evicted);
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
            while holder.order.front().is_some_and(|oldest| holder.has_expired(oldest, time)) {
                let Some(expired) = holder.forget_oldest() else { continue };
                *all -= bytes(&expired);
                *expired_until = expired.expires_at().max(*expired_until);
            }
            !holder.order.is_empty() || time < holder.evicted_until
        });
    }
}

impl HolderSettlements {
    /// Returns `true` if an entry of the order is that of no settlement that counts.
    fn has_expired(&self, (reservation, number): &(u128, u64), time: Timestamp) -> bool {
        let known = self.known.get(reservation).filter(|(known, _)| known == number);
        known.is_none_or(|(_, settlement)| settlement.is_expired(time))
    }

    /// Removes the first entry of the order. Returns its settlement, unless that was replaced.
    fn forget_oldest(&mut self) -> Option<RememberedSettlement> {
        let (reservation, number) = self.order.pop_front()?;
        self.known.get(&reservation).filter(|(known, _)| *known == number)?;
        let (_, settlement) = self.known.remove(&reservation)?;
        self.bytes -= bytes(&settlement);
        Some(settlement)
    }
}

/// Returns about as many bytes as a settlement takes.
fn bytes(settlement: &RememberedSettlement) -> usize {
    let rules = settlement.settlements().iter().map(|(rule, _)| RULE_BYTES + rule.len());
    SETTLEMENT_BYTES + rules.sum::<usize>()
}

#[cfg(feature = "journal")]
impl SettlementTable {
    /// Adds a settlement that is older than all others of its holder.
    pub(super) fn restore(&mut self, holder: &str, number: u128, settlement: RememberedSettlement) {
        let entry = (number, self.insert(holder, number, settlement));
        self.holder(holder).order.push_front(entry);
        self.make_space();
    }

    /// Adds what was evicted of a holder.
    pub(super) fn restore_evicted(&mut self, holder: &str, until: Timestamp) {
        let holder = self.holder(holder);
        holder.evicted_until = holder.evicted_until.max(until);
    }

    /// Copies the names of all holders.
    pub(super) fn holders(&self) -> Vec<Box<str>> {
        self.holders.keys().cloned().collect()
    }

    /// Copies up to `count` settlements of a holder before `end`, from the last to the first: the first
    /// ones are forgotten meanwhile. Returns the position before which the next call continues; with 0
    /// nothing is left.
    pub(super) fn copy(&self, holder: &str, end: usize, count: usize, block: &mut Block) -> usize {
        let Some((name, holder)) = self.holders.get_key_value(holder) else { return 0 };
        let end = end.min(holder.order.len());
        let start = end.saturating_sub(count);
        for (reservation, number) in holder.order.range(start..end).rev() {
            let known = holder.known.get(reservation).filter(|(known, _)| known == number);
            if let Some((_, one)) = known {
                block.push(&Part::SettlementOf(name, *reservation, Cow::Borrowed(one)));
            }
        }
        if start == 0 && holder.evicted_until > Timestamp::EPOCH {
            block.push(&Part::EvictedSettlements(name, holder.evicted_until));
        }
        start
    }
}
