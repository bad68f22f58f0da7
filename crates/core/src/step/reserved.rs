//! The holds of keys: they leave less to every hit, and reservations make, extend and settle them.

use smallvec::SmallVec;

use super::entry::Entry;
use super::slot::{Slot, Slots};
use super::{AtomicStep, own_policy};
use crate::algorithm::{Cost, Decision, Outcome};
use crate::clock::{Micros, Timestamp};
use crate::operation::{Action, Held, HitReply};
use crate::reservation::{
    Hold, Holds, OpenHolds, Reservation, ReservationReply, ReservationUse, Settlement, Settlements,
};
use crate::rules::Grant;

/// Holds whose ends are tried for the wait of a denial, aside from the last one.
const TRIED_ENDS: usize = 16;

/// The reservation of a request.
#[derive(Clone, Debug)]
pub(super) struct Holding {
    reservation: Reservation,
    /// Time when its holds end.
    ends_at: Timestamp,
    pub(super) reply: Option<ReservationReply>,
}

impl Holding {
    pub(super) const fn new(reservation: Reservation) -> Self {
        Self { reservation, ends_at: Timestamp::EPOCH, reply: None }
    }

    pub(super) fn extends(&self) -> bool {
        matches!(self.reservation.purpose, ReservationUse::Extend { .. })
    }
}

impl<S: Slot> Entry<'_, S> {
    fn open_holds(&self) -> OpenHolds<'_> {
        let holds = self.hit.max_holds.and_then(|_| self.slot.holds());
        holds.map(|holds| holds.open(self.slot.time())).unwrap_or_default()
    }

    /// Returns a decision on the cost that leaves what is held to those who hold it. `own` is that of
    /// the state alone.
    pub(super) fn decide_beside_holds(&self, own: Decision, cost: Cost) -> Decision {
        let holds = self.open_holds();
        if holds.list.is_empty() {
            return own;
        }
        let (state, now) = (self.state(), self.slot.now());
        let decide = |at: Timestamp, held: u64| {
            // Only a fixed window has limits above the largest cost: Redis cuts the sum there for others.
            let cost = Cost::total(cost.units() + held);
            self.hit.algorithm.decide(&state, self.limit, at.max(now), cost)
        };
        let less_held = |decision: Decision| Decision {
            remaining: decision.remaining - holds.units.cast_signed(),
            ..decision
        };
        let beside = decide(now, holds.units);
        if beside.is_allowed() {
            return Decision { delay: beside.delay, ..less_held(own) };
        }
        if own.outcome == Outcome::Impossible {
            return less_held(own);
        }
        // The first of the times at which some holds have ended and the state has enough beside the
        // others.
        let mut rest = holds.units;
        let ends = holds.list.iter().take(TRIED_ENDS).map(|hold| {
            rest -= hold.units;
            (hold.ends_at, rest)
        });
        let last = holds.list.last().map(|hold| (hold.ends_at, 0));
        let waits = [(now, holds.units)].into_iter().chain(ends).chain(last);
        let waits = waits.filter_map(|(end, rest)| match decide(end, rest).outcome {
            Outcome::Allowed => Some(end.since(now)),
            // As in Lua, which does not know the end of a later window of a calendar.
            Outcome::Denied { .. }
                if self.limit.calendar_window(now).is_some_and(|window| window.end <= end) =>
            {
                None
            }
            Outcome::Denied { retry_after } => Some(end.since(now) + retry_after),
            Outcome::Impossible => None,
        });
        let retry_after = waits.min().unwrap_or_default().max(Micros::from_micros(1));
        let numbers = self.hit.algorithm.decide(&state, self.limit, now, Cost::NONE);
        Decision { outcome: Outcome::Denied { retry_after }, ..less_held(numbers) }
    }

    /// Decides on units to hold.
    pub(super) fn decide_hold(&self, cost: Cost, holding: &Holding) -> Decision {
        let decision = self.decide(cost);
        let holds = self.open_holds();
        let has_own = holds.find(holding.reservation.number).is_some();
        if cost == Cost::NONE && holding.extends() {
            // A debt must not end what is under way.
            return Decision { outcome: Outcome::Allowed, ..decision };
        }
        let most = self.hit.max_holds.unwrap_or_default() as usize;
        let (Some(first), false) = (holds.list.first(), has_own || holds.list.len() < most) else {
            return decision;
        };
        let until_first = first.ends_at.since(self.slot.now()).max(Micros::from_micros(1));
        let outcome = match decision.outcome {
            Outcome::Impossible => Outcome::Impossible,
            Outcome::Allowed => Outcome::Denied { retry_after: until_first },
            Outcome::Denied { retry_after } => {
                Outcome::Denied { retry_after: retry_after.max(until_first) }
            }
        };
        Decision { outcome, ..self.with_current_numbers(outcome) }
    }
}

impl<S: Slots> AtomicStep<'_, S> {
    /// Executes a request whose hits are all or nothing, with or without a reservation.
    pub(super) fn reserved(&mut self) -> SmallVec<[HitReply; 2]> {
        let Some(Holding { reservation, .. }) = self.holding else { return self.all_or_nothing() };
        let Reservation { number, purpose } = reservation;
        let time = self.slots.slot(0).time();
        let ends: SmallVec<[Option<Timestamp>; 2]> = (0..self.hits.len())
            .filter(|at| matches!(self.hits[*at].action, Action::Hold(_)))
            .map(|at| {
                let slot = self.slots.slot(at);
                slot.holds()
                    .and_then(|holds| holds.open(time).find(number).map(|hold| hold.ends_at))
            })
            .collect();
        let known = ends.iter().flatten().max().copied();
        let ends_at = match (purpose, known) {
            (ReservationUse::Settle { counts_ended, .. }, _) => {
                return self.settle_all(number, counts_ended);
            }
            (ReservationUse::Reserve { .. }, Some(ends_at)) => {
                self.reply_with(ReservationReply::Held { ends_at, replayed: true });
                // It was allowed, whatever has been charged since.
                let allowed = |reply: HitReply| {
                    let decision = Decision { outcome: Outcome::Allowed, ..reply.decision };
                    HitReply { decision, ..reply }
                };
                return (0..self.hits.len()).map(|at| allowed(self.peek(at))).collect();
            }
            (ReservationUse::Extend { .. }, _) if ends.contains(&None) => {
                self.reply_with(ReservationReply::NotFound);
                return (0..self.hits.len()).map(|at| self.peek(at)).collect();
            }
            (ReservationUse::Reserve { hold_for }, None)
            | (ReservationUse::Extend { hold_for: Some(hold_for) }, _) => time + hold_for,
            (ReservationUse::Extend { hold_for: None }, known) => known.unwrap_or(time),
        };
        if let Some(holding) = &mut self.holding {
            holding.ends_at = ends_at;
        }
        let replies = self.all_or_nothing();
        if let Some(Holding { reply: reply @ None, .. }) = &mut self.holding {
            // Denied: an extension leaves the end as it was.
            *reply = known.map(|ends_at| ReservationReply::Held { ends_at, replayed: false });
        }
        replies
    }

    fn reply_with(&mut self, reply: ReservationReply) {
        if let Some(holding) = &mut self.holding {
            holding.reply = Some(reply);
        }
    }

    /// Holds units of the key of a hit, beside those that the reservation holds already. They were allowed
    /// beside what is held, so that no key has holds of more than the largest limit.
    pub(super) fn hold(&mut self, at: usize, cost: Cost) {
        let Some(Holding { reservation, ends_at, .. }) = self.holding else { return };
        // An unlimited key has enough without holding any.
        let units = if *self.grant(at) == Grant::Unlimited { 0 } else { cost.units() };
        let number = reservation.number;
        self.change_holds(at, |holds| {
            let held = holds.remove(number).map_or(0, |hold| hold.units);
            holds.put(Hold { ends_at, number, units: held + units });
        });
        self.reply_with(ReservationReply::Held { ends_at, replayed: false });
    }

    /// Ends the holds of a reservation, and charges the costs.
    fn settle_all(&mut self, number: u128, counts_ended: bool) -> SmallVec<[HitReply; 2]> {
        let settled: SmallVec<[Option<Settlement>; 2]> =
            (0..self.hits.len()).map(|at| self.settle(at, number, counts_ended)).collect();
        let is_found = settled.iter().any(Option::is_some);
        let charged: SmallVec<[u64; 2]> =
            settled.iter().map(|known| known.map_or(0, |known| known.charged)).collect();
        let named = self.hits.iter().zip(settled);
        // A hold that is gone, after a reset, has nothing to return.
        let settlements: Settlements = named
            .map(|(hit, settlement)| (hit.key.rule().into(), settlement.unwrap_or_default()))
            .collect();
        self.reply_with(if is_found {
            ReservationReply::Settled { settlements, replayed: false }
        } else {
            ReservationReply::NotFound
        });
        let taken = charged.into_iter().enumerate();
        taken.map(|(at, taken)| HitReply { taken, ..self.peek(at) }).collect()
    }

    /// Changes the holds of the key of a hit, without those that have ended.
    fn change_holds<R>(&mut self, at: usize, change: impl FnOnce(&mut Holds) -> R) -> R {
        let mut slot = self.slots.slot(at);
        let (time, mut holds) = (slot.time(), slot.take_holds());
        holds.drop_ended(time);
        let changed = change(&mut holds);
        slot.set_holds(holds);
        changed
    }

    fn settle(&mut self, at: usize, number: u128, counts_ended: bool) -> Option<Settlement> {
        let Action::Settle(actual) = self.hits[at].action else { return None };
        let hold = self.change_holds(at, |holds| holds.remove(number));
        if hold.is_none() && !counts_ended {
            return None;
        }
        let (hit, owned) = (&self.hits[at], hold.map_or(0, |hold| hold.units));
        let cost = actual.unwrap_or(Cost::total(owned));
        let returned = owned.saturating_sub(cost.units());
        let beneath = || self.overridden.get(at).and_then(|own| own.as_ref()?.charges);
        let limit = self.grant(at).limit().copied().or_else(beneath);
        let Some(limit) = limit else {
            return Some(Settlement { returned, ..Settlement::default() });
        };
        let on_change = own_policy(hit, self.overridden.get(at));
        let mut entry = Entry { hit, limit: &limit, on_change, slot: self.slots.slot(at) };
        let charged = if cost == Cost::NONE { 0 } else { entry.report(cost).1 };
        let (state, now) = (entry.state(), entry.slot.now());
        let left = hit.algorithm.decide(&state, &limit, now, Cost::NONE).remaining;
        let debt = left.min(0).unsigned_abs();
        Some(Settlement { charged, returned, debt, uncounted: cost.units() - charged })
    }

    /// Returns the holds of the key of a hit, if its rule holds.
    pub(super) fn held(&mut self, at: usize, decision: &Decision) -> Option<Box<Held>> {
        let hit = &self.hits[at];
        hit.max_holds?;
        let cost = self.action(at).cost();
        let number = self.holding.as_ref().map(|holding| holding.reservation.number);
        let has_enough = matches!(decision.outcome, Outcome::Denied { .. })
            && self.entry(at).is_some_and(|entry| {
                let (state, now) = (entry.state(), entry.slot.now());
                let more = if cost == Cost::NONE { 0 } else { entry.left_to_others() };
                let cost = Cost::total(cost.units() + more);
                hit.algorithm.decide(&state, entry.limit, now, cost).is_allowed()
            });
        let slot = self.slots.slot(at);
        let holds = slot.holds().map(|holds| holds.open(slot.time())).unwrap_or_default();
        let (units, count) = (holds.units, u32::try_from(holds.list.len()).unwrap_or(u32::MAX));
        let own = number.and_then(|number| holds.find(number)).map(|hold| hold.units);
        let denies = count > 0 && has_enough;
        Some(Box::new(Held { units, holds: count, own, denies }))
    }
}
