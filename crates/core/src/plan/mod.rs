//! Plans: the hits of a request, and how their outcomes combine.
//!
//! The rules alone make a plan, both for flat requests and for descriptors. A plan owns its keys
//! and refers to rules by position, so that it can be moved to a task without matching again.

mod descriptors;
#[cfg(test)]
mod hashed_keys;
mod selector;
mod taken;

pub use descriptors::{DescriptorPlan, PlannedStatus};
pub use selector::{GrantSource, KeyPart, SelectError, SelectedKey, Selector, SelectorTarget};

use std::num::{NonZeroU32, NonZeroU64};

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Cost, OnChange, Window};
use crate::idempotency::IdempotencyRecord;
use crate::operation::{Action, HitReply, StoreHit};
use crate::reservation::Reservation;
use crate::rules::{
    Coupling, Grant, Hashing, HoldTerms, Key, Mode, OwnLimit, Request, Rule, RuleInfo, RuleSet,
    Share,
};

/// The hits of a request.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One hit for each rule that matches, or for each descriptor that matches a rule.
    pub hits: SmallVec<[Hit; 1]>,
    /// How the hits depend on each other.
    pub coupling: Coupling,
    /// `true` if no rule matches. There are no hits then, and
    /// [`Unmatched`](crate::rules::Unmatched) decides.
    pub is_unmatched: bool,
    /// Units of the whole request, whatever its hits are.
    pub units: RequestUnits,
    /// The request id, if the request has one and takes units. Boxed because it is rare.
    pub once: Option<Box<IdempotencyRecord>>,
    /// The reservation, if hits hold.
    pub reservation: Option<Box<Reservation>>,
    /// The cost of a request that takes what is there: see [`Hit::at_least`]. `None` for others.
    pub up_to: Option<Cost>,
    /// `true` if each descriptor of the request has an answer of its own.
    pub is_for_descriptors: bool,
}

/// The units of a request as a whole: a request with several hits has them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestUnits {
    /// A request to decide. Costs that were incurred before may come with it.
    Decide {
        /// Units if the request is allowed.
        cost: Cost,
        /// Units that count whether or not it is allowed.
        reported: Cost,
    },
    /// Nothing is decided: costs of an earlier request are counted.
    Report(Cost),
}

impl RequestUnits {
    /// Nothing is counted: the request only looks, or changes what an earlier one has.
    pub const NONE: Self = Self::Report(Cost::NONE);

    /// Returns the units of a request that has taken so many, if it takes what is there.
    #[must_use]
    pub fn taking(self, taken: Option<u64>) -> Self {
        match (self, taken) {
            (Self::Decide { reported, .. }, Some(taken)) => {
                Self::Decide { cost: Cost::total(taken), reported }
            }
            (units, _) => units,
        }
    }
}

/// One key and the operation on its state.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The rule, in the set that made the plan.
    pub rule: RuleIndex,
    /// Name of the state.
    pub key: Key,
    /// Algorithm of the rule.
    pub algorithm: Algorithm,
    /// Grant of the rule to this request. The store decides only if it is limited or
    /// `overridable`.
    pub grant: Grant,
    /// Window of the rule.
    pub window: Window,
    /// Whether an override of the key, set at run time, replaces `grant`.
    pub overridable: bool,
    /// Units in use after a change of `grant`. `None` if it is not that of the rule itself.
    pub on_change: Option<OnChange>,
    /// Revision that has set the rule. `None` without `on_change`.
    pub revision: Option<NonZeroU64>,
    /// Most holds of the key, if the rule holds.
    pub max_holds: Option<u32>,
    /// Part of the units at once to which the cost is cut: set for reservations.
    pub cost_share: Option<Share>,
    /// Part of the units at once that the request leaves to others.
    pub headroom: Option<Share>,
    /// The fewest units that the request takes, if the rule takes its cost and any number up to it will do.
    pub at_least: Option<NonZeroU32>,
    /// Limit by which the state counts, in the place of `grant`: that of another hit of the same key,
    /// or that beneath a ban.
    pub counted_by: Option<Box<Grant>>,
    /// What the request says about its limit.
    pub own_limit: OwnLimit,
    /// Whether no units are left where more are in use than the limit allows.
    pub hides_debt: bool,
    /// Mode of the rule for this key.
    pub mode: Mode,
    /// Operation on the state.
    pub action: Action,
}

/// The position of a rule in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleIndex {
    /// Position in [`RuleSet::iter`].
    Flat(usize),
    /// A rule for descriptors.
    Descriptor {
        /// Position in [`every`](crate::rules::descriptors::Descriptors::every).
        position: usize,
        /// `true` if the limit is one of the request.
        is_override: bool,
    },
}

impl Plan {
    /// Plans a request by user, resource and attributes.
    pub fn for_request(rules: &RuleSet, request: &Request<'_>) -> Self {
        let units = if request.looks() {
            RequestUnits::NONE
        } else {
            RequestUnits::Decide { cost: request.cost(), reported: Cost::NONE }
        };
        let mut plan = Self::for_rules(rules, request, units, |rule| {
            let cost = rule.cost_for(request);
            Some(if request.dry_run() { Action::Peek(cost) } else { Action::Take(cost) })
        });
        plan.up_to = request.at_least().map(|_| request.cost());
        plan
    }

    /// Plans a reservation: a hold for each rule that holds, and a take for the others. A request without
    /// a cost that names no rule only looks.
    pub fn for_reservation(rules: &RuleSet, request: &Request<'_>) -> Self {
        let plan = Self::for_request(rules, request).with_hold_shares(rules);
        if request.looks() { plan } else { plan.holding() }
    }

    /// Cuts the costs of the hits to what a reservation may hold. The plan is one that `rules` have made.
    #[must_use]
    pub fn with_hold_shares(mut self, rules: &RuleSet) -> Self {
        for hit in &mut self.hits {
            hit.cost_share = rules.hold_terms(hit.rule).and_then(|terms| terms.share);
        }
        self
    }

    /// Plans an action for each of these keys whose rule still holds: those of a reservation. They are
    /// decided by the rules in force, and by overrides of a rule that depend on parts of the key alone.
    pub fn for_holds(
        rules: &RuleSet,
        keys: &[Key],
        units: RequestUnits,
        action: impl Fn(&Rule) -> Action,
    ) -> Self {
        let hits = keys.iter().filter_map(|key| {
            let (rule, hit) = rules.hit_of(key)?;
            let holds = rule.holds.is_some() && rule.mode != Mode::Off;
            let action = action(rule);
            // What requests with larger limits hold is charged in full.
            let grant = match action {
                Action::Settle(_) => rule.with_room(hit.grant),
                _ => hit.grant,
            };
            holds.then_some(Hit { grant, action, ..hit })
        });
        Self {
            hits: hits.collect(),
            coupling: Coupling::AllOrNothing,
            is_unmatched: false,
            units,
            once: None,
            reservation: None,
            up_to: None,
            is_for_descriptors: false,
        }
    }

    /// Plans a report of a cost that was incurred already, by the rules that are paid afterwards. They
    /// count it under a ban and an unlimited override too: by the limit of the rule.
    pub fn for_report(rules: &RuleSet, request: &Request<'_>) -> Self {
        Self::for_reports(rules, request, |rule| rule.reported_cost(request))
    }

    /// Plans a report by the rules that hold units, each of its cost.
    pub fn for_commit(
        rules: &RuleSet,
        request: &Request<'_>,
        cost: impl Fn(&Rule) -> Cost,
    ) -> Self {
        Self::for_reports(rules, request, |rule| {
            let has_units = rule.holds.is_some() && !rule.algorithm.has_slots();
            has_units.then(|| cost(rule))
        })
    }

    fn for_reports(
        rules: &RuleSet,
        request: &Request<'_>,
        cost: impl Fn(&Rule) -> Option<Cost>,
    ) -> Self {
        let units = if request.dry_run() { Cost::NONE } else { request.cost() };
        let mut plan = Self::for_rules(rules, request, RequestUnits::Report(units), |rule| {
            let cost = cost(rule)?;
            Some(if request.dry_run() { Action::Peek(cost) } else { Action::Report(cost) })
        });
        for hit in &mut plan.hits {
            hit.headroom = None;
            let RuleIndex::Flat(position) = hit.rule else { continue };
            let rule = rules.rule_at(position);
            if let (None, Some(own)) = (hit.grant.limit(), rule.grant.limit()) {
                let own = Grant::Limited(own.anchored_as(hit.window));
                hit.counted_by = Some(Box::new(rule.with_room(own)));
            }
        }
        plan
    }

    /// Plans a request with this action for each rule that it meets; without one the rule is left out.
    #[inline]
    fn for_rules(
        rules: &RuleSet,
        request: &Request<'_>,
        units: RequestUnits,
        action: impl Fn(&Rule) -> Option<Action>,
    ) -> Self {
        let mut hits = SmallVec::new();
        let is_matched = rules.for_each_match(request, |position, rule| {
            if rule.mode != Mode::Off
                && let Some(action) = action(rule)
            {
                hits.push(Hit::of_rule(rules, position, rule, request, rules.hashing(), action));
            }
        });
        let (is_unmatched, coupling) = (!is_matched, Coupling::AllOrNothing);
        let (once, reservation, up_to) = (None, None, None);
        let is_for_descriptors = false;
        Self { hits, coupling, is_unmatched, units, once, reservation, up_to, is_for_descriptors }
    }

    /// Returns `true` if nothing is taken or changed, and no request is counted.
    #[inline]
    pub fn looks(&self) -> bool {
        let looks = |hit: &Hit| matches!(hit.action, Action::Peek(_) | Action::Take(Cost::NONE));
        self.units == RequestUnits::NONE && self.hits.iter().all(looks)
    }

    /// Takes no slots, which a request without a reservation can't hold: its hits look. Returns the rule of
    /// one that would have to be enforced.
    #[inline]
    pub fn without_slots(&mut self) -> Option<RuleIndex> {
        let mut enforced = None;
        for hit in self.hits.iter_mut().filter(|hit| hit.algorithm.has_slots()) {
            if matches!(hit.action, Action::Take(cost) if cost != Cost::NONE) {
                hit.action = Action::Peek(Cost::NONE);
                enforced = enforced.or((!hit.effective_mode().is_shadow()).then_some(hit.rule));
            }
        }
        enforced
    }

    /// Returns `true` if a ban refuses the request, whatever the store decides.
    pub fn is_banned(&self) -> bool {
        self.hits.iter().any(Hit::is_banned)
            && Mode::refuse(self.hits.iter().map(|hit| (hit.effective_mode(), hit.is_banned())))
    }

    /// Returns `true` if no decision on the hits can refuse the request: each is in shadow mode.
    pub fn refuses_nothing(&self) -> bool {
        self.hits.iter().all(|hit| hit.mode == Mode::Shadow)
    }

    /// Returns `true` if no other hit of the plan has the key of `hit`.
    pub fn has_key_once(&self, hit: &Hit) -> bool {
        self.hits.len() == 1 || self.hits.iter().filter(|other| other.key == hit.key).count() == 1
    }
}

impl Hit {
    /// Returns the hit of a rule that a flat request meets.
    fn of_rule(
        rules: &RuleSet,
        position: usize,
        rule: &Rule,
        request: &Request<'_>,
        hashing: Hashing<'_>,
        action: Action,
    ) -> Self {
        let key = rules.key_for(rule, request, hashing);
        let (grant, on_change, own_limit) = rule.grant_for(request);
        // A cost that was incurred counts in full, also where requests with larger limits have taken more than this
        // limit.
        let needs_room = matches!(action, Action::Report(_))
            || (rule.needs_room() && action.cost() != Cost::NONE);
        Self {
            rule: RuleIndex::Flat(position),
            mode: rule.mode_for(&key),
            key,
            algorithm: rule.algorithm,
            grant: if needs_room { rule.with_room(grant) } else { grant },
            window: rule.window_for(request),
            overridable: rule.overridable,
            on_change,
            revision: on_change.and(rule.revision),
            max_holds: rule.holds.map(|terms| terms.most),
            cost_share: None,
            headroom: rule.headroom_for(request),
            at_least: request.at_least().filter(|_| rule.takes_cost_of(request)),
            counted_by: None,
            own_limit,
            hides_debt: rule.hides_debt(),
            action,
        }
    }

    /// Returns the units left by a reply. Where only the request's own limit is below what is used, none are.
    #[inline]
    pub fn remaining(&self, reply: &HitReply) -> i64 {
        let is_own = self.own_limit == OwnLimit::InForce && reply.applied.is_none();
        let remaining = reply.decision.remaining;
        if self.hides_debt || is_own { remaining.max(0) } else { remaining }
    }

    /// Returns the grant by which the state was counted: that beneath a ban too.
    pub fn counted_grant<'h>(&'h self, reply: &'h HitReply) -> &'h Grant {
        match &reply.applied {
            Some(applied) => &applied.grant,
            None => self.counted_by.as_deref().unwrap_or(&self.grant),
        }
    }

    /// Returns the hit for the store; `None` if nothing is counted and no override can change
    /// that.
    pub fn for_store(&self) -> Option<StoreHit<'_>> {
        let Self { key, algorithm, action, mode, overridable, counted_by, .. } = self;
        let grant = counted_by.as_deref().unwrap_or(&self.grant);
        let window = match grant {
            Grant::Limited(limit) => limit.windows(),
            Grant::Banned | Grant::Unlimited if *overridable => self.window,
            Grant::Banned | Grant::Unlimited => return None,
        };
        let (algorithm, overridable) = (*algorithm, *overridable);
        let (on_change, revision) = (self.on_change, self.revision);
        let (action, mode, change) = (*action, *mode, None);
        Some(StoreHit {
            key,
            algorithm,
            grant,
            window,
            overridable,
            on_change,
            revision,
            action,
            max_holds: self.max_holds,
            cost_share: self.cost_share,
            headroom: self.headroom,
            at_least: self.at_least,
            change,
            mode,
        })
    }

    /// Returns `true` if the hit is denied whatever the store decides.
    pub fn is_banned(&self) -> bool {
        self.grant == Grant::Banned && !self.overridable
    }

    /// Returns the mode in view of the grant: how a denial affects the request.
    pub fn effective_mode(&self) -> Mode {
        self.grant.effective_mode(self.mode)
    }

    /// Returns `true` if the hit decides whether a cost passes, so that a denial can be cached.
    pub fn decides_cost(&self) -> bool {
        matches!(self.action, Action::Take(cost) | Action::Peek(cost) if cost != Cost::NONE)
    }
}

impl RuleSet {
    /// Returns how long, and how often, keys of a rule may be held.
    ///
    /// # Panics
    ///
    /// May panic if other rules have made the plan.
    pub fn hold_terms(&self, index: RuleIndex) -> Option<HoldTerms> {
        match index {
            RuleIndex::Flat(position) => self.rule_at(position).holds,
            RuleIndex::Descriptor { position, .. } => self.descriptors().holds_at(position),
        }
    }

    /// Returns the rule at a position of a plan that these rules have made.
    ///
    /// # Panics
    ///
    /// May panic if other rules have made the plan.
    pub fn rule(&self, index: RuleIndex) -> RuleInfo<'_> {
        match index {
            RuleIndex::Flat(position) => self.rule_at(position).info(),
            RuleIndex::Descriptor { position, is_override } => {
                self.descriptors().rule_at(position, is_override)
            }
        }
    }
}
