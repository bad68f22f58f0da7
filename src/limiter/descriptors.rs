//! Requests by descriptors, as meshes and gateways ask: each descriptor meets at most one rule, and
//! has an answer of its own.
//!
//! The same descriptor may come twice in one request: its hits are one to the store then, and each
//! is answered as if it came after those before it.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::timeout;

use super::taking::{RuleHit, Settled, Taking};
use super::verdict::uncounted;
use super::{CheckError, Limiter, RuleDecision, Snapshot, Source, Verdict, without_store};
use crate::algorithm::{Cost, Decision, Outcome};
use crate::clock::{Deadline, Span};
use crate::rules::descriptors::{Counting, DescriptorRequest, Descriptors, Found, Hits};
use crate::rules::{Grant, Mode, OnStoreFailure};
use crate::store::{Hit, Intent, StoreError};

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
    pub window: Span,
    /// The name of its limit.
    pub limit_name: Option<Arc<str>>,
}

impl DescriptorVerdict {
    /// May the request pass?
    pub fn is_allowed(&self) -> bool {
        !Mode::refuse(self.limited().map(RuleDecision::denial))
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
        (!decisions.is_empty()).then(|| Verdict::fold(decisions))
    }

    /// What is unlimited is no quota either.
    fn limited(&self) -> impl Iterator<Item = &RuleDecision> {
        let decided = self.answers.iter().flatten().map(|answer| &answer.decided);
        decided.filter(|decided| decided.grant != Grant::Unlimited)
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
        self: &Arc<Self>,
        request: &DescriptorRequest<'_>,
        deadline: Deadline,
    ) -> Result<DescriptorVerdict, CheckError> {
        let snapshot = self.snapshot.load();
        let found = snapshot.rules.descriptors().meet(request)?;
        if !self.outlives_its_caller(&found) {
            let settled = Meeting::new(self, &snapshot, &found, deadline).settle().await?;
            return Ok(self.verdict(&snapshot, &found, &settled));
        }
        let (limiter, of) = (Arc::clone(self), Arc::clone(&snapshot));
        let deadline = deadline.or_within(self.store.patience());
        let asking = tokio::spawn(async move {
            let settled = Meeting::new(&limiter, &of, &found, deadline).settle().await?;
            Ok(limiter.verdict(&of, &found, &settled))
        });
        match timeout(deadline.left(), asking).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_ended)) => Err(CheckError::StoreUnavailable(StoreError::Lost)),
            Err(_late) => {
                Err(CheckError::StoreUnavailable(StoreError::Timeout(self.store.patience())))
            }
        }
    }

    /// Are there several calls to the store, so that a caller who leaves in between would take what
    /// is to be given back along?
    fn outlives_its_caller(&self, found: &[Option<Found>]) -> bool {
        if self.store.decides_at_once() {
            return false;
        }
        let mut places = found.iter().flatten().map(|found| self.store.place(&found.key));
        let first = places.next();
        places.any(|place| Some(place) != first)
            || found.iter().flatten().any(|found| matches!(found.hits, Hits::GiveBack(_)))
    }

    /// Brings what became of the hits to the descriptors, and counts.
    fn verdict(
        &self,
        snapshot: &Snapshot,
        found: &[Option<Found>],
        settled: &[Settled],
    ) -> DescriptorVerdict {
        let rules = snapshot.rules.descriptors();
        let answer = |(found, settled): (&Option<Found>, &Settled)| {
            let (found, (decision, source)) = (found.as_ref()?, (*settled)?);
            let rule = rules.rule(found);
            let detailed = found.detailed_label.as_deref();
            let detailed = detailed.and_then(|label| self.detailed_meters.meter(label));
            let (name, meter) = match &detailed {
                Some((name, meter)) => (name, &**meter),
                None => (&rule.name, &snapshot.descriptor_meters[found.position]),
            };
            let decided = RuleDecision {
                position: found.position,
                rule: Arc::clone(name),
                algorithm: rule.algorithm,
                grant: found.grant,
                mode: rule.mode,
                decision,
                source,
            };
            meter.count(&decided, &self.metrics);
            let limit_name = rules.limit_name(found).cloned();
            Some(DescriptorAnswer { decided, window: found.window, limit_name })
        };
        DescriptorVerdict { answers: found.iter().zip(settled).map(answer).collect() }
    }
}

/// The descriptors of one request on their way through the store.
struct Meeting<'a> {
    limiter: &'a Limiter,
    rules: &'a Descriptors,
    revision: u64,
    found: &'a [Option<Found>],
    deadline: Deadline,
}

/// Positions of the descriptors with the same key.
type Group = SmallVec<[usize; 1]>;
type AllSettled = SmallVec<[Settled; 2]>;

impl<'a> Meeting<'a> {
    fn new(
        limiter: &'a Limiter,
        snapshot: &'a Snapshot,
        found: &'a [Option<Found>],
        deadline: Deadline,
    ) -> Self {
        let (rules, revision) = (snapshot.rules.descriptors(), snapshot.revision);
        Self { limiter, rules, revision, found, deadline }
    }

    /// What becomes of each descriptor; nothing where no rule applies.
    async fn settle(&self) -> Result<AllSettled, CheckError> {
        let mut settled: AllSettled =
            self.found.iter().map(|found| without_store_if_known(found.as_ref())).collect();
        let groups = self.groups();
        let counting = self.rules.counting();
        if !self.remember(&groups, &mut settled) {
            match counting {
                Counting::AllOrNothing => self.take_all(&groups, &mut settled).await?,
                Counting::EachAlone => self.take_each(&groups, &mut settled).await?,
            }
        }
        let gives = counting == Counting::EachAlone || !self.is_refused(&settled);
        self.give_back(gives, &mut settled).await?;
        Ok(settled)
    }

    /// Those that take from a limit, by their keys.
    fn groups(&self) -> SmallVec<[Group; 2]> {
        let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
        for (position, found) in self.found.iter().enumerate() {
            let Some(found) = found else { continue };
            if !matches!((found.grant, found.hits), (Grant::Limited(_), Hits::Take(_))) {
                continue;
            }
            let same = |group: &&mut Group| self.at(group[0]).key == found.key;
            match groups.iter_mut().find(same) {
                Some(group) => group.push(position),
                None => groups.push(SmallVec::from_slice(&[position])),
            }
        }
        groups
    }

    /// Answers from the deny cache if it knows that every hit is denied.
    fn remember(&self, groups: &[Group], settled: &mut AllSettled) -> bool {
        let Some(cache) = &self.limiter.deny_cache else { return false };
        let denial = |group: &Group| {
            let [position] = group.as_slice() else { return None };
            let RuleHit { hit, .. } = self.hit(*position, self.cost(*position))?;
            let asks = hit.cost != Cost::NONE && hit.mode == Mode::Enforced;
            let denial = asks.then(|| cache.denial(&hit, self.revision))??;
            Some((*position, denial))
        };
        let denials: Option<SmallVec<[_; 2]>> = groups.iter().map(denial).collect();
        let Some(denials) = denials.filter(|denials| !denials.is_empty()) else { return false };
        for (position, denial) in denials {
            settled[position] = Some((denial, Source::DenyCache));
        }
        self.limiter.metrics.deny_cache_hits.inc();
        true
    }

    /// Takes from all or from none. What has the same key is one hit of all its units, on the
    /// strictest of its limits.
    async fn take_all(&self, groups: &[Group], settled: &mut AllSettled) -> Result<(), CheckError> {
        let hit = |group: &Group| {
            let units: u64 = group.iter().map(|position| self.cost(*position).units()).sum();
            let cost = Cost::new(u32::try_from(units).unwrap_or(u32::MAX));
            let hits = group.iter().filter_map(|position| self.hit(*position, cost));
            hits.min_by_key(|rule_hit| rule_hit.hit.limit.units())
        };
        let hits: SmallVec<[RuleHit<'_>; 2]> = groups.iter().filter_map(hit).collect();
        let decided = self.ask(&hits, Intent::Take).await?;
        let denials = hits.iter().zip(&decided).map(|(RuleHit { hit, .. }, decided)| {
            (hit.mode, decided.is_some_and(|(decision, _)| !decision.is_allowed()))
        });
        let is_taken = !self.is_banned() && !Mode::refuse(denials);
        for ((group, decided), RuleHit { hit, .. }) in groups.iter().zip(decided).zip(&hits) {
            let mut upto = 0;
            for position in group {
                upto += self.cost(*position).units();
                // The units of those that come after it are there still.
                let later = if is_taken { hit.cost.units().saturating_sub(upto) } else { 0 };
                settled[*position] = decided.map(|of| part(of, upto, later));
            }
        }
        Ok(())
    }

    /// Takes from each by itself; what has the same key one after the other.
    async fn take_each(
        &self,
        groups: &[Group],
        settled: &mut AllSettled,
    ) -> Result<(), CheckError> {
        for turn in 0..groups.iter().map(Group::len).max().unwrap_or_default() {
            let positions: Group =
                groups.iter().filter_map(|group| group.get(turn)).copied().collect();
            let hits: SmallVec<[RuleHit<'_>; 2]> =
                positions.iter().filter_map(|at| self.hit(*at, self.cost(*at))).collect();
            let decided = self.ask(&hits, Intent::TakeEach).await?;
            for (position, decided) in positions.iter().zip(decided) {
                settled[*position] = decided;
            }
        }
        Ok(())
    }

    /// Gives back what descriptors say, or looks if nothing is to change: never more than is out.
    async fn give_back(&self, gives: bool, settled: &mut AllSettled) -> Result<(), CheckError> {
        for (position, found) in self.found.iter().enumerate() {
            let Some(Found { hits: Hits::GiveBack(cost), .. }) = found else { continue };
            let Some(look) = self.hit(position, Cost::NONE) else { continue };
            let looked = self.ask(&[look], Intent::Look).await?.pop().flatten();
            settled[position] = looked;
            // As if one decision had taken all that is out by now.
            let Some((all, Source::Store)) = looked.filter(|_| gives) else { continue };
            let hit = Hit { cost: *cost, ..look.hit };
            match self.limiter.store.give_back(&[hit], &[all]).await {
                Ok(decisions) => {
                    if let Some(cache) = &self.limiter.deny_cache {
                        cache.forget(hit.key);
                    }
                    settled[position] =
                        decisions.first().map(|decision| (*decision, Source::Store));
                }
                Err(error) => {
                    self.limiter.metrics.give_back_errors.inc();
                    if look.rule.on_store_failure == OnStoreFailure::Error {
                        return Err(CheckError::StoreUnavailable(error));
                    }
                }
            }
        }
        Ok(())
    }

    async fn ask(&self, hits: &[RuleHit<'_>], intent: Intent) -> Result<AllSettled, CheckError> {
        let Self { limiter, revision, deadline, .. } = *self;
        let is_banned = intent == Intent::Take && self.is_banned();
        let intent = if is_banned { Intent::Look } else { intent };
        if let ([RuleHit { hit, .. }], Intent::Take | Intent::Look) = (hits, intent)
            && let Some(decision) = limiter.store.check_at_once(hit, intent, deadline)
        {
            return Ok(AllSettled::from_slice(&[Some((decision, Source::Store))]));
        }
        let taking = Taking { limiter, hits, is_banned, revision, deadline };
        Box::pin(taking.run(intent)).await
    }

    fn at(&self, position: usize) -> &'a Found {
        self.found[position].as_ref().expect("groups are of what was found")
    }

    fn cost(&self, position: usize) -> Cost {
        match self.at(position).hits {
            Hits::Take(cost) | Hits::GiveBack(cost) => cost,
        }
    }

    /// What the store has to decide, if anything.
    fn hit(&self, position: usize, cost: Cost) -> Option<RuleHit<'a>> {
        let found = self.at(position);
        let Grant::Limited(limit) = &found.grant else { return None };
        let rule = self.rules.rule(found);
        let (algorithm, mode) = (rule.algorithm, rule.mode);
        Some(RuleHit { rule, hit: Hit { key: &found.key, algorithm, limit, cost, mode } })
    }

    /// Is the request refused whatever the store says?
    fn is_banned(&self) -> bool {
        let limited = self.found.iter().flatten().filter(|one| one.grant != Grant::Unlimited);
        Mode::refuse(limited.map(|one| (self.rules.rule(one).mode, one.grant == Grant::Banned)))
    }

    fn is_refused(&self, settled: &[Settled]) -> bool {
        let denials = self.found.iter().zip(settled).filter_map(|(found, settled)| {
            let found = found.as_ref().filter(|found| found.grant != Grant::Unlimited)?;
            let denies = settled.is_some_and(|(decision, _)| !decision.is_allowed());
            Some((self.rules.rule(found).mode, denies))
        });
        Mode::refuse(denials)
    }
}

/// What needs no store: a ban, and what is unlimited.
fn without_store_if_known(found: Option<&Found>) -> Settled {
    let Found { grant, window, .. } = found?;
    let decision = match grant {
        Grant::Limited(_) => return None,
        // Nothing changes sooner.
        Grant::Banned => Decision { reset_after: *window, ..uncounted(Outcome::Impossible) },
        Grant::Unlimited => without_store(Grant::Unlimited),
    };
    Some((decision, Source::Store))
}

/// What the first `upto` units meet of those that were decided as one, while `later` more were taken
/// with them.
fn part((of, source): (Decision, Source), upto: u64, later: u64) -> (Decision, Source) {
    if !matches!(source, Source::Store | Source::LocalFallback) {
        return (of, source);
    }
    let decision = match of.outcome {
        Outcome::Allowed => Decision {
            remaining: of.remaining + later,
            current_count: of.current_count.saturating_sub(later),
            ..of
        },
        _ if upto <= of.remaining => Decision { outcome: Outcome::Allowed, ..of },
        _ => of,
    };
    (decision, source)
}
