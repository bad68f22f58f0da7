//! Plans for requests by descriptors: one hit for each descriptor that matches a rule.

use smallvec::SmallVec;

use super::{Hit, Plan, RequestUnits, RuleIndex};
use crate::algorithm::{Algorithm, Cost};
use crate::operation::Action;
use crate::rules::descriptors::{
    DescriptorRequest, Descriptors, HitsAddend, InvalidDescriptor, MatchedDescriptor,
};
use crate::rules::{
    Costs, Coupling, Grant, Key, LimitFrom, Mode, OwnLimit, Part, Request, Rule, RuleSet,
};

/// The plan for a request by descriptors, with data for the status of each descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorPlan {
    /// One hit for each descriptor that matches a rule, in order; several where rules of a project do.
    pub plan: Plan,
    /// One entry for each descriptor, in order. `None` if it matches no rule.
    pub statuses: SmallVec<[Option<PlannedStatus>; 2]>,
    /// `true` if a rule of a project ignores the own limit of a descriptor that it decides.
    pub ignores_own_limit: bool,
}

/// Data for the status of a descriptor beside its hits, which follow those of the descriptor before.
#[derive(Clone, Debug)]
pub struct PlannedStatus {
    /// Number of its hits: one, or as many as rules of a project apply.
    pub hits: usize,
    /// Label of the rule with the values of the request, if its metrics have them.
    pub detailed_label: Option<String>,
}

impl Descriptors {
    /// Plans a request. Leaves out rules that other rules of the request replace.
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] if the algorithm of a rule does not support a limit or negative hits
    /// of the request.
    pub fn plan(
        &self,
        request: &DescriptorRequest<'_>,
    ) -> Result<DescriptorPlan, InvalidDescriptor> {
        let mut hits: SmallVec<[Hit; 1]> = SmallVec::new();
        let mut statuses = SmallVec::new();
        for found in self.match_request(request)? {
            let is_on = |found: &MatchedDescriptor| {
                self.rule_at(found.position, found.is_override).mode != Mode::Off
            };
            statuses.push(found.filter(is_on).map(|found| {
                let holds = self.holds_at(found.position);
                let action =
                    action(&found, self.has_debt_of_hits(found.position), self.coupling(), &hits);
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
                hits.push(Hit {
                    rule: RuleIndex::Descriptor { position, is_override },
                    key,
                    algorithm: rule.algorithm,
                    grant,
                    window,
                    overridable: rule.overridable,
                    on_change: None,
                    revision: None,
                    max_holds: holds.map(|terms| terms.most),
                    cost_share: None,
                    headroom: None,
                    at_least: None,
                    counted_by: None,
                    own_limit: OwnLimit::None,
                    hides_debt: false,
                    mode: rule.mode,
                    action,
                });
                PlannedStatus { hits: 1, detailed_label }
            }));
        }
        apply_strictest_limit(&mut hits);
        let units = self.units(&hits);
        let coupling = self.coupling();
        let plan = Plan {
            hits,
            coupling,
            is_unmatched: false,
            units,
            once: None,
            reservation: None,
            up_to: None,
            is_for_descriptors: true,
        };
        Ok(DescriptorPlan { plan, statuses, ignores_own_limit: false })
    }

    /// Returns the units of a request: the largest cost of its descriptors, which describe the same
    /// request. A request whose hits are all post-paid decides nothing.
    fn units(&self, hits: &[Hit]) -> RequestUnits {
        let mut units = RequestSums::NONE;
        for hit in hits {
            let taken = match hit.action {
                Action::Take(cost) | Action::Report(cost) => cost,
                _ => Cost::NONE,
            };
            units.add(taken, taken != Cost::NONE && self.is_post_paid(hit.rule));
        }
        units.of_request()
    }

    fn is_post_paid(&self, rule: RuleIndex) -> bool {
        match rule {
            RuleIndex::Descriptor { position, is_override } => {
                !is_override && self.every().nth(position).is_some_and(|rule| rule.is_post_paid)
            }
            RuleIndex::Flat(_) => false,
        }
    }
}

/// Returns the action for a descriptor. `earlier` are the hits of the descriptors before it. The debt of a
/// limit is that of hits unless it is there for settlements only.
///
/// A descriptor with 0 hits is denied if no unit is left: it peeks for one unit. It peeks for none,
/// and so is denied only in debt, in two cases:
///
/// - Every hit is counted and the limit keeps debt, as in envoyproxy/ratelimit. There a request at
///   the limit passes, and further hits are counted above it.
/// - An earlier descriptor of the request takes from the same key and may use up the units.
fn action(
    found: &MatchedDescriptor,
    has_debt_of_hits: bool,
    coupling: Coupling,
    earlier: &[Hit],
) -> Action {
    let cost = match found.hits {
        HitsAddend::Take(cost) => cost,
        HitsAddend::Credit(cost) => return Action::Credit(cost),
    };
    let max_debt = match &found.grant {
        Grant::Limited(limit) => limit.max_debt(),
        Grant::Banned | Grant::Unlimited => None,
    };
    let keeps_debt = max_debt.is_some_and(|units| units > 0);
    let takes = |hit: &Hit| takes(hit) && hit.key == found.key;
    match cost {
        Cost::NONE if earlier.iter().any(takes) => Action::Peek(Cost::NONE),
        Cost::NONE if keeps_debt && coupling == Coupling::EachAlone => Action::Peek(Cost::NONE),
        Cost::NONE => Action::Peek(Cost::ONE),
        cost if max_debt.is_some() && has_debt_of_hits => Action::Report(cost),
        cost => Action::Take(cost),
    }
}

impl RuleSet {
    /// Plans a request by descriptors in the project of these rules: each descriptor is decided by the rules
    /// that match its [request](crate::rules::descriptors::RequestDescriptor::request) and whose key it has
    /// all parts of. Rules that are paid afterwards count its units whatever is left. Slots are for
    /// reservations: requests only look at them. Limits of the request's own count by rules that ask for them.
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] for negative hits that a rule does not support, and for more than
    /// [`DescriptorRequest::MAX_HITS`] rules in all.
    pub fn plan_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
    ) -> Result<DescriptorPlan, InvalidDescriptor> {
        let mut hits: SmallVec<[Hit; 1]> = SmallVec::new();
        let mut statuses = SmallVec::new();
        let (mut is_unmatched, mut units) = (true, RequestSums::NONE);
        let mut ignores_own_limit = false;
        for (index, descriptor) in request.descriptors().iter().enumerate() {
            let (described, before) = (descriptor.request(request.project()), hits.len());
            let taken = match descriptor.hits {
                HitsAddend::Take(cost) => cost,
                HitsAddend::Credit(_) => Cost::NONE,
            };
            let mut can_credit = true;
            let has_parts = |rule: &Rule| has_parts(rule, &described);
            is_unmatched &= !self.for_each_match_of(&described, has_parts, |position, rule| {
                if rule.mode == Mode::Off {
                    return;
                }
                ignores_own_limit |=
                    descriptor.limit.is_some() && rule.limit_from != Some(LimitFrom::Request);
                can_credit &=
                    rule.algorithm != Algorithm::SlidingWindowLog && !rule.algorithm.has_slots();
                let action = action_in_project(descriptor.hits, rule, &described);
                units.add(taken, matches!(action, Action::Report(_)));
                let mut hit =
                    Hit::of_rule(self, position, rule, &described, self.hashing(), action);
                let is_taken = |other: &Hit| takes(other) && other.key == hit.key;
                if action == Action::Peek(Cost::ONE) && hits.iter().any(is_taken) {
                    hit.action = Action::Peek(Cost::NONE);
                }
                hits.push(hit);
            });
            if matches!(descriptor.hits, HitsAddend::Credit(_)) && !can_credit {
                return Err(InvalidDescriptor::NegativeHits { index });
            }
            let found = hits.len() - before;
            if hits.len() > DescriptorRequest::MAX_HITS {
                return Err(InvalidDescriptor::Rules { index });
            }
            statuses
                .push((found > 0).then_some(PlannedStatus { hits: found, detailed_label: None }));
        }
        let plan = Plan {
            coupling: Coupling::AllOrNothing,
            is_unmatched,
            units: units.of_request(),
            hits,
            once: None,
            reservation: None,
            up_to: None,
            is_for_descriptors: true,
        };
        Ok(DescriptorPlan { plan, statuses, ignores_own_limit })
    }

    /// Makes the cost of the hits of a reservation in a project, or of what is counted in its place, that of
    /// their rules where these have one of their own.
    pub fn settle_at_own_cost(&self, plan: &mut Plan) {
        for hit in &mut plan.hits {
            let RuleIndex::Flat(position) = hit.rule else { continue };
            let rule = self.rule_at(position);
            if rule.limit_from.is_some() && hit.grant.limit().is_none() {
                // A limit of 0 must not keep what was held before.
                hit.counted_by = Some(Box::new(rule.with_room(rule.grant)));
            }
            let own =
                |cost| rule.settled_cost(Some(cost), Costs::NONE).or(rule.cost).unwrap_or(cost);
            hit.action = match hit.action {
                Action::Settle(Some(cost)) => Action::Settle(Some(own(cost))),
                Action::Report(_) if rule.algorithm.has_slots() => Action::Peek(Cost::NONE),
                Action::Report(cost) => Action::Report(own(cost)),
                other => other,
            };
        }
    }
}

/// Returns the action of a rule of a project for a descriptor.
fn action_in_project(hits: HitsAddend, rule: &Rule, request: &Request<'_>) -> Action {
    match hits {
        HitsAddend::Credit(cost) => Action::Credit(cost),
        HitsAddend::Take(Cost::NONE) => Action::Peek(Cost::ONE),
        HitsAddend::Take(_) if rule.is_post_paid => Action::Report(rule.cost_for(request)),
        HitsAddend::Take(_) => Action::Take(rule.cost_for(request)),
    }
}

/// The units of a request by descriptors, while its hits are added up.
#[derive(Debug)]
struct RequestSums {
    cost: Cost,
    reported: Cost,
    /// `None` without a hit.
    decides: Option<bool>,
}

impl RequestSums {
    const NONE: Self = Self { cost: Cost::NONE, reported: Cost::NONE, decides: None };

    /// Adds a hit, of which the descriptor has this cost.
    fn add(&mut self, cost: Cost, is_report: bool) {
        let largest = if is_report { &mut self.reported } else { &mut self.cost };
        *largest = (*largest).max(cost);
        self.decides = Some(self.decides.unwrap_or(false) || !is_report);
    }

    fn of_request(self) -> RequestUnits {
        let Self { cost, reported, decides } = self;
        if decides.unwrap_or(true) {
            RequestUnits::Decide { cost, reported }
        } else {
            RequestUnits::Report(reported)
        }
    }
}

fn takes(hit: &Hit) -> bool {
    let takes = matches!(hit.action, Action::Take(_) | Action::Report(_));
    takes && hit.action.cost() != Cost::NONE
}

/// Returns `true` if the entries of a descriptor have every part of the rule's key and conditions.
fn has_parts(rule: &Rule, request: &Request<'_>) -> bool {
    let has = |name: &str| {
        let is_valid = |value: &str| name != "user_id" || !value.is_empty();
        request.attributes().get(name).is_some_and(is_valid)
    };
    let has_part = |part: &Part| match part {
        Part::UserId => has("user_id"),
        Part::Resource => has("resource"),
        Part::Attribute(name) => has(name),
        Part::AttributeOrUserId(name) => has(name) || has("user_id"),
    };
    let conditions = rule.matcher.patterns.iter().map(|(part, _)| part);
    rule.key_by.iter().chain(conditions).all(has_part)
}

impl Plan {
    /// Takes nothing: looks whether the costs would fit.
    #[must_use]
    pub fn looking(mut self) -> Self {
        for (hit, cost) in self.decided_costs().into_iter().enumerate() {
            self.hits[hit].action = Action::Peek(cost);
        }
        self.units = RequestUnits::Decide { cost: Cost::NONE, reported: Cost::NONE };
        self
    }

    /// Counts the costs whatever is left.
    #[must_use]
    pub fn reporting(mut self) -> Self {
        let mut most = Cost::NONE;
        for hit in &mut self.hits {
            hit.action = match hit.action {
                // Nothing is in flight any more.
                _ if hit.algorithm.has_slots() => Action::Peek(Cost::NONE),
                Action::Take(cost) | Action::Report(cost) => {
                    most = most.max(cost);
                    Action::Report(cost)
                }
                Action::Credit(cost) => Action::Credit(cost),
                _ => Action::Peek(Cost::NONE),
            };
        }
        self.units = RequestUnits::Report(most);
        self
    }

    /// Holds the costs by the rules that hold, those of one key together, and takes them by the others. All
    /// or nothing.
    #[must_use]
    pub fn holding(mut self) -> Self {
        for at in 0..self.hits.len() {
            let hit = &self.hits[at];
            let (Action::Take(cost) | Action::Report(cost)) = hit.action else { continue };
            if hit.max_holds.is_none() {
                self.hits[at].action = Action::Take(cost);
                continue;
            }
            if !hit.algorithm.has_slots() {
                // Its units are counted when it is settled.
                self.units = RequestUnits::Decide { cost: Cost::NONE, reported: Cost::NONE };
            }
            let is_same =
                |other: &Hit| other.key == hit.key && matches!(other.action, Action::Hold(_));
            let earlier = self.hits[..at].iter().position(is_same);
            match earlier.map(|earlier| (earlier, self.hits[earlier].action.cost().units())) {
                Some((earlier, units)) => {
                    let sum = Cost::total(units + cost.units());
                    self.hits[earlier].action = Action::Hold(sum);
                    self.hits[at].action = Action::Peek(Cost::NONE);
                }
                None => self.hits[at].action = Action::Hold(cost),
            }
        }
        self
    }

    /// Looks at the limits that do not hold, in place of taking from them. What they count is reported when
    /// the reservation is settled.
    #[must_use]
    pub fn looking_beside_holds(mut self) -> Self {
        for (at, cost) in self.decided_costs().into_iter().enumerate() {
            if matches!(self.hits[at].action, Action::Take(_)) {
                self.hits[at].action = Action::Peek(cost);
            }
        }
        self.units = RequestUnits::Decide { cost: Cost::NONE, reported: Cost::NONE };
        self
    }

    /// Splits the hits, one for each key: those that a reservation holds settle it at this cost, in the order of
    /// its keys, and the others report it.
    pub fn split_by_holds(self, keys: &[Key], cost: Cost) -> (Self, Self) {
        let mut others = Self { hits: SmallVec::new(), units: RequestUnits::Report(cost), ..self };
        let mut settling = others.clone();
        for hit in self.hits {
            let is_held = hit.max_holds.is_some() && keys.contains(&hit.key);
            let (plan, action) = if is_held {
                (&mut settling, Action::Settle(Some(cost)))
            } else {
                (&mut others, Action::Report(cost))
            };
            if plan.hits.iter().all(|other| other.key != hit.key) {
                plan.hits.push(Hit { action, ..hit });
            }
        }
        settling.hits.sort_by_key(|hit| keys.iter().position(|key| *key == hit.key));
        (settling, others)
    }
}

/// Sets [`Hit::counted_by`] on hits of the same key that have different limits.
fn apply_strictest_limit(hits: &mut [Hit]) {
    for at in 1..hits.len() {
        for earlier in 0..at {
            if hits[earlier].key != hits[at].key {
                continue;
            }
            let limit_of = |hit: &Hit| hit.for_store()?.grant.limit().copied();
            let (Some(first), Some(second)) = (limit_of(&hits[earlier]), limit_of(&hits[at]))
            else {
                continue;
            };
            if first.units() <= second.units() {
                hits[at].counted_by = Some(Box::new(Grant::Limited(first)));
            } else {
                hits[earlier].counted_by = Some(Box::new(Grant::Limited(second)));
            }
        }
    }
}
