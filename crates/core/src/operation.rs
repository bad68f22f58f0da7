//! The interface of stores: requests of hits with actions, replies with decisions, and receipts.
//!
//! A store executes one request and returns one reply. Each hit has its own [`Action`]; the request
//! says only how its hits depend on each other. A new operation is a new action. For example,
//! crediting units consists of the variant and its lines in the methods of [`Action`], of `credit`
//! in each algorithm and its Lua twin, and of one line each in `return_units` of
//! [`step`](crate::step) and `lua/coupled.lua`, and in `action_code` and `plain_cost` of the Redis
//! store.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Cost, Decision, Limit, TakenUnits};
use crate::rules::{Coupling, Key, Mode};

/// The operation on the state of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Decides, and takes the cost if it is allowed.
    Take(Cost),
    /// Decides and takes nothing.
    Peek(Cost),
    /// Counts a cost that was incurred already, even if too few units are left and whatever the
    /// other hits decide.
    Report(Cost),
    /// Returns the units that an earlier hit has taken. Does nothing if the state was reset since.
    Refund(TakenUnits),
    /// Returns units without a receipt, never above full.
    Credit(Cost),
    /// Removes the state.
    Reset,
}

impl Action {
    /// Returns the units of the action.
    pub const fn cost(self) -> Cost {
        match self {
            Self::Take(cost) | Self::Peek(cost) | Self::Report(cost) | Self::Credit(cost) => cost,
            Self::Refund(taken) => taken.cost,
            Self::Reset => Cost::NONE,
        }
    }

    /// Returns `true` if the action may change a state, so that repeating it is not safe.
    pub fn changes(self) -> bool {
        match self {
            Self::Take(cost) | Self::Report(cost) => cost != Cost::NONE,
            Self::Peek(_) => false,
            Self::Refund(_) | Self::Credit(_) | Self::Reset => true,
        }
    }

    /// Returns the action to execute in a request that is already refused: a take becomes a peek, a
    /// credit returns nothing. Reports, refunds and resets stay the same.
    #[must_use]
    pub const fn when_refused(self) -> Self {
        match self {
            Self::Take(cost) => Self::Peek(cost),
            Self::Credit(_) => Self::Peek(Cost::NONE),
            other => other,
        }
    }

    /// Returns `true` if the action returns units. Such actions follow the takes of their request.
    pub const fn returns_units(self) -> bool {
        matches!(self, Self::Refund(_) | Self::Credit(_) | Self::Reset)
    }
}

/// One key and the operation on its state. Borrows from a plan.
#[derive(Clone, Copy, Debug)]
pub struct StoreHit<'a> {
    /// Name of the state.
    pub key: &'a Key,
    /// Algorithm that decides.
    pub algorithm: Algorithm,
    /// Limit by which it decides.
    pub limit: &'a Limit,
    /// Operation on the state.
    pub action: Action,
    /// Whether a denial of this hit refuses the request.
    pub mode: Mode,
}

/// Hits of one [shard](Shard), which the store decides in one atomic step.
///
/// Takes of the same key are decided in order, each for the sum of the costs up to it. Reports come
/// before takes, refunds and credits after them. A hit that takes nothing has the outcome for its
/// cost, with the numbers of the unchanged state.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// The hits, in order.
    pub hits: &'a [StoreHit<'a>],
    /// How the hits depend on each other.
    pub coupling: Coupling,
    /// Shard of their keys, as returned by the store.
    pub shard: Shard,
}

/// The reply of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// One reply for each hit of the request, in order.
    pub hits: SmallVec<[HitReply; 2]>,
}

/// The reply to one hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitReply {
    /// The outcome and the numbers of the state.
    pub decision: Decision,
    /// Units that were counted. May be fewer than the cost for a report, and for a take with
    /// [`Coupling::EachAlone`].
    pub taken: u64,
}

/// The place of a state. Hits of one shard are decided in one atomic step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u16);

/// The units that a hit has taken, to be refunded at most once: not [`Clone`], and consumed by the
/// refund.
///
/// ```compile_fail,E0599
/// fn twice(receipt: rlaas_core::operation::Receipt) -> [rlaas_core::operation::Receipt; 2] {
///     [receipt.clone(), receipt]
/// }
/// ```
#[derive(Debug)]
pub struct Receipt {
    /// Name of the rule by which the units were taken.
    pub rule: Arc<str>,
    /// Name of the state.
    pub key: Key,
    /// Algorithm of the rule.
    pub algorithm: Algorithm,
    /// Limit at the time of the decision; that of the rule may have changed since.
    pub limit: Limit,
    /// The units, with the data that the refund needs.
    pub taken: TakenUnits,
    /// The store that counted them.
    pub store: StoreId,
}

/// A store of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreId {
    /// The configured store.
    Primary,
    /// The memory store by which the limiter decides alone while the configured one fails.
    Fallback,
}

impl Receipt {
    /// Returns the hit that refunds the units, with the limit that is in force now.
    pub fn refund<'a>(&'a self, limit: &'a Limit) -> StoreHit<'a> {
        let Self { key, algorithm, taken, .. } = self;
        let action = Action::Refund(*taken);
        StoreHit { key, algorithm: *algorithm, limit, action, mode: Mode::Enforced }
    }
}
