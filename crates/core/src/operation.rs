//! What a store is asked, and what it answers: hits with actions, decisions, and receipts.
//!
//! A store takes one request and gives one reply. What is to be done with a state is the hit's
//! [`Action`]; the request says only how its hits depend on each other. A further operation is a
//! further action. Crediting units, for one, is: the variant and its lines in the methods of [`Action`]
//! here; `credit` in each algorithm and its Lua twin; one line in `give` of [`step`](crate::step) and
//! of `lua/coupled.lua`, and in `action_code` and `plain_cost` of the Redis store.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Cost, Decision, Limit, TakenUnits};
use crate::rules::{Coupling, Key, Mode};

/// What a store does with the state of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Decides, and takes the cost if it may.
    Take(Cost),
    /// Decides, and takes nothing.
    Peek(Cost),
    /// Counts a cost that has been incurred already, whatever is left and whatever other hits say.
    Report(Cost),
    /// Gives back what an earlier hit has taken, as if it never had. Does nothing if the state was
    /// reset since.
    Refund(TakenUnits),
    /// Gives units that nobody has a receipt for, never above full.
    Credit(Cost),
    /// Forgets the state.
    Reset,
}

impl Action {
    /// The units that it is about.
    pub const fn cost(self) -> Cost {
        match self {
            Self::Take(cost) | Self::Peek(cost) | Self::Report(cost) | Self::Credit(cost) => cost,
            Self::Refund(taken) => taken.cost,
            Self::Reset => Cost::NONE,
        }
    }

    /// Returns `true` if a state may be changed, so that to repeat a call may do so twice.
    pub fn changes(self) -> bool {
        match self {
            Self::Take(cost) | Self::Report(cost) => cost != Cost::NONE,
            Self::Peek(_) => false,
            Self::Refund(_) | Self::Credit(_) | Self::Reset => true,
        }
    }

    /// What is left of it in a request that is refused: a take looks, a credit gives nothing. Reports
    /// count all the same.
    #[must_use]
    pub const fn when_refused(self) -> Self {
        match self {
            Self::Take(cost) => Self::Peek(cost),
            Self::Credit(_) => Self::Peek(Cost::NONE),
            other => other,
        }
    }

    /// Returns `true` if what it gives depends on what the takes of the request come to.
    pub const fn returns_units(self) -> bool {
        matches!(self, Self::Refund(_) | Self::Credit(_) | Self::Reset)
    }
}

/// One key and what is done with its state, as a store sees it: borrowed from a plan.
#[derive(Clone, Copy, Debug)]
pub struct StoreHit<'a> {
    /// Names the state.
    pub key: &'a Key,
    /// Decides.
    pub algorithm: Algorithm,
    /// How many per window.
    pub limit: &'a Limit,
    /// What to do with the state.
    pub action: Action,
    /// Whether a denial stops the others from taking.
    pub mode: Mode,
}

/// Hits of one [shard](Shard), which are decided in one atomic step.
///
/// Hits of one key are decided in order, each for the sum of the costs up to it. Reports come before
/// takes, refunds and credits after them. Where nothing is taken, the outcome of a hit is that of its
/// cost, and the numbers are those of the state as it stays.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// The hits, in order.
    pub hits: &'a [StoreHit<'a>],
    /// How they depend on each other.
    pub coupling: Coupling,
    /// Where their states are, as the store has said of their keys.
    pub shard: Shard,
}

/// What became of each hit, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// One for each hit of the request.
    pub hits: SmallVec<[HitReply; 2]>,
}

/// What became of one hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitReply {
    /// The outcome and the numbers of its state. `remaining` below 0 is debt.
    pub decision: Decision,
    /// Units that were counted: of a report or a take by itself maybe fewer than asked for.
    pub taken: u64,
}

/// Where a state is: hits of one shard are decided in one atomic step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u16);

/// What a hit has taken, to be given back once: it is no `Clone`, and a refund consumes it.
///
/// ```compile_fail,E0599
/// fn twice(receipt: rlaas_core::operation::Receipt) -> [rlaas_core::operation::Receipt; 2] {
///     [receipt.clone(), receipt]
/// }
/// ```
#[derive(Debug)]
pub struct Receipt {
    /// Name of the rule that it was taken by.
    pub rule: Arc<str>,
    /// Names the state.
    pub key: Key,
    /// Keeps the state.
    pub algorithm: Algorithm,
    /// The limit by which it was taken, whatever the rule says by now.
    pub limit: Limit,
    /// The units, and when they were taken.
    pub taken: TakenUnits,
    /// Which store has counted them.
    pub store: StoreId,
}

/// Which store of a limiter has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreId {
    /// Its store.
    Primary,
    /// The memory by which it decides alone while the store is away.
    Fallback,
}

impl Receipt {
    /// The hit that gives back what was taken, under the limit that is in force.
    pub fn refund<'a>(&'a self, limit: &'a Limit) -> StoreHit<'a> {
        let Self { key, algorithm, taken, .. } = self;
        let action = Action::Refund(*taken);
        StoreHit { key, algorithm: *algorithm, limit, action, mode: Mode::Enforced }
    }
}
