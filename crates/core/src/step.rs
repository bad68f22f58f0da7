//! One atomic step of a store: decides each hit of a request on the state of its key.
//!
//! The store provides access to the states ([`Slots`]); this module changes them. It knows no locks
//! and no transactions: the calling store ensures that nobody else changes the states meanwhile, or
//! discards the changes if someone did. A store that reads and writes all data of a key at once
//! keeps [`Record`]s and calls [`execute_on_records`].

mod changed_limit;
mod entry;
mod overridden;
mod record;
mod reserved;
mod slot;
mod what_is_there;

pub use record::{Record, Records, execute_on_records};
pub use slot::{Slot, Slots};

use smallvec::SmallVec;

use self::entry::Entry;
use self::overridden::{Overridden, change_control};
use self::reserved::Holding;
use self::slot::OneSlot;
use crate::algorithm::{Cost, Decision, OnChange, Outcome};
use crate::operation::{Action, HitReply, Reply, Shard, StoreHit, StoreRequest};
use crate::rules::{Coupling, Grant, Mode};

/// Decides every hit of a request.
pub fn execute(request: StoreRequest<'_>, slots: impl Slots) -> Reply {
    let StoreRequest { hits, coupling, reservation, .. } = request;
    let holding = reservation.map(|reservation| Holding::new(*reservation));
    let (overridden, without_space) = (SmallVec::new(), SmallVec::new());
    let actions = Vec::new();
    let mut step = AtomicStep { hits, actions, slots, overridden, holding, without_space };
    let keeps_limits = hits.iter().any(|hit| hit.on_change.is_some());
    if hits.iter().any(|hit| hit.overridable) {
        step.overridden.resize_with(hits.len(), || None);
    }
    let mut replies = match coupling {
        Coupling::AllOrNothing => {
            (0..hits.len()).for_each(|at| step.change_control(at));
            (0..hits.len()).for_each(|at| step.read_control(at));
            step.set_costs();
            if keeps_limits {
                (0..hits.len()).for_each(|at| step.adopt_limit(at));
            }
            step.reserved()
        }
        Coupling::EachAlone => {
            let alone = |at| {
                step.change_control(at);
                step.read_control(at);
                step.adopt_limit(at);
                step.execute_alone(at)
            };
            (0..hits.len()).map(alone).collect()
        }
    };
    if keeps_limits {
        let taken = replies.iter().map(|reply| reply.taken);
        taken.enumerate().for_each(|(at, taken)| step.record_limit(at, taken));
    }
    for (at, reply) in replies.iter_mut().enumerate() {
        reply.held = step.held(at, &reply.decision);
        if let Some(held) = &mut reply.held {
            held.denies |= step.without_space.contains(&at);
        }
    }
    let reservation = step.holding.and_then(|holding| holding.reply);
    for (reply, overridden) in replies.iter_mut().zip(step.overridden) {
        reply.applied = overridden.and_then(|own| own.applied);
    }
    Reply { hits: replies, replayed: None, reservation }
}

/// Decides a request of one hit: the common case of [`execute`], with [`Coupling::AllOrNothing`].
#[inline]
pub fn execute_one(hit: &StoreHit<'_>, slot: impl Slot) -> HitReply {
    let needs_more = hit.overridable
        || hit.max_holds.is_some()
        || hit.at_least.is_some()
        || hit.headroom.is_some();
    let (Grant::Limited(limit), false) = (hit.grant, needs_more) else {
        return execute_with_more(hit, slot);
    };
    let mut entry = Entry { hit, limit, on_change: hit.on_change, slot };
    let keeps_limits = hit.on_change.is_some() && hit.action.counts();
    if keeps_limits {
        entry.adopt_limit();
    }
    let mut reply = match hit.action {
        Action::Take(cost) if cost != Cost::NONE => {
            let decision = entry.take(cost);
            HitReply::new(decision, decision.outcome.taken(cost))
        }
        _ => entry.execute_other(),
    };
    if keeps_limits {
        entry.record_limit(reply.taken);
    }
    reply.decision.extend_waits(entry.slot.frozen_for());
    reply
}

/// Decides a request of one hit whose grant may not be a limit, or that needs more than the state.
#[inline(never)]
fn execute_with_more(hit: &StoreHit<'_>, slot: impl Slot) -> HitReply {
    let hits = std::slice::from_ref(hit);
    let (coupling, shard) = (Coupling::AllOrNothing, Shard::default());
    let request = StoreRequest { hits, coupling, shard, once: None, reservation: None };
    execute(request, OneSlot(slot)).hits.swap_remove(0)
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
    /// The actions of the hits, where their costs depend on the keys; else empty.
    actions: Vec<Action>,
    slots: S,
    /// What decides each overridable hit; empty if there is none.
    overridden: SmallVec<[Option<Box<Overridden>>; 1]>,
    /// The reservation of the request.
    holding: Option<Holding>,
    /// Hits that would hold if the store had space.
    without_space: SmallVec<[usize; 2]>,
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

    /// Converts the state of a hit if its limit has changed.
    fn adopt_limit(&mut self, at: usize) {
        let hit = &self.hits[at];
        if hit.on_change.is_some()
            && hit.action.counts()
            && let Some(mut entry) = self.entry(at)
        {
            entry.adopt_limit();
        }
    }

    /// Records the limit of a hit that has taken units, or whose key has such a record.
    fn record_limit(&mut self, at: usize, taken: u64) {
        let hit = &self.hits[at];
        if hit.on_change.is_some()
            && hit.action.counts()
            && let Some(mut entry) = self.entry(at)
        {
            entry.record_limit(taken);
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
            if hit.action.decides() {
                decided[at] = Some(self.decide(at));
            }
        }
        let refused = self.is_refused(&decided);
        self.take_what_is_there(&mut decided, refused);
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
        decided.map(|(at, hit)| hit.map_or_else(|| self.peek(at), |hit| hit.reply)).collect()
    }

    /// Decides on the cost of a hit, and on the costs of the earlier takes from the same key.
    fn decide(&mut self, at: usize) -> DecidedHit {
        let (action, sum) = (self.action(at), self.cost_up_to(at));
        let holding = self.holding.clone();
        let counted = self.entry(at).map(|entry| match (action, &holding) {
            (Action::Hold(cost), Some(holding)) => entry.decide_hold(cost, holding),
            _ => entry.decide(sum),
        });
        let decision = match counted {
            Some(decision) => self.within_space(at, decision),
            None => self.uncounted(at),
        };
        DecidedHit { reply: HitReply::new(decision, 0), is_repeated: sum != action.cost() }
    }

    /// Denies a hold for which the store has no space.
    fn within_space(&mut self, at: usize, decision: Decision) -> Decision {
        let wait = self.slots.slot(at).wait_for_space();
        let (Some(wait), Action::Hold(_)) = (wait, self.hits[at].action) else { return decision };
        let retry_after = match decision.outcome {
            Outcome::Impossible => return decision,
            Outcome::Denied { retry_after } => retry_after.max(wait),
            Outcome::Allowed => {
                self.without_space.push(at);
                wait
            }
        };
        Decision { outcome: Outcome::Denied { retry_after }, ..decision }
    }

    /// Returns `true` if the hits refuse the request.
    fn is_refused(&self, decided: &[Option<DecidedHit>]) -> bool {
        Mode::refuse(decided.iter().enumerate().map(|(at, decided)| {
            let denies = decided.as_ref().is_some_and(|hit| !hit.reply.decision.is_allowed());
            (self.grant(at).effective_mode(self.hits[at].mode), denies)
        }))
    }

    /// Commits the decision on a take, unless it is allowed but the request is refused. A denial is
    /// committed too, because it may change the state. All other decisions get the current numbers.
    fn apply(&mut self, at: usize, decided: &mut DecidedHit, refused: bool) {
        let DecidedHit { reply: HitReply { decision, taken, .. }, is_repeated } = decided;
        let action = self.action(at);
        if let Action::Hold(cost) = action
            && !refused
        {
            let is_renewed = self.holding.as_ref().is_some_and(Holding::extends);
            // An unlimited key is allowed without a hold where there is no space for one.
            if decision.is_allowed() && self.slots.slot(at).wait_for_space().is_none() {
                self.hold(at, cost);
            } else if is_renewed {
                // In shadow mode a hold is renewed even where no units are added.
                self.hold(at, Cost::NONE);
            }
        }
        let Some(mut entry) = self.entry(at) else { return };
        match action {
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
            Action::Take(_) | Action::Peek(_) | Action::Hold(_) => {
                *decision = entry.with_current_numbers(decision.outcome);
            }
            // A report was executed before. The others have no decision yet: they come last.
            Action::Report(_)
            | Action::Settle(_)
            | Action::Refund(_)
            | Action::Credit(_)
            | Action::Reset
            | Action::SetOverride
            | Action::ClearOverride(_) => return,
        }
        decision.extend_waits(entry.slot.frozen_for());
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
        let Some(mut entry) = self.entry(at) else {
            let taken = self.charge_beneath(at);
            return HitReply::new(self.uncounted(at), taken);
        };
        let mut reply = match action {
            Action::Take(cost) if cost != Cost::NONE => entry.take_remaining(cost),
            _ => entry.execute_other(),
        };
        reply.decision.extend_waits(entry.slot.frozen_for());
        reply
    }

    /// Counts a report by the limit beneath a grant that is none. Returns the units that were counted.
    fn charge_beneath(&mut self, at: usize) -> u64 {
        let hit = &self.hits[at];
        let beneath = self.overridden.get(at).and_then(|own| own.as_ref()?.charges);
        let (Action::Report(cost), Some(limit)) = (hit.action, beneath) else { return 0 };
        let slot = self.slots.slot(at);
        let mut entry = Entry { hit, limit: &limit, on_change: None, slot };
        if cost == Cost::NONE { 0 } else { entry.report(cost).1 }
    }

    /// Executes a refund, a credit or a reset.
    fn return_units(&mut self, at: usize) {
        let hit = &self.hits[at];
        let limit = match self.overridden.get(at) {
            Some(Some(overridden)) => overridden.returns.as_ref(),
            _ => hit.grant.limit(),
        };
        if let Some(limit) = limit {
            let on_change = own_policy(hit, self.overridden.get(at));
            Entry { hit, limit, on_change, slot: self.slots.slot(at) }.return_units();
        }
    }

    /// Returns the numbers of the state.
    fn peek(&mut self, at: usize) -> HitReply {
        let Some(entry) = self.entry(at) else { return HitReply::new(self.uncounted(at), 0) };
        let mut decision = entry.peek(Cost::NONE);
        decision.extend_waits(entry.slot.frozen_for());
        HitReply::new(decision, 0)
    }

    /// Returns the decision by a grant that is no limit. A ban by an override ends; those who look
    /// at the key see what it has used.
    fn uncounted(&mut self, at: usize) -> Decision {
        let hit = &self.hits[at];
        let shown = self.overridden.get(at).filter(|_| hit.action.shows_control());
        let beneath = shown.and_then(|own| own.as_ref()?.beneath);
        let used = beneath.map_or(0, |limit| {
            let entry = Entry { hit, limit: &limit, on_change: None, slot: self.slots.slot(at) };
            entry.peek(Cost::NONE).current_count
        });
        let ban_ends_at = self.overridden.get(at).and_then(|own| own.as_ref()?.ends_at());
        let is_unlimited = *self.grant(at) == Grant::Unlimited;
        let slot = self.slots.slot(at);
        let wait = ban_ends_at.map(|ends_at| ends_at.since(slot.time()));
        let outcome = match wait {
            _ if is_unlimited => Outcome::Allowed,
            Some(retry_after) => Outcome::Denied { retry_after },
            None => Outcome::Impossible,
        };
        let reset_after = wait.filter(|_| !is_unlimited).unwrap_or_default();
        let at = slot.now();
        Decision { at, reset_after, current_count: used, ..Decision::uncounted(outcome) }
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
        let units: u64 = earlier.map(|(other, _)| self.action(other).cost().units()).sum();
        Cost::total(units + self.action(at).cost().units())
    }

    /// Returns the hit with its slot; `None` if its grant is no limit, and nothing is counted.
    fn entry(&mut self, at: usize) -> Option<Entry<'_, S::Slot<'_>>> {
        let hit = &self.hits[at];
        let grant = match self.overridden.get(at) {
            Some(Some(overridden)) => &overridden.grant,
            _ => hit.grant,
        };
        let limit = grant.limit()?;
        let on_change = own_policy(hit, self.overridden.get(at));
        Some(Entry { hit, limit, on_change, slot: self.slots.slot(at) })
    }
}

/// Returns the policy for a change of the limit of a hit; `None` if an override decides the hit.
fn own_policy(
    hit: &StoreHit<'_>,
    overridden: Option<&Option<Box<Overridden>>>,
) -> Option<OnChange> {
    let is_overridden =
        overridden.and_then(Option::as_ref).is_some_and(|own| own.applied.is_some());
    hit.on_change.filter(|_| !is_overridden)
}
