//! The one decision function: request → hits → store → verdict.
//!
//! The limiter knows neither protocols nor which store it asks. The store says that it failed;
//! the rule says what that means (`execution.rs`).

mod builder;
mod degradation;
mod deny_cache;
mod descriptors;
mod execution;
mod observers;
mod receipts;

pub use crate::verdict::{RuleDecision, Source, Verdict};
pub use builder::{BuildError, LimiterBuilder};
pub use deny_cache::{DenyCache, DenyCacheSettings};
pub use descriptors::{DescriptorAnswer, DescriptorVerdict};

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use thiserror::Error;
use tokio::sync::watch;

use self::degradation::Degradation;
use self::execution::{Execution, Shards};
use self::observers::{DetailedObservers, RuleObservers};
use crate::clock::{Clock, Deadline};
use crate::observer::{Observer, RequestEvent};
use crate::operation::{HitReply, Receipt, Shard, StoreHit, StoreId, StoreRequest};
use crate::plan::Plan;
use crate::rules::descriptors::{DescriptorRule, InvalidDescriptor};
use crate::rules::{
    Coupling, Grant, Key, Mode, OnStoreFailure, Request, Rule, RuleInfo, RuleSet, Unmatched,
};
use crate::store::{MemorySettings, MemoryStore, Store, StoreError};
use crate::verdict::{HitResult, HitResults};

/// Decides requests by the rules in force, in one store. Clones share everything, connections too.
#[derive(Clone, Debug)]
pub struct Limiter {
    store: Store,
    shared: Arc<Shared>,
}

/// What the handles of a limiter have in common.
#[derive(Debug)]
struct Shared {
    snapshot: ArcSwap<Snapshot>,
    /// Held while other rules are put in force.
    replacing: Mutex<()>,
    /// Tells when other rules are in force.
    changes: watch::Sender<()>,
    /// Decides by `on-store-failure: local` while the store is away.
    fallback: Store,
    deny_cache: Option<DenyCache>,
    degradation: Degradation,
    detailed_observers: DetailedObservers,
    observer: Arc<dyn Observer>,
}

/// The rules in force and which configuration they come from.
#[derive(Debug)]
pub struct Snapshot {
    /// The rules.
    pub rules: RuleSet,
    /// Counts the configurations that were taken, from 1.
    pub revision: u64,
    /// Observers of its decisions.
    observers: RuleObservers,
}

impl Snapshot {
    fn new(rules: RuleSet, revision: u64, observer: &dyn Observer) -> Self {
        let observers = RuleObservers::new(&rules, observer);
        Self { rules, revision, observers }
    }

    /// Folds what became of the hits, and reports the decisions.
    #[inline]
    fn fold(&self, plan: &Plan, settled: &[Option<HitResult>]) -> Verdict {
        let verdict = Verdict::fold(&self.rules, plan, settled);
        for decided in &verdict.decisions {
            self.observers.decided(decided);
        }
        verdict
    }
}

/// Why there is no verdict.
#[derive(Clone, Debug, Error)]
pub enum CheckError {
    /// The store did not decide, and the rule is fail-closed. In a cluster reports of other places may
    /// have been counted.
    #[error("store unavailable")]
    StoreUnavailable(#[source] StoreError),
    /// Too many requests wait for the store already.
    #[error("overloaded")]
    Overloaded,
    /// A descriptor asks for what can't be had.
    #[error(transparent)]
    Descriptor(#[from] InvalidDescriptor),
    /// The caller's deadline was over before the store was asked.
    #[error("the deadline was over before the store was asked")]
    Expired,
    /// No enforced rule matches, and such requests are refused ([`Unmatched::Deny`]).
    #[error("no rule matches")]
    NoRule,
}

impl Limiter {
    /// Decides by `rules` in `store`, and reports to `observer`.
    pub fn new(rules: RuleSet, store: Store, observer: Arc<dyn Observer>) -> Self {
        Self::with_parts(rules, store, None, observer)
    }

    /// The same, and answers denials that still hold from `cache`, without the store.
    pub fn with_deny_cache(
        rules: RuleSet,
        store: Store,
        cache: DenyCache,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self::with_parts(rules, store, Some(cache), observer)
    }

    fn with_parts(
        rules: RuleSet,
        store: Store,
        deny_cache: Option<DenyCache>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let settings = MemorySettings::default();
        let fallback = MemoryStore::new(settings, Clock::default(), Arc::clone(&observer));
        let shared = Shared {
            snapshot: ArcSwap::from_pointee(Snapshot::new(rules, 1, &*observer)),
            replacing: Mutex::new(()),
            changes: watch::Sender::new(()),
            fallback: Store::Memory(fallback),
            deny_cache,
            degradation: Degradation::new(),
            detailed_observers: DetailedObservers::default(),
            observer,
        };
        let limiter = Self { store, shared: Arc::new(shared) };
        limiter.declare_rules();
        limiter
    }

    /// Decides one request by every rule that it meets, in one atomic step, and takes its cost if
    /// all enforced ones allow it and it is no dry run.
    ///
    /// # Errors
    ///
    /// - [`CheckError::StoreUnavailable`] if the store fails and the policy of a rule is
    ///   [`OnStoreFailure::Error`];
    /// - [`CheckError::Overloaded`] if too many requests wait for the store;
    /// - [`CheckError::Expired`] if the deadline was over before the store was asked;
    /// - [`CheckError::NoRule`] if no enforced rule matches and the policy is [`Unmatched::Deny`].
    pub async fn check(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Verdict, CheckError> {
        let snapshot = self.shared.snapshot.load();
        let plan = self.plan(&snapshot, request)?;
        if let Some(verdict) = self.decide_now(&snapshot, &plan, deadline) {
            return Ok(verdict);
        }
        // Boxed: it is large, and inline it would enlarge every future.
        Box::pin(self.pending(&snapshot, plan, deadline).finish()).await
    }

    /// Begins to decide one request. What needs no waiting is decided when this returns: no runtime
    /// is needed for that.
    ///
    /// Errors are those of [`Limiter::check`].
    pub fn begin(&self, request: &Request<'_>, deadline: Deadline) -> StartedCheck {
        let snapshot = self.shared.snapshot.load();
        let plan = match self.plan(&snapshot, request) {
            Ok(plan) => plan,
            Err(error) => return StartedCheck::Decided(Err(error)),
        };
        match self.decide_now(&snapshot, &plan, deadline) {
            Some(verdict) => StartedCheck::Decided(Ok(verdict)),
            None => StartedCheck::Pending(Box::new(self.pending(&snapshot, plan, deadline))),
        }
    }

    /// Decides one request without waiting: from memory, and no runtime is needed. `None` where the
    /// store has to be waited for, as Redis has.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`].
    pub fn check_now(&self, request: &Request<'_>) -> Option<Result<Verdict, CheckError>> {
        let snapshot = self.shared.snapshot.load();
        match self.plan(&snapshot, request) {
            Ok(plan) => self.decide_now(&snapshot, &plan, Deadline::NEVER).map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// Decides one request, and returns what was taken for it, to be given back by
    /// [`Limiter::refund`].
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`].
    pub async fn check_with_receipts(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<(Verdict, Vec<Receipt>), CheckError> {
        let snapshot = self.shared.snapshot.load_full();
        let plan = self.plan(&snapshot, request)?;
        if plan.is_unmatched {
            let verdict = match self.decide_now(&snapshot, &plan, deadline) {
                Some(verdict) => verdict,
                None => Box::pin(self.pending(&snapshot, plan, deadline).finish()).await?,
            };
            return Ok((verdict, Vec::new()));
        }
        let ExecutedPlan { plan, settled } = self.execute(&snapshot, plan, deadline).await?;
        let verdict = snapshot.fold(&plan, &settled);
        Ok((verdict, receipts::receipts(&snapshot.rules, plan, &settled)))
    }

    /// Gives back what was taken, once. Units that time has brought back since are not given again,
    /// nor are those of a state that was reset: see the book for what is exact. Where the limit has
    /// changed, no more is given under the one in force than was taken, and nothing if the rule has
    /// overrides.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of the first store that did not answer; others have.
    pub async fn refund(
        &self,
        receipts: Vec<Receipt>,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let mut result = Ok(());
        let snapshot = self.snapshot();
        // One by one: a receipt is rare, and those of one request may be in several shards.
        for receipt in receipts {
            let Some(limit) = receipts::limit_now(&receipt, &snapshot.rules) else { continue };
            let hit = receipt.refund(&limit);
            let store = self.store_by_id(receipt.store);
            let (coupling, shard) = (Coupling::AllOrNothing, store.shard(hit.key));
            match store.execute(StoreRequest { hits: &[hit], coupling, shard }, deadline).await {
                Ok(_) => self.forget_denials(&receipt.key),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Puts other rules in force, all at once, and returns their revision. States that are there
    /// stay, and so does the revision if the rules are the same. Callers at the same time take turns.
    pub fn replace_rules(&self, rules: RuleSet) -> u64 {
        let _turn = self.shared.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        if before.rules == rules {
            return before.revision;
        }
        let revision = before.revision + 1;
        self.shared.snapshot.store(Arc::new(Snapshot::new(
            rules,
            revision,
            &*self.shared.observer,
        )));
        self.forget_removed_rules(&before.rules);
        self.declare_rules();
        self.shared.changes.send_replace(());
        revision
    }

    /// Tells when other rules are in force.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// The rules in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot.load_full()
    }

    /// The store, for its name, its health and its background work.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Does every rule have an answer when the store has none?
    pub fn decides_without_store(&self) -> bool {
        let snapshot = self.shared.snapshot.load();
        let applies = snapshot.rules.unmatched() == Unmatched::DefaultRule;
        let flat = snapshot.rules.iter().skip(usize::from(!applies)).map(Rule::info);
        let mut rules = flat.chain(snapshot.rules.descriptors().iter().map(DescriptorRule::info));
        rules.all(|rule| rule.on_store_failure != OnStoreFailure::Error || rule.mode.is_shadow())
    }

    /// Does the work in the background, for ever: of the store, and of the one that stands in. See
    /// [`Store::run`].
    pub async fn run(&self) {
        tokio::join!(self.store.run(), self.shared.fallback.run());
    }

    /// Returns a handle with a connection of its own to each Redis server, and the future that
    /// keeps these connections, for ever. To be called once for each worker thread, which runs the
    /// future and decides by the handle: then no request is handed from thread to thread. Called
    /// before [`Limiter::run`] begins, no connection is made that is nobody's home.
    pub fn for_worker(&self) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (store, keep) = self.store.for_worker();
        (Self { store, shared: Arc::clone(&self.shared) }, keep)
    }

    /// Tells the observers of the rules in force that they are.
    fn declare_rules(&self) {
        let snapshot = self.shared.snapshot.load();
        snapshot.observers.declare(&snapshot.rules, self.shared.deny_cache.is_some());
    }

    /// Tells which rules are no longer in force.
    fn forget_removed_rules(&self, before: &RuleSet) {
        let snapshot = self.snapshot();
        let identity = |rule: &RuleInfo<'_>| (Arc::clone(rule.name), rule.algorithm);
        let in_force: HashSet<_> =
            every_rule(&snapshot.rules).map(|rule| identity(&rule)).collect();
        for rule in every_rule(before).filter(|rule| !in_force.contains(&identity(rule))) {
            self.shared.observer.forget_rule(rule.name, rule.algorithm);
        }
    }

    /// Plans a request, unless the policy for requests that no enforced rule matches refuses it.
    #[inline]
    fn plan(&self, snapshot: &Snapshot, request: &Request<'_>) -> Result<Plan, CheckError> {
        let plan = Plan::for_request(&snapshot.rules, request);
        if plan.is_unmatched {
            if snapshot.rules.unmatched() == Unmatched::Deny {
                self.shared.observer.request(RequestEvent::UnmatchedDenied);
                return Err(CheckError::NoRule);
            }
            self.shared.observer.request(RequestEvent::UnmatchedAllowed);
        }
        Ok(plan)
    }

    fn pending(&self, snapshot: &Arc<Snapshot>, plan: Plan, deadline: Deadline) -> PendingCheck {
        PendingCheck { limiter: self.clone(), snapshot: Arc::clone(snapshot), plan, deadline }
    }

    /// Decides in place what needs no waiting. The common case, one hit in memory, makes no list.
    #[inline]
    fn decide_now(&self, snapshot: &Snapshot, plan: &Plan, deadline: Deadline) -> Option<Verdict> {
        if let ([hit], false) = (&*plan.hits, plan.is_unmatched)
            && let Some(asked) = hit.for_store()
            && let Some(reply) = self.store.execute_one_now(&asked, deadline)
        {
            return Some(snapshot.fold(plan, &[Some(HitResult { reply, source: Source::Store })]));
        }
        Some(snapshot.fold(plan, &self.execute_now(snapshot, plan, deadline)?))
    }

    /// Executes in place what needs no waiting: in memory, or by what the deny cache knows.
    fn execute_now(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        deadline: Deadline,
    ) -> Option<HitResults> {
        self.execute_in_memory(plan, deadline)
            .or_else(|| self.cached_denials(plan, snapshot.revision))
    }

    fn execute_in_memory(&self, plan: &Plan, deadline: Deadline) -> Option<HitResults> {
        let is_refused = plan.coupling == Coupling::AllOrNothing && plan.is_banned();
        let hits = plan.hits.iter().filter_map(|hit| {
            let hit = hit.for_store()?;
            let action = if is_refused { hit.action.when_refused() } else { hit.action };
            Some(StoreHit { action, ..hit })
        });
        let hits: SmallVec<[StoreHit<'_>; 2]> = hits.collect();
        let mut replies = SmallVec::new();
        if !hits.is_empty() {
            let request =
                StoreRequest { hits: &hits, coupling: plan.coupling, shard: Shard::default() };
            replies = self.store.execute_now(request, deadline)?.hits;
        }
        let mut replies = replies.into_iter();
        let settled = plan.hits.iter().map(|hit| match HitResult::without_store(hit.grant) {
            None => Some(HitResult { reply: replies.next()?, source: Source::Store }),
            known => known,
        });
        Some(settled.collect())
    }

    /// Executes a plan: in place, or waiting for the store.
    async fn execute(
        &self,
        snapshot: &Arc<Snapshot>,
        plan: Plan,
        deadline: Deadline,
    ) -> Result<ExecutedPlan, CheckError> {
        match self.execute_now(snapshot, &plan, deadline) {
            Some(settled) => Ok(ExecutedPlan { plan, settled }),
            None => Box::pin(self.call_store(snapshot, plan, deadline)).await,
        }
    }

    /// Asks the store, which has to be waited for.
    async fn call_store(
        &self,
        snapshot: &Arc<Snapshot>,
        plan: Plan,
        deadline: Deadline,
    ) -> Result<ExecutedPlan, CheckError> {
        let shards = Shards::new(&self.store, &plan);
        if !shards.are_several() {
            let settled = self.execution(snapshot, &plan, shards, deadline).run().await?;
            return Ok(ExecutedPlan { plan, settled });
        }
        // In a task: a caller who leaves between two shards would take what is to be refunded along.
        let (limiter, snapshot) = (self.clone(), Arc::clone(snapshot));
        // However many shards there are, together they take no longer than one.
        let timeout = self.store.timeout();
        let deadline = deadline.or_within(timeout);
        let executing = tokio::spawn(async move {
            let settled = limiter.execution(&snapshot, &plan, shards, deadline).run().await?;
            Ok(ExecutedPlan { plan, settled })
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
        let Snapshot { rules, revision, .. } = snapshot;
        Execution { limiter: self, rules, revision: *revision, plan, shards, deadline }
    }

    /// What the deny cache knows: the denials that still hold, and bans beside them. For a request by
    /// descriptors, each of which is answered by itself, it has to know of all; else one refuses, and
    /// nothing is said of others.
    fn cached_denials(&self, plan: &Plan, revision: u64) -> Option<HitResults> {
        let cache = self.shared.deny_cache.as_ref()?;
        let mut hits = 0;
        let mut denials = 0;
        let settled: HitResults = plan
            .hits
            .iter()
            .map(|hit| {
                let Some(asked) = hit.for_store() else {
                    let is_refusal = hit.grant == Grant::Banned && hit.mode == Mode::Enforced;
                    let is_known = plan.is_for_descriptors() || is_refusal;
                    return HitResult::without_store(hit.grant).filter(|_| is_known);
                };
                hits += 1;
                let is_asked =
                    hit.decides_cost() && hit.mode == Mode::Enforced && plan.has_key_once(hit);
                let decision = cache.denial(&asked, revision).filter(|_| is_asked)?;
                denials += 1;
                let reply = HitReply { decision, taken: 0 };
                Some(HitResult { reply, source: Source::DenyCache })
            })
            .collect();
        let is_known = denials > 0 && (denials == hits || !plan.is_for_descriptors());
        is_known.then(|| self.shared.observer.request(RequestEvent::DenyCacheHit))?;
        Some(settled)
    }

    fn store_by_id(&self, id: StoreId) -> &Store {
        match id {
            StoreId::Primary => &self.store,
            StoreId::Fallback => &self.shared.fallback,
        }
    }

    /// Has the deny cache forget a key to which units were given.
    fn forget_denials(&self, key: &Key) {
        if let Some(cache) = &self.shared.deny_cache {
            cache.forget(key);
        }
    }
}

/// A request that was decided, or waits for the store.
#[derive(Debug)]
pub enum StartedCheck {
    /// It was decided in place.
    Decided(Result<Verdict, CheckError>),
    /// The store has to be waited for.
    Pending(Box<PendingCheck>),
}

/// A request that waits for the store. Dropped, it is as if it had never been.
#[derive(Debug)]
pub struct PendingCheck {
    limiter: Limiter,
    snapshot: Arc<Snapshot>,
    plan: Plan,
    deadline: Deadline,
}

impl PendingCheck {
    /// Asks the store.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`].
    pub async fn finish(self) -> Result<Verdict, CheckError> {
        let Self { limiter, snapshot, plan, deadline } = self;
        let is_unmatched = plan.is_unmatched;
        match limiter.call_store(&snapshot, plan, deadline).await {
            Ok(ExecutedPlan { plan, settled }) => Ok(snapshot.fold(&plan, &settled)),
            // Shadows stop nobody: where they can't be decided the request passes all the same.
            Err(_) if is_unmatched => Ok(Verdict::unmatched()),
            Err(error) => Err(error),
        }
    }
}

/// A plan and what became of its hits.
struct ExecutedPlan {
    plan: Plan,
    settled: HitResults,
}

/// Every rule that may be counted under its name, the default one first.
fn every_rule(rules: &RuleSet) -> impl Iterator<Item = RuleInfo<'_>> {
    rules.iter().map(Rule::info).chain(rules.descriptors().every().map(DescriptorRule::info))
}
