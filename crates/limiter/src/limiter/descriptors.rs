//! Requests by descriptors, as meshes and gateways ask: each descriptor meets at most one rule, and
//! has an answer of its own.
//!
//! The same descriptor may come twice in one request: the store decides hits of one key in order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::pending::ExecutedPlan;
use super::{CheckError, Limiter, RuleDecision, Snapshot, Verdict, observers};
use crate::algorithm::Algorithm;
use crate::clock::{Deadline, Micros, Timestamp};
use crate::plan::{DescriptorPlan, Hit, Plan, PlannedStatus, RuleIndex};
use crate::rules::descriptors::{DescriptorRequest, Metadata};
use crate::rules::{Grant, Mode};
use crate::verdict::HitResult;

/// The outcome for a request by descriptors.
#[derive(Clone, Debug)]
pub struct DescriptorVerdict {
    /// What each descriptor met, in order; nothing where no rule applies.
    pub answers: SmallVec<[Option<DescriptorAnswer>; 2]>,
}

/// What the rule of one descriptor says.
#[derive(Clone, Debug)]
pub struct DescriptorAnswer {
    /// Its decision.
    pub decided: RuleDecision,
    /// The window of its limit, even where that is 0.
    pub window: Micros,
    /// The name of its limit.
    pub limit_name: Option<Arc<str>>,
    /// What it says of itself.
    pub metadata: Option<Arc<Metadata>>,
}

impl DescriptorVerdict {
    /// May the request pass?
    pub fn is_allowed(&self) -> bool {
        !Mode::refuse(self.answers.iter().flatten().map(|answer| answer.decided.denial()))
    }

    /// The decisions of all rules as one, if any rule applies; limits by their names.
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
    /// Decides one request by the rule that each of its descriptors meets, in one atomic step.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`], and [`CheckError::Descriptor`] if what is asked for can't be had from
    /// the algorithm of a rule.
    pub async fn check_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        deadline: Deadline,
    ) -> Result<DescriptorVerdict, CheckError> {
        let snapshot = self.shared.snapshot.load();
        let DescriptorPlan { plan, statuses } = snapshot.rules.descriptors().plan(request)?;
        let ExecutedPlan { plan, settled } = self.execute(&snapshot, plan, deadline).await?;
        Ok(self.fold_descriptors(&snapshot, &plan, statuses, &settled))
    }

    /// Brings what became of the hits to the descriptors, and reports the decisions.
    fn fold_descriptors(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        statuses: SmallVec<[Option<PlannedStatus>; 2]>,
        settled: &[Option<HitResult>],
    ) -> DescriptorVerdict {
        let latest = settled.iter().flatten().map(|settled| settled.reply.decision.at).max();
        let mut hits = plan.hits.iter().zip(settled);
        let answer = |planned: Option<PlannedStatus>| {
            let (planned, (hit, settled)) = (planned?, hits.next()?);
            let mut settled = (*settled)?;
            if hit.grant == Grant::Banned {
                let until_end = self.end_of_ban(hit, planned.window, latest);
                settled.reply.decision.reset_after = until_end;
            }
            Some(self.answer(snapshot, hit, planned, &settled))
        };
        DescriptorVerdict { answers: statuses.into_iter().map(answer).collect() }
    }

    fn answer(
        &self,
        snapshot: &Snapshot,
        hit: &Hit,
        planned: PlannedStatus,
        settled: &HitResult,
    ) -> DescriptorAnswer {
        let (rules, rule) = (snapshot.rules.descriptors(), snapshot.rules.rule(hit.rule));
        let mut decided = RuleDecision::new(rule, hit, settled);
        let detailed = planned.detailed_label.and_then(|label| {
            self.shared.detailed_observers.observer(&label, rule, &*self.shared.observer)
        });
        match detailed {
            Some((label, observer)) => {
                decided.rule = label;
                observers::report(&*observer, &decided);
            }
            None => snapshot.observers.decided(&decided),
        }
        let (limit_name, metadata) = match hit.rule {
            RuleIndex::Descriptor { position, is_override } => (
                rules.limit_name(position, is_override).cloned(),
                rules.metadata(position, is_override).cloned(),
            ),
            RuleIndex::Flat(_) => (None, None),
        };
        DescriptorAnswer { decided, window: planned.window, limit_name, metadata }
    }

    /// When a limit of 0 grants no less: nothing changes sooner than its window, and a fixed window
    /// resets as any other, when it ends. `latest` is the latest time that the store has told.
    fn end_of_ban(&self, hit: &Hit, window: Micros, latest: Option<Timestamp>) -> Micros {
        if hit.algorithm != Algorithm::FixedWindow || window == Micros::ZERO {
            return window;
        }
        let now = latest.filter(|at| *at != Timestamp::EPOCH);
        let now = now.unwrap_or_else(|| self.store.now(&hit.key)).as_micros();
        Micros::from_micros(window.as_micros() - now % window.as_micros())
    }
}
