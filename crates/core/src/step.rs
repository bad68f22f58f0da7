//! One atomic step of a store: decides each hit of a request on the state of its key.
//!
//! The store provides access to the states ([`Slots`]); this module changes them. It knows no locks
//! and no transactions: the calling store ensures that nobody else changes the states meanwhile, or
//! discards the changes if someone did. A store that reads and writes all data of a key at once
//! keeps [`Record`]s and calls [`execute_on_records`].

mod overridden;
mod record;

pub use record::{Record, Records, execute_on_records};

use smallvec::SmallVec;

use self::overridden::{Overridden, change_control};
use crate::algorithm::{Cost, Decision, Limit, Outcome, State, TakenUnits};
use crate::clock::{Micros, Timestamp};
use crate::control::ControlRecord;
use crate::operation::{Action, HitReply, Reply, Shard, StoreHit, StoreRequest};
use crate::rules::{Coupling, Grant, Mode};

/// Access of a step to the state of one key.
pub trait Slot {
    /// Returns the time of the decision: the time that the clock shows, or a later one if it is
    /// [held](Timestamp::hold).
    fn now(&self) -> Timestamp;

    /// Returns the difference between [`Slot::now`] and the time that the clock shows.
    fn held_for(&self) -> Micros;

    /// Returns the state; [`State::None`] if there is none or it has expired.
    fn state(&self) -> &State;

    /// Calls `change` with the state, if the key has one, and returns its decision. An expired
    /// state may be passed as [`State::None`].
    fn update(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Option<Decision>;

    /// Creates a state for a key that has none. Calls `change` with [`State::None`] and returns its
    /// decision.
    fn insert(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Decision;

    /// Records that the key is reset now. The record is needed up to `until`.
    fn record_reset(&mut self, until: Timestamp);

    /// Returns `true` if the key was reset at `taken_at` or later.
    fn was_reset_since(&self, taken_at: Timestamp) -> bool;

    /// Returns the control record of the key, if there is one. It may have ended.
    fn control(&self) -> Option<&ControlRecord>;

    /// Replaces the control record of the key. An empty record removes it.
    fn set_control(&mut self, record: ControlRecord);

    /// Returns the time that the clock shows.
    fn time(&self) -> Timestamp {
        self.now() - self.held_for()
    }
}

/// The slots of the hits of one request.
pub trait Slots {
    /// The slot of one hit.
    type Slot<'a>: Slot
    where
        Self: 'a;

    /// Returns the slot of the hit at this position.
    fn slot(&mut self, at: usize) -> Self::Slot<'_>;

    /// Returns `true` if the hits at these positions have the same key.
    fn have_same_key(&self, one: usize, other: usize) -> bool;
}

/// Decides every hit of a request.
pub fn execute(request: StoreRequest<'_>, slots: impl Slots) -> Reply {
    let StoreRequest { hits, coupling, .. } = request;
    let mut step = AtomicStep { hits, slots, overridden: SmallVec::new() };
    if hits.iter().any(|hit| hit.overridable) {
        step.overridden.resize_with(hits.len(), || None);
    }
    let mut replies = match coupling {
        Coupling::AllOrNothing => {
            (0..hits.len()).for_each(|at| step.change_control(at));
            (0..hits.len()).for_each(|at| step.read_control(at));
            step.all_or_nothing()
        }
        Coupling::EachAlone => {
            let alone = |at| {
                step.change_control(at);
                step.read_control(at);
                step.execute_alone(at)
            };
            (0..hits.len()).map(alone).collect()
        }
    };
    for (reply, overridden) in replies.iter_mut().zip(step.overridden) {
        reply.applied = overridden.and_then(|one| one.applied);
    }
    Reply { hits: replies, replayed: None }
}

/// Decides a request of one hit: the common case of [`execute`], with [`Coupling::AllOrNothing`].
#[inline]
pub fn execute_one(hit: &StoreHit<'_>, slot: impl Slot) -> HitReply {
    let (Grant::Limited(limit), false) = (hit.grant, hit.overridable) else {
        return execute_overridable(hit, slot);
    };
    let mut entry = Entry { hit, limit, slot };
    let mut reply = match hit.action {
        Action::Take(cost) if cost != Cost::NONE => {
            let decision = entry.take(cost);
            HitReply::new(decision, decision.outcome.taken(cost))
        }
        _ => entry.execute_other(),
    };
    reply.decision.extend_waits(entry.slot.held_for());
    reply
}

/// Decides a request of one hit whose grant may not be a limit.
#[inline(never)]
fn execute_overridable(hit: &StoreHit<'_>, slot: impl Slot) -> HitReply {
    let hits = std::slice::from_ref(hit);
    let (coupling, shard) = (Coupling::AllOrNothing, Shard::default());
    let request = StoreRequest { hits, coupling, shard, once: None };
    execute(request, OneSlot(slot)).hits.swap_remove(0)
}

/// The slot of a request of one hit.
struct OneSlot<S>(S);

impl<S: Slot> Slots for OneSlot<S> {
    type Slot<'a>
        = &'a mut S
    where
        S: 'a;

    fn slot(&mut self, _at: usize) -> &mut S {
        &mut self.0
    }

    fn have_same_key(&self, _one: usize, _other: usize) -> bool {
        true
    }
}

impl<S: Slot> Slot for &mut S {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn held_for(&self) -> Micros {
        (**self).held_for()
    }

    fn state(&self) -> &State {
        (**self).state()
    }

    fn update(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Option<Decision> {
        (**self).update(change)
    }

    fn insert(&mut self, change: impl FnOnce(&mut State) -> Decision) -> Decision {
        (**self).insert(change)
    }

    fn record_reset(&mut self, until: Timestamp) {
        (**self).record_reset(until);
    }

    fn was_reset_since(&self, taken_at: Timestamp) -> bool {
        (**self).was_reset_since(taken_at)
    }

    fn control(&self) -> Option<&ControlRecord> {
        (**self).control()
    }

    fn set_control(&mut self, record: ControlRecord) {
        (**self).set_control(record);
    }
}

/// A hit with the decision so far.
#[derive(Clone)]
struct DecidedHit {
    reply: HitReply,
    /// `true` if an earlier hit takes from the same key.
    is_repeated: bool,
}

/// The hits of one request, with the slots of their keys.
struct AtomicStep<'a, S> {
    hits: &'a [StoreHit<'a>],
    slots: S,
    /// What decides each overridable hit; empty if there is none.
    overridden: SmallVec<[Option<Box<Overridden>>; 1]>,
}

impl<S: Slots> AtomicStep<'_, S> {
    /// Changes the control record of an overridable hit, if that is its action.
    fn change_control(&mut self, at: usize) {
        let hit = &self.hits[at];
        if hit.overridable && hit.action.changes_control() {
            change_control(hit, self.slots.slot(at));
        }
    }

    /// Reads the control record of a hit that is overridable.
    fn read_control(&mut self, at: usize) {
        let hit = &self.hits[at];
        if hit.overridable {
            self.overridden[at] = Some(Box::new(Overridden::new(hit, &self.slots.slot(at))));
        }
    }

    fn all_or_nothing(&mut self) -> SmallVec<[HitReply; 2]> {
        let mut decided: SmallVec<[Option<DecidedHit>; 2]> =
            SmallVec::from_elem(None, self.hits.len());
        for (at, hit) in self.hits.iter().enumerate() {
            if matches!(hit.action, Action::Report(_)) {
                decided[at] =
                    Some(DecidedHit { reply: self.execute_alone(at), is_repeated: false });
            }
        }
        for (at, hit) in self.hits.iter().enumerate() {
            if matches!(hit.action, Action::Take(_) | Action::Peek(_)) {
                let sum = self.cost_up_to(at);
                let counted = self.entry(at).map(|entry| entry.decide(sum));
                let decision = counted.unwrap_or_else(|| self.uncounted(at));
                let reply = HitReply::new(decision, 0);
                decided[at] = Some(DecidedHit { reply, is_repeated: sum != hit.action.cost() });
            }
        }
        let outcomes = decided.iter().enumerate();
        let refused = Mode::refuse(outcomes.map(|(at, decided)| {
            let denies = decided.as_ref().is_some_and(|one| !one.reply.decision.is_allowed());
            (self.grant(at).effective_mode(self.hits[at].mode), denies)
        }));
        for (at, decided) in decided.iter_mut().enumerate() {
            if let Some(decided) = decided {
                self.apply(at, decided, refused);
            }
        }
        for (at, hit) in self.hits.iter().enumerate() {
            if hit.action == Action::Reset || hit.action.returns_units() && !refused {
                self.return_units(at);
            }
        }
        let decided = decided.into_iter().enumerate();
        decided.map(|(at, one)| one.map_or_else(|| self.peek(at), |one| one.reply)).collect()
    }

    /// Commits the decision on a take, unless it is allowed but the request is refused. A denial is
    /// committed too, because it may change the state. All other decisions get the current numbers.
    fn apply(&mut self, at: usize, decided: &mut DecidedHit, refused: bool) {
        let DecidedHit { reply: HitReply { decision, taken, .. }, is_repeated } = decided;
        let Some(mut entry) = self.entry(at) else { return };
        match entry.hit.action {
            Action::Take(cost) if cost != Cost::NONE && !(refused && decision.is_allowed()) => {
                // By now the earlier hits have taken their units from the state.
                if *is_repeated {
                    *decision = match decision.outcome {
                        Outcome::Allowed => entry.decide(cost),
                        denied => entry.with_current_numbers(denied),
                    };
                }
                entry.commit(cost, decision);
                *taken = decision.outcome.taken(cost);
            }
            Action::Take(_) | Action::Peek(_) => {
                *decision = entry.with_current_numbers(decision.outcome);
            }
            // A report was executed before. The others have no decision yet: they come last.
            Action::Report(_)
            | Action::Refund(_)
            | Action::Credit(_)
            | Action::Reset
            | Action::SetOverride
            | Action::ClearOverride(_) => return,
        }
        decision.extend_waits(entry.slot.held_for());
    }

    /// Executes one hit independently of the others.
    fn execute_alone(&mut self, at: usize) -> HitReply {
        let action = self.hits[at].action;
        if action.returns_units() {
            self.return_units(at);
        }
        if action.returns_units() || action.changes_control() {
            return self.peek(at);
        }
        let Some(mut entry) = self.entry(at) else { return HitReply::new(self.uncounted(at), 0) };
        let mut reply = match action {
            Action::Take(cost) if cost != Cost::NONE => entry.take_remaining(cost),
            _ => entry.execute_other(),
        };
        reply.decision.extend_waits(entry.slot.held_for());
        reply
    }

    /// Executes a refund, a credit or a reset.
    fn return_units(&mut self, at: usize) {
        let hit = &self.hits[at];
        let limit = match self.overridden.get(at) {
            Some(Some(overridden)) => overridden.returns.as_ref(),
            _ => hit.grant.limit(),
        };
        if let Some(limit) = limit {
            Entry { hit, limit, slot: self.slots.slot(at) }.return_units();
        }
    }

    /// Returns the numbers of the state.
    fn peek(&mut self, at: usize) -> HitReply {
        let Some(entry) = self.entry(at) else { return HitReply::new(self.uncounted(at), 0) };
        let mut decision = entry.peek(Cost::NONE);
        decision.extend_waits(entry.slot.held_for());
        HitReply::new(decision, 0)
    }

    /// Returns the decision by a grant that is no limit. A ban by an override ends.
    fn uncounted(&mut self, at: usize) -> Decision {
        let ban_ends_at = self.overridden.get(at).and_then(|one| one.as_ref()?.ends_at());
        let is_unlimited = *self.grant(at) == Grant::Unlimited;
        let slot = self.slots.slot(at);
        let wait = ban_ends_at.map(|ends_at| ends_at.since(slot.time()));
        let outcome = match wait {
            _ if is_unlimited => Outcome::Allowed,
            Some(retry_after) => Outcome::Denied { retry_after },
            None => Outcome::Impossible,
        };
        let reset_after = wait.filter(|_| !is_unlimited).unwrap_or_default();
        Decision { at: slot.now(), reset_after, ..Decision::uncounted(outcome) }
    }

    /// Returns the grant that decides a hit.
    fn grant(&self, at: usize) -> &Grant {
        match self.overridden.get(at) {
            Some(Some(overridden)) => &overridden.grant,
            _ => self.hits[at].grant,
        }
    }

    /// Returns the cost of the hit plus the costs of the earlier takes from the same key.
    fn cost_up_to(&self, at: usize) -> Cost {
        let earlier = self.hits[..at].iter().enumerate().filter(|(other, hit)| {
            matches!(hit.action, Action::Take(_)) && self.slots.have_same_key(*other, at)
        });
        let units: u64 = earlier.map(|(_, hit)| hit.action.cost().units()).sum();
        let units = units + self.hits[at].action.cost().units();
        Cost::new(u32::try_from(units).unwrap_or(u32::MAX))
    }

    /// Returns the hit with its slot; `None` if its grant is no limit, and nothing is counted.
    fn entry(&mut self, at: usize) -> Option<Entry<'_, S::Slot<'_>>> {
        let hit = &self.hits[at];
        let grant = match self.overridden.get(at) {
            Some(Some(overridden)) => &overridden.grant,
            _ => hit.grant,
        };
        let limit = grant.limit()?;
        Some(Entry { hit, limit, slot: self.slots.slot(at) })
    }
}

/// One hit with a limit, and the slot of its key.
struct Entry<'h, S> {
    hit: &'h StoreHit<'h>,
    /// The limit by which it is decided.
    limit: &'h Limit,
    slot: S,
}

impl<S: Slot> Entry<'_, S> {
    fn decide(&self, cost: Cost) -> Decision {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        algorithm.decide(self.slot.state(), limit, self.slot.now(), cost)
    }

    /// Decides on the cost, but returns the numbers of the state as it is, without the cost.
    fn peek(&self, cost: Cost) -> Decision {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let (state, now) = (self.slot.state(), self.slot.now());
        let decision = algorithm.decide(state, limit, now, cost);
        if cost == Cost::NONE {
            return decision;
        }
        let outcome = decision.outcome;
        Decision { outcome, ..algorithm.decide(state, limit, now, Cost::NONE) }
    }

    /// Returns a decision with this outcome and the numbers of the current state.
    fn with_current_numbers(&self, outcome: Outcome) -> Decision {
        Decision { outcome, ..self.decide(Cost::NONE) }
    }

    /// Executes any action other than a take of some units.
    fn execute_other(&mut self) -> HitReply {
        let mut taken = 0;
        let decision = match self.hit.action {
            Action::Report(cost) if cost != Cost::NONE => {
                let decision;
                (decision, taken) = self.report(cost);
                decision
            }
            Action::Refund(_) | Action::Credit(_) | Action::Reset => {
                self.return_units();
                self.decide(Cost::NONE)
            }
            Action::Take(cost) | Action::Peek(cost) | Action::Report(cost) => self.peek(cost),
            Action::SetOverride | Action::ClearOverride(_) => self.decide(Cost::NONE),
        };
        HitReply::new(decision, taken)
    }

    /// Decides, and takes the cost if it is allowed.
    #[inline]
    fn take(&mut self, cost: Cost) -> Decision {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        let take = |state: &mut State| algorithm.take(state, limit, now, cost);
        if let Some(decision) = self.slot.update(take) {
            return decision;
        }
        let decision = algorithm.decide(&State::None, limit, now, cost);
        self.insert(cost, &decision);
        decision
    }

    /// Takes the cost, or the remaining units if the cost is denied.
    fn take_remaining(&mut self, cost: Cost) -> HitReply {
        let decision = self.take(cost);
        let left = u32::try_from(decision.remaining).ok().filter(|left| *left > 0);
        let Some(left) = left.filter(|_| !decision.is_allowed()) else {
            return HitReply::new(decision, decision.outcome.taken(cost));
        };
        let left = Cost::new(left.min(self.hit.algorithm.max_cost()));
        let taken = self.take(left).outcome.taken(left);
        HitReply::new(self.decide(cost), taken)
    }

    fn commit(&mut self, cost: Cost, decision: &Decision) {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        let updated = self.slot.update(|state| {
            algorithm.commit(state, limit, now, cost, decision);
            *decision
        });
        if updated.is_none() {
            self.insert(cost, decision);
        }
    }

    /// Creates the state after a decision. A denial creates none, so that denied requests use no
    /// memory.
    fn insert(&mut self, cost: Cost, decision: &Decision) {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        if decision.is_allowed() {
            self.slot.insert(|state| {
                algorithm.commit(state, limit, now, cost, decision);
                *decision
            });
        }
    }

    /// Counts the cost even if too few units are left. Returns the decision and the number of units
    /// that were counted.
    fn report(&mut self, cost: Cost) -> (Decision, u64) {
        let (algorithm, limit) = (self.hit.algorithm, self.limit);
        let now = self.slot.now();
        let mut counted = 0;
        let mut report = |state: &mut State| {
            let decision;
            (decision, counted) = algorithm.report(state, limit, now, cost);
            decision
        };
        let decision = match self.slot.update(&mut report) {
            Some(decision) => decision,
            None => self.slot.insert(report),
        };
        (decision, counted)
    }

    /// Executes a refund, a credit or a reset.
    fn return_units(&mut self) {
        let (algorithm, limit, action) = (self.hit.algorithm, self.limit, self.hit.action);
        let now = self.slot.now();
        match action {
            Action::Reset => {
                // The reset must be known while a refund of units taken before it could have an
                // effect: up to two windows (sliding window counter), or the time to fill.
                let window = limit.window();
                self.slot.record_reset(now + (window + window).max(limit.fill_time()));
            }
            Action::Refund(TakenUnits { cost: Cost::NONE, .. }) | Action::Credit(Cost::NONE) => {
                return;
            }
            Action::Refund(taken) if self.slot.was_reset_since(taken.at) => return,
            _ => {}
        }
        self.slot.update(|state| {
            match action {
                Action::Refund(taken) => algorithm.refund(state, limit, now, &taken),
                Action::Credit(cost) => algorithm.credit(state, limit, now, cost),
                _ => *state = State::None,
            }
            algorithm.decide(state, limit, now, Cost::NONE)
        });
    }
}
