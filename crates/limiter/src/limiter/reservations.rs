//! Reservations: units that are held before the work and settled after it.

use std::hash::{BuildHasher, RandomState};

use super::execution::{Shards, is_refused};
use super::pending::ExecutedPlan;
use super::{CheckError, Limiter, Snapshot, Verdict};
use crate::algorithm::Cost;
use crate::clock::{Deadline, Micros, Timestamp};
use crate::idempotency::Operation;
use crate::operation::{Action, HitReply, Reply, StoreRequest};
use crate::plan::{Plan, RequestUnits};
use crate::reservation::{Reservation, ReservationReply, ReservationUse, Settlement, Settlements};
use crate::rules::{Costs, Key, Request, RuleSet};
use crate::store::{Store, StoreError};
use crate::verdict::{HitResult, HitResults, Source};

/// A reservation that stands: all that settles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenReservation {
    /// Project of the request; empty for none.
    pub project: String,
    /// Its number: random, or of the request and its request id.
    pub number: u128,
    /// Time when it ends by itself, by the clock of the store.
    pub ends_at: Timestamp,
    /// The keys that it holds, each of another rule.
    pub keys: Vec<Key>,
}

/// The outcome of a request to reserve.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// The verdict.
    pub verdict: Verdict,
    /// The reservation. `None` if nothing is held: the request is denied or a dry run, no rule holds, or
    /// the store has not decided.
    pub reservation: Option<OpenReservation>,
}

/// The cost of a settlement.
#[derive(Clone, Copy, Debug)]
pub struct Settling<'a> {
    /// Units, for rules without a cost of their own. `None` is what is held; none returns all.
    pub actual: Option<Cost>,
    /// Units of single rules, by their names.
    pub actuals: Costs<'a>,
}

/// A settlement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// What was charged and returned, by the name of the rule.
    pub settlements: Vec<(String, Settlement)>,
    /// `true` if it had been settled before; this is that settlement.
    pub replayed: bool,
    /// `true` if there was nothing to settle, and the request was counted in its place, now.
    pub reported: bool,
}

/// What a change of the holds of a reservation came to.
struct ChangedHolds {
    results: HitResults,
    became: ReservationReply,
    /// `true` if some shard knows no such reservation.
    is_partial: bool,
}

impl Settling<'_> {
    /// Returns everything.
    pub const CANCEL: Self = Self { actual: Some(Cost::NONE), actuals: Costs::NONE };
}

impl Limiter {
    /// Decides a request as [`Limiter::check`] does, in one atomic step: rules that
    /// [hold](crate::rules::Rule::holds) hold its cost until the reservation is settled or ends, the others
    /// take it. The holds end after `hold_for`, at most after the shortest time of these rules, which is
    /// also the default.
    ///
    /// With a [request id](Request::with_request_id) the same request gets the same reservation while it
    /// stands, and then [`CheckError::NoReservation`].
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`]; [`CheckError::ManyHolders`], [`CheckError::SeveralSlots`] with a request id,
    /// [`CheckError::LongKeys`] and [`CheckError::NotReservable`].
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        hold_for: Option<Micros>,
        deadline: Deadline,
    ) -> Result<Reserved, CheckError> {
        let snapshot = self.snapshot_for(request)?;
        let mut plan = Plan::for_reservation(&snapshot.rules, request);
        if plan.up_to.is_some() {
            self.admit_up_to(&plan)?;
        }
        self.count_ignored_costs(&snapshot.rules, &plan, request);
        self.admit_request(&snapshot, &plan)?;
        plan.once = self.record_of(request, Operation::Reserve)?;
        // The same request under a request id has the same number.
        let number =
            plan.once.as_ref().map_or_else(random_number, |record| record.id ^ record.fingerprint);
        self.set_reservation(&snapshot.rules, &mut plan, number, hold_for)?;
        let done = self.execute(&snapshot, plan, deadline).await?;
        // Without a reservation that should stand there is no verdict.
        let reservation = done.reservation(request.project(), number)?;
        let verdict = self.fold_executed(&snapshot, &done.plan, &done.executed);
        Ok(Reserved { verdict, reservation })
    }

    /// Makes a plan that of a reservation, if any of its rules holds.
    pub(super) fn set_reservation(
        &self,
        rules: &RuleSet,
        plan: &mut Plan,
        number: u128,
        hold_for: Option<Micros>,
    ) -> Result<(), CheckError> {
        if let Some(longest) = self.longest_hold(rules, plan)? {
            let hold_for = hold_for.map_or(longest, |wanted| wanted.min(longest));
            let purpose = ReservationUse::Reserve { hold_for };
            plan.reservation = Some(Box::new(Reservation { number, purpose }));
        }
        Ok(())
    }

    /// Adds units, time or both to a reservation; `hold_for` is from now on. A denial leaves it as it was,
    /// but for what shards that were asked before had added. Without units to add only a ban denies it. Returns the verdict, and the end in force.
    ///
    /// # Errors
    ///
    /// [`CheckError::NoReservation`], [`CheckError::StoreUnavailable`], [`CheckError::Overloaded`] and
    /// [`CheckError::UnknownProject`].
    pub async fn extend(
        &self,
        reservation: &OpenReservation,
        cost: Cost,
        costs: Costs<'_>,
        hold_for: Option<Micros>,
        deadline: Deadline,
    ) -> Result<(Verdict, Timestamp), CheckError> {
        let snapshot = self.snapshot_of(&reservation.project)?;
        let units = RequestUnits::NONE;
        let plan = Plan::for_holds(&snapshot.rules, &reservation.keys, units, |rule| {
            Action::Hold(rule.extended_cost(cost, costs))
        });
        let longest =
            self.longest_hold(&snapshot.rules, &plan)?.ok_or(CheckError::NoReservation)?;
        let hold_for = hold_for.map(|wanted| wanted.min(longest));
        let purpose = ReservationUse::Extend { hold_for };
        let changed = self.change_holds(&plan, reservation.number, purpose, deadline).await?;
        let ReservationReply::Held { ends_at, .. } = changed.became else {
            return Err(CheckError::NoReservation);
        };
        Ok((self.fold(&snapshot, &plan, &changed.results), ends_at))
    }

    /// Ends a reservation: charges the actual cost, whatever is left, and returns the rest. A
    /// reservation is settled once: for 10 minutes its first settlement is returned again.
    ///
    /// # Errors
    ///
    /// As [`Limiter::extend`]; [`CheckError::SettlementForgotten`].
    pub async fn settle(
        &self,
        reservation: &OpenReservation,
        settling: Settling<'_>,
        deadline: Deadline,
    ) -> Result<Settled, CheckError> {
        Ok(self.settle_by(reservation, settling, None, deadline).await?.0)
    }

    /// Settles a reservation as [`Limiter::settle`] does. If it has ended, charges the request's cost where
    /// no other is given, once, up to ten minutes after the end in `reservation`. Without a
    /// reservation counts the request by the rules that would have held it, once for its request id.
    ///
    /// # Errors
    ///
    /// As [`Limiter::settle`]; [`CheckError::RequestId`], [`CheckError::NoReservation`] if no rule holds.
    pub async fn settle_or_count(
        &self,
        reservation: Option<&OpenReservation>,
        request: &Request<'_>,
        settling: Settling<'_>,
        deadline: Deadline,
    ) -> Result<Settled, CheckError> {
        let Some(open) = reservation else {
            return self.count_commit(request, settling, deadline).await;
        };
        let settled = self.settle_by(open, settling, None, deadline).await;
        if !matches!(settled, Err(CheckError::NoReservation) | Ok((_, true))) {
            return Ok(settled?.0);
        }
        match self.settle_by(open, settling, Some(request), deadline).await {
            // A rule has gone: what could be settled was.
            Err(CheckError::NoReservation) => Ok(settled?.0),
            counted => {
                let (counted, _) = counted?;
                Ok(Settled { reported: !counted.replayed, ..counted })
            }
        }
    }

    /// Settles a reservation. With a `request` also what has ended is charged, at its cost where no other is
    /// given. Returns `true` if some shard knows no such reservation.
    async fn settle_by(
        &self,
        reservation: &OpenReservation,
        Settling { actual, actuals }: Settling<'_>,
        request: Option<&Request<'_>>,
        deadline: Deadline,
    ) -> Result<(Settled, bool), CheckError> {
        let OpenReservation { project, keys, .. } = reservation;
        let snapshot = self.snapshot_of(project)?;
        let units = RequestUnits::NONE;
        let plan = Plan::for_holds(&snapshot.rules, keys, units, |rule| {
            let of_request = || request.map(|request| rule.cost_for(request));
            Action::Settle(rule.settled_cost(actual, actuals).or_else(of_request))
        });
        if request.is_some() && plan.hits.len() < keys.len() {
            // A settlement may be beside a key whose rule has gone.
            return Err(CheckError::NoReservation);
        }
        if plan.hits.is_empty() {
            // Its rules have gone, and its holds end by themselves.
            return Ok((Settled::default(), false));
        }
        let (units, counts_ended) = (actual.or(request.map(Request::cost)), request.is_some());
        let settled =
            self.settle_plan(&snapshot, &plan, reservation, units, counts_ended, deadline);
        let (settlements, replayed, is_partial) = settled.await?;
        let named = settlements.into_iter().map(|(rule, settlement)| {
            let key = Key::from_encoded(&rule, "");
            (
                snapshot.rules.describe(&key).0.map_or(rule.into(), |name| name.to_string()),
                settlement,
            )
        });
        let settled = Settled { settlements: named.collect(), replayed, reported: false };
        Ok((settled, is_partial))
    }

    /// Counts a request by the rules that would have held it.
    async fn count_commit(
        &self,
        request: &Request<'_>,
        Settling { actual, actuals }: Settling<'_>,
        deadline: Deadline,
    ) -> Result<Settled, CheckError> {
        let snapshot = self.snapshot_for(request)?;
        let mut plan = Plan::for_commit(&snapshot.rules, request, |rule| {
            rule.settled_cost(actual, actuals).unwrap_or_else(|| rule.cost_for(request))
        });
        if plan.hits.is_empty() {
            return Err(CheckError::NoReservation);
        }
        let at_cost = request.at_actual_cost(actual, actuals);
        plan.once = self.record_of(&at_cost, Operation::Commit)?;
        let (results, replayed) = self.count_in_store(&snapshot, &plan, deadline).await?;
        let counted = plan.hits.iter().zip(results).filter_map(|(hit, result)| {
            let HitReply { decision, taken, .. } = result?.reply;
            let settlement = Settlement {
                charged: taken,
                debt: decision.remaining.min(0).unsigned_abs(),
                uncounted: hit.action.cost().units().saturating_sub(taken),
                ..Settlement::default()
            };
            Some((snapshot.rules.rule(hit.rule).name.to_string(), settlement))
        });
        Ok(Settled { settlements: counted.collect(), replayed, reported: true })
    }

    /// Settles the hits of a reservation, of which `units` count as usage: by default the largest cost of
    /// its rules. Returns the settlements, whether that was done before, and whether some shard knows no
    /// such reservation.
    pub(super) async fn settle_plan(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        reservation: &OpenReservation,
        units: Option<Cost>,
        counts_ended: bool,
        deadline: Deadline,
    ) -> Result<(Settlements, bool, bool), CheckError> {
        // As long as anybody may take the reservation for an open one, and ten minutes more. If the rules
        // held it for longer when it was made, the store adds to that.
        let terms = plan.hits.iter().filter_map(|hit| snapshot.rules.hold_terms(hit.rule));
        let longest = terms.map(|terms| terms.longest).max().unwrap_or_default();
        let memory = longest + Reservation::SETTLEMENT_MEMORY;
        let ends_at = reservation.ends_at;
        let purpose = ReservationUse::Settle { memory, ends_at, counts_ended };
        let changed = self.change_holds(plan, reservation.number, purpose, deadline).await?;
        let ReservationReply::Settled { settlements, replayed } = changed.became else {
            return Err(CheckError::NoReservation);
        };
        if !replayed {
            for (rule, settlement) in &settlements {
                if let Some(hit) = plan.hits.iter().find(|hit| hit.key.rule() == &**rule) {
                    snapshot.observers.get(hit.rule).charged(&hit.key, settlement.charged);
                }
            }
            self.report_all_reached(snapshot, plan, &changed.results, |_, hit| {
                let own = settlements.iter().find(|(rule, _)| hit.key.rule() == &**rule);
                own.map_or(0, |(_, settlement)| settlement.charged)
            });
            let most = settlements
                .iter()
                .map(|(_, settlement)| settlement.charged)
                .max()
                .unwrap_or_default();
            let units = units.unwrap_or(Cost::total(most));
            let units = RequestUnits::Report(units);
            self.count_request(snapshot, units, Ok(Source::Store));
        }
        Ok((settlements, replayed, changed.is_partial))
    }

    /// Executes the hits of a reservation that stands, shard by shard. No policy decides for them. Stops
    /// where an extension is denied; settles what it can.
    async fn change_holds(
        &self,
        plan: &Plan,
        number: u128,
        purpose: ReservationUse,
        deadline: Deadline,
    ) -> Result<ChangedHolds, CheckError> {
        let shards = Shards::new(&self.store, plan);
        let mut results: HitResults = plan.hits.iter().map(HitResult::without_store).collect();
        let (mut became, mut failed): (Option<ReservationReply>, _) = (None, None);
        let (mut is_partial, settles) = (false, matches!(purpose, ReservationUse::Settle { .. }));
        for shard in shards.distinct() {
            if !settles && (failed.is_some() || is_partial || is_refused(plan, &results)) {
                break;
            }
            let (positions, hits) = shards.hits_in(shard, plan);
            let (coupling, once) = (plan.coupling, None);
            let reservation = Some(&Reservation { number, purpose });
            let request = StoreRequest { hits: &hits, coupling, shard, once, reservation };
            match self.store.execute(request, deadline).await {
                Ok(Reply { hits, reservation, .. }) => {
                    for (at, reply) in positions.iter().zip(hits) {
                        results[*at] = Some(HitResult { reply, source: Source::Store });
                    }
                    let reply = reservation.unwrap_or(ReservationReply::NotFound);
                    is_partial |= reply == ReservationReply::NotFound;
                    became = Some(match became {
                        Some(earlier) => earlier.and(reply),
                        None => reply,
                    });
                }
                Err(error) => failed = failed.or(Some(CheckError::of_store(error))),
            }
        }
        match (failed, became) {
            (Some(error), _) => Err(error),
            (None, None | Some(ReservationReply::NotFound)) => Err(CheckError::NoReservation),
            (None, Some(ReservationReply::Forgotten)) => Err(CheckError::SettlementForgotten),
            (None, Some(became)) => Ok(ChangedHolds { results, became, is_partial }),
        }
    }

    /// Counts reports in the store, shard by shard. No policy decides in its place. Returns the results of
    /// the hits, and `true` if all had been counted before.
    pub(super) async fn count_in_store(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        deadline: Deadline,
    ) -> Result<(HitResults, bool), CheckError> {
        let shards = Shards::new(&self.store, plan);
        let mut results: HitResults = plan.hits.iter().map(|_| None).collect();
        let mut replayed = true;
        for shard in shards.distinct() {
            let (positions, hits) = shards.hits_in(shard, plan);
            let (coupling, once) = (plan.coupling, plan.once.as_deref());
            let request = StoreRequest { hits: &hits, coupling, shard, once, reservation: None };
            let reply =
                self.store.execute(request, deadline).await.map_err(CheckError::of_store)?;
            replayed &= reply.replayed.is_some();
            for (at, reply) in positions.iter().zip(reply.hits) {
                results[*at] = Some(HitResult { reply, source: Source::Store });
            }
        }
        if !replayed {
            for (hit, result) in plan.hits.iter().zip(&results) {
                let counted = result.as_ref().map_or(0, |result| result.reply.taken);
                snapshot.observers.get(hit.rule).charged(&hit.key, counted);
            }
            self.report_all_reached(snapshot, plan, &results, |reply, _| reply.taken);
            self.count_request(snapshot, plan.units, Ok(Source::Store));
        }
        Ok((results, replayed))
    }

    /// Returns the longest time for which the hits of a plan may be held; `None` if none holds.
    fn longest_hold(&self, rules: &RuleSet, plan: &Plan) -> Result<Option<Micros>, CheckError> {
        let holding = || plan.hits.iter().filter(|hit| matches!(hit.action, Action::Hold(_)));
        let Some(first) = holding().next() else { return Ok(None) };
        if matches!(self.store, Store::Custom(_)) {
            return Err(CheckError::NotReservable);
        }
        let bytes: usize = holding().map(|hit| hit.key.as_bytes().len()).sum();
        if bytes > Reservation::MAX_KEY_BYTES {
            return Err(CheckError::LongKeys);
        }
        if holding().count() > Reservation::MAX_HITS {
            return Err(CheckError::ManyHolders);
        }
        let shard = self.store.shard(&first.key);
        let is_in_shard = || holding().all(|hit| self.store.shard(&hit.key) == shard);
        if plan.once.is_some() && !is_in_shard() {
            return Err(CheckError::SeveralSlots);
        }
        Ok(holding().filter_map(|hit| rules.hold_terms(hit.rule)).map(|terms| terms.longest).min())
    }
}

impl CheckError {
    /// Returns the error of a call for which no policy decides.
    pub(super) fn of_store(error: StoreError) -> Self {
        match error {
            StoreError::Overloaded => Self::Overloaded,
            StoreError::Expired => Self::Expired,
            StoreError::RequestId(error) => Self::RequestId(error),
            error => Self::StoreUnavailable(error),
        }
    }
}

impl ExecutedPlan {
    /// Returns the reservation that was made.
    pub(super) fn reservation(
        &self,
        project: &str,
        number: u128,
    ) -> Result<Option<OpenReservation>, CheckError> {
        match self.executed.reservation {
            None => Ok(None),
            Some(ReservationReply::Held { ends_at, .. }) => {
                let held = self.plan.hits.iter().zip(&self.executed.results);
                let held = held.filter(|(_, result)| holds(result.as_ref()));
                let mut keys: Vec<Key> = Vec::new();
                for (hit, _) in held {
                    if !keys.contains(&hit.key) {
                        keys.push(hit.key.clone());
                    }
                }
                let project = project.to_owned();
                Ok(Some(OpenReservation { project, number, ends_at, keys }))
            }
            Some(_) => Err(CheckError::NoReservation),
        }
    }
}

/// Returns `true` if the reservation of the request holds units of the hit.
fn holds(result: Option<&HitResult>) -> bool {
    result.is_some_and(|result| result.reply.own_hold().is_some())
}

/// Returns 128 random bits.
pub(super) fn random_number() -> u128 {
    let [high, low] = [(), ()].map(|()| u128::from(RandomState::new().hash_one(())));
    high << 64 | low
}
