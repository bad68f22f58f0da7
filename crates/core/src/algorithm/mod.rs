//! The algorithms: pure arithmetic on a state, a limit, a time and a cost.
//!
//! Each algorithm has the same few steps in Rust and in Lua:
//!
//! - *decide*: state, limit, now, cost → [`Decision`]. Changes nothing.
//! - *commit*: changes the state as the decision says. A denial changes only the state of a full
//!   fixed window, which counts it, and of a log, which it keeps alive for longer.
//! - *charge*: counts a cost that was incurred already, even if too few units are left. The step
//!   behind [`Algorithm::report`].
//! - *refund*: undoes a decision that took its cost. Units that time has made available again are
//!   not returned twice. Where the state does not show how many those are, too few are returned
//!   rather than too many.
//! - *credit*: returns units without a receipt, never above full.
//! - *convert*: replaces a state by one with another number of units in use, because the limit
//!   changes.
//! - *reset*: removes the state.
//!
//! The Rust form is the specification, and the memory store runs it. The Lua twin in `lua/` has the
//! same file name, function names, local names and order.
//!
//! This module knows no stores, requests or protocols. It neither waits nor reads a clock.

mod decision;
mod first_use;
mod limit;
mod on_change;

pub use decision::{Decision, Outcome, TakenUnits};
pub use fixed_window::WindowCount;
pub use limit::{Cost, Limit, LimitError, Window, WindowFrom};
pub use on_change::{LimitChange, OnChange};

use crate::clock::{Micros, Timestamp};

/// Declares each algorithm once: module, variant, canonical name, other accepted names. Without
/// the Lua twin rlaas-limiter does not compile.
macro_rules! registry {
    ($($module:ident $variant:ident $name:literal [$($alias:literal),*];)*) => {
        $(mod $module;)*

        /// A rate limiting algorithm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Algorithm {
            /// Every algorithm.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Every name: the canonical one of each first.
            pub(crate) const NAMES: &[&str] = &[$($name, $($alias,)*)*];

            /// Returns the canonical name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the algorithm with this canonical or other accepted name. `_` and `-` are
            /// equivalent.
            pub fn from_name(name: &str) -> Option<Self> {
                match name.replace('_', "-").as_str() {
                    $($name $(| $alias)* => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name of the Lua twin in scripts.
            pub const fn lua_name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($module),)* }
            }

            /// Returns `true` if the Redis key ends with the index of the window, unless windows begin with
            /// the first use.
            pub const fn keyed_by_window(self) -> bool {
                match self { $(Self::$variant => $module::KEYED_BY_WINDOW,)* }
            }

            /// Checks a limit against the bounds of this algorithm.
            ///
            /// # Errors
            ///
            /// [`LimitError::TooMany`], [`LimitError::NoBurst`] or [`LimitError::Debt`].
            pub fn accepts(self, limit: &Limit) -> Result<(), LimitError> {
                let (algorithm, max) = (self.name(), self.max_units());
                if limit.units() > max {
                    return Err(LimitError::TooMany { algorithm, max });
                }
                if limit.burst() != limit.units() && !self.has_burst() {
                    return Err(LimitError::NoBurst { algorithm });
                }
                let most = self.max_debt(limit);
                if limit.debt() > most {
                    return Err(LimitError::Debt { most });
                }
                Ok(())
            }

            /// Returns the most units of debt that the algorithm can keep beside a limit.
            pub fn max_debt(self, limit: &Limit) -> u64 {
                match self {
                    Self::FixedWindow => MAX_WINDOW_COUNT - limit.units(),
                    // A log has no entries above the limit.
                    Self::SlidingWindowLog | Self::Concurrency => 0,
                    _ => limit.most_paid_back(),
                }
            }

            /// Returns a limit that keeps debt: up to `max_debt`, or as much as can be kept.
            pub(crate) fn with_debt(self, limit: Limit, max_debt: Option<u64>) -> Limit {
                let most = self.max_debt(&limit);
                let debt = max_debt.map_or(most, |units| units.min(most));
                limit.with_max_debt(debt).unwrap_or(limit)
            }

            /// Returns a limit by which as many units may be in use as can be counted.
            pub(crate) fn with_most_debt(self, limit: Limit) -> Limit {
                let most = match self {
                    Self::FixedWindow => MAX_WINDOW_COUNT,
                    Self::SlidingWindowCounter => MAX_IN_USE,
                    _ => return limit,
                };
                limit.with_max_debt(most - limit.units()).unwrap_or(limit)
            }

            /// Returns `true` if the burst may differ from the units per window.
            pub const fn has_burst(self) -> bool {
                match self { $(Self::$variant => $module::HAS_BURST,)* }
            }

            /// Returns the most units that one request may take.
            pub const fn max_cost(self) -> u32 {
                match self { $(Self::$variant => $module::MAX_COST,)* }
            }

            /// Returns the most units per window.
            pub const fn max_units(self) -> u64 {
                match self { $(Self::$variant => $module::MAX_UNITS,)* }
            }

            /// Decides on `cost` at `now` and changes nothing. A state of another algorithm counts
            /// as none.
            pub fn decide(self, state: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
                match (self, state) {
                    $(
                        (Self::$variant, State::$variant(state)) => {
                            $module::decide(state, limit, now, cost)
                        }
                        (Self::$variant, _) => {
                            $module::decide(&$module::State::default(), limit, now, cost)
                        }
                    )*
                }
            }

            /// Changes `state` as `decision` says. The decision must come from
            /// [`Algorithm::decide`] with the same arguments. Replaces a state of another
            /// algorithm, unless the decision is a denial.
            pub fn commit(
                self,
                state: &mut State,
                limit: &Limit,
                now: Timestamp,
                cost: Cost,
                decision: &Decision,
            ) {
                match self {
                    $(Self::$variant => {
                        if !matches!(state, State::$variant(_)) {
                            if !decision.is_allowed() {
                                return;
                            }
                            *state = State::$variant($module::State::default());
                        }
                        if let State::$variant(state) = state {
                            $module::commit(state, limit, now, cost, decision);
                        }
                    })*
                }
            }

            /// Decides and commits. Faster than both calls, because the state is matched once.
            #[inline]
            pub fn take(
                self,
                state: &mut State,
                limit: &Limit,
                now: Timestamp,
                cost: Cost,
            ) -> Decision {
                match (self, &mut *state) {
                    $((Self::$variant, State::$variant(state)) => {
                        let decision = $module::decide(state, limit, now, cost);
                        $module::commit(state, limit, now, cost, &decision);
                        decision
                    })*
                    _ => {
                        let decision = self.decide(state, limit, now, cost);
                        self.commit(state, limit, now, cost, &decision);
                        decision
                    }
                }
            }

            /// Counts a cost that was incurred already, even if too few units are left: the rest is
            /// [debt](Limit::max_debt) if the limit keeps any, and is not counted otherwise.
            /// Replaces a state of another algorithm.
            ///
            /// Returns the decision and the number of units that were counted. The outcome is
            /// [`Outcome::Allowed`] if enough units were left; the numbers are those of the state
            /// afterwards, and the wait of a denial is that for one unit. A cost above
            /// [`Algorithm::max_cost`] is counted only up to this maximum, and is
            /// [`Outcome::Impossible`] if units are left afterwards.
            pub fn report(
                self,
                state: &mut State,
                limit: &Limit,
                now: Timestamp,
                cost: Cost,
            ) -> (Decision, u64) {
                let left = self.decide(state, limit, now, Cost::NONE).remaining;
                match self {
                    $(Self::$variant => {
                        if !matches!(state, State::$variant(_)) {
                            *state = State::$variant($module::State::default());
                        }
                        if let State::$variant(state) = state {
                            $module::charge(state, limit, now, cost);
                        }
                    })*
                }
                let after = self.decide(state, limit, now, Cost::NONE);
                let counted = u64::try_from(left - after.remaining).unwrap_or_default();
                let is_counted = cost.units() <= self.max_cost().into();
                if is_counted && cost.units().cast_signed() <= left {
                    return (Decision { outcome: Outcome::Allowed, ..after }, counted);
                }
                let outcome = match self.decide(state, limit, now, Cost::ONE).outcome {
                    // The cost exceeded the maximum, and units are left.
                    Outcome::Allowed => Outcome::Impossible,
                    denied => denied,
                };
                (Decision { outcome, ..after }, counted)
            }

            /// Gives back the units that were `taken`, except those that time has made available
            /// again. Does not change a state of another algorithm.
            pub fn refund(self, state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
                match (self, state) {
                    $((Self::$variant, State::$variant(state)) => {
                        $module::refund(state, limit, now, taken);
                    })*
                    _ => {}
                }
            }

            /// Gives back `cost` units without a receipt, at most those in use. Does not change a
            /// state of another algorithm.
            pub fn credit(self, state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
                match (self, state) {
                    $((Self::$variant, State::$variant(state)) => {
                        $module::credit(state, limit, now, cost);
                    })*
                    _ => {}
                }
            }

            /// Converts a state that counts by [`LimitChange::from`] into one that counts by
            /// [`LimitChange::to`]: that of a key of which as many units are in use as the policy
            /// says. The units are those that [`Algorithm::decide`] shows before and afterwards.
            /// Without units in use the state is removed. If more are in use than `from` lets anybody
            /// take, by another limit on the state, all of them stay.
            pub fn convert(self, state: &mut State, change: &LimitChange<'_>, now: Timestamp) {
                let most = change.from.deciding_alone().max_in_use();
                let in_use = || self.decide(state, change.from, now, Cost::NONE).current_count;
                if self.has_burst() && change.from.shares_state() && in_use() > most {
                    return;
                }
                if change.on_change.is_none() {
                    self.carry(state, change, now);
                    return;
                }
                let left = self.decide(state, change.from, now, Cost::NONE).remaining;
                let used = change.used_after(self, left);
                if used == 0 {
                    *state = State::None;
                    return;
                }
                match (self, state) {
                    $((Self::$variant, State::$variant(state)) => {
                        $module::convert(state, change, now, used);
                    })*
                    _ => {}
                }
            }

            /// Carries a state over to another limit as it is. No state is a full bucket of the
            /// limit before.
            fn carry(self, state: &mut State, change: &LimitChange<'_>, now: Timestamp) {
                match self {
                    $(Self::$variant => {
                        let mut carried = match state {
                            State::$variant(state) => std::mem::take(state),
                            _ => $module::State::default(),
                        };
                        $module::carry(&mut carried, change, now);
                        let is_none = carried == $module::State::default();
                        *state = if is_none { State::None } else { State::$variant(carried) };
                    })*
                }
            }
        }

        /// The state of one key.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
        pub enum State {
            /// No state.
            #[default]
            None,
            $(
                #[doc = concat!("The state of `", $name, "`.")]
                $variant($module::State),
            )*
        }

        impl State {
            /// Returns `true` if an algorithm can have written the state. Decisions need a valid one,
            /// so check states that come from elsewhere, such as a file.
            pub fn is_valid(&self) -> bool {
                match self {
                    Self::None => true,
                    $(Self::$variant(state) => state.is_valid(),)*
                }
            }

            /// Returns the time from which the state makes no difference to any decision.
            #[inline]
            pub fn expires_at(&self) -> Timestamp {
                match self {
                    Self::None => Timestamp::EPOCH,
                    $(Self::$variant(state) => state.expires_at(),)*
                }
            }
        }
    };
}

registry! {
    fixed_window           FixedWindow          "fixed-window"           ["fixed-window-algo", "fixed"];
    sliding_window_log     SlidingWindowLog     "sliding-window-log"     ["sliding-window-algo"];
    sliding_window_counter SlidingWindowCounter "sliding-window-counter" ["sliding", "sliding-window"];
    token_bucket           TokenBucket          "token-bucket"           ["token", "token-bucket-algo"];
    leaky_bucket           LeakyBucket          "leaky-bucket"           ["leaky", "leaky-bucket-algo"];
    gcra                   Gcra                 "gcra"                   ["GCRA"];
    concurrency            Concurrency          "concurrency"            [];
}

impl Algorithm {
    /// The algorithms that count units over time, by which requests are checked: all but
    /// [`Algorithm::Concurrency`], which is the last one.
    pub const RATES: &[Self] = match Self::ALL {
        [rates @ .., Self::Concurrency] => rates,
        all => all,
    };

    /// Returns `true` if the algorithm counts nothing: a request holds slots while it is in flight.
    pub const fn has_slots(self) -> bool {
        matches!(self, Self::Concurrency)
    }
}

/// Time of the last change of an initial state: later than any other, so that the state counts as
/// none ([`is_from_the_future`]).
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);
/// The highest count that is kept exactly everywhere.
const MAX_COUNT: u64 = 1 << 53;
/// The largest count of a fixed window: with a cost added it is below [`MAX_COUNT`].
const MAX_WINDOW_COUNT: u64 = 9_007_199_254_740_000;
/// The most units in use of a bucket, and the largest count of a sliding window counter.
const MAX_IN_USE: u64 = (1 << 36) - 1;

/// Converts a number of units, which the bounds of a limit keep small, to the type of the state.
#[inline]
fn stored(units: u64) -> u32 {
    u32::try_from(units).expect("a limit has at most 10⁹ units")
}

/// Returns `true` if the clock has stepped back by more than a window since it wrote a state at
/// `at`. Such a state counts as none, so that nobody is blocked for longer than a window.
/// This grants at most one extra refill.
fn is_from_the_future(at: Timestamp, now: Timestamp, limit: &Limit) -> bool {
    at > now + limit.window()
}

/// Time for which a state outlives its effect.
const MARGIN: Micros = Micros::from_millis(1_000);

/// Returns the expiry of a state that makes no difference once `spent_after` has passed: in whole
/// milliseconds, as for a Redis key, plus [`MARGIN`].
fn time_to_live(now: Timestamp, spent_after: Micros) -> Timestamp {
    let millis = now.as_millis() + spent_after.as_micros().div_ceil(1_000);
    Timestamp::from_millis(millis) + MARGIN
}

/// Returns the most units of a taken cost that can still be outstanding at `now`, that is, not yet
/// refilled: whole units, and a fraction as its numerator over the window in microseconds.
///
/// Without other requests the bucket is full `reset_after` after the units were taken. So no more
/// of them are outstanding than are refilled from now until then.
fn outstanding(limit: &Limit, now: Timestamp, taken: &TakenUnits) -> (u64, u64) {
    let left = (taken.at + taken.reset_after).since(now);
    if left >= limit.time_for(taken.cost.units(), 0) {
        (taken.cost.units(), 0)
    } else {
        limit.units_in(left, 0)
    }
}

/// Returns the index of the window that contains `now`. Windows are aligned to the Unix epoch.
pub fn window_index(now: Timestamp, window: Micros) -> u64 {
    now.as_micros() / window.as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_name_accepts_both_spellings_of_every_name() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(*algorithm));
            assert_eq!(Algorithm::from_name(algorithm.lua_name()), Some(*algorithm));
        }
        assert_eq!(Algorithm::from_name("unknown"), None);
    }

    #[test]
    fn state_fits_40_bytes() {
        assert!(size_of::<State>() <= 40, "{} bytes", size_of::<State>());
    }
}
