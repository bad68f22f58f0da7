//! The policies of rules, for hits that the store failed to decide. It is logged once when they start to
//! decide, and once when the store decides again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tracing::{debug, info, warn};

use super::execution::{Execution, HitGroup, Positions, record_replies};
use super::{CheckError, Source};
use crate::algorithm::{Decision, Outcome};
use crate::clock::{Deadline, Micros, SystemClock, Timestamp};
use crate::control::Applied;
use crate::idempotency::RecordUse;
use crate::observer::{RequestEvent, StoreEvent};
use crate::operation::{HitReply, StoreId};
use crate::plan::Hit;
use crate::rules::{Coupling, Grant, Mode, OnStoreFailure, RuleInfo};
use crate::store::StoreError;
use crate::verdict::HitResult;

/// `retry_after` of a denial by policy: the store may have recovered by then.
const RETRY_AFTER: Micros = Micros::from_secs(1);

impl Execution<'_> {
    /// Applies the policies of the rules to the hits of a group that the store failed to decide.
    pub(super) async fn degrade(
        &self,
        failed: HitGroup,
        error: &StoreError,
        results: &mut [Option<HitResult>],
    ) -> Result<HitGroup, CheckError> {
        let limiter = self.limiter;
        match error {
            StoreError::RequestId(error) => return Err((*error).into()),
            // After another shard has decided, an expired deadline is a failure like others.
            StoreError::Expired if !self.has_executed(results) => {
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
        debug!(%error, "store call failed");
        let hit_at = |position: &usize| &self.plan.hits[*position];
        let first = failed.positions.first();
        let tripped = first.is_some_and(|first| limiter.store.breaker_is_open(&hit_at(first).key));
        let policy = |position: &usize| {
            let hit = hit_at(position);
            RuleInfo { mode: hit.mode, ..self.rules.rule(hit.rule) }.policy(tripped)
        };
        for position in &failed.positions {
            results[*position] = self.result_without_policy(hit_at(position));
        }
        let is_decided = |at: &usize| results[*at].is_some();
        let fails = |at: &usize| !is_decided(at) && policy(at) == OnStoreFailure::Error;
        let known =
            failed.positions.iter().filter_map(|at| Some((hit_at(at), results[*at].as_ref()?)));
        let is_banned =
            self.plan.is_banned() || Mode::refuse(known.map(|(hit, result)| result.denial(hit)));
        if failed.positions.iter().any(fails) && !is_banned {
            return Err(CheckError::StoreUnavailable(error.clone()));
        }
        limiter.shared.degradation.policy_decided(error);

        let denies = |at: &usize| match &results[*at] {
            Some(known) => !known.reply.decision.is_allowed(),
            None => policy(at) == OnStoreFailure::Deny,
        };
        let denies = failed.positions.iter().any(denies);
        let (mut alone, mut grants) = (Positions::new(), SmallVec::new());
        for position in &failed.positions {
            let hit = hit_at(position);
            if results[*position].is_some() {
                continue;
            }
            let policy = policy(position);
            results[*position] = match policy {
                // The request is banned anyway.
                OnStoreFailure::Error => None,
                OnStoreFailure::Allow => {
                    Some(HitResult::uncounted(Outcome::Allowed, Source::FailOpen))
                }
                OnStoreFailure::Deny => {
                    let outcome = Outcome::Denied { retry_after: RETRY_AFTER };
                    Some(HitResult::uncounted(outcome, Source::FailClosed))
                }
                OnStoreFailure::Local(share) => {
                    let Some(hit) = hit.for_store() else { continue };
                    let Grant::Limited(limit) = hit.grant else { continue };
                    alone.push(*position);
                    grants.push(Grant::Limited(limit.share(share.millionths())));
                    continue;
                }
            };
            self.report_degraded(hit, policy, error);
        }
        let refuses = denies && self.plan.coupling == Coupling::AllOrNothing;
        let group = HitGroup {
            positions: alone,
            store: StoreId::Fallback,
            taker: None,
            grants: Some(grants),
            is_refused: failed.is_refused || refuses,
            ..failed
        };
        let reply = self.execute(&group, RecordUse::Decide, Deadline::NEVER).await;
        for position in &group.positions {
            let hit = hit_at(position);
            self.report_degraded(hit, self.rules.rule(hit.rule).on_store_failure, error);
        }
        let replies = reply.unwrap_or_default().hits;
        record_replies(&group, replies, Source::LocalFallback, results);
        Ok(group)
    }

    /// Returns the result of a hit that no policy decides while the store fails: of a ban that was
    /// seen last, or of a grant that is no limit. `None` for others.
    fn result_without_policy(&self, hit: &Hit) -> Option<HitResult> {
        if !hit.overridable {
            return None;
        }
        let time = self.limiter.store.now(&hit.key);
        let Some(ends_at) = self.limiter.shared.bans.ends_at(&hit.key, time) else {
            return HitResult::by_grant_alone(&hit.grant);
        };
        let wait = ends_at.since(time);
        let outcome = Outcome::Denied { retry_after: wait };
        let decision = Decision { reset_after: wait, ..Decision::uncounted(outcome) };
        let applied = Applied { grant: Grant::Banned, ends_at, record: None };
        let reply = HitReply { applied: Some(Box::new(applied)), ..HitReply::new(decision, 0) };
        Some(HitResult { reply, source: Source::DenyCache })
    }

    /// Returns `true` if the store has already decided a hit of this plan.
    fn has_executed(&self, results: &[Option<HitResult>]) -> bool {
        let hits = self.plan.hits.iter().zip(results);
        hits.into_iter().any(|(hit, result)| result.is_some() && hit.for_store().is_some())
    }

    fn report_degraded(&self, hit: &Hit, policy: OnStoreFailure, error: &StoreError) {
        let rule = self.observers.name(hit.rule, &self.rules.rule(hit.rule));
        let degraded = RequestEvent::Degraded { rule, policy, kind: error.kind() };
        self.limiter.shared.observer.request(degraded);
    }
}

/// Time without a decision by policy after which an episode ends. Of several servers one may be
/// unavailable while the others decide.
const RECOVERY_TIME: Micros = Micros::from_secs(1);

/// Tracks whether policies decide because the store fails.
#[derive(Debug)]
pub(super) struct Degradation {
    is_degraded: AtomicBool,
    clock: SystemClock,
    episode: Mutex<Option<Episode>>,
}

/// A period in which policies decide.
#[derive(Clone, Copy, Debug)]
struct Episode {
    since: Timestamp,
    last: Timestamp,
    decisions: u64,
}

impl Degradation {
    pub(super) fn new() -> Self {
        Self {
            is_degraded: AtomicBool::new(false),
            clock: SystemClock::new(),
            episode: Mutex::default(),
        }
    }

    /// Records that the store decided.
    pub(super) fn store_decided(&self) {
        if !self.is_degraded.load(Ordering::Relaxed) {
            return;
        }
        let now = self.clock.now();
        let mut episode = self.episode.lock().unwrap_or_else(PoisonError::into_inner);
        let over = episode.take_if(|episode| now.since(episode.last) >= RECOVERY_TIME);
        if let Some(Episode { since, last, decisions }) = over {
            self.is_degraded.store(false, Ordering::Relaxed);
            let seconds = Duration::from(last.since(since)).as_secs_f64();
            info!(seconds, decisions, "store recovered: decisions by policy ended");
        }
    }

    /// Records that a policy decided in place of the store.
    pub(super) fn policy_decided(&self, error: &StoreError) {
        let now = self.clock.now();
        let mut episode = self.episode.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(episode) = &mut *episode {
            episode.last = now;
            episode.decisions += 1;
            return;
        }
        *episode = Some(Episode { since: now, last: now, decisions: 1 });
        self.is_degraded.store(true, Ordering::Relaxed);
        warn!(%error, "store failed: decisions by policy (on-store-failure)");
    }
}
