//! Token bucket: `burst` tokens at first, refilled continuously at `limit` per window.
//!
//! Never more than burst + limit × elapsed / window in any span, reports aside. Parts of a token are
//! kept, so that no rate is ever rounded.

use super::{
    Cost, Decision, Limit, NEVER, Outcome, TakenUnits, is_from_the_future, outstanding,
    time_to_live,
};
use crate::clock::{Micros, Timestamp};

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;
pub(super) const MAX_COST: u32 = u32::MAX;

/// The bucket as it was last left. None yet, or full: left in a time that does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    /// The part of the next token, in tokens divided by the window's microseconds.
    part: u64,
    at: Timestamp,
    expires_at: Timestamp,
    /// Below 0 they are owed.
    tokens: i32,
}

impl Default for State {
    fn default() -> Self {
        Self { part: 0, at: NEVER, expires_at: Timestamp::EPOCH, tokens: 0 }
    }
}

impl State {
    pub(super) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

/// `current_count` is the units in use after this request, `ttl` the time until full.
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

/// Takes the tokens.
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
    let expires_at = time_to_live(now, decision.reset_after);
    let tokens = stored(tokens - cost.units().cast_signed());
    *state = State { part, at, expires_at, tokens };
}

/// Takes tokens that are not there too, as far as debt may go.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (tokens, part, at) = refilled(state, limit, now);
    let (tokens, least) = (tokens - cost.units().cast_signed(), -limit.debt().cast_signed());
    let (tokens, part) = if tokens < least { (least, 0) } else { (tokens, part) };
    let expires_at = time_to_live(now, limit.time_for(in_use(limit, tokens), part));
    *state = State { part, at, expires_at, tokens: stored(tokens) };
}

/// Puts the tokens back that are still out.
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let (tokens, part, at) = refilled(state, limit, now);
    let (units, rest) = outstanding(limit, now, taken);
    let window = limit.window().as_micros();
    let tokens = tokens + (units + (part + rest) / window).cast_signed();
    let part = (part + rest) % window;
    *state = if tokens < limit.burst().cast_signed() {
        let expires_at = time_to_live(now, limit.time_for(in_use(limit, tokens), part));
        State { part, at, expires_at, tokens: stored(tokens) }
    } else {
        State::default()
    };
}

/// Adds tokens, at most up to the burst.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let reset_after = decide(state, limit, now, Cost::NONE).reset_after;
    refund(state, limit, now, &TakenUnits { cost, at: now, reset_after });
}

/// The tokens at `now`, the part of the next one, and the time that they are of. More debt than
/// there can be, which a rule that was changed may leave, counts as the most.
#[inline]
fn refilled(state: &State, limit: &Limit, now: Timestamp) -> (i64, u64, Timestamp) {
    let (burst, least) = (limit.burst().cast_signed(), -limit.debt().cast_signed());
    if is_from_the_future(state.at, now, limit) {
        return (burst, 0, now);
    }
    let elapsed = now.since(state.at).min(limit.fill_time());
    let part = state.part.min(limit.window().as_micros() - 1);
    let (gained, part) = limit.units_in(elapsed, part);
    let tokens = i64::from(state.tokens).max(least) + gained.cast_signed();
    let (tokens, part) = if tokens >= burst { (burst, 0) } else { (tokens, part) };
    (tokens, part, state.at.max(now))
}

/// Units that are not in the bucket, debt included.
#[inline]
fn in_use(limit: &Limit, tokens: i64) -> u64 {
    (limit.burst().cast_signed() - tokens).cast_unsigned()
}

/// Tokens within the bounds of a limit, as a state keeps them.
fn stored(tokens: i64) -> i32 {
    i32::try_from(tokens).expect("a limit has at most 10⁹ units, and as much debt")
}
