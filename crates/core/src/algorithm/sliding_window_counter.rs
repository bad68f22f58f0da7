//! Sliding window counter: the count of the current window plus a part of the previous one,
//! weighted by its overlap with the sliding window.
//!
//! The windows of a key start with its first request and follow each other without a gap. After two
//! windows without a request they start anew. The estimate assumes that the requests of the
//! previous window were spread evenly. It needs little memory and is smooth at the boundaries, but
//! exact only on average.

use super::limit::divide;
use super::{
    Cost, Decision, Limit, LimitChange, MAX_IN_USE, Outcome, TakenUnits, is_from_the_future,
    time_to_live,
};
use crate::clock::{Micros, Timestamp};

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = false;
pub(super) const MAX_UNITS: u64 = Limit::MAX_UNITS;
pub(super) const MAX_COST: u32 = u32::MAX;

/// The two counters at their last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    windows: Windows,
    expires_at: Timestamp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
struct Windows {
    /// Start of the current window.
    start: Timestamp,
    current: u64,
    previous: u64,
}

impl State {
    pub(super) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    pub(super) fn is_valid(&self) -> bool {
        self.windows.current.max(self.windows.previous) <= MAX_IN_USE
    }
}

/// Decides. `current_count` is the estimate after this request, `ttl` the time until both counters
/// have left the sliding window.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let window = limit.window();
    let Windows { start, current, previous } = rolled(&state.windows, limit, now);
    let elapsed = now.since(start);
    let estimate = weighted(previous, window - elapsed, limit) + current;
    let available = limit.remaining_of(limit.units(), estimate);

    let wait = || {
        let most = limit.units() - cost.units();
        if current <= most {
            falls_to(most - current, previous, limit) - elapsed
        } else {
            window - elapsed + falls_to(most, current, limit)
        }
    };
    let outcome = Outcome::new(cost, available, limit.units(), wait);
    let taken = outcome.taken(cost);
    let until_left = if current + taken > 0 {
        window + window - elapsed
    } else if previous > 0 {
        window - elapsed
    } else {
        Micros::ZERO
    };
    Decision {
        at: now,
        outcome,
        current_count: estimate + taken,
        remaining: available - taken.cast_signed(),
        reset_after: until_left,
        ttl: until_left,
        delay: Micros::ZERO,
    }
}

/// Adds the cost to the current window.
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
    let windows = rolled(&state.windows, limit, now);
    state.windows = Windows { current: windows.current + cost.units(), ..windows };
    state.expires_at = time_to_live(now, decision.reset_after);
}

/// Adds the cost to the current window, up to the limit and its debt.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let mut windows = rolled(&state.windows, limit, now);
    let left = limit.window() - now.since(windows.start);
    let estimate = weighted(windows.previous, left, limit) + windows.current;
    let room = (limit.units() + limit.debt()).saturating_sub(estimate);
    let counted = cost.units().min(room);
    if counted == 0 {
        return;
    }
    windows.current += counted;
    state.windows = windows;
    let until_left = decide(state, limit, now, Cost::NONE).reset_after;
    state.expires_at = time_to_live(now, until_left);
}

/// Subtracts the cost from the window in which it was counted, if that is one of the two.
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let mut windows = rolled(&state.windows, limit, now);
    if taken.at >= windows.start {
        windows.current = windows.current.saturating_sub(taken.cost.units());
    } else if windows.start.since(taken.at) <= limit.window() {
        windows.previous = windows.previous.saturating_sub(taken.cost.units());
    }
    store_reduced(state, limit, now, windows);
}

/// Subtracts the cost from the current window, and the rest of it from the previous one.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let mut windows = rolled(&state.windows, limit, now);
    let rest = cost.units().saturating_sub(windows.current);
    windows.current = windows.current.saturating_sub(cost.units());
    windows.previous = windows.previous.saturating_sub(rest);
    store_reduced(state, limit, now, windows);
}

/// The counts stay.
pub(super) fn carry(_state: &mut State, _change: &LimitChange<'_>, _now: Timestamp) {}

/// Counts `used` units in a window that starts now, up to the largest count, unless the windows have
/// as many already.
pub(super) fn convert(state: &mut State, change: &LimitChange<'_>, now: Timestamp, used: u64) {
    let (limit, used) = (change.to, used.min(MAX_IN_USE));
    if !change.changes_window() && decide(state, limit, now, Cost::NONE).current_count == used {
        return;
    }
    state.windows = Windows { start: now, current: used, previous: 0 };
    state.expires_at = time_to_live(now, limit.window() + limit.window());
}

/// Stores counts from which units were subtracted.
fn store_reduced(state: &mut State, limit: &Limit, now: Timestamp, windows: Windows) {
    let Windows { start, current, previous } = windows;
    if current + previous == 0 {
        *state = State::default();
        return;
    }
    state.windows = windows;
    if current == 0 {
        // Without requests in the current window, the previous one is again the latest with any.
        let start = start - limit.window();
        state.windows = Windows { start, current: previous, previous: 0 };
    }
    let until_left = decide(state, limit, now, Cost::NONE).reset_after;
    state.expires_at = time_to_live(now, until_left);
}

/// Returns the windows at `now`: the same, the next one, or new ones after two windows without a
/// request or after a clock step back by more than a window.
#[inline]
fn rolled(windows: &Windows, limit: &Limit, now: Timestamp) -> Windows {
    let window = limit.window();
    let elapsed = now.since(windows.start);
    if elapsed >= window + window || is_from_the_future(windows.start, now, limit) {
        Windows { start: now, current: 0, previous: 0 }
    } else if elapsed >= window {
        Windows { start: windows.start + window, current: 0, previous: windows.current }
    } else {
        *windows
    }
}

/// Returns the weight of `count` with `left` of its window inside the sliding window:
/// count × left / window, rounded down.
fn weighted(count: u64, left: Micros, limit: &Limit) -> u64 {
    divide(left.as_micros(), count, 0, limit.window().as_micros()).0
}

/// Returns the time from the start of the next window until the weighted `count` has fallen to
/// `most`. `count` must be more than `most`.
fn falls_to(most: u64, count: u64, limit: &Limit) -> Micros {
    let (whole, _) = divide(limit.window().as_micros(), count - most - 1, 0, count);
    Micros::from_micros(whole + 1)
}
