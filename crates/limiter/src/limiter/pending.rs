//! Checks that wait for the store.

use std::sync::Arc;

use super::execution::{Executed, Execution, Shards};
use super::{CheckError, Limiter, Snapshot, Source, Verdict};
use crate::algorithm::Cost;
use crate::clock::Deadline;
use crate::plan::Plan;
use crate::store::StoreError;

/// A check that is decided, or waits for the store.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most checks are decided at once, without a box")]
pub enum StartedCheck {
    /// The check is decided.
    Decided(Result<Verdict, CheckError>),
    /// The check has to wait for the store.
    Pending(Box<PendingCheck>),
}

/// A check that waits for the store. If it is dropped before [`PendingCheck::finish`], nothing was
/// taken.
#[derive(Debug)]
pub struct PendingCheck {
    limiter: Limiter,
    snapshot: Arc<Snapshot>,
    plan: Plan,
    deadline: Deadline,
}

/// A plan and the outcomes of its hits.
pub(super) struct ExecutedPlan {
    pub(super) plan: Plan,
    pub(super) executed: Executed,
}

impl Limiter {
    pub(super) fn pending(
        &self,
        snapshot: &Arc<Snapshot>,
        plan: Plan,
        deadline: Deadline,
    ) -> PendingCheck {
        PendingCheck { limiter: self.clone(), snapshot: Arc::clone(snapshot), plan, deadline }
    }

    /// Executes a plan, in place if possible.
    pub(super) async fn execute(
        &self,
        snapshot: &Arc<Snapshot>,
        plan: Plan,
        deadline: Deadline,
    ) -> Result<ExecutedPlan, CheckError> {
        match self.execute_now(snapshot, &plan, deadline) {
            Some(executed) => Ok(ExecutedPlan { plan, executed: executed? }),
            None => Box::pin(self.call_store(snapshot, plan, deadline)).await,
        }
    }

    /// Executes a plan in the store, and waits for it.
    async fn call_store(
        &self,
        snapshot: &Arc<Snapshot>,
        plan: Plan,
        deadline: Deadline,
    ) -> Result<ExecutedPlan, CheckError> {
        let shards = Shards::new(&self.store, &plan);
        if !shards.are_several() {
            let executed = self.execution(snapshot, &plan, shards, deadline).run().await?;
            return Ok(ExecutedPlan { plan, executed });
        }
        // In a task of its own: if the caller is cancelled between two shards, refunds still
        // happen.
        let (limiter, snapshot) = (self.clone(), Arc::clone(snapshot));
        // All shards together get the time of one call.
        let timeout = self.store.timeout();
        let deadline = deadline.or_within(timeout);
        let executing = tokio::spawn(async move {
            let executed = limiter.execution(&snapshot, &plan, shards, deadline).run().await?;
            Ok(ExecutedPlan { plan, executed })
        });
        match tokio::time::timeout(deadline.remaining(), executing).await {
            Ok(Ok(executed)) => executed,
            Ok(Err(_ended)) => Err(CheckError::StoreUnavailable(StoreError::Lost)),
            Err(_elapsed) => Err(CheckError::StoreUnavailable(StoreError::Timeout(timeout))),
        }
    }

    fn execution<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        plan: &'a Plan,
        shards: Shards,
        deadline: Deadline,
    ) -> Execution<'a> {
        let Snapshot { rules, revision, observers, .. } = snapshot;
        Execution { limiter: self, rules, observers, revision: *revision, plan, shards, deadline }
    }
}

impl PendingCheck {
    /// Calls the store and returns the verdict.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::check`].
    pub async fn finish(self) -> Result<Verdict, CheckError> {
        let Self { limiter, snapshot, plan, deadline } = self;
        let refuses_nothing = plan.refuses_nothing();
        let (units, up_to) = (plan.units, plan.up_to);
        match limiter.call_store(&snapshot, plan, deadline).await {
            Ok(ExecutedPlan { plan, executed }) => {
                Ok(limiter.fold_executed(&snapshot, &plan, &executed))
            }
            Err(error @ CheckError::RequestId(_)) => Err(error),
            // Only rules in shadow mode apply, whose failure does not matter.
            Err(_) if refuses_nothing => {
                limiter.count_request(&snapshot, units, Ok(Source::NoRule));
                let mut verdict = Verdict::unmatched();
                verdict.taken = up_to.map(Cost::units);
                Ok(verdict)
            }
            Err(error) => Err(error),
        }
    }
}
