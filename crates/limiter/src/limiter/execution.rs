//! Executes a plan in the store: all or nothing, over several shards, and in spite of failures.
//!
//! The hits of most requests share a shard, and the store decides them in one atomic step. In a
//! Redis Cluster, hits whose keys have different ids are in different shards. They are taken shard
//! by shard, and taken units are refunded as soon as a later shard denies or fails. Each shard is
//! atomic, the whole is not: until the refund, other requests may be denied by units that this
//! request holds. Units whose refund fails, because their server is unavailable, stay taken. Holds of a
//! reservation are ended in the same way, and leave no trace; those that stay end by themselves. A
//! caller that is cancelled changes none of this. Nothing is granted twice.

use smallvec::SmallVec;
use tracing::debug;

use super::idempotency::{clear_taken, is_replay};
use super::observers::RuleObservers;
use super::{CheckError, Limiter, Source};
use crate::algorithm::{Cost, TakenUnits};
use crate::clock::Deadline;
use crate::idempotency::{CallId, RecordUse};
use crate::observer::RequestEvent;
use crate::operation::{Action, HitReply, Reply, Shard, StoreHit, StoreId, StoreRequest};
use crate::plan::{Hit, Plan};
use crate::reservation::{Reservation, ReservationReply, ReservationUse};
use crate::rules::{Coupling, Grant, Mode, RuleSet};
use crate::store::{Store, StoreError};
use crate::verdict::{HitResult, HitResults};

/// The execution of one plan.
pub(super) struct Execution<'a> {
    pub(super) limiter: &'a Limiter,
    /// Rules that made the plan, and their revision.
    pub(super) rules: &'a RuleSet,
    pub(super) observers: &'a RuleObservers,
    pub(super) revision: u64,
    pub(super) plan: &'a Plan,
    pub(super) shards: Shards,
    pub(super) deadline: Deadline,
}

/// Shards of the hits of a plan, computed once; `None` for a hit that needs no store.
pub(super) struct Shards(SmallVec<[Option<Shard>; 2]>);

/// The results of the hits of a plan.
pub(super) struct Executed {
    pub(super) results: HitResults,
    /// `true` if an earlier request with the same request id took the units.
    pub(super) replayed: bool,
    /// Units that the earlier request took, if it took what was there.
    pub(super) taken_before: Option<u64>,
    /// What became of the reservation of the plan.
    pub(super) reservation: Option<ReservationReply>,
}

impl Executed {
    /// Returns the most units of a report that a hit of the plan has not counted.
    pub(super) fn uncounted(&self, plan: &Plan) -> u64 {
        let uncounted = plan.hits.iter().zip(&self.results).map(|(hit, result)| {
            let counted = result.as_ref().map_or(0, |result| result.reply.taken);
            match hit.action {
                Action::Report(cost) => cost.units().saturating_sub(counted),
                _ => 0,
            }
        });
        uncounted.max().unwrap_or_default()
    }
}

/// Hits that are decided in one step, because they share a shard.
pub(super) struct HitGroup {
    /// Positions of the hits in the plan.
    pub(super) positions: Positions,
    pub(super) shard: Shard,
    pub(super) store: StoreId,
    /// The other call that took the units, if the record of the request id has answered.
    pub(super) taker: Option<CallId>,
    /// Units that the other call took, if the request takes what is there.
    pub(super) taken_before: Option<u64>,
    /// Grants that replace those of the hits: the shares of the local fallback.
    pub(super) grants: Option<SmallVec<[Grant; 2]>>,
    /// `true` if the request is denied already: this group then takes nothing. Reports count all
    /// the same.
    pub(super) is_refused: bool,
    /// What became of the reservation, once the store has decided.
    pub(super) reservation: Option<ReservationReply>,
    /// `true` if the plan has other groups: then no single shard knows whether every quota denies.
    pub(super) is_one_of_several: bool,
}

pub(super) type Positions = SmallVec<[usize; 2]>;

impl Shards {
    pub(super) fn new(store: &Store, plan: &Plan) -> Self {
        let shard = |hit: &Hit| hit.for_store().map(|hit| store.shard(hit.key));
        Self(plan.hits.iter().map(shard).collect())
    }

    /// Returns `true` if the hits are in more than one shard.
    pub(super) fn are_several(&self) -> bool {
        let mut known = self.0.iter().flatten();
        let first = known.next();
        known.any(|shard| Some(shard) != first)
    }

    /// Returns each shard once.
    pub(super) fn distinct(&self) -> SmallVec<[Shard; 2]> {
        let mut distinct = SmallVec::new();
        for shard in self.0.iter().flatten() {
            if !distinct.contains(shard) {
                distinct.push(*shard);
            }
        }
        distinct
    }

    /// Returns the hits of a plan that are in a shard, and their positions.
    pub(super) fn hits_in<'p>(
        &self,
        shard: Shard,
        plan: &'p Plan,
    ) -> (Positions, SmallVec<[StoreHit<'p>; 2]>) {
        let hits = plan.hits.iter().zip(&self.0).enumerate();
        let in_shard = hits.filter(|(_, (_, own))| **own == Some(shard));
        in_shard.filter_map(|(at, (hit, _))| Some((at, hit.for_store()?))).unzip()
    }
}

impl Execution<'_> {
    /// Decides every hit, takes the units if all enforced hits allow, and caches denials.
    ///
    /// # Errors
    ///
    /// [`CheckError`]. Taken units are refunded as far as possible. Counted reports stay, and so do
    /// units that each hit took by itself.
    pub(super) async fn run(&self) -> Result<Executed, CheckError> {
        let Some(cache) = &self.limiter.shared.deny_cache else { return self.decide().await };
        let requested_at = cache.now();
        let executed = self.decide().await?;
        for (hit, result) in self.plan.hits.iter().zip(&executed.results) {
            // The denial of a key with several hits in the plan is a denial of their sum: not
            // cached.
            if let (Some(result), Some(store_hit)) = (result, hit.for_store())
                && result.source == Source::Store
                && self.plan.has_key_once(hit)
                && hit.max_holds.is_none()
            {
                cache.record(&store_hit, self.revision, requested_at, &result.reply);
            }
        }
        Ok(executed)
    }

    async fn decide(&self) -> Result<Executed, CheckError> {
        let all_or_nothing = self.plan.coupling == Coupling::AllOrNothing;
        let mut results: HitResults = self.plan.hits.iter().map(HitResult::without_store).collect();
        let mut taken: SmallVec<[HitGroup; 1]> = SmallVec::new();
        let mut is_refused = self.plan.is_banned() && all_or_nothing;
        for mut group in self.groups() {
            group.is_refused = is_refused;
            match self.step(group, RecordUse::Decide, &mut results).await {
                Ok(group) => taken.push(group),
                Err(error) => {
                    Box::pin(self.refund(taken, &mut results)).await;
                    return Err(error);
                }
            }
            if all_or_nothing && !is_refused && self.is_refused(&results) {
                Box::pin(self.refund(std::mem::take(&mut taken), &mut results)).await;
                is_refused = true;
            }
        }
        if self.plan.once.is_some() && !is_refused {
            let confirmed = Box::pin(self.confirm(&mut taken, &mut results)).await;
            if confirmed.is_err() || self.is_refused(&results) {
                Box::pin(self.refund(std::mem::take(&mut taken), &mut results)).await;
            }
            confirmed?;
        }
        self.forget_credited();
        let of_holds = taken.iter_mut().filter_map(|group| group.reservation.take());
        let reservation = of_holds.reduce(ReservationReply::and).filter(|_| !is_refused);
        let replayed = is_replay(&taken, &results, reservation.as_ref());
        if replayed {
            self.limiter.shared.observer.request(RequestEvent::Replayed);
        }
        let taken_before = taken.iter().find_map(|group| group.taken_before);
        if reservation == Some(ReservationReply::NotFound) {
            Box::pin(self.refund(taken, &mut results)).await;
        }
        Ok(Executed { results, replayed, taken_before, reservation })
    }

    /// Decides the hits of one group, by the store or by the policies of the rules.
    pub(super) async fn step(
        &self,
        mut group: HitGroup,
        purpose: RecordUse,
        results: &mut [Option<HitResult>],
    ) -> Result<HitGroup, CheckError> {
        match self.execute(&group, purpose, self.deadline).await {
            Ok(reply) => {
                self.limiter.shared.degradation.store_decided();
                let call = self.plan.once.as_deref().map(|record| record.call);
                group.taker = reply.replayed.filter(|taker| Some(*taker) != call);
                // A remembered reply may be older than a ban.
                if reply.replayed.is_none() {
                    self.record_bans(&group, &reply.hits);
                }
                group.reservation = reply.reservation;
                record_replies(&group, reply.hits, Source::Store, results);
                if purpose == RecordUse::Decide && group.taker.is_some() {
                    group.taken_before = self.plan.units_taken(self.rules, results);
                    clear_taken(&group, results);
                }
                Ok(group)
            }
            // Boxed because it is rare: inline, it would enlarge every future.
            Err(error) => Box::pin(self.degrade(group, &error, results)).await,
        }
    }

    pub(super) async fn execute(
        &self,
        group: &HitGroup,
        purpose: RecordUse,
        deadline: Deadline,
    ) -> Result<Reply, StoreError> {
        let (hits, once) = (self.hits(group), self.record_for(group, purpose));
        let (coupling, shard) = (self.plan.coupling, group.shard);
        let holds = group.store == StoreId::Primary
            && hits.iter().any(|hit| matches!(hit.action, Action::Hold(_)));
        let reservation = self.plan.reservation.as_deref().filter(|_| holds);
        // The number of a reservation stands for its request id.
        let once = once.as_ref().filter(|_| reservation.is_none());
        let request = StoreRequest { hits: &hits, coupling, shard, once, reservation };
        self.limiter.store_by_id(group.store).execute(request, deadline).await
    }

    /// Groups the hits for the store by shard. With several shards, hits that give units come last,
    /// when it is known whether the request is denied.
    fn groups(&self) -> SmallVec<[HitGroup; 1]> {
        let mut shards: SmallVec<[(Shard, bool); 1]> = SmallVec::new();
        let mut groups: SmallVec<[HitGroup; 1]> = SmallVec::new();
        let spans_shards = self.shards.are_several();
        for gives_units in if spans_shards { &[false, true][..] } else { &[false] } {
            for (position, (hit, shard)) in self.plan.hits.iter().zip(&self.shards.0).enumerate() {
                let Some(shard) = *shard else { continue };
                if spans_shards && hit.action.returns_units() != *gives_units {
                    continue;
                }
                if let Some(group) = shards.iter().position(|other| *other == (shard, *gives_units))
                {
                    groups[group].positions.push(position);
                    continue;
                }
                shards.push((shard, *gives_units));
                groups.push(HitGroup {
                    positions: SmallVec::from_slice(&[position]),
                    shard,
                    store: StoreId::Primary,
                    taker: None,
                    taken_before: None,
                    grants: None,
                    is_refused: false,
                    reservation: None,
                    is_one_of_several: spans_shards,
                });
            }
        }
        if spans_shards && self.plan.reservation.is_some() {
            // What was held is ended without a trace, if a later shard denies. Under a request id an
            // earlier call may rely on it, which holds in one shard, so that one is asked last.
            let is_last = |at: &usize| match self.plan.hits[*at].action {
                Action::Hold(_) => self.plan.once.is_some(),
                _ => self.plan.once.is_none(),
            };
            groups.sort_by_key(|group| group.positions.iter().any(is_last));
        }
        groups
    }

    /// Returns the hits of a group as they are sent to the store.
    fn hits<'h>(&'h self, group: &'h HitGroup) -> SmallVec<[StoreHit<'h>; 2]> {
        let hit = |(index, position): (usize, &usize)| {
            let hit = self.plan.hits[*position].for_store()?;
            let grant = group.grants.as_ref().map_or(hit.grant, |grants| &grants[index]);
            let mode = match hit.mode {
                Mode::Quota | Mode::ShadowQuota if group.is_one_of_several => Mode::Shadow,
                mode => mode,
            };
            let action = match hit.action {
                action if group.is_refused => action.when_refused(),
                Action::Credit(_) if group.store == StoreId::Fallback => Action::Peek(Cost::NONE),
                // Nothing could be settled there.
                Action::Hold(cost) if group.store == StoreId::Fallback => Action::Take(cost),
                action => action,
            };
            // The fallback grants a share of the limit, and knows nothing but states.
            let is_primary = group.store == StoreId::Primary;
            let overridable = hit.overridable && is_primary;
            let on_change = hit.on_change.filter(|_| is_primary);
            Some(StoreHit { grant, action, mode, overridable, on_change, ..hit })
        };
        group.positions.iter().enumerate().filter_map(hit).collect()
    }

    pub(super) fn is_refused(&self, results: &[Option<HitResult>]) -> bool {
        is_refused(self.plan, results)
    }

    /// Records the bans in the replies to the hits of a group.
    fn record_bans(&self, group: &HitGroup, replies: &[HitReply]) {
        for (position, reply) in group.positions.iter().zip(replies) {
            let hit = &self.plan.hits[*position];
            if hit.overridable {
                self.limiter.shared.bans.record(&hit.key, reply);
            }
        }
    }

    /// Returns the units that the groups took (not their reports) and hold, and updates the outcomes of
    /// their hits to the state after that.
    async fn refund(&self, groups: SmallVec<[HitGroup; 1]>, results: &mut [Option<HitResult>]) {
        if self.plan.coupling == Coupling::EachAlone {
            return;
        }
        for group in groups.into_iter().filter(|group| !group.is_refused) {
            self.withdraw(&group, results).await;
            // The shard that denied has taken nothing itself.
            let positions = group.positions.iter();
            let replies = positions
                .map(|position| results[*position].as_ref().map(|result| result.reply.clone()));
            let refunds = self.hits(&group).into_iter().zip(replies).zip(&group.positions);
            let (hits, positions): (SmallVec<[StoreHit<'_>; 2]>, Positions) = refunds
                .filter_map(|((hit, reply), position)| {
                    let taken = match hit.action {
                        Action::Take(_) => taken(&reply?)?,
                        _ => return None,
                    };
                    Some((StoreHit { action: Action::Refund(taken), ..hit }, *position))
                })
                .unzip();
            if hits.is_empty() {
                continue;
            }
            let (coupling, shard) = (Coupling::AllOrNothing, group.shard);
            let once = self.record_for(&group, RecordUse::Undo);
            let request = StoreRequest {
                hits: &hits,
                coupling,
                shard,
                once: once.as_ref(),
                reservation: None,
            };
            self.undo(group.store, request, &positions, results).await;
        }
    }

    /// Ends what the reservation of the plan holds of the keys of a group, as if it had never been made.
    async fn withdraw(&self, group: &HitGroup, results: &mut [Option<HitResult>]) {
        let Some(Reservation { number, .. }) = self.plan.reservation.as_deref() else { return };
        if self.plan.once.is_some() {
            // Another call under the request id may rely on it. It ends by itself.
            return;
        }
        let holds = |at: &usize| {
            results[*at].as_ref().is_some_and(|result| result.reply.own_hold().is_some())
        };
        let positions: Positions = group.positions.iter().copied().filter(holds).collect();
        let hits = positions.iter().filter_map(|at| self.plan.hits[*at].for_store());
        let hits: SmallVec<[StoreHit<'_>; 2]> =
            hits.map(|hit| hit.with_action(Action::Settle(Some(Cost::NONE)))).collect();
        if hits.is_empty() {
            return;
        }
        let (coupling, shard, once) = (Coupling::AllOrNothing, group.shard, None);
        let reservation = Some(&Reservation { number: *number, purpose: ReservationUse::FORGET });
        let request = StoreRequest { hits: &hits, coupling, shard, once, reservation };
        self.undo(group.store, request, &positions, results).await;
    }

    /// Executes a request that gives units back, with the hits at these positions of the plan.
    async fn undo(
        &self,
        store: StoreId,
        request: StoreRequest<'_>,
        positions: &[usize],
        results: &mut [Option<HitResult>],
    ) {
        match self.limiter.store_by_id(store).execute(request, Deadline::NEVER).await {
            Ok(reply) => {
                for ((position, reply), hit) in positions.iter().zip(reply.hits).zip(request.hits) {
                    self.limiter.forget_denials(hit.key);
                    if let Some(result) = &mut results[*position] {
                        // Somebody else may have taken the last step to a threshold beside these units.
                        let (taken, planned) = (&result.reply, &self.plan.hits[*position]);
                        let (units, stays) = (taken.taken, Some(reply.decision.current_count));
                        let Self { limiter, rules, observers, .. } = self;
                        if store == StoreId::Primary {
                            limiter.report_reached(rules, observers, planned, taken, units, stays);
                        }
                        result.reply = reply;
                    }
                }
            }
            Err(error) => {
                debug!(%error, "refund failed");
                self.limiter.shared.observer.request(RequestEvent::RefundFailed);
            }
        }
    }

    /// Removes cached denials of keys to which units were given.
    fn forget_credited(&self) {
        for hit in self.plan.hits.iter().filter(|hit| hit.action.invalidates_denials()) {
            self.limiter.forget_denials(&hit.key);
        }
    }
}

/// Returns `true` if the results refuse the request.
pub(super) fn is_refused(plan: &Plan, results: &[Option<HitResult>]) -> bool {
    Mode::refuse(plan.hits.iter().zip(results).map(|(hit, result)| {
        result.as_ref().map_or((hit.effective_mode(), false), |result| result.denial(hit))
    }))
}

type Replies = SmallVec<[HitReply; 2]>;

/// Stores the replies for the hits of a group.
pub(super) fn record_replies(
    group: &HitGroup,
    replies: Replies,
    source: Source,
    results: &mut [Option<HitResult>],
) {
    for (position, reply) in group.positions.iter().zip(replies) {
        results[*position] = Some(HitResult { reply, source });
    }
}

/// Returns the units that a hit has taken; `None` if it has taken none.
pub(super) fn taken(reply: &HitReply) -> Option<TakenUnits> {
    let cost = Some(Cost::total(reply.taken)).filter(|cost| *cost != Cost::NONE)?;
    let (at, reset_after) = (reply.decision.at, reply.decision.reset_after);
    Some(TakenUnits { cost, at, reset_after })
}
