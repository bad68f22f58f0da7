//! A request, matched: what is to be done with which states, and how the outcomes combine.
//!
//! A plan is made by the rules alone, for flat requests and for descriptors alike. It owns its keys
//! and names rules by their position, so that it can be handed to a task: nothing is matched twice.

mod descriptors;

pub use descriptors::{DescriptorPlan, PlannedStatus};

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Cost, Limit};
use crate::operation::{Action, StoreHit};
use crate::rules::{Coupling, Grant, Key, Mode, Request, RuleInfo, RuleSet, Unmatched};

/// What a request asks of the store, hit by hit.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One for each rule that matches, or for each descriptor that meets one.
    pub hits: SmallVec<[Hit; 1]>,
    /// How the hits depend on each other.
    pub coupling: Coupling,
    /// `true` if no enforced rule matches: the policy for such requests decides, and the hits are
    /// those of shadows.
    pub is_unmatched: bool,
}

/// One key and what is to be done with its state.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The rule that it comes from, in the set that made the plan.
    pub rule: RuleIndex,
    /// Names the state.
    pub key: Key,
    /// Decides.
    pub algorithm: Algorithm,
    /// What the rule grants to this request. The store decides where that is limited.
    pub grant: Grant,
    /// Decides in place of the limit that is granted: that of another hit of the same key.
    pub stricter: Option<Box<Limit>>,
    /// How the rule is enforced.
    pub mode: Mode,
    /// What to do with the state.
    pub action: Action,
}

/// Where a rule stands in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleIndex {
    /// In [`RuleSet::iter`].
    Flat(usize),
    /// Among the rules for descriptors.
    Descriptor {
        /// In [`every`](crate::rules::descriptors::Descriptors::every).
        position: usize,
        /// `true` if the request brought a limit of its own.
        is_override: bool,
    },
}

impl Plan {
    /// The plan for a request by user, resource and attributes.
    pub fn for_request(rules: &RuleSet, request: &Request<'_>) -> Self {
        let cost = request.cost();
        let action = if request.dry_run() { Action::Peek(cost) } else { Action::Take(cost) };
        let mut hits = SmallVec::new();
        rules.for_each_match(request, |position, rule| {
            hits.push(Hit {
                rule: RuleIndex::Flat(position),
                key: rule.key_for(request),
                algorithm: rule.algorithm,
                grant: rule.grant_for(request),
                stricter: None,
                mode: rule.mode,
                action,
            });
        });
        let is_unmatched = rules.unmatched() != Unmatched::DefaultRule
            && hits.iter().all(|hit: &Hit| hit.mode == Mode::Shadow);
        Self { hits, coupling: Coupling::AllOrNothing, is_unmatched }
    }

    /// Returns `true` if the request is refused whatever the store says.
    pub fn is_banned(&self) -> bool {
        self.hits.iter().any(|hit| hit.grant == Grant::Banned)
            && Mode::refuse(
                self.hits.iter().map(|hit| (hit.effective_mode(), hit.grant == Grant::Banned)),
            )
    }

    /// Returns `true` if the hits are those of descriptors, each of which is answered by itself.
    pub fn is_for_descriptors(&self) -> bool {
        matches!(self.hits.first().map(|hit| hit.rule), Some(RuleIndex::Descriptor { .. }))
    }

    /// Returns `true` if no other hit of the plan has the key of this one.
    pub fn has_key_once(&self, hit: &Hit) -> bool {
        self.hits.len() == 1 || self.hits.iter().filter(|other| other.key == hit.key).count() == 1
    }
}

impl Hit {
    /// What the store has to decide; `None` where nothing is counted.
    pub fn for_store(&self) -> Option<StoreHit<'_>> {
        let Grant::Limited(limit) = &self.grant else { return None };
        let Self { key, algorithm, action, mode, stricter, .. } = self;
        let limit = stricter.as_deref().unwrap_or(limit);
        Some(StoreHit { key, algorithm: *algorithm, limit, action: *action, mode: *mode })
    }

    /// What a denial of it does to the request.
    pub fn effective_mode(&self) -> Mode {
        self.grant.effective_mode(self.mode)
    }

    /// Returns `true` if it asks whether a cost passes: a denial of that is worth remembering.
    pub fn decides_cost(&self) -> bool {
        matches!(self.action, Action::Take(cost) | Action::Peek(cost) if cost != Cost::NONE)
    }
}

impl RuleSet {
    /// The rule of a hit that these rules have planned.
    ///
    /// # Panics
    ///
    /// If other rules have.
    pub fn rule(&self, index: RuleIndex) -> RuleInfo<'_> {
        match index {
            RuleIndex::Flat(position) => self.rule_at(position).info(),
            RuleIndex::Descriptor { position, is_override } => {
                self.descriptors().rule_at(position, is_override)
            }
        }
    }
}
