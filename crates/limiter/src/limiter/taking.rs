//! All or nothing, over several places and in spite of failures.
//!
//! The hits of most requests share a place: the store decides them in one atomic step, and this
//! room adds nothing. In a Redis Cluster hits whose keys have different ids fall into different
//! places. They are taken place by place, and what was taken is given back as soon as a later one
//! denies or fails. Each place is atomic, the whole is not: until it is given back, others may meet
//! a limit that this request holds; and what can't be given back, because its server has gone
//! since, stays taken. A caller who leaves changes nothing of that. Nothing is ever granted twice.

use smallvec::SmallVec;
use tracing::debug;

use super::{CheckError, Limiter, Source};
use crate::algorithm::{Decision, Limit, Outcome};
use crate::clock::{Deadline, Span};
use crate::limiter::verdict::uncounted;
use crate::observer::{RequestEvent, StoreEvent};
use crate::rules::{Mode, OnStoreFailure, RuleInfo};
use crate::store::{Action, Coupling, Hit, Place, Store, StoreError};

/// What a denial by policy asks a caller to wait: the store may be back by then.
const RETRY_AFTER: Span = Span::from_secs(1);

/// One hit with the rule that it comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleHit<'a> {
    pub(super) rule: RuleInfo<'a>,
    pub(super) hit: Hit<'a>,
}

/// What became of a hit; `None` if the store failed and nothing is said, because the request is
/// banned anyhow.
pub(super) type Settled = Option<(Decision, Source)>;

/// The hits of one request on their way through the store.
pub(super) struct Taking<'a> {
    pub(super) limiter: &'a Limiter,
    pub(super) hits: &'a [RuleHit<'a>],
    pub(super) coupling: Coupling,
    /// Is the request denied whatever the hits say?
    pub(super) is_banned: bool,
    /// Of the rules that the hits are of.
    pub(super) revision: u64,
    pub(super) deadline: Deadline,
}

/// Hits that were decided together.
struct Taken<'a> {
    /// Their positions.
    positions: Positions,
    store: &'a Store,
    /// What the hits had for a limit, where that is not the rule's.
    limits: Option<SmallVec<[Limit; 2]>>,
    /// `true` if the request is refused already and takes nothing. Reports count all the same.
    is_refused: bool,
    /// Are others in other places? Then no place knows whether every quota denies.
    is_part: bool,
}

type Positions = SmallVec<[usize; 2]>;

/// Returns `true` if no other hit has the same key.
pub(super) fn is_alone(hit: &Hit<'_>, all: &[RuleHit<'_>]) -> bool {
    all.len() == 1 || all.iter().filter(|other| other.hit.key == hit.key).count() == 1
}

impl Taking<'_> {
    /// Decides every hit, takes the units if all enforced ones allow, and remembers denials.
    ///
    /// # Errors
    ///
    /// [`CheckError`]; nothing is taken then, as far as that can be undone. Reports that were counted
    /// stand, and so does what each hit has taken by itself.
    pub(super) async fn run(&self) -> Result<SmallVec<[Settled; 2]>, CheckError> {
        let Some(cache) = &self.limiter.shared.deny_cache else { return self.decide().await };
        let asked_at = cache.now();
        let settled = self.decide().await?;
        for (RuleHit { hit, .. }, settled) in self.hits.iter().zip(&settled) {
            // A denial beside others of its key is one of their sum.
            if let Some((decision, Source::Store)) = settled
                && is_alone(hit, self.hits)
            {
                cache.note(hit, self.revision, asked_at, decision);
            }
        }
        Ok(settled)
    }

    async fn decide(&self) -> Result<SmallVec<[Settled; 2]>, CheckError> {
        let mut settled: SmallVec<[Settled; 2]> = SmallVec::from_elem(None, self.hits.len());
        let mut taken: SmallVec<[Taken<'_>; 1]> = SmallVec::new();
        let mut is_refused = self.is_banned && self.coupling == Coupling::AllOrNothing;
        let places = self.by_place();
        let is_part = places.len() > 1;
        for positions in places {
            let store = &self.limiter.store;
            let part = Taken { positions, store, limits: None, is_refused, is_part };
            let decided = store.check(&part.hits(self.hits), self.coupling, self.deadline).await;
            let part = match decided {
                Ok(decisions) => {
                    self.limiter.shared.degradation.store_decides();
                    for (position, decision) in part.positions.iter().zip(decisions) {
                        settled[*position] = Some((decision, Source::Store));
                    }
                    Ok(part)
                }
                // What is rare is in boxes: all else would be moved with it.
                Err(error) => Box::pin(self.degrade(part, &error, &mut settled)).await,
            };
            match part {
                Ok(part) => taken.push(part),
                Err(error) => {
                    Box::pin(self.give_back(taken, &mut settled)).await;
                    return Err(error);
                }
            }
            let all_or_nothing = self.coupling == Coupling::AllOrNothing;
            if all_or_nothing && !is_refused && self.is_denied(&settled) {
                Box::pin(self.give_back(std::mem::take(&mut taken), &mut settled)).await;
                is_refused = true;
            }
        }
        Ok(settled)
    }

    /// Positions of the hits that are decided together.
    fn by_place(&self) -> SmallVec<[Positions; 1]> {
        let mut parts: SmallVec<[(Place, Positions); 1]> = SmallVec::new();
        for (position, RuleHit { hit, .. }) in self.hits.iter().enumerate() {
            let place = self.limiter.store.place(hit.key);
            match parts.iter_mut().find(|(of, _)| *of == place) {
                Some((_, positions)) => positions.push(position),
                None => parts.push((place, SmallVec::from_slice(&[position]))),
            }
        }
        parts.into_iter().map(|(_, positions)| positions).collect()
    }

    fn is_denied(&self, settled: &[Settled]) -> bool {
        let denials = self.hits.iter().zip(settled).map(|(RuleHit { hit, .. }, settled)| {
            (hit.mode, settled.is_some_and(|(decision, _)| !decision.is_allowed()))
        });
        Mode::refuse(denials)
    }

    /// What the rules say about a store that did not decide these hits.
    async fn degrade(
        &self,
        failed: Taken<'_>,
        error: &StoreError,
        settled: &mut [Settled],
    ) -> Result<Taken<'_>, CheckError> {
        let limiter = self.limiter;
        let Taken { positions, is_refused, is_part, .. } = failed;
        match error {
            // After another place was asked it is a failure as others are.
            StoreError::Expired if settled.iter().all(Option::is_none) => {
                limiter.shared.observer.request(RequestEvent::Expired);
                return Err(CheckError::Expired);
            }
            StoreError::Overloaded => {
                limiter.shared.observer.request(RequestEvent::Shed);
                return Err(CheckError::Overloaded);
            }
            _ => {}
        }
        limiter.shared.observer.store(StoreEvent::Failed { kind: error.kind() });
        debug!(%error, "store failed");
        let tripped = positions
            .first()
            .is_some_and(|first| limiter.store.is_given_up(self.hits[*first].hit.key));
        let policy = |position: &usize| self.hits[*position].rule.policy(tripped);
        let fails = positions.iter().any(|position| policy(position) == OnStoreFailure::Error);
        if fails && !self.is_banned {
            return Err(CheckError::StoreUnavailable(error.clone()));
        }
        limiter.shared.degradation.policies_decide(error);

        let denies = positions.iter().any(|position| policy(position) == OnStoreFailure::Deny);
        let (mut alone, mut limits) = (Positions::new(), SmallVec::new());
        for position in &positions {
            let rule_hit = &self.hits[*position];
            let policy = policy(position);
            settled[*position] = match policy {
                // Banned all the same.
                OnStoreFailure::Error => None,
                OnStoreFailure::Allow => Some((uncounted(Outcome::Allowed), Source::FailOpen)),
                OnStoreFailure::Deny => {
                    let outcome = Outcome::Denied { retry_after: RETRY_AFTER };
                    Some((uncounted(outcome), Source::FailClosed))
                }
                OnStoreFailure::Local(share) => {
                    alone.push(*position);
                    limits.push(rule_hit.hit.limit.share(share.millionths()));
                    continue;
                }
            };
            self.count(rule_hit.rule, policy, error);
        }
        let is_refused = is_refused || denies && self.coupling == Coupling::AllOrNothing;
        let (store, limits) = (&limiter.shared.fallback, Some(limits));
        let taken = Taken { positions: alone, store, limits, is_refused, is_part };
        let decisions = store.check(&taken.hits(self.hits), self.coupling, Deadline::NEVER).await;
        for (position, decision) in taken.positions.iter().zip(decisions.unwrap_or_default()) {
            let rule = self.hits[*position].rule;
            self.count(rule, rule.on_store_failure, error);
            settled[*position] = Some((decision, Source::LocalFallback));
        }
        Ok(taken)
    }

    /// Gives back what was taken, reports aside, and settles the hits on the numbers of their state
    /// as it stays.
    async fn give_back(&self, taken: SmallVec<[Taken<'_>; 1]>, settled: &mut [Settled]) {
        if self.coupling == Coupling::EachAlone {
            return;
        }
        for part in taken.iter().filter(|part| !part.is_refused) {
            let decisions: SmallVec<[Decision; 2]> = part
                .positions
                .iter()
                .filter_map(|position| settled[*position].map(|(decision, _)| decision))
                .collect();
            let hits = part.hits(self.hits);
            // The place that refused has taken nothing of its own.
            let denials =
                hits.iter().zip(&decisions).map(|(hit, one)| (hit.mode, !one.is_allowed()));
            if Mode::refuse(denials) {
                continue;
            }
            match part.store.give_back(&hits, &decisions).await {
                Ok(decisions) => {
                    if let Some(cache) = &self.limiter.shared.deny_cache {
                        hits.iter().for_each(|hit| cache.forget(hit.key));
                    }
                    for ((position, decision), hit) in
                        part.positions.iter().zip(decisions).zip(&hits)
                    {
                        if let Some((settled, _)) = &mut settled[*position]
                            && settled.is_allowed()
                            && matches!(hit.action, Action::Take(_))
                        {
                            *settled = decision;
                        }
                    }
                }
                Err(error) => {
                    debug!(%error, "not given back");
                    self.limiter.shared.observer.request(RequestEvent::RefundFailed);
                }
            }
        }
    }

    fn count(&self, rule: RuleInfo<'_>, policy: OnStoreFailure, error: &StoreError) {
        let degraded = RequestEvent::Degraded { rule: rule.name, policy, kind: error.kind() };
        self.limiter.shared.observer.request(degraded);
    }
}

impl Taken<'_> {
    fn hits<'a>(&'a self, all: &[RuleHit<'a>]) -> SmallVec<[Hit<'a>; 2]> {
        let of = |(index, position): (usize, &usize)| {
            let hit = all[*position].hit;
            let limit = self.limits.as_ref().map_or(hit.limit, |limits| &limits[index]);
            let mode = match hit.mode {
                Mode::Quota | Mode::ShadowQuota if self.is_part => Mode::Shadow,
                mode => mode,
            };
            let action = match hit.action {
                Action::Take(cost) if self.is_refused => Action::Peek(cost),
                action => action,
            };
            Hit { limit, action, mode, ..hit }
        };
        self.positions.iter().enumerate().map(of).collect()
    }
}
