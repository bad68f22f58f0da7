//! The one decision function: request → hits → store → verdict.
//!
//! The limiter knows neither protocols nor which store it asks. The store says that it failed;
//! the rule says what that means (`execution.rs`).

mod builder;
mod degradation;
mod deny_cache;
mod descriptors;
mod execution;
mod in_place;
mod observers;
mod pending;
mod receipts;
mod snapshot;

pub use crate::verdict::{RuleDecision, Source, Verdict};
pub use builder::{BuildError, LimiterBuilder};
pub use deny_cache::{DenyCache, DenyCacheSettings};
pub use descriptors::{DescriptorAnswer, DescriptorVerdict};
pub use pending::{PendingCheck, StartedCheck};
pub use snapshot::Snapshot;

use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::sync::watch;

use self::degradation::Degradation;
use self::observers::DetailedObservers;
use self::pending::ExecutedPlan;
use crate::clock::{Clock, Deadline};
use crate::observer::{Observer, RequestEvent};
use crate::operation::{Receipt, StoreId};
use crate::plan::Plan;
use crate::rules::descriptors::InvalidDescriptor;
use crate::rules::{Key, Request, RuleSet, Unmatched};
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
    ///   [`OnStoreFailure::Error`](crate::rules::OnStoreFailure::Error);
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

    /// The store, for its name, its health and its background work.
    pub fn store(&self) -> &Store {
        &self.store
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
