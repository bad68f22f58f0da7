//! Leaky bucket: a meter whose level leaks `limit` per window, and overflows above `burst`.
//!
//! Never more than burst + limit × elapsed / window in any span. `delay` tells how long to hold a
//! request back so that the outflow stays even: a queue without the queue.

use super::{Cost, Decision, Limit, Outcome, is_from_the_future, still_out, time_to_live};
use crate::clock::Timestamp;

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;

/// The meter as it was last left. None yet: empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State(Option<Meter>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meter {
    level: u64,
    /// The part of the topmost unit that has leaked, in units divided by the window's
    /// microseconds.
    part: u64,
    at: Timestamp,
    expires_at: Timestamp,
}

impl State {
    pub(super) fn expires_at(&self) -> Timestamp {
        self.0.map_or(Timestamp::EPOCH, |meter| meter.expires_at)
    }
}

/// `current_count` is the level after this request, `ttl` the time until empty, `delay` the time
/// until what was in the bucket before this request has leaked.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let (level, part, _) = leaked(state, limit, now);
    let room = limit.burst() - level;

    let wait = || limit.time_for(cost.units() - room, part);
    let outcome = Outcome::of(cost, room, limit.burst(), wait);
    let taken = outcome.taken(cost);
    let until_empty = limit.time_for(level + taken, part);
    Decision {
        at: now,
        outcome,
        current_count: level + taken,
        remaining: room - taken,
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
    state.0 = Some(Meter { level: level + cost.units(), part, at, expires_at });
}

/// Takes the units out that have not leaked yet.
pub(super) fn give_back(
    state: &mut State,
    limit: &Limit,
    now: Timestamp,
    cost: Cost,
    taken: &Decision,
) {
    let (level, part, at) = leaked(state, limit, now);
    let (units, rest) = still_out(limit, now, cost, taken);
    let window = limit.window().as_micros();
    let level = level.saturating_sub(units + (part + rest) / window);
    let part = (part + rest) % window;
    state.0 = (level > 0).then(|| {
        let until_empty = limit.time_for(level, part);
        Meter { level, part, at, expires_at: time_to_live(now, until_empty) }
    });
}

/// The level at `now`, the part of its topmost unit that has leaked, and the time that they are
/// of. A level above the burst, which a rule that was changed may leave, counts as the burst.
#[inline]
fn leaked(state: &State, limit: &Limit, now: Timestamp) -> (u64, u64, Timestamp) {
    let known = state.0.filter(|meter| !is_from_the_future(meter.at, now, limit));
    let Some(meter) = known else { return (0, 0, now) };
    let elapsed = now.since(meter.at).min(limit.fill_time());
    let part = meter.part.min(limit.window().as_micros() - 1);
    let (gone, part) = limit.units_in(elapsed, part);
    let level = meter.level.min(limit.burst()).saturating_sub(gone);
    (level, if level == 0 { 0 } else { part }, meter.at.max(now))
}
