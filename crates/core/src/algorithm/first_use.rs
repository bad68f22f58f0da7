//! Windows from the first use: those of a fixed window that begin with the first units that a key takes, and
//! last as long as the window. Then all units are whole, and the next window begins with the next use.
//!
//! The state is that of [`fixed_window`](super::fixed_window) with the start of the window in µs as its
//! index. The index of a window since the epoch, or of a calendar, is no such start: a key whose rule
//! changes from these begins at 0. Denied requests are not counted.
//!
//! A mode of the fixed window, not an algorithm: limits, names and bounds are the same. In Redis the
//! steps are those of an algorithm of their own, because the key has no window in its name.
//! Twin: `lua/first_use.lua`.

use super::fixed_window::State;
use super::{
    Cost, Decision, Limit, LimitChange, Outcome, TakenUnits, is_from_the_future, time_to_live,
};
use crate::clock::{Micros, Timestamp};

/// Returns the start and the count of the window that runs; else of one that begins now.
#[inline]
fn running(state: &State, limit: &Limit, now: Timestamp) -> (Timestamp, u64) {
    let start = Timestamp::from_micros(state.index);
    if is_from_the_future(start, now, limit) || now >= start + limit.window() {
        (now, 0)
    } else {
        (start, state.count)
    }
}

/// Decides. `current_count` is the count after this request, `ttl` the time to the end of its window.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let (start, count) = running(state, limit, now);
    let available = limit.remaining_of(limit.units(), count);
    let until_end = (start + limit.window()).since(now);
    let outcome = Outcome::new(cost, available, limit.units(), || until_end);
    let taken = outcome.taken(cost);
    let until_whole = if count + taken > 0 { until_end } else { Micros::ZERO };
    Decision {
        at: now,
        outcome,
        current_count: count + taken,
        remaining: available - taken.cast_signed(),
        reset_after: until_whole,
        ttl: until_whole,
        delay: Micros::ZERO,
    }
}

/// Sets the window. A count of 0 is no window.
fn set_state(state: &mut State, limit: &Limit, start: Timestamp, count: u64) {
    *state = match count {
        0 => State::default(),
        _ => State {
            index: start.as_micros(),
            count,
            expires_at: time_to_live(start, limit.window()),
        },
    };
}

/// Adds to the count. What is there lives to the end by this limit, even if nothing is added.
fn add(state: &mut State, limit: &Limit, now: Timestamp, counted: u64) {
    let (start, count) = running(state, limit, now);
    if count + counted > 0 {
        set_state(state, limit, start, count + counted);
    }
}

/// Counts the cost if the decision allows it.
#[inline]
pub(super) fn commit(
    state: &mut State,
    limit: &Limit,
    now: Timestamp,
    cost: Cost,
    decision: &Decision,
) {
    add(state, limit, now, decision.outcome.taken(cost));
}

/// Counts as much of the cost as fits below the limit plus its maximum debt.
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (_, count) = running(state, limit, now);
    let room = (limit.units() + limit.debt()).saturating_sub(count);
    add(state, limit, now, cost.units().min(room));
}

/// Subtracts the cost if it was taken in the window that runs.
pub(super) fn refund(state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
    let (start, _) = running(state, limit, now);
    if start <= taken.at && taken.at < start + limit.window() {
        credit(state, limit, now, taken.cost);
    }
}

/// Subtracts the cost from the count of the window that runs.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (start, count) = running(state, limit, now);
    if count > 0 {
        set_state(state, limit, start, count.saturating_sub(cost.units()));
    }
}

/// Counts `used` units in the window that runs by the limit before. Its start stays.
pub(super) fn convert(state: &mut State, change: &LimitChange<'_>, now: Timestamp, used: u64) {
    let (start, _) = running(state, change.from, now);
    set_state(state, change.to, start, used);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, State, Window};

    const MINUTE: Micros = Micros::from_secs(60);
    const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

    fn limit(window: Micros) -> Limit {
        Limit::new(5, Window::from(window).at_first_use()).expect("a limit")
    }

    /// Returns what is left at a time, and the time until all is whole.
    fn left(state: &State, limit: &Limit, now: Timestamp) -> (i64, Micros) {
        let decision = Algorithm::FixedWindow.decide(state, limit, now, Cost::NONE);
        (decision.remaining, decision.reset_after)
    }

    #[test]
    fn window_runs_on_after_a_small_step_back_and_is_none_after_a_large_one() {
        let (limit, mut state) = (limit(MINUTE), State::None);
        assert!(Algorithm::FixedWindow.take(&mut state, &limit, T0, Cost::new(2)).is_allowed());
        assert_eq!(left(&state, &limit, T0 - MINUTE), (3, MINUTE + MINUTE));
        let earlier = T0 - MINUTE - Micros::from_micros(1);
        assert_eq!(left(&state, &limit, earlier), (5, Micros::ZERO));
        assert!(Algorithm::FixedWindow.take(&mut state, &limit, earlier, Cost::ONE).is_allowed());
        assert_eq!(left(&state, &limit, earlier), (4, MINUTE));
    }

    #[test]
    fn counts_of_other_windows_are_none() {
        let by_clock = Limit::new(5, MINUTE).expect("a limit");
        for (first, second) in [(by_clock, limit(MINUTE)), (limit(MINUTE), by_clock)] {
            let mut state = State::None;
            assert!(Algorithm::FixedWindow.take(&mut state, &first, T0, Cost::new(5)).is_allowed());
            assert_eq!(left(&state, &second, T0).0, 5);
        }
    }

    #[test]
    fn denial_keeps_the_count_to_the_end_of_a_longer_window() {
        let (short, long, mut state) = (limit(MINUTE), limit(MINUTE + MINUTE), State::None);
        let take = |state: &mut State, limit: &Limit, cost| {
            Algorithm::FixedWindow.take(state, limit, T0, Cost::new(cost)).is_allowed()
        };
        assert!(take(&mut state, &short, 5));
        let lives_until = state.expires_at();
        assert!(!take(&mut state, &short, 1) && state.expires_at() == lives_until);
        assert!(!take(&mut state, &long, 1));
        assert_eq!(state.expires_at(), lives_until + MINUTE);
        // A denial begins nothing.
        let mut none = State::None;
        assert!(!take(&mut none, &short, 6) && none == State::None);
    }
}
