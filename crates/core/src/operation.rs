//! The interface of stores: requests of hits with actions, replies with decisions, and receipts.
//!
//! A store executes one request and returns one reply. Each hit has its own [`Action`]; the request
//! says only how its hits depend on each other. A new operation is a new action. For example,
//! crediting units consists of the variant and its lines in the methods of [`Action`], of `credit`
//! in each algorithm and its Lua twin, and of one line each in `return_units` of
//! [`step`](crate::step) and `lua/coupled.lua`, and in `action_code` and `plain_cost` of the Redis
//! store.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Cost, Decision, Limit, OnChange, TakenUnits, Window};
use crate::control::{Applied, LimitFrame, OverrideChange, OverrideKind};
use crate::idempotency::{CallId, IdempotencyRecord};
use crate::reservation::{Reservation, ReservationReply};
use crate::rules::{Coupling, Grant, Key, Mode, Share};

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
    /// Decides, and holds the cost for the reservation of the request if it is allowed, beside what
    /// the reservation holds of the key already.
    Hold(Cost),
    /// Ends the hold of the reservation of the request, and charges this cost, or what is held.
    Settle(Option<Cost>),
    /// Returns the units that an earlier hit has taken. Does nothing if the state was reset since.
    Refund(TakenUnits),
    /// Returns units without a receipt, never above full.
    Credit(Cost),
    /// Removes the state. Overrides stay.
    Reset,
    /// Sets the override of [`StoreHit::change`].
    SetOverride,
    /// Removes overrides. A key without one is no error.
    ClearOverride(OverrideKind),
}

impl Action {
    /// Returns the units of the action.
    pub const fn cost(self) -> Cost {
        match self {
            Self::Take(cost)
            | Self::Peek(cost)
            | Self::Report(cost)
            | Self::Hold(cost)
            | Self::Settle(Some(cost))
            | Self::Credit(cost) => cost,
            Self::Refund(taken) => taken.cost,
            Self::Settle(None) | Self::Reset | Self::SetOverride | Self::ClearOverride(_) => {
                Cost::NONE
            }
        }
    }

    /// Returns `true` if the action may change a state, so that repeating it is not safe.
    pub fn changes(self) -> bool {
        match self {
            Self::Take(cost) | Self::Report(cost) => cost != Cost::NONE,
            Self::Peek(_) => false,
            Self::Hold(_)
            | Self::Settle(_)
            | Self::Refund(_)
            | Self::Credit(_)
            | Self::Reset
            | Self::SetOverride
            | Self::ClearOverride(_) => true,
        }
    }

    /// Returns `true` if the action decides on a cost, and takes no more than is there.
    pub(crate) const fn decides(self) -> bool {
        matches!(self, Self::Take(_) | Self::Peek(_) | Self::Hold(_))
    }

    /// Returns the action with another cost, if it decides on one.
    #[must_use]
    pub(crate) const fn with_cost(self, cost: Cost) -> Self {
        match self {
            Self::Take(_) => Self::Take(cost),
            Self::Peek(_) => Self::Peek(cost),
            Self::Hold(_) => Self::Hold(cost),
            other => other,
        }
    }

    /// Returns the action to execute in a request that is already refused: a take becomes a peek, a
    /// credit returns nothing. All others stay the same.
    #[must_use]
    pub const fn when_refused(self) -> Self {
        match self {
            Self::Take(cost) | Self::Hold(cost) => Self::Peek(cost),
            Self::Credit(_) => Self::Peek(Cost::NONE),
            other => other,
        }
    }

    /// Returns `true` if the action decides by a limit, and may store a state that counts by it.
    pub(crate) fn counts(self) -> bool {
        match self {
            Self::Peek(_) | Self::Hold(_) => false,
            Self::Settle(_) | Self::Reset => true,
            other => other.cost() != Cost::NONE,
        }
    }

    /// Returns `true` if the action returns units. Such actions follow the takes of their request.
    pub const fn returns_units(self) -> bool {
        matches!(self, Self::Refund(_) | Self::Credit(_) | Self::Reset)
    }

    /// Returns `true` if the action sets or clears an override. Such actions come before all
    /// others of their request.
    pub const fn changes_control(self) -> bool {
        matches!(self, Self::SetOverride | Self::ClearOverride(_))
    }

    /// Returns `true` if a denial that was cached before the action may no longer hold after it.
    pub const fn invalidates_denials(self) -> bool {
        self.returns_units() || self.changes_control() || matches!(self, Self::Settle(_))
    }

    /// Returns `true` if the reply has the whole control record of an overridable hit: the actions
    /// of administration do, and peeks.
    pub const fn shows_control(self) -> bool {
        match self {
            Self::Peek(_)
            | Self::Credit(_)
            | Self::Reset
            | Self::SetOverride
            | Self::ClearOverride(_) => true,
            Self::Take(_) | Self::Report(_) | Self::Hold(_) | Self::Settle(_) | Self::Refund(_) => {
                false
            }
        }
    }
}

/// One key and the operation on its state. Borrows from a plan.
#[derive(Clone, Copy, Debug)]
pub struct StoreHit<'a> {
    /// Name of the state.
    pub key: &'a Key,
    /// Algorithm that decides.
    pub algorithm: Algorithm,
    /// Grant by which it decides, unless an override of the key replaces it. With a ban or without
    /// a limit nothing is counted.
    pub grant: &'a Grant,
    /// Window of the grant; for a ban or an unlimited grant, that of overrides.
    pub window: Window,
    /// Whether the hit obeys the overrides of its key, and may change them.
    pub overridable: bool,
    /// Units in use after a change of the grant, which must be that of the rule itself. `None`: the
    /// limits by which the key was counted are not kept.
    pub on_change: Option<OnChange>,
    /// Revision of the rules that has set the grant, with `on_change`: a state is converted to newer
    /// ones alone. `None`: the rules have no revisions.
    pub revision: Option<NonZeroU64>,
    /// Operation on the state.
    pub action: Action,
    /// Most holds of the key, if its rule holds: then those leave less to every hit.
    pub max_holds: Option<u32>,
    /// Part of the units that the grant in force allows at once, to which the cost is cut. With
    /// [`Coupling::AllOrNothing`], and `max_holds`.
    pub cost_share: Option<Share>,
    /// Part of the units that the grant in force allows at once, which the request leaves to others: it is decided
    /// on so many more than its cost.
    pub headroom: Option<Share>,
    /// The fewest units that the request takes, if any number from them to its cost will do: see
    /// [`StoreHit::least`].
    pub at_least: Option<NonZeroU32>,
    /// The override to set, for [`Action::SetOverride`], which does nothing without it.
    pub change: Option<&'a OverrideChange>,
    /// Whether a denial of this hit refuses the request.
    pub mode: Mode,
}

impl<'a> StoreHit<'a> {
    /// Creates an enforced hit that is not overridable.
    pub fn new(key: &'a Key, algorithm: Algorithm, grant: &'a Grant, action: Action) -> Self {
        let window = grant.limit().map_or(Window::ZERO, Limit::windows);
        let (overridable, on_change, revision, change) = (false, None, None, None);
        let mode = Mode::Enforced;
        Self {
            key,
            algorithm,
            grant,
            window,
            overridable,
            on_change,
            revision,
            action,
            max_holds: None,
            cost_share: None,
            headroom: None,
            at_least: None,
            change,
            mode,
        }
    }

    /// Returns the part that the hit leaves to others: with an action that decides.
    pub fn share_left(&self) -> Option<Share> {
        self.headroom.filter(|_| self.action.decides())
    }

    /// Returns the units that the hit leaves to others under this limit.
    pub(crate) fn left_to_others(&self, limit: &Limit) -> u64 {
        self.share_left().map_or(0, |share| share.units_at_once(limit))
    }

    /// Returns the fewest units that the hit takes; `None` if it takes its cost or nothing. With
    /// [`Coupling::AllOrNothing`]: all hits are decided on the fewest units first. If they are allowed,
    /// these hits take the most that each enforced one of them has, up to the cost.
    pub fn least(&self) -> Option<NonZeroU32> {
        self.at_least.filter(|_| self.action.decides())
    }

    /// Returns what an override of the key leaves as it is.
    pub fn frame(&self) -> LimitFrame {
        let max_debt = self.grant.limit().and_then(Limit::max_debt);
        LimitFrame { algorithm: self.algorithm, window: self.window, max_debt }
    }

    /// Returns this hit with another operation.
    #[must_use]
    pub const fn with_action(self, action: Action) -> Self {
        Self { action, ..self }
    }
}

/// Hits of one [shard](Shard), which the store decides in one atomic step.
///
/// Takes of the same key are decided in order, each for the sum of the costs up to it. Changes of
/// overrides come first (in order with [`Coupling::EachAlone`]), reports before takes, refunds and credits after them. A hit that takes nothing has the outcome for its
/// cost, with the numbers of the unchanged state.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// The hits, in order.
    pub hits: &'a [StoreHit<'a>],
    /// How the hits depend on each other.
    pub coupling: Coupling,
    /// Shard of their keys, as returned by the store.
    pub shard: Shard,
    /// The request id, if the request has one.
    pub once: Option<&'a IdempotencyRecord>,
    /// The reservation, for [`Action::Hold`] and [`Action::Settle`]. Not beside a request id.
    pub reservation: Option<&'a Reservation>,
}

/// The reply of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// One reply for each hit of the request, in order.
    pub hits: SmallVec<[HitReply; 2]>,
    /// Set if the record of the request id has answered: the call that took the units. Nothing was
    /// taken now.
    pub replayed: Option<CallId>,
    /// What became of the reservation. `None` if the request has none, or nothing is held.
    pub reservation: Option<ReservationReply>,
}

/// The reply to one hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitReply {
    /// The outcome and the numbers of the state.
    pub decision: Decision,
    /// Units that were counted. May be fewer than the cost for a report, and for a take with
    /// [`Coupling::EachAlone`].
    pub taken: u64,
    /// The override that decided in place of the hit's grant. Boxed because it is rare.
    pub applied: Option<Box<Applied>>,
    /// The holds of the key, if its rule holds. Boxed because it is rare.
    pub held: Option<Box<Held>>,
}

/// The holds of a key, as they are after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Units, or slots, that are held.
    pub units: u64,
    /// Number of reservations that hold them.
    pub holds: u32,
    /// Units of the reservation of the request. `None`: it is not one of them.
    pub own: Option<u64>,
    /// `true` if holds alone deny the hit: the state has enough.
    pub denies: bool,
}

impl HitReply {
    /// Creates the reply of a hit that its own grant decided.
    #[inline]
    pub const fn new(decision: Decision, taken: u64) -> Self {
        Self { decision, taken, applied: None, held: None }
    }

    /// Returns the units that the reservation of the request holds; `None` if it holds none of the key.
    pub fn own_hold(&self) -> Option<u64> {
        self.held.as_ref().and_then(|held| held.own)
    }
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
    /// Returns the hit that refunds the units, with the grant that is in force now.
    pub fn refund<'a>(&'a self, grant: &'a Grant) -> StoreHit<'a> {
        StoreHit::new(&self.key, self.algorithm, grant, Action::Refund(self.taken))
    }
}
