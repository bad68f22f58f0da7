//! Fixed window: a counter for each window of wall time, aligned to the Unix epoch or of a calendar. Those
//! that begin with the first use of a key are in [`first_use`].
//!
//! Denied requests of cost 1 are counted too once the window is full, as in RLaaS Users Service.
//! All other denied requests count nothing. A limit that keeps debt does not count denied requests,
//! because they could not be told apart from debt.
//!
//! Up to twice the limit can pass around the boundary of two windows. In return the state in Redis
//! is a single number.

use super::{
    Algorithm, Cost, Decision, Limit, LimitChange, MAX_COUNT, Outcome, TakenUnits, Window,
    first_use, window_index,
};
use crate::calendar::Calendar;
use crate::clock::{Micros, Timestamp};

/// The Redis key ends with the index of the window: `rlaas:rate_limit:alice:28333335`.
pub(super) const KEYED_BY_WINDOW: bool = true;
pub(super) const HAS_BURST: bool = false;
pub(super) const MAX_UNITS: u64 = Limit::MAX_COUNTED;
pub(super) const MAX_COST: u32 = u32::MAX;

/// Most that the end of a count may precede the end of its window: the clock of a Redis script may
/// go on between two commands.
const END_TOLERANCE: Micros = Micros::from_secs(1);

/// The count of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    /// From the first use, the start of the window in µs.
    pub(super) index: u64,
    pub(super) count: u64,
    /// One window after the first hit, in whole milliseconds as the expiry of a Redis key.
    pub(super) expires_at: Timestamp,
}

impl Default for State {
    /// Has an index that no window reaches.
    fn default() -> Self {
        Self { index: u64::MAX, count: 0, expires_at: Timestamp::EPOCH }
    }
}

impl State {
    pub(super) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    pub(super) fn is_valid(&self) -> bool {
        self.count <= MAX_COUNT
    }

    /// Returns `true` if this is the count of the window of `at`. A window of another length may
    /// have had the same index: its count ended too early.
    #[inline]
    fn is_of(&self, at: Timestamp, limit: &Limit) -> bool {
        if let Some(window) = limit.calendar_window(at) {
            return self.index == window.number();
        }
        let window = limit.window();
        let index = window_index(at, window);
        self.index == index
            && self.expires_at + END_TOLERANCE
                >= Timestamp::from_micros(index * window.as_micros()) + window
    }

    /// Returns the count of the window of `now`.
    #[inline]
    fn count_at(&self, now: Timestamp, limit: &Limit) -> u64 {
        if self.is_of(now, limit) { self.count } else { 0 }
    }

    /// Returns a count of the window of `now`.
    fn counted(now: Timestamp, limit: &Limit, count: u64) -> Self {
        if let Some(window) = limit.calendar_window(now) {
            let expires_at = window.end + Calendar::GRACE;
            return Self { index: window.number(), count, expires_at };
        }
        let window = limit.window();
        let expires_at = floor_millis(now) + window;
        Self { index: window_index(now, window), count, expires_at }
    }
}

/// Decides. `current_count` is the count after this request, `ttl` the time to live of the counter.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    if limit.windows().is_from_first_use() {
        return first_use::decide(state, limit, now, cost);
    }
    let live = state.is_of(now, limit);
    let count = if live { state.count } else { 0 };
    let ttl = match limit.calendar_window(now) {
        Some(window) => window.end.since(floor_millis(now)),
        None if live => state.expires_at.since(floor_millis(now)),
        None => limit.window(),
    };
    let available = limit.remaining_of(limit.units(), count);
    let attempt = is_attempt(limit, count, cost);
    let count = WindowCount { count, ttl };
    count.decide_on(available, attempt, limit.units(), limit.windows(), now, cost)
}

/// The count of the current window of a fixed window, which a store has read.
#[derive(Clone, Copy, Debug)]
pub struct WindowCount {
    /// Units and attempts in the window.
    pub count: u64,
    /// Time to live of the counter.
    pub ttl: Micros,
}

impl WindowCount {
    /// Decides as [`Algorithm::decide`] does, by a limit of `units` per `window` without debt.
    pub fn decide(self, units: u64, window: Window, now: Timestamp, cost: Cost) -> Decision {
        let available = units.saturating_sub(self.count).cast_signed();
        let attempt = self.count >= units && cost == Cost::ONE;
        self.decide_on(available, attempt, units, window, now, cost)
    }

    #[inline]
    fn decide_on(
        self,
        available: i64,
        is_attempt: bool,
        units: u64,
        window: Window,
        now: Timestamp,
        cost: Cost,
    ) -> Decision {
        let until_end = window.left_at(now);
        let outcome = Outcome::new(cost, available, units, || until_end);
        let taken = outcome.taken(cost);
        let counted = if is_attempt { 1 } else { taken };
        Decision {
            at: now,
            outcome,
            current_count: self.count.saturating_add(counted),
            remaining: available - taken.cast_signed(),
            reset_after: until_end,
            ttl: self.ttl.max(Micros::from_micros(1)),
            delay: Micros::ZERO,
        }
    }
}

/// Counts the cost if the decision allows it, or 1 for a denied request that is counted.
#[inline]
pub(super) fn commit(
    state: &mut State,
    limit: &Limit,
    now: Timestamp,
    cost: Cost,
    decision: &Decision,
) {
    if limit.windows().is_from_first_use() {
        return first_use::commit(state, limit, now, cost, decision);
    }
    let count = state.count_at(now, limit);
    let counted = if is_attempt(limit, count, cost) { 1 } else { decision.outcome.taken(cost) };
    add(state, limit, now, counted);
}

/// Counts as much of the cost as fits below the limit plus its maximum debt.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    if limit.windows().is_from_first_use() {
        return first_use::charge(state, limit, now, cost);
    }
    let count = state.count_at(now, limit);
    let room = (limit.units() + limit.debt()).saturating_sub(count);
    add(state, limit, now, cost.units().min(room));
}

/// Adds to the count of the current window.
#[inline]
fn add(state: &mut State, limit: &Limit, now: Timestamp, counted: u64) {
    if counted == 0 {
        return;
    }
    if !state.is_of(now, limit) {
        *state = State::counted(now, limit, 0);
    }
    state.count = state.count.saturating_add(counted);
}

/// Subtracts the cost from the count of the window in which it was taken.
///
/// Denied requests that were counted above the limit are dropped first; debt is not. The time to
/// live does not change. A count of 0 removes the state.
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    if limit.windows().is_from_first_use() {
        return first_use::refund(state, limit, now, taken);
    }
    if !state.is_of(taken.at, limit) {
        return;
    }
    let most = limit.units() + limit.debt();
    state.count = state.count.min(most).saturating_sub(taken.cost.units());
    if state.count == 0 {
        *state = State::default();
    }
}

/// Subtracts the cost from the count of the current window.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    if limit.windows().is_from_first_use() {
        return first_use::credit(state, limit, now, cost);
    }
    refund(state, limit, now, &TakenUnits { cost, at: now, reset_after: Micros::ZERO });
}

/// Moves the count if the length of the window changes; from the first use it stays.
pub(super) fn carry(state: &mut State, change: &LimitChange<'_>, now: Timestamp) {
    if !change.changes_window() || change.to.windows().is_from_first_use() {
        return;
    }
    let left = decide(state, change.from, now, Cost::NONE).remaining;
    let used = change.used_after(Algorithm::FixedWindow, left);
    if used > 0 {
        convert(state, change, now, used);
    } else {
        *state = State::default();
    }
}

/// Counts `used` units in the current window. Denied requests that were counted are dropped.
pub(super) fn convert(state: &mut State, change: &LimitChange<'_>, now: Timestamp, used: u64) {
    if change.to.windows().is_from_first_use() {
        return first_use::convert(state, change, now, used);
    }
    let converted = State::counted(now, change.to, used);
    let expires_at = if change.changes_window() { converted.expires_at } else { state.expires_at };
    *state = State { expires_at, ..converted };
}

/// Returns `true` if the request is counted although it is denied: of cost 1, in a full window, for
/// a limit that keeps no debt.
#[inline]
fn is_attempt(limit: &Limit, count: u64, cost: Cost) -> bool {
    count >= limit.units() && cost == Cost::ONE && limit.max_debt().is_none()
}

fn floor_millis(now: Timestamp) -> Timestamp {
    Timestamp::from_millis(now.as_millis())
}
