//! Slots: bounds work in flight. Each reservation holds slots until it ends, so the state of a key is
//! its [holds](crate::reservation::Holds) alone: there is nothing to count, and nothing to give back.

use super::{Cost, Decision, Limit, LimitChange, Outcome, TakenUnits};
use crate::clock::{Micros, Timestamp};
use crate::reservation::Holds;

pub(super) const KEYED_BY_WINDOW: bool = false;
pub(super) const HAS_BURST: bool = false;
pub(super) const MAX_UNITS: u64 = Holds::MAX as u64;
pub(super) const MAX_COST: u32 = Holds::MAX;

/// No state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct State;

impl State {
    #[expect(clippy::unused_self, reason = "as of other algorithms")]
    pub(super) const fn expires_at(&self) -> Timestamp {
        Timestamp::EPOCH
    }

    #[expect(clippy::unused_self, reason = "as of other algorithms")]
    pub(super) const fn is_valid(&self) -> bool {
        true
    }
}

/// Decides on slots, all of which are free but for those that are held.
pub(super) fn decide(_: &State, limit: &Limit, now: Timestamp, cost: Cost) -> Decision {
    let free = limit.units().cast_signed();
    let outcome = Outcome::new(cost, free, limit.units(), || Micros::ZERO);
    let taken = outcome.taken(cost);
    Decision {
        at: now,
        outcome,
        current_count: taken,
        remaining: free - taken.cast_signed(),
        reset_after: Micros::ZERO,
        ttl: Micros::ZERO,
        delay: Micros::ZERO,
    }
}

pub(super) const fn commit(_: &mut State, _: &Limit, _: Timestamp, _: Cost, _: &Decision) {}

pub(super) const fn charge(_: &mut State, _: &Limit, _: Timestamp, _: Cost) {}

pub(super) const fn refund(_: &mut State, _: &Limit, _: Timestamp, _: &TakenUnits) {}

pub(super) const fn credit(_: &mut State, _: &Limit, _: Timestamp, _: Cost) {}

pub(super) const fn carry(_: &mut State, _: &LimitChange<'_>, _: Timestamp) {}

pub(super) const fn convert(_: &mut State, _: &LimitChange<'_>, _: Timestamp, _: u64) {}
