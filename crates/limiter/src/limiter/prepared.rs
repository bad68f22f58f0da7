//! Checks that are planned once and decided many times, without waiting.
//!
//! A simulation of recorded traffic has few different requests, and many of each. Whether a request
//! matches a rule, and its keys, depend on the rules and the request alone, so a plan can be kept.
//! The decision is that of [`Limiter::check`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::{CheckError, DescriptorVerdict, Limiter, Snapshot, Source};
use crate::clock::Deadline;
use crate::plan::{DescriptorPlan, Plan, PlannedStatus};
use crate::rules::Request;
use crate::rules::descriptors::{DescriptorRequest, InvalidDescriptor};
use crate::verdict::{HitResult, HitResults};

/// A check of a request by the rules that were in force when it was prepared.
#[derive(Debug)]
pub struct PreparedCheck {
    snapshot: Arc<Snapshot>,
    plan: Plan,
}

/// A check of a request by descriptors, by the rules that were in force when it was prepared.
#[derive(Debug)]
pub struct PreparedDescriptors {
    snapshot: Arc<Snapshot>,
    plan: Plan,
    statuses: SmallVec<[Option<PlannedStatus>; 2]>,
}

impl Limiter {
    /// Plans a request, to be decided by [`Limiter::execute_prepared`] as often as it is made. A
    /// request id is left out: each decision is one of its own; so are candidates, whose decisions
    /// nobody gets. The project of the request makes no
    /// difference: the rules are those of [`Limiter::snapshot`].
    pub fn prepare(&self, request: &Request<'_>) -> PreparedCheck {
        let snapshot = self.snapshot();
        let mut plan = Plan::for_request(&snapshot.rules, request);
        plan.candidates.clear();
        PreparedCheck { snapshot, plan }
    }

    /// Plans a request by descriptors, to be decided by [`Limiter::decide_prepared_descriptors`].
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] if the algorithm of a matched rule does not support what a descriptor
    /// requests.
    pub fn prepare_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
    ) -> Result<PreparedDescriptors, InvalidDescriptor> {
        let snapshot = self.snapshot();
        let DescriptorPlan { plan, statuses } = snapshot.rules.descriptors().plan(request)?;
        Ok(PreparedDescriptors { snapshot, plan, statuses })
    }

    /// Decides the hits of a prepared request from memory, now, and returns the results in order.
    /// They are not folded into a verdict or reported to observers, which would take as long as the
    /// decision. Returns `None` if the store has to be waited for, as Redis always has.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`].
    #[inline]
    pub fn execute_prepared(
        &self,
        check: &PreparedCheck,
    ) -> Option<Result<HitResults, CheckError>> {
        let PreparedCheck { snapshot, plan } = check;
        if let Err(error) = self.admit_unmatched(snapshot, plan) {
            return Some(Err(error));
        }
        if let ([hit], None) = (&*plan.hits, &plan.once)
            && let Some(store_hit) = hit.for_store()
            && let Some(reply) = self.store.execute_one_now(&store_hit, Deadline::NEVER)
        {
            let mut results = HitResults::new();
            results.push(Some(HitResult { reply, source: Source::Store }));
            return Some(Ok(results));
        }
        let executed = self.execute_now(snapshot, plan, Deadline::NEVER)?;
        Some(executed.map(|executed| executed.results))
    }

    /// Decides a prepared request by descriptors from memory, now. Returns `None` if the store has
    /// to be waited for.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check_descriptors`].
    pub fn decide_prepared_descriptors(
        &self,
        check: &PreparedDescriptors,
    ) -> Option<Result<DescriptorVerdict, CheckError>> {
        let PreparedDescriptors { snapshot, plan, statuses } = check;
        let executed = self.execute_now(snapshot, plan, Deadline::NEVER)?;
        Some(
            executed
                .map(|executed| self.fold_descriptors(snapshot, plan, statuses, &executed.results)),
        )
    }
}

impl PreparedCheck {
    /// Returns the hits of the request.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl PreparedDescriptors {
    /// Returns the hits of the request: one for each answer that is not `None`, in order.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
