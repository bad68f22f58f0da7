//! GCRA, the generic cell rate algorithm: the state is one point in time, the theoretical arrival
//! time (TAT) of the next request.
//!
//! GCRA decides as the token bucket does. Each unit moves the TAT by one emission interval (window
//! / limit), up to the burst tolerance (burst × window / limit) ahead of now. Fractions of a
//! microsecond are kept, so that no interval is rounded.
//!
//! The state also has the time of its last change and the rate at that time. After a change of the
//! rule they preserve the number of units in use rather than the time that these took.
//!
//! **Source:** ITU-T I.371 (2004), section 5.4.1, the virtual scheduling algorithm.

use super::limit::divide;
use super::{
    Cost, Decision, Limit, LimitChange, MAX_IN_USE, NEVER, Outcome, TakenUnits, is_from_the_future,
    stored, time_to_live,
};
use crate::clock::{Micros, Timestamp};

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;
pub(super) const MAX_COST: u32 = u32::MAX;

/// The theoretical arrival time (TAT) at its last change. Initial state: `at` is [`NEVER`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    tat: Timestamp,
    at: Timestamp,
    /// The rate: units per window.
    window: Micros,
    units: u32,
    /// The fraction of a microsecond of the TAT, in 1 / `units` of a microsecond: below `units`.
    part: u32,
}

impl Default for State {
    fn default() -> Self {
        Self { tat: Timestamp::EPOCH, at: NEVER, window: Micros::ZERO, units: 0, part: 0 }
    }
}

impl State {
    /// Creates the state whose TAT is `ahead` and `part` after `at`, at the rate of `limit`.
    #[inline]
    fn new(ahead: Micros, part: u64, at: Timestamp, limit: &Limit) -> Self {
        let (units, part) = (stored(limit.units()), stored(part));
        Self { tat: at + ahead, at, window: limit.window(), units, part }
    }

    pub(super) fn expires_at(&self) -> Timestamp {
        let at = self.at.min(self.tat); // Of the initial state, `at` is the end of time.
        time_to_live(at, self.tat.since(at) + Micros::from_micros(u64::from(self.part > 0)))
    }

    pub(super) fn is_valid(&self) -> bool {
        let (ahead, window) = (self.tat.since(self.at).as_micros(), self.window.as_micros());
        // The units in use.
        let product = u128::from(ahead) * u128::from(self.units);
        let in_use = product.checked_div(window.into());
        self.at == NEVER
            || self.part < self.units && in_use.is_some_and(|units| units <= MAX_IN_USE.into())
    }
}

/// Decides. `current_count` is the units in use after this request, `ttl` the time until none is in
/// use.
#[expect(clippy::inline_always, reason = "lets decide and commit share one read of the state")]
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

/// Moves the TAT forward by the cost.
#[expect(clippy::inline_always, reason = "lets decide and commit share one read of the state")]
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
    let (ahead, part) = later(ahead, part, limit, cost.units());
    *state = State::new(ahead, part, at, limit);
}

/// Moves the TAT forward by the cost, up to the burst tolerance and the debt.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (ahead, part, at) = ahead_of(state, limit, now);
    let units = cost.units().min(limit.max_in_use());
    let (ahead, part) = later(ahead, part, limit, units).min(limit.time_of_max_in_use());
    *state = State::new(ahead, part, at, limit);
}

/// Moves the TAT back by the part of the cost that is still outstanding; see
/// [`super::outstanding`].
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let (ahead, part, at) = ahead_of(state, limit, now);
    let left = (taken.at + taken.reset_after).since(now);
    let (whole, rest) = limit.time_of(taken.cost.units()).min((left, 0));
    *state = if (ahead, part) > (whole, rest) {
        let (ahead, part) = earlier(ahead, part, limit, whole, rest);
        State::new(ahead, part, at, limit)
    } else {
        State::default()
    };
}

/// Moves the TAT back by the cost, at most to now.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let reset_after = decide(state, limit, now, Cost::NONE).reset_after;
    refund(state, limit, now, &TakenUnits { cost, at: now, reset_after });
}

/// Leaves as many units, up to the burst.
pub(super) fn carry(state: &mut State, change: &LimitChange<'_>, now: Timestamp) {
    let (from, limit) = (change.from, change.to);
    let (ahead, part, at) = ahead_of(state, from, now);
    let (whole, rest) = from.units_in(ahead, part);
    let window = limit.window().as_micros();
    let (rest, is_cut) = divide(rest, window, 0, from.window().as_micros());
    let rest = rest + u64::from(is_cut > 0);
    *state = match (whole + limit.burst()).checked_sub(from.burst()) {
        Some(whole) if whole + rest > 0 => {
            let (ahead, part) = divide(whole, window, rest, limit.units());
            let ahead = Micros::from_micros(ahead);
            let (ahead, part) = (ahead, part).min(limit.time_of_max_in_use());
            State::new(ahead, part, at, limit)
        }
        _ => State::default(),
    };
}

/// Sets the TAT ahead by `used` emission intervals.
pub(super) fn convert(state: &mut State, change: &LimitChange<'_>, now: Timestamp, used: u64) {
    let (_, _, at) = ahead_of(state, change.from, now);
    let (ahead, part) = change.to.time_of(used);
    *state = State::new(ahead, part, at, change.to);
}

/// Returns how far the TAT is ahead, as microseconds and fraction, and the time to which this
/// refers: `now`, or later if the state is from later.
#[expect(clippy::inline_always, reason = "lets decide and commit share one read of the state")]
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

/// Returns how far the TAT was ahead at the last change, converted to the rate of `limit` so that
/// the number of units in use is the same.
#[expect(clippy::inline_always, reason = "lets decide and commit share one read of the state")]
#[inline(always)]
fn at_this_rate(state: &State, limit: &Limit) -> (Micros, u64) {
    if (u64::from(state.units), state.window) == (limit.units(), limit.window()) {
        return (state.tat.since(state.at), state.part.into());
    }
    at_changed_rate(state, limit)
}

#[cold]
fn at_changed_rate(state: &State, limit: &Limit) -> (Micros, u64) {
    let ahead = state.tat.since(state.at);
    let (units, part) = (u64::from(state.units), u64::from(state.part));
    let (whole, rest) = divide(ahead.as_micros(), units, part, state.window.as_micros());
    limit.time_of((whole + u64::from(rest > 0)).min(limit.max_in_use()))
}

/// Adds `units` emission intervals.
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

/// Subtracts a length and its fraction, which must not be the larger ones.
fn earlier(ahead: Micros, part: u64, limit: &Limit, whole: Micros, rest: u64) -> (Micros, u64) {
    if part >= rest {
        (ahead - whole, part - rest)
    } else {
        (ahead - whole - Micros::from_micros(1), part + limit.units() - rest)
    }
}
