//! GCRA, the generic cell rate algorithm: the state is one point in time, the theoretical arrival
//! time (tat) of the next request.
//!
//! It decides as the token bucket does: each unit moves the tat by one emission interval, window /
//! limit, and may move it up to the burst tolerance, burst × window / limit, ahead of now. The
//! tat's part below a microsecond is kept, so that no interval is ever rounded.
//!
//! Beside the tat stand the time that it is of and the rate that it was made with: a rule that is
//! changed finds as many units in use as there were, and not as much time.
//!
//! **Source:** ITU-T I.371 (2004), section 5.4.1, the virtual scheduling algorithm.

use super::limit::divide;
use super::{
    Cost, Decision, Limit, MARGIN, NEVER, Outcome, TakenUnits, is_from_the_future, stored,
};
use crate::clock::{Micros, Timestamp};

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;
pub(super) const MAX_COST: u32 = u32::MAX;

/// The theoretical arrival time as it was last left. None yet: left in a time that does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    tat: Timestamp,
    at: Timestamp,
    /// The rate: units per window.
    window: Micros,
    units: u32,
    /// The tat's part below a microsecond, in microseconds divided by the units of the rate: fewer
    /// than those.
    part: u32,
}

impl Default for State {
    fn default() -> Self {
        Self { tat: Timestamp::EPOCH, at: NEVER, window: Micros::ZERO, units: 0, part: 0 }
    }
}

impl State {
    /// The tat that is so far ahead of `at`, at the rate of `limit`.
    #[inline]
    fn new((ahead, part): (Micros, u64), at: Timestamp, limit: &Limit) -> Self {
        let (units, part) = (stored(limit.units()), stored(part));
        Self { tat: at + ahead, at, window: limit.window(), units, part }
    }

    pub(super) fn expires_at(&self) -> Timestamp {
        self.tat + MARGIN
    }
}

/// `current_count` is the units in use after this request, `ttl` the time until none is.
#[expect(clippy::inline_always, reason = "decided and committed at once, the state is read once")]
#[inline(always)]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let (ahead, part, _) = ahead_of(state, limit, now);
    let (whole, rest) = limit.units_in(ahead, part);
    let in_use = whole + u64::from(rest > 0);
    let available = limit.remaining_of(limit.burst(), in_use);

    let wait = || {
        let (room, room_part) = limit.time_of(limit.burst() - cost.units());
        ahead - room + Micros::from_micros(u64::from(part > room_part))
    };
    let outcome = Outcome::new(cost, available, limit.burst(), wait);
    let taken = outcome.taken(cost);
    let (ahead, part) = later(ahead, part, limit, taken);
    let until_unused = ahead + Micros::from_micros(u64::from(part > 0));
    Decision {
        at: now,
        outcome,
        current_count: in_use + taken,
        remaining: available - taken.cast_signed(),
        reset_after: until_unused,
        ttl: until_unused,
        delay: Micros::ZERO,
    }
}

/// Moves the tat.
#[expect(clippy::inline_always, reason = "decided and committed at once, the state is read once")]
#[inline(always)]
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
    let (ahead, part, at) = ahead_of(state, limit, now);
    *state = State::new(later(ahead, part, limit, cost.units()), at, limit);
}

/// Moves the tat beyond the burst tolerance too, as far as debt may go.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (ahead, part, at) = ahead_of(state, limit, now);
    let units = cost.units().min(limit.max_in_use());
    *state =
        State::new(later(ahead, part, limit, units).min(limit.time_of_max_in_use()), at, limit);
}

/// Moves the tat back by what of the emission intervals is still ahead; see [`super::outstanding`].
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let (ahead, part, at) = ahead_of(state, limit, now);
    let left = (taken.at + taken.reset_after).since(now);
    let (whole, rest) = limit.time_of(taken.cost.units()).min((left, 0));
    *state = if (ahead, part) > (whole, rest) {
        State::new(earlier(ahead, part, limit, (whole, rest)), at, limit)
    } else {
        State::default()
    };
}

/// Moves the tat back by the emission intervals of the cost, at most to now.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let reset_after = decide(state, limit, now, Cost::NONE).reset_after;
    refund(state, limit, now, &TakenUnits { cost, at: now, reset_after });
}

/// How far the tat is ahead of `now`, and the time that this is of.
#[expect(clippy::inline_always, reason = "decided and committed at once, the state is read once")]
#[inline(always)]
fn ahead_of(state: &State, limit: &Limit, now: Timestamp) -> (Micros, u64, Timestamp) {
    if is_from_the_future(state.at, now, limit) {
        return (Micros::ZERO, 0, now);
    }
    let (ahead, part) = at_this_rate(state, limit).min(limit.time_of_max_in_use());
    let elapsed = now.since(state.at);
    if elapsed > ahead {
        return (Micros::ZERO, 0, now);
    }
    (ahead - elapsed, part, state.at.max(now))
}

/// How far the tat was ahead, at the rate of `limit`: as many units are in use at any rate.
#[inline]
fn at_this_rate(state: &State, limit: &Limit) -> (Micros, u64) {
    let ahead = state.tat.since(state.at);
    let (units, part) = (u64::from(state.units), u64::from(state.part));
    if (units, state.window) == (limit.units(), limit.window()) {
        return (ahead, part);
    }
    let (whole, rest) = divide(ahead.as_micros(), units, part, state.window.as_micros());
    limit.time_of((whole + u64::from(rest > 0)).min(limit.max_in_use()))
}

/// A point in time `units` emission intervals later.
#[inline]
fn later(ahead: Micros, part: u64, limit: &Limit, units: u64) -> (Micros, u64) {
    let (whole, rest) = limit.time_of(units);
    let (sum, carry) = if part + rest < limit.units() {
        (part + rest, 0)
    } else {
        (part + rest - limit.units(), 1)
    };
    (ahead + whole + Micros::from_micros(carry), sum)
}

/// A point in time earlier by a length and its part, which are not more.
fn earlier(ahead: Micros, part: u64, limit: &Limit, by: (Micros, u64)) -> (Micros, u64) {
    let (whole, rest) = by;
    if part >= rest {
        (ahead - whole, part - rest)
    } else {
        (ahead - whole - Micros::from_micros(1), part + limit.units() - rest)
    }
}
