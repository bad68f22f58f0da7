//! Reservations: units that are held before the work and settled after it.
//!
//! Each rule that holds has, beside the state of a key, the [`Holds`] of that key. A hold takes nothing
//! from the state: it only leaves less to others. Settling removes it and charges what the work has cost
//! at that time, whatever is left, as a [report](crate::operation::Action::Report) does. A hold that is
//! not settled ends by itself. So at any time the state is that of a key whose users took only what was
//! charged, when it was charged.
//!
//! The settlement of a reservation is remembered for some time, so that settling it again charges
//! nothing. This module knows no store; `lua/holds.lua` is its twin for Redis.

use crate::clock::{Micros, Timestamp};
use crate::operation::{Reply, StoreRequest};

/// Units that one reservation holds of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Hold {
    /// Time from which it holds nothing, by the clock of the store.
    pub ends_at: Timestamp,
    /// Number of the reservation.
    pub number: u128,
    /// Units, or slots.
    pub units: u64,
}

/// The holds of one key, in the order of their ends, and of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Holds {
    list: Vec<Hold>,
    /// Units of all of them.
    sum: u64,
}

impl Holds {
    /// Most holds of a key.
    pub const MAX: u32 = 10_000;

    /// Returns the holds that have not ended.
    pub fn open(&self, time: Timestamp) -> OpenHolds<'_> {
        let ended = self.list.partition_point(|hold| hold.ends_at <= time);
        let (ended, list) = self.list.split_at(ended);
        let ended: u64 = ended.iter().map(|hold| hold.units).sum();
        OpenHolds { list, units: self.sum - ended }
    }

    /// Removes the holds that have ended.
    pub fn drop_ended(&mut self, time: Timestamp) {
        let OpenHolds { list, units } = self.open(time);
        let ended = self.list.len() - list.len();
        self.sum = units;
        self.list.drain(..ended);
    }

    /// Adds a hold, in the place of one with the same number.
    pub fn put(&mut self, hold: Hold) {
        self.remove(hold.number);
        let order = |hold: &Hold| (hold.ends_at, hold.number);
        let at = self.list.partition_point(|listed| order(listed) < order(&hold));
        self.sum += hold.units;
        self.list.insert(at, hold);
    }

    /// Removes and returns the hold with this number.
    pub fn remove(&mut self, number: u128) -> Option<Hold> {
        let at = self.list.iter().position(|hold| hold.number == number)?;
        let hold = self.list.remove(at);
        self.sum -= hold.units;
        Some(hold)
    }

    /// Returns `true` if they are in order and their sum is right. Decisions need valid ones, so check those
    /// that come from elsewhere, such as a file.
    pub fn is_valid(&self) -> bool {
        let sum = self.list.iter().try_fold(0_u64, |sum, hold| sum.checked_add(hold.units));
        self.list.is_sorted_by_key(|hold| (hold.ends_at, hold.number)) && sum == Some(self.sum)
    }

    /// Returns their number, those that have ended included.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the last end; the epoch if there are none.
    pub fn last_end(&self) -> Timestamp {
        self.list.last().map_or(Timestamp::EPOCH, |hold| hold.ends_at)
    }
}

/// The holds of one key that have not ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenHolds<'a> {
    /// In the order of their ends.
    pub list: &'a [Hold],
    /// Units of all of them.
    pub units: u64,
}

impl OpenHolds<'_> {
    /// Returns the hold with this number.
    pub fn find(&self, number: u128) -> Option<&Hold> {
        self.list.iter().find(|hold| hold.number == number)
    }
}

/// What the hits of a request do with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its number: random, or of the request and its request id.
    pub number: u128,
    /// What is done with it.
    pub purpose: ReservationUse,
}

/// What a request does with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationUse {
    /// Holds units for a time. If something is held under the number already, nothing is decided or
    /// taken, and the reply has the end in force.
    Reserve {
        /// Time for which units are held: [`Reservation::MIN_HOLD`] to [`Reservation::MAX_HOLD`].
        hold_for: Micros,
    },
    /// Adds units to what is held, and sets the end of all holds.
    Extend {
        /// Time from now on for which units are held. `None` leaves the end as it is.
        hold_for: Option<Micros>,
    },
    /// Ends the holds and charges costs, once.
    Settle {
        /// Shortest time for which the settlement is remembered. 0: it leaves no trace.
        memory: Micros,
        /// End that the caller was given when the units were reserved.
        ends_at: Timestamp,
        /// Whether hits without a hold are charged, too, up to [`Reservation::SETTLEMENT_MEMORY`] after
        /// `ends_at`. They need a cost.
        counts_ended: bool,
    },
}

impl ReservationUse {
    /// Ends the holds of a reservation whose id was not returned.
    pub const FORGET: Self =
        Self::Settle { memory: Micros::ZERO, ends_at: Timestamp::EPOCH, counts_ended: false };
}

impl Reservation {
    /// Shortest time for which units are held.
    pub const MIN_HOLD: Micros = Micros::from_millis(100);
    /// Longest time for which units are held.
    pub const MAX_HOLD: Micros = Micros::from_secs(86_400);
    /// Time for which a settlement is remembered at least, from the end of the reservation on.
    pub const SETTLEMENT_MEMORY: Micros = Micros::from_secs(600);
    /// Most bytes of an id that a service makes of a number and keys.
    pub const MAX_ID: usize = 4096;
    /// Most bytes of the keys of a reservation, so that an id has space for them.
    pub const MAX_KEY_BYTES: usize = 3000;
    /// Most hits of a request that hold.
    pub const MAX_HITS: usize = 16;
}

/// What became of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationReply {
    /// It stands.
    Held {
        /// Time when it ends by itself, by the clock of the store.
        ends_at: Timestamp,
        /// `true` if it was reserved before, and nothing was done now.
        replayed: bool,
    },
    /// It has been settled.
    Settled {
        /// What was charged and returned.
        settlements: Settlements,
        /// `true` if that was done before, and nothing was done now.
        replayed: bool,
    },
    /// There is none with the number: it has ended, was settled (when it is reserved or extended), or
    /// never was.
    NotFound,
    /// There is none with the number, and it ended so long ago that its settlement may have been forgotten.
    Forgotten,
}

impl ReservationReply {
    /// Returns what became of a reservation in two shards: it stands as long as it does in both, and what
    /// was settled in one was settled. It is forgotten only if it is in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Held { ends_at, replayed },
                Self::Held { ends_at: other_ends_at, replayed: other_replayed },
            ) => Self::Held {
                ends_at: ends_at.min(other_ends_at),
                replayed: replayed && other_replayed,
            },
            (
                Self::Settled { settlements: mut all, replayed },
                Self::Settled { settlements, replayed: other_replayed },
            ) => {
                all.extend(settlements);
                Self::Settled { settlements: all, replayed: replayed && other_replayed }
            }
            (settled @ Self::Settled { .. }, _) | (_, settled @ Self::Settled { .. }) => settled,
            (Self::NotFound, _) | (_, Self::NotFound) => Self::NotFound,
            (Self::Forgotten, _) | (_, Self::Forgotten) => Self::Forgotten,
        }
    }
}

/// Settlements, by the encoded name of the rule.
pub type Settlements = Vec<(Box<str>, Settlement)>;

/// What was charged by one rule, and returned to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Settlement {
    /// Units counted for good. 0 for slots.
    pub charged: u64,
    /// Held units, or slots, that were returned.
    pub returned: u64,
    /// Units below zero afterwards.
    pub debt: u64,
    /// Units of the cost that a ceiling of the debt left uncounted.
    pub uncounted: u64,
}

/// A settlement that a store remembers, under the number of the reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct RememberedSettlement {
    settlements: Settlements,
    expires_at: Timestamp,
}

impl RememberedSettlement {
    /// Creates a settlement that is remembered until `expires_at`.
    pub const fn new(settlements: Settlements, expires_at: Timestamp) -> Self {
        Self { settlements, expires_at }
    }

    /// Returns what was charged and returned.
    pub const fn settlements(&self) -> &Settlements {
        &self.settlements
    }

    /// Returns the time from which it has no effect any more.
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Returns `true` if it has no effect any more.
    pub fn is_expired(&self, time: Timestamp) -> bool {
        time >= self.expires_at
    }
}

/// Executes a request for a reservation: by the settlement that is remembered under its number, or by
/// `decide`, which [executes](crate::step::execute) the hits. A request without one is executed by
/// `decide` alone. Settlements that ended up to `forgotten` are not known any more, whatever the clock
/// shows since.
///
/// The caller ensures that nobody else changes the settlement or the states meanwhile.
pub fn execute(
    request: StoreRequest<'_>,
    time: Timestamp,
    remembered: &mut Option<RememberedSettlement>,
    forgotten: Timestamp,
    decide: impl FnOnce(StoreRequest<'_>) -> Reply,
) -> Reply {
    let Some(Reservation { number, purpose }) = request.reservation else { return decide(request) };
    let reply = |became| Reply { reservation: Some(became), ..Reply::default() };
    let known = remembered.as_ref().filter(|known| !known.is_expired(time));
    let (memory, ends_at, counts_ended) = match (known, *purpose) {
        (Some(known), ReservationUse::Settle { .. }) => {
            let settlements = known.settlements.clone();
            return reply(ReservationReply::Settled { settlements, replayed: true });
        }
        (Some(_), _) => return reply(ReservationReply::NotFound),
        (None, ReservationUse::Settle { memory, ends_at, counts_ended }) => {
            (memory, ends_at, counts_ended)
        }
        (None, _) => return decide(request),
    };
    let known_until = ends_at + Reservation::SETTLEMENT_MEMORY;
    let is_forgotten = known_until <= time.max(forgotten);
    let counts_ended = counts_ended && !is_forgotten;
    let purpose = ReservationUse::Settle { memory, ends_at, counts_ended };
    let reservation = &Reservation { number: *number, purpose };
    let mut reply = decide(StoreRequest { reservation: Some(reservation), ..request });
    match &reply.reservation {
        Some(ReservationReply::Settled { settlements, .. }) if memory > Micros::ZERO => {
            // As long as anybody may take it for an open one, whatever end was made up.
            let longest = Reservation::MAX_HOLD + Reservation::SETTLEMENT_MEMORY;
            let memory = memory.max(known_until.since(time)).min(longest);
            *remembered = Some(RememberedSettlement::new(settlements.clone(), time + memory));
        }
        Some(ReservationReply::NotFound) if is_forgotten => {
            reply.reservation = Some(ReservationReply::Forgotten);
        }
        _ => {}
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_end_in_order_and_the_sum_follows() {
        let at = |second: u64| Timestamp::from_millis(second * 1_000);
        let mut holds = Holds::default();
        for (number, end) in [(3_u128, 30), (1, 10), (2, 10)] {
            let units = u64::try_from(number).expect("small");
            holds.put(Hold { ends_at: at(end), number, units });
        }
        let numbers = |holds: &Holds, time| -> Vec<u128> {
            holds.open(time).list.iter().map(|hold| hold.number).collect()
        };
        assert_eq!((numbers(&holds, at(9)), holds.open(at(9)).units), (vec![1, 2, 3], 6));
        assert_eq!((numbers(&holds, at(10)), holds.open(at(10)).units), (vec![3], 3));
        holds.put(Hold { ends_at: at(40), number: 1, units: 5 });
        assert_eq!(holds.open(at(9)).units, 10);
        holds.drop_ended(at(10));
        assert_eq!((numbers(&holds, at(0)), holds.last_end()), (vec![3, 1], at(40)));
        assert_eq!(holds.remove(3).map(|hold| hold.units), Some(3));
        assert_eq!(holds.remove(3), None);
        assert_eq!(holds.open(at(0)).units, 5);
    }
}
