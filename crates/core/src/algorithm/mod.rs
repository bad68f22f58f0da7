//! The algorithms: pure arithmetic on a state, a limit, a time and a cost.
//!
//! Each algorithm is a few small steps, the same in Rust and in Lua:
//!
//! - *decide*: state, limit, now, cost → [`Decision`]; changes nothing;
//! - *commit*: the state after that decision. It is called for what is taken, and for a denial that
//!   leaves a trace (a full fixed window counts attempts, a log lives on);
//! - *charge*: the state after a cost that has been incurred already, counted although nothing may
//!   be left;
//! - *refund*: the state as if that decision had never taken its cost, wherever the state still
//!   tells; where it does not, rather fewer units than more. What time has brought back meanwhile
//!   is not given again;
//! - *credit*: the state with units more, never above full, whoever has taken them;
//! - *reset*: no state.
//!
//! The Rust form is the specification and the memory store's engine. Its Lua twin in `lua/` has the
//! same file name, function names, local names and order.
//!
//! This room knows nothing of stores, requests or protocols. It neither waits nor reads a clock.

mod decision;
mod limit;

pub use decision::{Decision, Outcome, TakenUnits};
pub use limit::{Cost, Limit, LimitError};

use crate::clock::{Micros, Timestamp};

/// Declares every algorithm once: module, variant, canonical name, other accepted names. A missing
/// Lua twin does not compile.
macro_rules! registry {
    ($($module:ident $variant:ident $name:literal [$($alias:literal),*];)*) => {
        $(mod $module;)*

        /// Which algorithm decides.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Algorithm {
            /// Every algorithm.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The canonical name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The algorithm with this canonical or other accepted name; `_` and `-` are alike.
            pub fn from_name(name: &str) -> Option<Self> {
                match name.replace('_', "-").as_str() {
                    $($name $(| $alias)* => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Name of the Lua twin in a script.
            pub const fn lua_name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($module),)* }
            }

            /// Does the Redis key end with the index of the window?
            pub const fn keyed_by_window(self) -> bool {
                match self { $(Self::$variant => $module::KEYED_BY_WINDOW,)* }
            }

            /// Checks what this algorithm asks of a limit beyond what every limit keeps.
            ///
            /// # Errors
            ///
            /// [`LimitError`] with the bound.
            pub fn accepts(self, limit: &Limit) -> Result<(), LimitError> {
                let (algorithm, max) = (self.name(), self.max_units());
                if limit.units() > max {
                    return Err(LimitError::TooMany { algorithm, max });
                }
                if limit.burst() != limit.units() && !self.has_burst() {
                    return Err(LimitError::NoBurst { algorithm });
                }
                Ok(())
            }

            /// May `burst` differ from `limit`?
            pub const fn has_burst(self) -> bool {
                match self { $(Self::$variant => $module::HAS_BURST,)* }
            }

            /// The most units that one request may take.
            pub const fn max_cost(self) -> u32 {
                match self { $(Self::$variant => $module::MAX_COST,)* }
            }

            /// The most units per window.
            pub const fn max_units(self) -> u64 {
                match self { $(Self::$variant => $module::MAX_UNITS,)* }
            }

            /// Decides what `cost` at `now` meets in `state`; changes nothing. A state of another
            /// algorithm counts as none.
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

            /// Makes `state` what it is after `decision`, which [`Algorithm::decide`] has just made
            /// with the same arguments. A state of another algorithm is replaced, but not by a
            /// denial.
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

            /// Decides, and commits that at once: one look at the state for both.
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

            /// Counts a cost that has been incurred already, whatever is left: above the limit as
            /// [debt](Limit::max_debt), where a limit keeps any. A state of another algorithm is
            /// replaced.
            ///
            /// The decision allows if the cost fitted. Its numbers are those of the state after it,
            /// and its wait is that of one unit. Of a cost above [`Algorithm::max_cost`] only so much
            /// is counted; it is impossible if there was room for more. Returns the units that were
            /// counted, too.
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
                    // There is room for what was not counted.
                    Outcome::Allowed => Outcome::Impossible,
                    denied => denied,
                };
                (Decision { outcome, ..after }, counted)
            }

            /// Makes `state` at `now` what it would be if what was `taken` had stayed, as far as the
            /// state tells: it never gives more than that. A state of another algorithm stays as it
            /// is.
            pub fn refund(self, state: &mut State, limit: &Limit, now: Timestamp, taken: &TakenUnits) {
                match (self, state) {
                    $((Self::$variant, State::$variant(state)) => {
                        $module::refund(state, limit, now, taken);
                    })*
                    _ => {}
                }
            }

            /// Gives `cost` units that nobody has a receipt for, never more than are in use. A state
            /// of another algorithm stays as it is.
            pub fn credit(self, state: &mut State, limit: &Limit, now: Timestamp, cost: Cost) {
                match (self, state) {
                    $((Self::$variant, State::$variant(state)) => {
                        $module::credit(state, limit, now, cost);
                    })*
                    _ => {}
                }
            }
        }

        /// What an algorithm remembers of one key.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
        pub enum State {
            /// Nothing yet.
            #[default]
            None,
            $(
                #[doc = concat!("The state of `", $name, "`.")]
                $variant($module::State),
            )*
        }

        impl State {
            /// From when on the state makes no difference to any decision.
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
}

/// When a state was left that there never was: in a time that does not come.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// Units within the bounds of a limit, as a state keeps them.
#[inline]
fn stored(units: u64) -> u32 {
    u32::try_from(units).expect("a limit has at most 10⁹ units")
}

/// Is a state of `at` from a clock that has jumped back since? It counts as none then, so that
/// nobody is blocked for longer than a window: at most one extra refill.
fn is_from_the_future(at: Timestamp, now: Timestamp, limit: &Limit) -> bool {
    at > now + limit.window()
}

/// How much longer than it makes a difference a state lives.
const MARGIN: Micros = Micros::from_millis(1_000);

/// From when on a state that is `spent` after some time makes no difference, with a margin and in
/// whole milliseconds like the expiry of a Redis key.
fn time_to_live(now: Timestamp, spent_after: Micros) -> Timestamp {
    let millis = now.as_millis() + spent_after.as_micros().div_ceil(1_000);
    Timestamp::from_millis(millis) + MARGIN
}

/// What of a taken cost may still be out at `now`: units, and the part of one in units divided by
/// the window's microseconds.
///
/// Had nobody else asked, the bucket would be whole again when `taken` said, and what comes after
/// that finds no room: of the cost, no more is out than what comes until then.
fn outstanding(limit: &Limit, now: Timestamp, taken: &TakenUnits) -> (u64, u64) {
    let left = (taken.at + taken.reset_after).since(now);
    if left >= limit.time_for(taken.cost.units(), 0) {
        (taken.cost.units(), 0)
    } else {
        limit.units_in(left, 0)
    }
}

/// Index of the window that `now` is in: windows are aligned to the Unix epoch.
pub fn window_index(now: Timestamp, window: Micros) -> u64 {
    now.as_micros() / window.as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_found_by_its_name_in_both_spellings() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(*algorithm));
            assert_eq!(Algorithm::from_name(algorithm.lua_name()), Some(*algorithm));
        }
        assert_eq!(Algorithm::from_name("unknown"), None);
    }

    #[test]
    fn a_state_is_small() {
        assert!(size_of::<State>() <= 40, "{} bytes", size_of::<State>());
    }
}
