//! Token bucket: starts with `burst` tokens and is refilled continuously at `limit` per window.
//!
//! In any span of time at most burst + limit × span / window units pass, reports aside. Fractions
//! of a token are kept, so that no rate is rounded.

use super::limit::divide;
use super::{
    Cost, Decision, Limit, LimitChange, MAX_COUNT, MAX_IN_USE, NEVER, Outcome, TakenUnits,
    is_from_the_future, outstanding, time_to_live,
};
use crate::clock::{Micros, Timestamp};

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;
pub(super) const MAX_COST: u32 = u32::MAX;

/// The tokens at the last change. Initial state, and state of a full bucket: `at` is [`NEVER`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    /// The fraction of the next token, in 1 / window microseconds of a token.
    part: u64,
    at: Timestamp,
    expires_at: Timestamp,
    /// Negative: debt.
    tokens: i64,
}

impl Default for State {
    fn default() -> Self {
        Self { part: 0, at: NEVER, expires_at: Timestamp::EPOCH, tokens: 0 }
    }
}

impl State {
    /// Creates the state of a bucket with at most `burst` tokens.
    fn new(limit: &Limit, now: Timestamp, tokens: i64, part: u64, at: Timestamp) -> Self {
        let burst = limit.burst().cast_signed();
        let (tokens, part) = if tokens >= burst { (burst, 0) } else { (tokens, part) };
        if tokens == limit.shared_burst().cast_signed() {
            return Self::default();
        }
        let until_full = limit.time_for(in_use(limit, tokens), part);
        let expires_at = time_to_live(now, until_full.max(until_largest_full(limit, tokens)));
        Self { part, at, expires_at, tokens }
    }

    pub(super) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    pub(super) fn is_valid(&self) -> bool {
        self.part <= MAX_COUNT && self.tokens.unsigned_abs() <= MAX_IN_USE
    }
}

/// Decides. `current_count` is the units in use after this request, `ttl` the time until the bucket
/// is full.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let (tokens, part, _) = refilled(state, limit, now);

    let wait = || limit.time_for((cost.units().cast_signed() - tokens).cast_unsigned(), part);
    let outcome = Outcome::new(cost, tokens, limit.burst(), wait);
    let taken = outcome.taken(cost);
    let left = tokens - taken.cast_signed();
    let in_use = in_use(limit, left);
    let until_full = limit.time_for(in_use, part);
    Decision {
        at: now,
        outcome,
        current_count: in_use,
        remaining: left,
        reset_after: until_full,
        ttl: until_full,
        delay: Micros::ZERO,
    }
}

/// Removes the cost from the tokens.
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
    let (tokens, part, at) = refilled(state, limit, now);
    let tokens = tokens - cost.units().cast_signed();
    let expires_at = time_to_live(now, decision.reset_after.max(until_largest_full(limit, tokens)));
    *state = State { part, at, expires_at, tokens };
}

/// Removes the cost from the tokens, down to the debt.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (tokens, part, at) = refilled(state, limit, now);
    let (tokens, least) = (tokens - cost.units().cast_signed(), -limit.debt().cast_signed());
    let (tokens, part) = if tokens < least { (least, 0) } else { (tokens, part) };
    *state = State::new(limit, now, tokens, part, at);
}

/// Adds the tokens that have not been refilled yet; see [`super::outstanding`].
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let (tokens, part, at) = refilled(state, limit, now);
    let (units, rest) = outstanding(limit, now, taken);
    let window = limit.window().as_micros();
    let tokens = tokens + (units + (part + rest) / window).cast_signed();
    let part = (part + rest) % window;
    *state = State::new(limit, now, tokens, part, at);
}

/// Adds the cost to the tokens, at most up to the burst.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let reset_after = decide(state, limit, now, Cost::NONE).reset_after;
    refund(state, limit, now, &TakenUnits { cost, at: now, reset_after });
}

/// Leaves as many tokens, up to the burst.
pub(super) fn carry(state: &mut State, change: &LimitChange<'_>, now: Timestamp) {
    let limit = change.to;
    let (tokens, part, at) = refilled(state, change.from, now);
    let (tokens, part) = (tokens.max(-limit.debt().cast_signed()), change.part_after(part));
    *state = State::new(limit, now, tokens, part, at);
}

/// Leaves all tokens but `used`.
pub(super) fn convert(state: &mut State, change: &LimitChange<'_>, now: Timestamp, used: u64) {
    let (_, _, at) = refilled(state, change.from, now);
    let tokens = change.to.burst().cast_signed() - used.cast_signed();
    *state = State::new(change.to, now, tokens, 0, at);
}

/// Returns the tokens, the fraction of the next one, and the time to which they refer: `now`, or
/// later if the state is from later.
///
/// After a change of the rule the stored debt may be larger than the limit allows; it is cut.
#[inline]
fn refilled(state: &State, limit: &Limit, now: Timestamp) -> (i64, u64, Timestamp) {
    let (burst, least) = (limit.burst().cast_signed(), -limit.debt().cast_signed());
    if is_from_the_future(state.at, now, limit) {
        return (burst, 0, now);
    }
    let elapsed = now.since(state.at).min(limit.fill_time());
    let part = state.part.min(limit.window().as_micros() - 1);
    let (gained, part) = limit.units_in(elapsed, part);
    let tokens = state.tokens.max(least) + gained.cast_signed();
    let (tokens, part) = if tokens >= burst { (burst, 0) } else { (tokens, part) };
    (tokens, part, state.at.max(now))
}

/// Returns the tokens that are missing from a full bucket, debt included.
#[inline]
fn in_use(limit: &Limit, tokens: i64) -> u64 {
    (limit.burst().cast_signed() - tokens).cast_unsigned()
}

/// Returns the time in which the largest burst of the limits on the state becomes available at their
/// largest rate: the state matters to one of them until then. Zero for a limit that decides alone.
#[inline]
fn until_largest_full(limit: &Limit, tokens: i64) -> Micros {
    let Some(units) = limit.shared_units() else { return Micros::ZERO };
    let missing = (limit.shared_burst().cast_signed() - tokens).cast_unsigned();
    let (whole, rest) = divide(missing, limit.window().as_micros(), 0, units);
    Micros::from_micros(whole + u64::from(rest > 0))
}
