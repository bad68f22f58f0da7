//! Changes of a limit: how many units are in use afterwards.
//!
//! Used and left units are those that a look shows just before the change, in whole units. The
//! state is then that of a key that has taken the new number of used units. So the definition is
//! the same for all algorithms, and does not depend on how they keep their state.

use super::limit::divide;
use super::{Algorithm, Limit};

/// The units in use after a change of limit, burst or window. A key without units in use is full
/// afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnChange {
    /// Units in use stay in use.
    KeepUsed,
    /// Units left stay left, up to the new burst.
    KeepLeft,
    /// The used part of the burst stays the same, rounded up to whole units.
    Scale,
    /// No unit is in use.
    Reset,
}

impl OnChange {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::KeepUsed, Self::KeepLeft, Self::Scale, Self::Reset];

    /// Returns the name in rules files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KeepUsed => "keep-used",
            Self::KeepLeft => "keep-left",
            Self::Scale => "scale",
            Self::Reset => "reset",
        }
    }

    /// Returns `true` if units that were taken before the change can be given back after it.
    pub(crate) const fn keeps_units(self) -> bool {
        matches!(self, Self::KeepUsed)
    }

    /// Returns the units in use after a change, of which `used` were in use before.
    fn used_after(self, used: u64, from: u64, to: u64) -> u64 {
        match self {
            Self::KeepUsed => used,
            // With debt fewer than no units are left.
            Self::KeepLeft => (to + used).saturating_sub(from),
            // Lua's numbers would not be exact.
            Self::Scale if from.max(to) > Limit::MAX_UNITS => used,
            Self::Scale => {
                let used = (u128::from(used) * u128::from(to)).div_ceil(from.into());
                u64::try_from(used).unwrap_or(u64::MAX)
            }
            Self::Reset => 0,
        }
    }
}

/// A change of the limit by which a state counts.
#[derive(Clone, Copy, Debug)]
pub struct LimitChange<'a> {
    /// The limit before.
    pub from: &'a Limit,
    /// The limit from now on.
    pub to: &'a Limit,
    /// The limit that `to` replaces, of whose burst the policy speaks: `from`, unless an instance with
    /// older rules has counted since.
    pub replaced: &'a Limit,
    /// Units in use afterwards. `None`: the state is carried over as it is. Counts stay, also of a
    /// fixed window of another length; of a bucket, units left stay left, and fractions of them.
    pub on_change: Option<OnChange>,
}

impl LimitChange<'_> {
    /// Returns `true` if the length of the window changes.
    pub(super) fn changes_window(&self) -> bool {
        self.from.window() != self.to.window()
    }

    /// Converts the fraction of a unit, in 1 / window microseconds of a unit, rounded down.
    pub(super) fn part_after(&self, part: u64) -> u64 {
        divide(part, self.to.window().as_micros(), 0, self.from.window().as_micros()).0
    }

    /// Returns the units in use afterwards, if `left` were left before.
    pub(super) fn used_after(&self, algorithm: Algorithm, left: i64) -> u64 {
        let used_of = |burst: u64| {
            u64::try_from(burst.cast_signed().saturating_sub(left)).unwrap_or_default()
        };
        // Counts stay as they are by the replaced limit, of a bucket the units left. A key of which
        // nothing was used is full.
        let used = match used_of(self.from.burst()) {
            used if used > 0 && algorithm.has_burst() => used_of(self.replaced.burst()),
            used => used,
        };
        let (from, to) = (self.replaced.burst(), self.to.burst());
        match self.on_change {
            None => used,
            Some(_) if used == 0 => 0,
            // Counts may be above the limit, buckets not.
            Some(OnChange::KeepUsed) if !algorithm.has_burst() => used,
            Some(policy) => {
                policy.used_after(used, from, to).min(self.to.deciding_alone().max_in_use())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;

    #[test]
    fn examples_of_the_book() {
        let limit = |units| Limit::new(units, Micros::from_secs(60)).expect("a limit");
        // Used before, then for each policy the units left afterwards.
        for (from, to, used, expected) in [
            (10, 20, 4, [16, 6, 12, 20]),
            (10, 5, 4, [1, 5, 3, 5]),
            (10, 5, 9, [0, 1, 0, 5]),
            (10, 25, 10, [15, 0, 0, 25]),
            (10, 20, 0, [20, 20, 20, 20]),
            (3, 1_000_000_000, 1, [999_999_999, 2, 666_666_666, 1_000_000_000]),
        ] {
            let (from, to) = (&limit(from), &limit(to));
            let left = OnChange::ALL.map(|policy| {
                let change = LimitChange { from, to, replaced: from, on_change: Some(policy) };
                to.units() - change.used_after(Algorithm::Gcra, (from.units() - used).cast_signed())
            });
            assert_eq!(left, expected, "{used} of {from:?}");
        }
    }

    #[test]
    fn policy_speaks_of_the_limit_that_is_replaced() {
        let limit = |units| Limit::new(units, Micros::from_secs(60)).expect("a limit");
        // 20 becomes 10, after an instance has counted by 5.
        let (from, to, replaced) = (&limit(5), &limit(10), &limit(20));
        let used = |algorithm| {
            OnChange::ALL.map(|policy| {
                let on_change = Some(policy);
                LimitChange { from, to, replaced, on_change }.used_after(algorithm, 1)
            })
        };
        // 4 are used: of 20.
        assert_eq!(used(Algorithm::FixedWindow), [4, 0, 2, 0]);
        // 1 is left: of 20.
        assert_eq!(used(Algorithm::Gcra), [10, 9, 10, 0]);
    }

    #[test]
    fn debt_stays_debt_up_to_that_of_the_new_limit() {
        let limit = |units, debt| {
            let limit = Limit::new(units, Micros::from_secs(60)).expect("a limit");
            limit.with_max_debt(debt).expect("a debt")
        };
        let (from, to) = (&limit(10, 10), &limit(20, 3));
        let used = OnChange::ALL.map(|policy| {
            LimitChange { from, to, replaced: from, on_change: Some(policy) }
                .used_after(Algorithm::Gcra, -2)
        });
        assert_eq!(used, [12, 22, 23, 0]);
    }
}
