//! Requests by descriptors, as Envoy and other proxies send them. Each descriptor matches at most
//! one rule and gets its own answer.
//!
//! A request may contain a descriptor twice: the store decides hits of one key in order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::pending::ExecutedPlan;
use super::reservations::random_number;
use super::{
    CheckError, Limiter, OpenReservation, RuleDecision, Snapshot, Verdict, observers, snapshot,
};
use crate::algorithm::{Algorithm, Cost, Window};
use crate::clock::{Deadline, Micros, Timestamp};
use crate::plan::{DescriptorPlan, Hit, Plan, PlannedStatus, RequestUnits, RuleIndex};
use crate::rules::descriptors::{DescriptorRequest, Metadata};
use crate::rules::{Grant, Mode, RuleSet};
use crate::verdict::HitResult;

/// Outcome of a request by descriptors.
#[derive(Clone, Debug)]
pub struct DescriptorVerdict {
    /// Answers in the order of the descriptors; `None` if no rule matches.
    pub answers: SmallVec<[Option<DescriptorAnswer>; 2]>,
    /// `true` if no rule decides the request, and it is denied for that.
    pub is_refused: bool,
    /// `true` if a rule ignores the own limit of a descriptor that it decides.
    pub ignores_own_limit: bool,
}

/// Answer for one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorAnswer {
    /// Decision of the matched rule.
    pub decided: RuleDecision,
    /// Window of the limit, even if the limit is 0.
    pub window: Window,
    /// Name of the limit.
    pub limit_name: Option<Arc<str>>,
    /// Metadata of the rule.
    pub metadata: Option<Arc<Metadata>>,
}

impl DescriptorVerdict {
    /// Returns the verdict on a request that is refused because no rule decides it.
    pub fn refused(descriptors: usize) -> Self {
        let answers = (0..descriptors).map(|_| None).collect();
        Self { answers, is_refused: true, ignores_own_limit: false }
    }

    /// Returns `true` if the request may pass.
    pub fn is_allowed(&self) -> bool {
        let denials = self.answers.iter().flatten().map(|answer| answer.decided.denial());
        !self.is_refused && !Mode::refuse(denials)
    }

    /// Folds the decisions of all matched rules into one verdict, with the names of limits as rule
    /// names; `None` if no rule matches.
    pub fn folded(&self) -> Option<Verdict> {
        let named = |answer: &DescriptorAnswer| {
            let DescriptorAnswer { decided, limit_name, .. } = answer;
            let rule = Arc::clone(limit_name.as_ref().unwrap_or(&decided.rule));
            RuleDecision { rule, ..decided.clone() }
        };
        let decisions: SmallVec<[RuleDecision; 1]> =
            self.answers.iter().flatten().map(named).collect();
        (!decisions.is_empty()).then(|| Verdict::from_decisions(decisions))
    }
}

impl Limiter {
    /// Decides a request by the rule that each of its descriptors matches, in one atomic step.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::check`], and [`CheckError::Descriptor`] if the algorithm of a matched
    /// rule does not support what a descriptor requests.
    pub async fn check_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        deadline: Deadline,
    ) -> Result<DescriptorVerdict, CheckError> {
        Ok(self.execute_descriptors(request, |_, plan| Ok(plan), deadline).await?.0)
    }

    /// Returns `true` if a request by descriptors decides nothing, because all limits that it meets are
    /// [paid afterwards](crate::rules::Rule::is_post_paid): it is a charge.
    pub fn is_charge(&self, request: &DescriptorRequest<'_>) -> bool {
        let planned = self.snapshot_of(request.project());
        let planned = planned.and_then(|snapshot| plan(&snapshot, request));
        planned.is_ok_and(|planned| matches!(planned.plan.units, RequestUnits::Report(_)))
    }

    /// Looks whether a request by descriptors would pass, and takes nothing.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check_descriptors`].
    pub async fn look_at_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        deadline: Deadline,
    ) -> Result<DescriptorVerdict, CheckError> {
        Ok(self.execute_descriptors(request, |_, plan| Ok(plan.looking()), deadline).await?.0)
    }

    /// Counts a request by descriptors whatever is left: where a limit keeps no debt, up to the limit.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check_descriptors`].
    pub async fn report_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        deadline: Deadline,
    ) -> Result<DescriptorVerdict, CheckError> {
        Ok(self.execute_descriptors(request, |_, plan| Ok(plan.reporting()), deadline).await?.0)
    }

    /// Decides a request by descriptors in one atomic step: limits that hold hold its cost, the others are
    /// looked at. The reservation ends as that of [`Limiter::reserve`].
    ///
    /// # Errors
    ///
    /// As [`Limiter::check_descriptors`]; [`CheckError::ManyHolders`],
    /// [`CheckError::LongKeys`] and [`CheckError::NotReservable`].
    pub async fn reserve_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        hold_for: Option<Micros>,
        deadline: Deadline,
    ) -> Result<(DescriptorVerdict, Option<OpenReservation>), CheckError> {
        let number = random_number();
        let prepare = |rules: &RuleSet, plan: Plan| {
            let mut plan = plan.with_hold_shares(rules).holding().looking_beside_holds();
            self.set_reservation(rules, &mut plan, number, hold_for)?;
            Ok(plan)
        };
        let (verdict, done) = self.execute_descriptors(request, prepare, deadline).await?;
        Ok((verdict, done.reservation(request.project(), number)?))
    }

    /// Settles a reservation of descriptors at a cost, once, and counts the cost by the limits that it does
    /// not hold, at most once for a reservation: if the store fails between the two, they do not count it. One
    /// that has ended is counted in the same way, up to ten minutes after its end. Without a reservation all limits
    /// count the cost. Returns `true` if there was something to settle.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check_descriptors`], [`CheckError::StoreUnavailable`].
    pub async fn settle_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        reservation: Option<&OpenReservation>,
        actual: Cost,
        deadline: Deadline,
    ) -> Result<bool, CheckError> {
        let snapshot = self.snapshot_of(request.project())?;
        let DescriptorPlan { plan, .. } = plan(&snapshot, request)?;
        let keys = reservation.map_or(&[][..], |open| &open.keys);
        let (mut settling, mut others) = plan.split_by_holds(keys, actual);
        snapshot.rules.settle_at_own_cost(&mut settling);
        snapshot.rules.settle_at_own_cost(&mut others);
        let Some(open) = reservation else {
            self.count_in_store(&snapshot, &others, deadline).await?;
            return Ok(false);
        };
        if settling.hits.is_empty() {
            return Ok(false);
        }
        let is_whole = settling.hits.len() == keys.len();
        let settle = async |counts_ended| {
            let units = Some(actual);
            self.settle_plan(&snapshot, &settling, open, units, counts_ended, deadline).await
        };
        let (settled, is_late) = match settle(false).await {
            Err(CheckError::NoReservation) | Ok((_, _, true)) if is_whole => {
                (settle(true).await, true)
            }
            settled => (settled, false),
        };
        let replayed = match settled {
            // A rule has gone, or nobody knows any more whether it was charged.
            Err(CheckError::NoReservation | CheckError::SettlementForgotten) => return Ok(false),
            settled => settled?.1,
        };
        if !replayed {
            // The units of the request were counted with the settlement.
            others.units = RequestUnits::NONE;
            self.count_in_store(&snapshot, &others, deadline).await?;
        }
        Ok(!is_late)
    }

    /// Plans a request, executes what `prepare` makes of the plan, and reports the decisions.
    async fn execute_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        prepare: impl FnOnce(&RuleSet, Plan) -> Result<Plan, CheckError>,
        deadline: Deadline,
    ) -> Result<(DescriptorVerdict, ExecutedPlan), CheckError> {
        let snapshot = self.snapshot_of(request.project())?;
        let DescriptorPlan { plan, statuses, ignores_own_limit } = plan(&snapshot, request)?;
        let plan = self.admit_descriptors(&snapshot, request, prepare(&snapshot.rules, plan)?)?;
        let done = self.execute(&snapshot, plan, deadline).await?;
        let verdict =
            self.fold_descriptors(&snapshot, &done.plan, &statuses, &done.executed.results);
        let decisions = verdict.answers.iter().flatten().map(|answer| &answer.decided);
        let passed = snapshot::passed(verdict.is_allowed(), decisions);
        self.count_request(&snapshot, done.plan.units, passed);
        Ok((DescriptorVerdict { ignores_own_limit, ..verdict }, done))
    }

    /// Decides a request by descriptors from memory, without waiting and without a runtime. Returns
    /// `None` if the store has to be waited for, as Redis always has.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check_descriptors`].
    pub fn check_descriptors_now(
        &self,
        request: &DescriptorRequest<'_>,
    ) -> Option<Result<DescriptorVerdict, CheckError>> {
        let snapshot = match self.snapshot_of(request.project()) {
            Ok(snapshot) => snapshot,
            Err(error) => return Some(Err(error)),
        };
        let planned =
            plan(&snapshot, request).and_then(|DescriptorPlan { plan, statuses, .. }| {
                Ok((self.admit_descriptors(&snapshot, request, plan)?, statuses))
            });
        let (plan, statuses) = match planned {
            Ok(planned) => planned,
            Err(error) => return Some(Err(error)),
        };
        let executed = self.execute_now(&snapshot, &plan, Deadline::NEVER)?;
        Some(
            executed.map(|executed| {
                self.fold_descriptors(&snapshot, &plan, &statuses, &executed.results)
            }),
        )
    }

    /// Prepares a plan for the store. Fails if the request is in a project, no rule of which matches, and its
    /// policy for that is not to allow.
    fn admit_descriptors(
        &self,
        snapshot: &Snapshot,
        request: &DescriptorRequest<'_>,
        mut plan: Plan,
    ) -> Result<Plan, CheckError> {
        if !request.project().is_empty() {
            // Requests look at slots.
            let _enforced = plan.without_slots();
            self.admit_unmatched(snapshot, &plan)?;
        }
        Ok(plan)
    }

    /// Assigns the outcomes of the hits to the descriptors, and reports the decisions.
    pub(super) fn fold_descriptors(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        statuses: &[Option<PlannedStatus>],
        results: &[Option<HitResult>],
    ) -> DescriptorVerdict {
        if snapshot.notifies {
            self.report_all_reached(snapshot, plan, results, |reply, _| reply.taken);
        }
        let latest = results.iter().flatten().map(|result| result.reply.decision.at).max();
        let mut hits = plan.hits.iter().zip(results);
        let answer = |planned: &Option<PlannedStatus>| {
            let planned = planned.as_ref()?;
            let answers = hits.by_ref().take(planned.hits).filter_map(|(hit, result)| {
                let mut result = result.clone()?;
                if hit.grant == Grant::Banned && result.reply.applied.is_none() {
                    result.reply.decision.reset_after = self.end_of_ban(hit, latest);
                }
                Some(self.answer(snapshot, hit, planned, &result))
            });
            deciding(answers.collect())
        };
        let answers = statuses.iter().map(answer).collect();
        DescriptorVerdict { answers, is_refused: false, ignores_own_limit: false }
    }

    fn answer(
        &self,
        snapshot: &Snapshot,
        hit: &Hit,
        planned: &PlannedStatus,
        result: &HitResult,
    ) -> DescriptorAnswer {
        let (rules, rule) = (snapshot.rules.descriptors(), snapshot.rules.rule(hit.rule));
        let mut decided = RuleDecision::new(rule, hit, result);
        self.report_ignored_limit(snapshot, hit);
        let detailed = planned.detailed_label.as_deref().and_then(|label| {
            self.shared.detailed_observers.observer(label, rule, &*self.shared.observer)
        });
        match detailed {
            Some((label, observer)) => {
                decided.rule = label;
                observers::report(&*observer, &decided, hit, result);
            }
            None => snapshot.observers.decided(&decided, hit, result),
        }
        let (limit_name, metadata) = match hit.rule {
            RuleIndex::Descriptor { position, is_override } => (
                rules.limit_name(position, is_override).cloned(),
                rules.metadata(position, is_override).cloned(),
            ),
            RuleIndex::Flat(_) => (None, None),
        };
        DescriptorAnswer { decided, window: hit.window, limit_name, metadata }
    }

    /// Returns the time until a limit of 0 resets: its window, or the end of the current window if
    /// it is a fixed one. `latest` is the latest time in the replies of the store.
    fn end_of_ban(&self, hit: &Hit, latest: Option<Timestamp>) -> Micros {
        let window = hit.window;
        if hit.algorithm != Algorithm::FixedWindow || window == Window::ZERO {
            return window.length();
        }
        let now = latest.filter(|at| *at != Timestamp::EPOCH);
        window.left_at(now.unwrap_or_else(|| self.store.now(&hit.key)))
    }
}

/// Plans a request by the rules of a snapshot: that of its project.
fn plan(
    snapshot: &Snapshot,
    request: &DescriptorRequest<'_>,
) -> Result<DescriptorPlan, CheckError> {
    Ok(match request.project() {
        "" => snapshot.rules.descriptors().plan(request)?,
        _ => snapshot.rules.plan_descriptors(request)?,
    })
}

/// Returns the answer of the deciding rule of a descriptor.
fn deciding(mut answers: SmallVec<[DescriptorAnswer; 1]>) -> Option<DescriptorAnswer> {
    if answers.len() <= 1 {
        return answers.pop();
    }
    let decisions = answers.iter().map(|answer| answer.decided.clone()).collect();
    let position = Verdict::from_decisions(decisions).deciding_position()?;
    Some(answers.swap_remove(position))
}
