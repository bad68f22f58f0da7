//! The reservations of the memory store: the holds of keys, and the settlements that it remembers, both
//! bounded. The oldest settlements are forgotten first.

#[cfg(feature = "journal")]
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use crate::clock::{Micros, Timestamp};
use crate::expiring_map::ExpiringMap;
#[cfg(feature = "journal")]
use crate::journal::{Block, Part};
use crate::reservation::{Holds, RememberedSettlement};

/// Time between two counts of the holds of a full table.
const RECOUNT_INTERVAL: Micros = Micros::from_secs(1);

#[derive(Debug)]
pub(super) struct Reservations {
    holds: ExpiringMap<Holds>,
    /// Number of holds. Some may have ended and still be counted.
    count: usize,
    max_holds: usize,
    recounted_at: Timestamp,
    settlements: HashMap<u128, RememberedSettlement>,
    /// Numbers of the settlements, in the order in which they were made.
    order: VecDeque<u128>,
    max_settlements: usize,
    /// Time up to which settlements have been forgotten because they had ended. The clock may show an
    /// earlier one since.
    forgotten: Timestamp,
}

impl Reservations {
    pub(super) fn new(max_holds: u32, max_settlements: u32) -> Self {
        Self {
            holds: ExpiringMap::new(usize::MAX),
            count: 0,
            max_holds: max_holds as usize,
            recounted_at: Timestamp::EPOCH,
            settlements: HashMap::new(),
            order: VecDeque::new(),
            max_settlements: max_settlements as usize,
            forgotten: Timestamp::EPOCH,
        }
    }

    /// Returns `true` if so many more holds have space.
    pub(super) fn has_space(&mut self, more: usize, time: Timestamp) -> bool {
        let is_full = self.count + more > self.max_holds;
        if is_full && time.since(self.recounted_at) >= RECOUNT_INTERVAL {
            self.recounted_at = time;
            self.holds.drop_ended(time);
            self.count = self.holds.iter().map(|(_, holds)| holds.open(time).list.len()).sum();
        }
        self.count + more <= self.max_holds
    }

    pub(super) fn holds(&self, key: &[u8]) -> Option<&Holds> {
        self.holds.get(key)
    }

    pub(super) fn take_holds(&mut self, key: &[u8]) -> Holds {
        let holds = self.holds.take(key).unwrap_or_default();
        self.count = self.count.saturating_sub(holds.len());
        holds
    }

    pub(super) fn set_holds(&mut self, key: &[u8], holds: Holds, time: Timestamp) {
        if !holds.is_empty() {
            self.count += holds.len();
            let end = holds.last_end();
            self.holds.insert(key, holds, end, time);
        }
    }

    pub(super) const fn forgotten(&self) -> Timestamp {
        self.forgotten
    }

    pub(super) fn take_settlement(&mut self, number: u128) -> Option<RememberedSettlement> {
        self.settlements.remove(&number)
    }

    pub(super) fn put_settlement(&mut self, number: u128, settlement: RememberedSettlement) {
        self.settlements.insert(number, settlement);
    }

    /// Keeps the number of a new settlement, and makes space for it.
    pub(super) fn add_settlement(&mut self, number: u128, settlement: RememberedSettlement) {
        while self.order.len() >= self.max_settlements.max(1) {
            self.forget_oldest();
        }
        self.order.push_back(number);
        self.put_settlement(number, settlement);
    }

    /// Forgets what has ended.
    pub(super) fn sweep(&mut self, time: Timestamp) {
        self.holds.drop_ended(time);
        let is_expired = |number: &u128| {
            self.settlements.get(number).is_none_or(|settlement| settlement.is_expired(time))
        };
        let expired = self.order.iter().take_while(|number| is_expired(number)).count();
        for number in self.order.drain(..expired) {
            let end = self.settlements.remove(&number).map(|settlement| settlement.expires_at());
            self.forgotten = self.forgotten.max(end.unwrap_or_default());
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(number) = self.order.pop_front() {
            self.settlements.remove(&number);
        }
    }
}

#[cfg(feature = "journal")]
impl Reservations {
    /// Adds a settlement that is older than all others.
    pub(super) fn restore_settlement(&mut self, number: u128, settlement: RememberedSettlement) {
        self.order.push_front(number);
        self.put_settlement(number, settlement);
    }

    /// Copies the holds that have not ended.
    pub(super) fn copy_holds(&self, time: Timestamp) -> Vec<(String, Holds)> {
        let open = self.holds.iter().filter(|(_, holds)| holds.last_end() > time);
        open.map(|(key, holds)| (key.to_owned(), holds.clone())).collect()
    }

    /// Copies up to `count` settlements before `end`, from the last to the first: the first ones are
    /// forgotten meanwhile. Returns the position before which the next call continues.
    pub(super) fn copy_settlements(&self, end: usize, count: usize, block: &mut Block) -> usize {
        let end = end.min(self.order.len());
        let start = end.saturating_sub(count);
        for number in self.order.range(start..end).rev() {
            if let Some(settlement) = self.settlements.get(number) {
                block.push(&Part::Settlement(*number, Cow::Borrowed(settlement)));
            }
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_stays_so_if_the_clock_steps_back() {
        let mut reservations = Reservations::new(1, 10);
        let at = |second: u64| Timestamp::from_millis(second * 1_000);
        for (number, end) in [(1, 660), (2, 700)] {
            reservations.add_settlement(number, RememberedSettlement::new(Vec::new(), at(end)));
        }
        reservations.sweep(at(659));
        assert_eq!(reservations.forgotten(), Timestamp::EPOCH);
        reservations.sweep(at(690));
        reservations.sweep(at(10));
        assert_eq!(reservations.forgotten(), at(660));
        assert!(reservations.take_settlement(1).is_none());
        assert!(reservations.take_settlement(2).is_some());
    }
}
