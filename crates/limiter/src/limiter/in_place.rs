//! Decisions that need no waiting: from memory, or from the deny cache.

use smallvec::SmallVec;

use super::execution::Executed;
use super::{CheckError, Limiter, Snapshot, Source, Verdict};
use crate::clock::Deadline;
use crate::observer::RequestEvent;
use crate::operation::{Reply, Shard, StoreHit, StoreRequest};
use crate::plan::Plan;
use crate::rules::{Coupling, Grant, Mode};
use crate::verdict::{HitResult, HitResults};

impl Limiter {
    /// Decides a request that needs no waiting; `None` if it has to wait for the store. The common
    /// case, one hit in memory, makes no list.
    #[inline]
    pub(super) fn decide_now(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        deadline: Deadline,
    ) -> Option<Result<Verdict, CheckError>> {
        if let ([hit], None) = (&*plan.hits, &plan.once)
            && let Some(store_hit) = hit.for_store()
            && let Some(reply) = self.store.execute_one_now(&store_hit, deadline)
        {
            let results = [Some(HitResult { reply, source: Source::Store })];
            return Some(Ok(self.fold(snapshot, plan, &results)));
        }
        let executed = self.execute_now(snapshot, plan, deadline)?;
        Some(executed.map(|executed| self.fold_executed(snapshot, plan, &executed)))
    }

    /// Executes a plan that needs no waiting: in memory, or from the deny cache.
    pub(super) fn execute_now(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        deadline: Deadline,
    ) -> Option<Result<Executed, CheckError>> {
        if plan.reservation.is_some() {
            return None;
        }
        let executed = self.execute_in_memory(snapshot, plan, deadline);
        // A retry whose units were taken must not be refused by a denial since.
        if executed.is_some() || plan.once.is_some() {
            return executed;
        }
        let results = self.cached_denials(plan, snapshot.revision)?;
        Some(Ok(Executed { results, replayed: false, taken_before: None, reservation: None }))
    }

    fn execute_in_memory(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        deadline: Deadline,
    ) -> Option<Result<Executed, CheckError>> {
        let is_refused = plan.coupling == Coupling::AllOrNothing && plan.is_banned();
        let hits = plan.hits.iter().filter_map(|hit| {
            let hit = hit.for_store()?;
            let action = if is_refused { hit.action.when_refused() } else { hit.action };
            Some(StoreHit { action, ..hit })
        });
        let hits: SmallVec<[StoreHit<'_>; 2]> = hits.collect();
        let mut reply = Reply::default();
        if !hits.is_empty() {
            let (coupling, shard) = (plan.coupling, Shard::default());
            let once = plan.once.as_deref().filter(|_| !is_refused);
            let request = StoreRequest { hits: &hits, coupling, shard, once, reservation: None };
            match self.store.execute_now(request, deadline)? {
                Ok(executed) => reply = executed,
                Err(error) => return Some(Err(error.into())),
            }
        }
        let replayed = reply.replayed.is_some();
        let mut replies = reply.hits.into_iter();
        let results = plan.hits.iter().map(|hit| match HitResult::without_store(hit) {
            None => Some(HitResult { reply: replies.next()?, source: Source::Store }),
            known => known,
        });
        let mut results: HitResults = results.collect();
        let taken_before = plan.units_taken(&snapshot.rules, &results).filter(|_| replayed);
        if replayed {
            results.iter_mut().flatten().for_each(|result| result.reply.taken = 0);
            self.shared.observer.request(RequestEvent::Replayed);
        }
        Some(Ok(Executed { results, replayed, taken_before, reservation: None }))
    }

    /// As [`Limiter::find_cached_denials`], and reports that the cache answers.
    fn cached_denials(&self, plan: &Plan, revision: u64) -> Option<HitResults> {
        let results = self.find_cached_denials(plan, revision)?;
        self.shared.observer.request(RequestEvent::DenyCacheHit);
        Some(results)
    }

    /// Returns the denials that the deny cache holds, and bans; `None` if they do not settle the
    /// request. A request by descriptors needs an answer for each descriptor, so all hits must be
    /// cached. For other requests one denial is enough, and the other rules are left out.
    pub(super) fn find_cached_denials(&self, plan: &Plan, revision: u64) -> Option<HitResults> {
        let cache = self.shared.deny_cache.as_ref()?;
        let mut hits = 0;
        let mut denials = 0;
        let results: HitResults = plan
            .hits
            .iter()
            .map(|hit| {
                let Some(store_hit) = hit.for_store() else {
                    let is_refusal = hit.grant == Grant::Banned && hit.mode == Mode::Enforced;
                    let is_known = plan.is_for_descriptors || is_refusal;
                    return HitResult::without_store(hit).filter(|_| is_known);
                };
                hits += 1;
                let is_cacheable =
                    hit.decides_cost() && hit.mode == Mode::Enforced && plan.has_key_once(hit);
                // What holds stand in the way of may pass at any time.
                let is_cacheable = is_cacheable && hit.max_holds.is_none();
                let reply = cache.denial(&store_hit, revision).filter(|_| is_cacheable)?;
                denials += 1;
                Some(HitResult { reply, source: Source::DenyCache })
            })
            .collect();
        let is_known = denials > 0 && (denials == hits || !plan.is_for_descriptors);
        is_known.then_some(results)
    }
}
