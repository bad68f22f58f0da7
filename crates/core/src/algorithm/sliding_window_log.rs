//! Sliding window log: an entry for each unit of the last window. The default algorithm.
//!
//! Exact: in *any* span of one window at most the limit passes. The log has one entry for each
//! unit, with its time in whole milliseconds, and so needs the most memory of all algorithms.

use std::collections::VecDeque;

use super::{Cost, Decision, Limit, LimitChange, MAX_COUNT, Outcome, TakenUnits};
use crate::clock::{Micros, Timestamp};

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = false;
/// The log has one entry for each unit. A key with this many takes about 10 MB in Redis.
pub(super) const MAX_UNITS: u64 = 100_000;
/// Most entries that one request writes. Writing this many takes Redis about 15 ms.
pub(super) const MAX_COST: u32 = 10_000;
/// The log, oldest entries first. Entries of the same millisecond share a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State {
    /// The first run stands for dropped entries: it has the time 0, and its `upto` is their number.
    runs: VecDeque<Run>,
    expires_at: Timestamp,
}

/// Entries of one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
struct Run {
    at_ms: u64,
    /// Number of entries from the start of the log to the end of this run.
    upto: u64,
}

impl Run {
    const DROPPED: Self = Self { at_ms: 0, upto: 0 };
}

impl State {
    pub(super) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    pub(super) fn is_valid(&self) -> bool {
        let has_order =
            |pair: [&Run; 2]| pair[0].at_ms < pair[1].at_ms && pair[0].upto <= pair[1].upto;
        let pairs = self.runs.iter().zip(self.runs.iter().skip(1));
        self.runs.front().is_none_or(|first| first.at_ms == 0)
            && self.runs.back().is_none_or(|last| last.upto.max(last.at_ms) <= MAX_COUNT)
            && pairs.map(|(run, next)| [run, next]).all(has_order)
    }

    /// Returns the index of the first run after `millis`. The common cases come first: no such run,
    /// and all of them.
    fn after(&self, millis: u64) -> usize {
        if self.runs.back().is_none_or(|last| last.at_ms <= millis) {
            self.runs.len()
        } else if self.runs.get(1).is_some_and(|first| first.at_ms > millis) {
            1
        } else {
            self.runs.partition_point(|run| run.at_ms <= millis)
        }
    }

    /// Returns the run that contains the entry with the number `entries`, counted from the start of
    /// the log. It is the run at index `first` or a later one.
    fn reaching(&self, first: usize, entries: u64) -> &Run {
        let run = &self.runs[first];
        if run.upto >= entries {
            return run;
        }
        &self.runs[self.runs.partition_point(|run| run.upto < entries)]
    }

    /// Returns the index of the run of this millisecond, if there is one.
    fn run_of(&self, at_ms: u64) -> Option<usize> {
        let last = self.after(at_ms).checked_sub(1)?;
        (last > 0 && self.runs[last].at_ms == at_ms).then_some(last)
    }

    /// Returns the number of entries in the runs before index `end`.
    fn upto(&self, end: usize) -> u64 {
        end.checked_sub(1).map_or(0, |last| self.runs[last].upto)
    }

    /// Drops the runs before index `end`.
    fn drop_before(&mut self, end: usize) {
        if end > 1 {
            self.runs.drain(..end - 1);
            self.runs[0].at_ms = Run::DROPPED.at_ms;
        }
    }
}

/// Decides. `current_count` is the number of entries before this request, `ttl` always the window.
///
/// Entries at or before `now - window` have left the window. Entries after `now` were written
/// before the clock stepped back, and do not count.
#[inline]
pub(super) fn decide(state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let window_ms = limit.window().as_millis();
    let (first, end) = live_range(state, limit, now);
    let gone = state.upto(first);
    let count = state.upto(end) - gone;
    // A log has no entries above the limit, and so no debt.
    let available = limit.units().saturating_sub(count);
    let leaves_after = |at_ms: u64| Timestamp::from_millis(at_ms + window_ms).since(now);

    let most = limit.units().min(MAX_COST.into());
    let outcome = Outcome::new(cost, available.min(most).cast_signed(), most, || {
        let surplus = count + cost.units() - limit.units();
        leaves_after(state.reaching(first, gone + surplus).at_ms)
    });
    let taken = outcome.taken(cost);
    Decision {
        at: now,
        outcome,
        current_count: count,
        remaining: (available - taken).cast_signed(),
        reset_after: if taken > 0 {
            leaves_after(now.as_millis())
        } else if count > 0 {
            leaves_after(state.runs[end - 1].at_ms)
        } else {
            Micros::ZERO
        },
        ttl: limit.window(),
        delay: Micros::ZERO,
    }
}

/// Writes an entry for each unit taken. Extends the life of the log to two windows from now, even
/// after a denial.
#[inline]
pub(super) fn commit(
    state: &mut State,
    limit: &Limit,
    now: Timestamp,
    cost: Cost,
    decision: &Decision,
) {
    let (first, _) = live_range(state, limit, now);
    state.drop_before(first);
    if decision.is_allowed() && cost != Cost::NONE {
        write(state, now.as_millis(), cost.units());
    }
    let window = limit.window();
    state.expires_at = Timestamp::from_millis(now.as_millis()) + window + window;
}

/// Writes an entry for each unit of the cost, up to the limit and [`MAX_COST`].
pub(super) fn charge(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let (first, end) = live_range(state, limit, now);
    let available = limit.units().saturating_sub(state.upto(end) - state.upto(first));
    state.drop_before(first);
    let units = cost.units().min(available).min(MAX_COST.into());
    if units > 0 {
        write(state, now.as_millis(), units);
    }
    let window = limit.window();
    state.expires_at = Timestamp::from_millis(now.as_millis()) + window + window;
}

/// Removes entries of the millisecond in which the units were taken; which ones makes no
/// difference. The time to live does not change. A log without entries is removed.
pub(super) fn refund(state: &mut State, _limit: &Limit, _now: Timestamp, taken: &TakenUnits) {
    if let Some(run) = state.run_of(taken.at.as_millis()) {
        remove(state, run, taken.cost.units().min(MAX_COST.into()));
    }
}

/// Removes the youngest entries that count.
pub(super) fn credit(state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
    let mut left = cost.units();
    while left > 0 {
        let (first, end) = live_range(state, limit, now);
        if first >= end {
            break;
        }
        left -= remove(state, end - 1, left);
    }
}

/// The entries stay.
pub(super) fn carry(_state: &mut State, _change: &LimitChange<'_>, _now: Timestamp) {}

/// Leaves `used` entries: drops the oldest ones, or adds entries now. If the length of the window
/// changes, all of them are written now.
pub(super) fn convert(state: &mut State, change: &LimitChange<'_>, now: Timestamp, used: u64) {
    let window = change.to.window();
    if change.changes_window() {
        *state = State::default();
        write(state, now.as_millis(), used);
    } else {
        let (first, end) = live_range(state, change.to, now);
        let count = state.upto(end) - state.upto(first);
        if used < count {
            drop_oldest(state, first, count - used);
        } else if used > count {
            state.drop_before(first);
            write(state, now.as_millis(), used - count);
        }
    }
    state.expires_at = Timestamp::from_millis(now.as_millis()) + window + window;
}

/// Drops the runs before index `first`, and `units` more entries.
fn drop_oldest(state: &mut State, first: usize, units: u64) {
    let dropped = state.upto(first) + units;
    state.drop_before(state.runs.partition_point(|run| run.upto <= dropped));
    state.runs[0].upto = dropped;
}

/// Removes up to `units` entries of a run, and returns their number.
fn remove(state: &mut State, run: usize, units: u64) -> u64 {
    let entries = state.upto(run + 1) - state.upto(run);
    let units = entries.min(units);
    for run in state.runs.range_mut(run..) {
        run.upto -= units;
    }
    if units == entries {
        state.runs.remove(run);
    }
    if state.runs.len() == 1 {
        *state = State::default();
    }
    units
}

/// Returns the runs that count at `now` as a range of indices.
fn live_range(state: &State, limit: &Limit, now: Timestamp) -> (usize, usize) {
    let gone_ms = now.as_millis().checked_sub(limit.window().as_millis());
    // Less than a window after the epoch no entry has left the window.
    let dropped = state.runs.len().min(1);
    let first = gone_ms.map_or(dropped, |gone_ms| state.after(gone_ms));
    (first, state.after(now.as_millis()))
}

/// Adds `units` entries at `at_ms`, in order of time.
fn write(state: &mut State, at_ms: u64, units: u64) {
    if state.runs.is_empty() {
        state.runs.push_back(Run::DROPPED);
    }
    let start = state.run_of(at_ms).unwrap_or_else(|| {
        let end = state.after(at_ms);
        state.runs.insert(end, Run { at_ms, upto: state.upto(end) });
        end
    });
    for run in state.runs.range_mut(start..) {
        run.upto += units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_of_the_epoch_counts_for_one_window() {
        let limit = Limit::new(1, Micros::from_millis(10)).expect("a valid limit");
        let mut state = State::default();
        let mut take = |millis| {
            let now = Timestamp::from_millis(millis);
            let decision = decide(&state, &limit, now, Cost::ONE);
            commit(&mut state, &limit, now, Cost::ONE, &decision);
            decision.is_allowed()
        };
        assert_eq!([0, 1, 9, 10].map(&mut take), [true, false, false, true]);
    }
}
