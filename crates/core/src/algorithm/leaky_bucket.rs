//! Leaky bucket: a meter whose level leaks `limit` per window, and overflows above `burst`.
//!
//! Never more than burst + limit × elapsed / window in any span, reports aside. `delay` tells how
//! long to hold a request back so that the outflow stays even: a queue without the queue.

use super::{
    Cost, Decision, Limit, NEVER, Outcome, TakenUnits, is_from_the_future, outstanding, stored,
    time_to_live,
};
use crate::clock::Timestamp;

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;
pub(super) const MAX_COST: u32 = u32::MAX;

/// The meter as it was last left. None yet, or empty: left in a time that does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    /// The part of the topmost unit that has leaked, in units divided by the window's
    /// microseconds.
    part: u64,
    at: Timestamp,
    expires_at: Timestamp,
    level: u32,
}

impl Default for State {
    fn default() -> Self {
        Self { part: 0, at: NEVER, expires_at: Timestamp::EPOCH, level: 0 }
    }
}

impl State {
    pub(super) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// `current_count` is the level after this request, `ttl` the time until empty, `delay` the time
/// until what was in the bucket before this request has leaked.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let (level, part, _) = leaked(state, limit, now);
    let room = limit.remaining_of(limit.burst(), level);

    let wait = || limit.time_for((cost.units().cast_signed() - room).cast_unsigned(), part);
    let outcome = Outcome::new(cost, room, limit.burst(), wait);
    let taken = outcome.taken(cost);
    let until_empty = limit.time_for(level + taken, part);
    Decision {
        at: now,
        outcome,
        current_count: level + taken,
        remaining: room - taken.cast_signed(),
        reset_after: until_empty,
        ttl: until_empty,
        delay: limit.time_for(level, part),
    }
}

/// Pours the units in.
#[inline]
pub(super) fn commit(
    state: &mut State,
    limit: &Limit,
    now: Timestamp,
    cost: Cost,
    decision: &Decision,
) {
    if !decision.is_allowed() {
        return;
    }
    let (level, part, at) = leaked(state, limit, now);
    let expires_at = time_to_live(now, decision.reset_after);
    *state = State { level: stored(level + cost.units()), part, at, expires_at };
}

/// Pours the units in above the burst too, as far as debt may go.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (level, part, at) = leaked(state, limit, now);
    let (level, most) = (level + cost.units(), limit.max_in_use());
    let (level, part) = if level > most { (most, 0) } else { (level, part) };
    let expires_at = time_to_live(now, limit.time_for(level, part));
    *state = State { level: stored(level), part, at, expires_at };
}

/// Takes the units out that have not leaked yet.
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let (level, part, at) = leaked(state, limit, now);
    let (units, rest) = outstanding(limit, now, taken);
    let window = limit.window().as_micros();
    let level = level.saturating_sub(units + (part + rest) / window);
    let part = (part + rest) % window;
    *state = if level > 0 {
        let until_empty = limit.time_for(level, part);
        State { level: stored(level), part, at, expires_at: time_to_live(now, until_empty) }
    } else {
        State::default()
    };
}

/// Takes units out, at most all.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let reset_after = decide(state, limit, now, Cost::NONE).reset_after;
    refund(state, limit, now, &TakenUnits { cost, at: now, reset_after });
}

/// The level at `now`, the part of its topmost unit that has leaked, and the time that they are
/// of. A level above all that can be in use, which a rule that was changed may leave, counts as
/// that.
#[inline]
fn leaked(state: &State, limit: &Limit, now: Timestamp) -> (u64, u64, Timestamp) {
    if is_from_the_future(state.at, now, limit) {
        return (0, 0, now);
    }
    let elapsed = now.since(state.at).min(limit.fill_time());
    let part = state.part.min(limit.window().as_micros() - 1);
    let (gone, part) = limit.units_in(elapsed, part);
    let level = limit.max_in_use().min(state.level.into()).saturating_sub(gone);
    (level, if level == 0 { 0 } else { part }, state.at.max(now))
}
