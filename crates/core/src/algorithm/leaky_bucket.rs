//! Leaky bucket as a meter: the level drains at `limit` per window and must not exceed `burst`.
//!
//! In any span of time at most burst + limit × span / window units pass, reports aside. `delay` is
//! the time for which to hold a request back so that requests leave at an even pace, as they would
//! leave a queue.

use super::{
    Cost, Decision, Limit, LimitChange, MAX_COUNT, MAX_IN_USE, NEVER, Outcome, TakenUnits,
    is_from_the_future, outstanding, time_to_live,
};
use crate::clock::Timestamp;

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;
pub(super) const MAX_COST: u32 = u32::MAX;

/// The level at its last change. Initial state, and state of an empty bucket: `at` is [`NEVER`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    /// The fraction of the topmost unit that has drained, in 1 / window microseconds of a unit.
    part: u64,
    at: Timestamp,
    expires_at: Timestamp,
    level: u64,
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

    pub(super) fn is_valid(&self) -> bool {
        self.part <= MAX_COUNT && self.level <= MAX_IN_USE
    }
}

/// Decides. `current_count` is the level after this request, `ttl` the time until the bucket is
/// empty, `delay` the time until the level before this request has drained.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let (level, part, _) = leaked(state, limit, now);
    let room = limit.remaining_of(limit.burst(), level);

    let wait = || limit.time_for(level + cost.units() - limit.burst(), part);
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

/// Adds the cost to the level.
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
    *state = State { level: level + cost.units(), part, at, expires_at };
}

/// Adds the cost to the level, up to the burst and the debt.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (level, part, at) = leaked(state, limit, now);
    let (level, most) = (level + cost.units(), limit.max_in_use());
    let (level, part) = if level > most { (most, 0) } else { (level, part) };
    let expires_at = time_to_live(now, limit.time_for(level, part));
    *state = State { part, at, expires_at, level };
}

/// Subtracts the units that have not drained yet; see [`super::outstanding`].
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let (level, part, at) = leaked(state, limit, now);
    let (units, rest) = outstanding(limit, now, taken);
    let window = limit.window().as_micros();
    let level = level.saturating_sub(units + (part + rest) / window);
    let part = (part + rest) % window;
    *state = if level > 0 {
        let until_empty = limit.time_for(level, part);
        State { level, part, at, expires_at: time_to_live(now, until_empty) }
    } else {
        State::default()
    };
}

/// Subtracts the cost, at most down to 0.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let reset_after = decide(state, limit, now, Cost::NONE).reset_after;
    refund(state, limit, now, &TakenUnits { cost, at: now, reset_after });
}

/// Leaves as much room, up to the burst.
pub(super) fn carry(state: &mut State, change: &LimitChange<'_>, now: Timestamp) {
    let (from, limit) = (change.from, change.to);
    let (level, part, at) = leaked(state, from, now);
    let level = (level + limit.burst()).saturating_sub(from.burst());
    let (level, part) = if level > limit.max_in_use() {
        (limit.max_in_use(), 0)
    } else {
        (level, change.part_after(part))
    };
    *state = if level > 0 {
        let expires_at = time_to_live(now, limit.time_for(level, part));
        State { part, at, expires_at, level }
    } else {
        State::default()
    };
}

/// Sets the level to `used` units.
pub(super) fn convert(state: &mut State, change: &LimitChange<'_>, now: Timestamp, used: u64) {
    let (_, _, at) = leaked(state, change.from, now);
    let expires_at = time_to_live(now, change.to.time_for(used, 0));
    *state = State { part: 0, at, expires_at, level: used };
}

/// Returns the level, the fraction of its topmost unit that has drained, and the time to which they
/// refer: `now`, or later if the state is from later.
///
/// After a change of the rule the stored level may be above the largest burst and the debt; it is cut
/// to them.
#[inline]
fn leaked(state: &State, limit: &Limit, now: Timestamp) -> (u64, u64, Timestamp) {
    if is_from_the_future(state.at, now, limit) {
        return (0, 0, now);
    }
    let elapsed = now.since(state.at).min(limit.fill_time());
    let part = state.part.min(limit.window().as_micros() - 1);
    let (gone, part) = limit.units_in(elapsed, part);
    let level = limit.max_in_use().min(state.level).saturating_sub(gone);
    (level, if level == 0 { 0 } else { part }, state.at.max(now))
}
