//! Requests by descriptors, as meshes and gateways ask: each descriptor meets at most one rule, and
//! has an answer of its own.
//!
//! The same descriptor may come twice in one request: the store decides hits of one key in order.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::timeout;

use super::taking::{RuleHit, Settled, Taking, is_alone};
use super::verdict::uncounted;
use super::{
    CheckError, Limiter, RuleDecision, Snapshot, Source, Verdict, observers, without_store,
};
use crate::algorithm::{Algorithm, Cost, Decision, Outcome};
use crate::clock::{Deadline, Span, Timestamp};
use crate::observer::RequestEvent;
use crate::rules::descriptors::{DescriptorRequest, Descriptors, Found, Hits, Metadata};
use crate::rules::{Coupling, Grant, Mode, OnStoreFailure};
use crate::store::{Action, Hit, StoreError};

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
        (!decisions.is_empty()).then(|| Verdict::fold(decisions))
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
        let found = snapshot.rules.descriptors().meet(request)?;
        if !self.outlives_its_caller(&found) {
            let settled = Meeting::new(self, &snapshot, &found, deadline).settle().await?;
            return Ok(self.verdict(&snapshot, &found, &settled));
        }
        let (limiter, of) = (self.clone(), Arc::clone(&snapshot));
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
            let detailed = detailed.and_then(|label| {
                self.shared.detailed_observers.observer(label, rule, &*self.shared.observer)
            });
            let (name, observer) = match &detailed {
                Some((name, observer)) => (name, observer),
                None => (rule.name, snapshot.observers.of_descriptor(found.position)),
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
            observers::report(&**observer, &decided);
            let limit_name = rules.limit_name(found).cloned();
            let metadata = rules.metadata(found).cloned();
            Some(DescriptorAnswer { decided, window: found.window, limit_name, metadata })
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
        let (positions, hits): (SmallVec<[usize; 2]>, SmallVec<[RuleHit<'_>; 2]>) =
            (0..self.found.len()).filter_map(|at| Some((at, self.hit(at)?))).unzip();
        if !self.remember(&positions, &hits, &mut settled) {
            let decided = self.ask(&hits).await?;
            for (position, decided) in positions.iter().zip(decided) {
                settled[*position] = decided;
            }
        }
        let each = self.rules.coupling() == Coupling::EachAlone;
        let gives = each || !self.is_refused(&settled);
        self.give_back(gives, &mut settled).await?;
        self.end_bans_with_their_windows(&mut settled);
        Ok(settled)
    }

    /// A fixed window that grants nothing resets as any other: when it ends.
    fn end_bans_with_their_windows(&self, settled: &mut AllSettled) {
        let told = settled.iter().flatten().map(|(decision, _)| decision.at).max();
        for (found, settled) in self.found.iter().zip(settled) {
            let (Some(found), Some((decision, _))) = (found, settled) else { continue };
            let is_fixed = self.rules.rule(found).algorithm == Algorithm::FixedWindow;
            if found.grant == Grant::Banned && is_fixed && found.window != Span::ZERO {
                // Another decision of this request tells the store's time best.
                let now = told.filter(|at| *at != Timestamp::EPOCH);
                let now = now.unwrap_or_else(|| self.limiter.store.now(&found.key));
                let window = found.window.as_micros();
                decision.reset_after = Span::from_micros(window - now.as_micros() % window);
            }
        }
    }

    /// Answers from the deny cache if it knows that every hit is denied.
    fn remember(
        &self,
        positions: &[usize],
        hits: &[RuleHit<'_>],
        settled: &mut AllSettled,
    ) -> bool {
        let Some(cache) = &self.limiter.shared.deny_cache else { return false };
        let denial = |RuleHit { hit, .. }: &RuleHit<'_>| {
            let asks = !matches!(hit.action, Action::Report(_))
                && hit.action.cost() != Cost::NONE
                && hit.mode == Mode::Enforced
                && is_alone(hit, hits);
            asks.then(|| cache.denial(hit, self.revision))?
        };
        let denials: Option<SmallVec<[_; 2]>> = hits.iter().map(denial).collect();
        let Some(denials) = denials.filter(|denials| !denials.is_empty()) else { return false };
        for (position, denial) in positions.iter().zip(denials) {
            settled[*position] = Some((denial, Source::DenyCache));
        }
        self.limiter.shared.observer.request(RequestEvent::DenyCacheHit);
        true
    }

    /// Gives back what descriptors say, or looks if nothing is to change: never more than is out.
    async fn give_back(&self, gives: bool, settled: &mut AllSettled) -> Result<(), CheckError> {
        for (position, found) in self.found.iter().enumerate() {
            let Some(Found { hits: Hits::GiveBack(cost), .. }) = found else { continue };
            let Some(look) = self.hit_of(position, Action::Peek(Cost::NONE)) else { continue };
            let looked = self.ask(&[look]).await?.pop().flatten();
            settled[position] = looked;
            // As if one decision had taken all that is out by now.
            let Some((all, Source::Store)) = looked.filter(|_| gives) else { continue };
            let all = Decision { outcome: Outcome::Allowed, ..all };
            let hit = Hit { action: Action::Take(*cost), ..look.hit };
            match self.limiter.store.give_back(&[hit], &[all]).await {
                Ok(decisions) => {
                    if let Some(cache) = &self.limiter.shared.deny_cache {
                        cache.forget(hit.key);
                    }
                    settled[position] =
                        decisions.first().map(|decision| (*decision, Source::Store));
                }
                Err(error) => {
                    self.limiter.shared.observer.request(RequestEvent::RefundFailed);
                    if look.rule.on_store_failure == OnStoreFailure::Error {
                        return Err(CheckError::StoreUnavailable(error));
                    }
                }
            }
        }
        Ok(())
    }

    async fn ask(&self, hits: &[RuleHit<'_>]) -> Result<AllSettled, CheckError> {
        let Self { limiter, revision, deadline, .. } = *self;
        let (is_banned, coupling) = (self.is_banned(), self.rules.coupling());
        let is_plain = coupling == Coupling::AllOrNothing && !is_banned;
        if let [RuleHit { hit, .. }] = hits
            && (is_plain || !matches!(hit.action, Action::Take(_)))
            && let Some(decision) = limiter.store.check_at_once(hit, deadline)
        {
            return Ok(AllSettled::from_slice(&[Some((decision, Source::Store))]));
        }
        let taking = Taking { limiter, hits, coupling, is_banned, revision, deadline };
        Box::pin(taking.run()).await
    }

    /// What the store has to decide for a descriptor, if anything.
    fn hit(&self, position: usize) -> Option<RuleHit<'a>> {
        let found = self.found[position].as_ref()?;
        let takes = |other: &Found| matches!(other.hits, Hits::Take(cost) if cost != Cost::NONE);
        let is_after_take = same_key(found, &self.found[..position]).any(takes);
        self.hit_of(position, action(found, self.rules.coupling(), is_after_take)?)
    }

    /// A key that comes with several limits is decided by the strictest.
    fn hit_of(&self, position: usize, action: Action) -> Option<RuleHit<'a>> {
        let found = self.found[position].as_ref()?;
        let limits = same_key(found, self.found).filter_map(|other| match &other.grant {
            Grant::Limited(limit) => Some(limit),
            Grant::Banned | Grant::Unlimited => None,
        });
        let Grant::Limited(own) = &found.grant else { return None };
        let limit = limits.min_by_key(|limit| limit.units()).unwrap_or(own);
        let rule = self.rules.rule(found);
        let (algorithm, mode) = (rule.algorithm, rule.mode);
        Some(RuleHit { rule, hit: Hit { key: &found.key, algorithm, limit, action, mode } })
    }

    /// Is the request refused whatever the store says?
    fn is_banned(&self) -> bool {
        let found = self.found.iter().flatten();
        Mode::refuse(found.map(|one| (self.mode(one), one.grant == Grant::Banned)))
    }

    fn is_refused(&self, settled: &[Settled]) -> bool {
        let denials = self.found.iter().zip(settled).filter_map(|(found, settled)| {
            let denies = settled.is_some_and(|(decision, _)| !decision.is_allowed());
            Some((self.mode(found.as_ref()?), denies))
        });
        Mode::refuse(denials)
    }

    fn mode(&self, found: &Found) -> Mode {
        found.grant.mode(self.rules.rule(found).mode)
    }
}

/// Those of `all` with the same key.
fn same_key<'a>(found: &'a Found, all: &'a [Option<Found>]) -> impl Iterator<Item = &'a Found> {
    all.iter().flatten().filter(move |other| other.key == found.key)
}

/// What the store does for a descriptor; nothing for one that gives back.
///
/// A look at a budget that is used up is refused, as a request of one unit is. Only debt refuses it
/// where everything is counted and the limit keeps debt, as in envoyproxy/ratelimit (at the limit it
/// passes still, and the hits that follow count above it), and after a take of the same key, which
/// may use up what is left.
fn action(found: &Found, coupling: Coupling, is_after_take: bool) -> Option<Action> {
    let (Grant::Limited(limit), Hits::Take(cost)) = (&found.grant, found.hits) else { return None };
    let keeps_debt = limit.max_debt().is_some_and(|units| units > 0);
    Some(match cost {
        Cost::NONE if is_after_take => Action::Peek(Cost::NONE),
        Cost::NONE if keeps_debt && coupling == Coupling::EachAlone => Action::Peek(Cost::NONE),
        Cost::NONE => Action::Peek(Cost::ONE),
        cost if limit.max_debt().is_some() => Action::Report(cost),
        cost => Action::Take(cost),
    })
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
