//! The plan for a request by descriptors: each that meets a rule makes one hit.

use smallvec::SmallVec;

use super::{Hit, Plan, RuleIndex};
use crate::algorithm::Cost;
use crate::clock::Micros;
use crate::operation::Action;
use crate::rules::descriptors::{
    DescriptorRequest, Descriptors, HitsAddend, InvalidDescriptor, MatchedDescriptor,
};
use crate::rules::{Coupling, Grant};

/// What a request by descriptors asks of the store, and what its statuses need beside that.
#[derive(Clone, Debug)]
pub struct DescriptorPlan {
    /// The hits of the descriptors that meet a rule, in order.
    pub plan: Plan,
    /// One for each descriptor, in order; `None` for those that meet no rule.
    pub statuses: SmallVec<[Option<PlannedStatus>; 2]>,
}

/// What the answer to a descriptor needs beside its hit, which is the next of the plan.
#[derive(Clone, Debug)]
pub struct PlannedStatus {
    /// The window of the limit, even where that is 0.
    pub window: Micros,
    /// The rule with the values of the request, where its metrics tell them.
    pub detailed_label: Option<String>,
}

impl Descriptors {
    /// Plans what each descriptor meets; rules that another one of them replaces are met by none.
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] if what is asked for can't be had from the algorithm of a rule.
    pub fn plan(
        &self,
        request: &DescriptorRequest<'_>,
    ) -> Result<DescriptorPlan, InvalidDescriptor> {
        let mut hits: SmallVec<[Hit; 1]> = SmallVec::new();
        let mut statuses = SmallVec::new();
        for found in self.match_request(request)? {
            statuses.push(found.map(|found| {
                let action = action(&found, self.coupling(), &hits);
                let MatchedDescriptor {
                    position,
                    is_override,
                    key,
                    grant,
                    window,
                    detailed_label,
                    ..
                } = found;
                let rule = self.rule_at(position, is_override);
                let (algorithm, mode) = (rule.algorithm, rule.mode);
                let rule = RuleIndex::Descriptor { position, is_override };
                hits.push(Hit { rule, key, algorithm, grant, stricter: None, mode, action });
                PlannedStatus { window, detailed_label }
            }));
        }
        apply_strictest_limit(&mut hits);
        let plan = Plan { hits, coupling: self.coupling(), is_unmatched: false };
        Ok(DescriptorPlan { plan, statuses })
    }
}

/// What the store does for a descriptor; `earlier` are the hits of those before it.
///
/// A look at a budget that is used up is refused, as a request of one unit is. Only debt refuses it
/// where everything is counted and the limit keeps debt, as in envoyproxy/ratelimit (at the limit it
/// passes still, and the hits that follow count above it), and after a take of the same key, which
/// may use up what is left.
fn action(found: &MatchedDescriptor, coupling: Coupling, earlier: &[Hit]) -> Action {
    let cost = match found.hits {
        HitsAddend::Take(cost) => cost,
        HitsAddend::Credit(cost) => return Action::Credit(cost),
    };
    let max_debt = match &found.grant {
        Grant::Limited(limit) => limit.max_debt(),
        Grant::Banned | Grant::Unlimited => None,
    };
    let keeps_debt = max_debt.is_some_and(|units| units > 0);
    let takes = |hit: &Hit| {
        let takes = matches!(hit.action, Action::Take(_) | Action::Report(_));
        takes && hit.action.cost() != Cost::NONE && hit.key == found.key
    };
    match cost {
        Cost::NONE if earlier.iter().any(takes) => Action::Peek(Cost::NONE),
        Cost::NONE if keeps_debt && coupling == Coupling::EachAlone => Action::Peek(Cost::NONE),
        Cost::NONE => Action::Peek(Cost::ONE),
        cost if max_debt.is_some() => Action::Report(cost),
        cost => Action::Take(cost),
    }
}

/// Has a key that comes with several limits decided by the strictest.
fn apply_strictest_limit(hits: &mut [Hit]) {
    for at in 1..hits.len() {
        for earlier in 0..at {
            if hits[earlier].key != hits[at].key {
                continue;
            }
            let limit_of = |hit: &Hit| hit.for_store().map(|hit| *hit.limit);
            let (Some(one), Some(other)) = (limit_of(&hits[earlier]), limit_of(&hits[at])) else {
                continue;
            };
            if one.units() <= other.units() {
                hits[at].stricter = Some(Box::new(one));
            } else {
                hits[earlier].stricter = Some(Box::new(other));
            }
        }
    }
}
