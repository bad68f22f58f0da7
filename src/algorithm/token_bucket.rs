//! Token bucket: `burst` tokens at first, refilled continuously at `limit` per window.
//!
//! Never more than burst + limit × elapsed / window in any span. Parts of a token are kept, so
//! that no rate is ever rounded.

use super::{
    Cost, Decision, Limit, NEVER, Outcome, is_from_the_future, kept, still_out, time_to_live,
};
use crate::clock::{Span, Timestamp};

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = true;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;

/// The bucket as it was last left. None yet, or full: left in a time that does not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The part of the next token, in tokens divided by the window's microseconds.
    part: u64,
    at: Timestamp,
    expires_at: Timestamp,
    tokens: u32,
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

    let wait = || limit.time_for(cost.units() - tokens, part);
    let outcome = Outcome::of(cost, tokens, limit.burst(), wait);
    let taken = outcome.taken(cost);
    let in_use = limit.burst() - (tokens - taken);
    let until_full = limit.time_for(in_use, part);
    Decision {
        at: now,
        outcome,
        current_count: in_use,
        remaining: tokens - taken,
        reset_after: until_full,
        ttl: until_full,
        delay: Span::ZERO,
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
    *state = State { tokens: kept(tokens - cost.units()), part, at, expires_at };
}

/// Puts the tokens back that are still out.
pub(super) fn give_back(
    state: &mut State,
    limit: &Limit,
    now: Timestamp,
    cost: Cost,
    taken: &Decision,
) {
    let (tokens, part, at) = refilled(state, limit, now);
    let (units, rest) = still_out(limit, now, cost, taken);
    let window = limit.window().as_micros();
    let tokens = tokens + units + (part + rest) / window;
    let part = (part + rest) % window;
    *state = if tokens < limit.burst() {
        let until_full = limit.time_for(limit.burst() - tokens, part);
        State { tokens: kept(tokens), part, at, expires_at: time_to_live(now, until_full) }
    } else {
        State::default()
    };
}

/// The tokens at `now`, the part of the next one, and the time that they are of.
#[inline]
fn refilled(state: &State, limit: &Limit, now: Timestamp) -> (u64, u64, Timestamp) {
    if is_from_the_future(state.at, now, limit) {
        return (limit.burst(), 0, now);
    }
    let elapsed = now.since(state.at).min(limit.fill_time());
    let part = state.part.min(limit.window().as_micros() - 1);
    let (gained, part) = limit.units_in(elapsed, part);
    let tokens = gained.saturating_add(state.tokens.into());
    let (tokens, part) = if tokens >= limit.burst() { (limit.burst(), 0) } else { (tokens, part) };
    (tokens, part, state.at.max(now))
}
