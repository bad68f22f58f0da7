//! The limiter: plans a request, executes the plan in the store, and folds the decisions into a
//! verdict.
//!
//! Every check goes through here, whatever protocol it came by. The limiter does not depend on a
//! protocol or on a kind of store. The store reports that it failed; the policy of the rule decides
//! what that means (`store_failure.rs`).

mod admin;
mod builder;
mod deny_cache;
mod descriptors;
mod execution;
mod forget;
mod idempotency;
mod in_place;
mod modes;
mod observers;
mod pending;
mod preview;
mod projects;
mod receipts;
mod reservations;
mod snapshot;
mod store_failure;
mod thresholds;

pub use crate::verdict::{RuleDecision, Source, Verdict};
pub use admin::{ChangeError, KeyChange, KeyState, KeysChanged};
pub use builder::{BuildError, LimiterBuilder};
pub use deny_cache::{DenyCache, DenyCacheSettings};
pub use descriptors::{DescriptorAnswer, DescriptorVerdict};
pub use forget::FORGET_TOPIC;
#[cfg(fuzzing)]
pub(crate) use forget::keys_of;
pub use pending::{PendingCheck, StartedCheck};
pub use preview::Preview;
pub use reservations::{OpenReservation, Reserved, Settled, Settling};
pub use snapshot::Snapshot;

use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use thiserror::Error;
use tokio::sync::watch;

use self::admin::LastSeenBans;
use self::execution::Shards;
use self::idempotency::RequestIds;
use self::modes::ModesInForce;
use self::observers::DetailedObservers;
use self::pending::ExecutedPlan;
use self::projects::ProjectSnapshots;
use self::store_failure::Degradation;
use crate::clock::{Clock, Deadline};
use crate::idempotency::{Operation, RequestIdError};
use crate::observer::{DecidedRequest, Observer, ProjectObserver, RequestEvent};
use crate::operation::{Receipt, StoreId};
use crate::plan::Plan;
use crate::reservation::Reservation;
use crate::rules::descriptors::InvalidDescriptor;
use crate::rules::{Key, Request, RuleSet, Unmatched};
use crate::store::{MemorySettings, MemoryStore, Store, StoreError};

/// Decides requests by the rules in force, in one store. Clones share everything, connections
/// included.
#[derive(Clone, Debug)]
pub struct Limiter {
    store: Store,
    shared: Arc<Shared>,
    /// Observer of requests beside that of their projects.
    caller: Option<Arc<dyn ProjectObserver>>,
}

/// The outcome of a report.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The state of the limits afterwards.
    pub verdict: Verdict,
    /// Most units of the cost that a rule has not counted, because of a ceiling of its debt, or because
    /// the store failed. 0 if the verdict is [replayed](Verdict::replayed).
    pub uncounted: u64,
}

/// State that all clones of a limiter share.
#[derive(Debug)]
struct Shared {
    /// The rules without a project.
    snapshot: ArcSwap<Snapshot>,
    projects: ProjectSnapshots,
    /// Held while rules are replaced.
    replacing: Mutex<()>,
    /// The latest revision of any project. Held while rules of a project are replaced.
    last_project_revision: Mutex<u64>,
    modes: ArcSwap<ModesInForce>,
    /// Notified when rules were replaced.
    changes: watch::Sender<()>,
    /// Decides for rules with `on-store-failure: local` while the store fails.
    fallback: Store,
    deny_cache: Option<DenyCache>,
    bans: LastSeenBans,
    degradation: Degradation,
    detailed_observers: DetailedObservers,
    request_ids: RequestIds,
    observer: Arc<dyn Observer>,
}

/// Error of a check that has no verdict.
#[derive(Clone, Debug, Error)]
pub enum CheckError {
    /// The store failed, and the policy of a rule is
    /// [`OnStoreFailure::Error`](crate::rules::OnStoreFailure::Error). In a cluster, reports in
    /// other shards may have been counted.
    #[error("store unavailable")]
    StoreUnavailable(#[source] StoreError),
    /// Too many requests are waiting for the store.
    #[error("overloaded")]
    Overloaded,
    /// A descriptor requests what its algorithm does not support.
    #[error(transparent)]
    Descriptor(#[from] InvalidDescriptor),
    /// The caller's deadline passed before the store was called.
    #[error("deadline exceeded before the store was called")]
    Expired,
    /// No rule matches, and the policy for such requests is [`Unmatched::Deny`].
    #[error("no rule matches")]
    NoRule,
    /// No project has the id of the request's: [`Request::in_project`].
    #[error("no such project")]
    UnknownProject,
    /// A report, and no rule that applies is paid afterwards.
    #[error("no rule that applies has post-paid: true")]
    NotPostPaid,
    /// A rule that bounds work in flight applies, and the request is no reservation.
    #[error("rule {0} bounds work in flight: use Reserve")]
    NeedsReservation(Arc<str>),
    /// The reservation has ended, was settled, or never was.
    #[error("no such reservation")]
    NoReservation,
    /// The reservation ended so long ago that its settlement may have been forgotten.
    #[error("the reservation ended too long ago: it is not known whether it was charged")]
    SettlementForgotten,
    /// Too many rules hold.
    #[error("a reservation must hold by at most {} rules", Reservation::MAX_HITS)]
    ManyHolders,
    /// A reservation with a request id, or a request that takes what is there, and its rules have keys in
    /// several slots of a cluster.
    #[error(
        "a reservation with request_id, and a request with at_least, must be in one slot of a cluster: the rules need the same key-by"
    )]
    SeveralSlots,
    /// The store does not decide requests that take what is there.
    #[error("at_least is not supported by the store")]
    NoAtLeast,
    /// The parts of the keys that a reservation would hold are too long.
    #[error(
        "user_id, resource and attributes in the keys of a reservation must have at most {} bytes as encoded",
        Reservation::MAX_KEY_BYTES
    )]
    LongKeys,
    /// The store keeps no reservations.
    #[error("reservations are not supported by the store")]
    NotReservable,
    /// The request id forbids the request. Nothing was counted.
    #[error(transparent)]
    RequestId(#[from] RequestIdError),
}

impl Limiter {
    /// Creates a limiter that decides by `rules` in `store` and reports to `observer`.
    pub fn new(rules: RuleSet, store: Store, observer: Arc<dyn Observer>) -> Self {
        Self::with_parts(rules, store, None, observer)
    }

    /// As [`Limiter::new`], with a deny cache, which answers denials that still hold without the
    /// store.
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
        store.prepare(&rules);
        let settings = MemorySettings::default();
        let fallback = MemoryStore::new(settings, Clock::default(), Arc::clone(&observer));
        let shared = Shared {
            snapshot: ArcSwap::from_pointee(Snapshot::new(rules, 1, &*observer)),
            projects: ProjectSnapshots::default(),
            replacing: Mutex::new(()),
            last_project_revision: Mutex::new(0),
            modes: ArcSwap::default(),
            changes: watch::Sender::new(()),
            fallback: Store::Memory(fallback),
            deny_cache,
            bans: LastSeenBans::new(),
            degradation: Degradation::new(),
            detailed_observers: DetailedObservers::default(),
            request_ids: RequestIds::new(),
            observer,
        };
        let limiter = Self { store, shared: Arc::new(shared), caller: None };
        limiter.declare_rules();
        limiter
    }

    /// Decides a request by every rule that it matches, in one atomic step. Takes its cost if all
    /// enforced rules allow it and it is not a dry run. If the request has a request id, the same
    /// request takes its cost once: see [`Request::with_request_id`] and
    /// [`Limiter::set_idempotency_ttl`].
    ///
    /// # Errors
    ///
    /// - [`CheckError::StoreUnavailable`] if the store fails and the policy of a rule is
    ///   [`OnStoreFailure::Error`](crate::rules::OnStoreFailure::Error);
    /// - [`CheckError::Overloaded`] if too many requests are waiting for the store;
    /// - [`CheckError::Expired`] if the deadline passed before the store was called;
    /// - [`CheckError::NoRule`] if no rule matches and the policy is [`Unmatched::Deny`];
    /// - [`CheckError::UnknownProject`] if the request is in a project that has no rules here;
    /// - [`CheckError::NeedsReservation`] if a rule bounds work in flight;
    /// - [`CheckError::SeveralSlots`] and [`CheckError::NoAtLeast`] if the request
    ///   [takes what is there](Request::with_at_least), which one step must decide;
    /// - [`CheckError::RequestId`] if another request had the request id, or it was used too often.
    pub async fn check(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Verdict, CheckError> {
        let snapshot = self.snapshot_for(request)?;
        let plan = self.plan(&snapshot, request)?;
        if let Some(decided) = self.decide_now(&snapshot, &plan, deadline) {
            return decided;
        }
        // Boxed because it is large: inline, it would enlarge every future.
        Box::pin(self.pending(&snapshot, plan, deadline).finish()).await
    }

    /// Starts to decide a request. If no waiting is needed, the request is decided on return, and
    /// no runtime is required.
    ///
    /// The errors are those of [`Limiter::check`].
    pub fn begin(&self, request: &Request<'_>, deadline: Deadline) -> StartedCheck {
        let planned = self.snapshot_for(request).and_then(|snapshot| {
            let plan = self.plan(&snapshot, request)?;
            Ok((snapshot, plan))
        });
        let (snapshot, plan) = match planned {
            Ok(planned) => planned,
            Err(error) => return StartedCheck::Decided(Err(error)),
        };
        match self.decide_now(&snapshot, &plan, deadline) {
            Some(decided) => StartedCheck::Decided(decided),
            None => StartedCheck::Pending(Box::new(self.pending(&snapshot, plan, deadline))),
        }
    }

    /// Decides a request from memory, without waiting and without a runtime. Returns `None` if the
    /// store has to be waited for, as Redis always has.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`].
    pub fn check_now(&self, request: &Request<'_>) -> Option<Result<Verdict, CheckError>> {
        let snapshot = match self.snapshot_for(request) {
            Ok(snapshot) => snapshot,
            Err(error) => return Some(Err(error)),
        };
        match self.plan(&snapshot, request) {
            Ok(plan) => self.decide_now(&snapshot, &plan, Deadline::NEVER),
            Err(error) => Some(Err(error)),
        }
    }

    /// Decides a request, and returns receipts for the taken units, which [`Limiter::refund`] gives
    /// back. A verdict that is [replayed](Verdict::replayed) has none: the first call has them.
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`].
    pub async fn check_with_receipts(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<(Verdict, Vec<Receipt>), CheckError> {
        let snapshot = self.snapshot_for(request)?;
        let plan = self.plan(&snapshot, request)?;
        if plan.refuses_nothing() {
            let verdict = match self.decide_now(&snapshot, &plan, deadline) {
                Some(decided) => decided?,
                None => Box::pin(self.pending(&snapshot, plan, deadline).finish()).await?,
            };
            return Ok((verdict, Vec::new()));
        }
        let ExecutedPlan { plan, executed } = self.execute(&snapshot, plan, deadline).await?;
        let verdict = self.fold_executed(&snapshot, &plan, &executed);
        Ok((verdict, receipts::receipts(&snapshot.rules, plan, &executed.results)))
    }

    /// Counts a cost that was incurred already by the rules that apply and are
    /// [paid afterwards](crate::rules::Rule::is_post_paid), whatever is left: more than that becomes
    /// debt. The verdict allows if the cost fitted in what was left; the wait of a denial is that for one
    /// unit. Rules with a cost of their own count it only if the request [names
    /// them](Request::with_costs). It counts all of the cost, whatever would
    /// [do](Request::with_at_least).
    ///
    /// # Errors
    ///
    /// As [`Limiter::check`]; [`CheckError::NotPostPaid`] if no rule counts the cost.
    pub async fn report(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Reported, CheckError> {
        let snapshot = self.snapshot_for(request)?;
        let mut plan = Plan::for_report(&snapshot.rules, request);
        self.count_ignored_costs(&snapshot.rules, &plan, request);
        self.admit_unmatched(&snapshot, &plan)?;
        if plan.hits.is_empty() {
            return Err(CheckError::NotPostPaid);
        }
        plan.once = self.record_of(request, Operation::Report)?;
        let ExecutedPlan { plan, executed } = self.execute(&snapshot, plan, deadline).await?;
        let uncounted = if executed.replayed { 0 } else { executed.uncounted(&plan) };
        Ok(Reported { verdict: self.fold_executed(&snapshot, &plan, &executed), uncounted })
    }

    /// Returns the store, for its name, its health and its background work.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Runs the background work of the store and of the local fallback, for ever. See
    /// [`Store::run`].
    pub async fn run(&self) {
        tokio::join!(self.store.run(), self.shared.fallback.run());
    }

    /// Returns a handle with its own connection to each Redis server, and a future that keeps these
    /// connections open, for ever. To be called once for each worker thread, which runs the future
    /// and decides with the handle: then no request moves from thread to thread. If it is called
    /// before [`Limiter::run`] starts, no shared connections are opened.
    pub fn for_worker(&self) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (store, keep) = self.store.for_worker();
        (Self { store, ..self.clone() }, keep)
    }

    /// Returns the limiter with an observer of its requests, beside the observer of their projects:
    /// it sees what that one sees.
    #[must_use]
    pub fn observed_by(&self, caller: Arc<dyn ProjectObserver>) -> Self {
        Self { caller: Some(caller), ..self.clone() }
    }

    /// Returns the rules that decide a request: those of its project.
    #[inline]
    fn snapshot_for(&self, request: &Request<'_>) -> Result<Guard<Arc<Snapshot>>, CheckError> {
        self.snapshot_of(request.project())
    }

    /// Returns the rules of a project; of requests without one if it is empty.
    #[inline]
    fn snapshot_of(&self, project: &str) -> Result<Guard<Arc<Snapshot>>, CheckError> {
        match project {
            "" => Ok(self.shared.snapshot.load()),
            project => {
                let found = self.shared.projects.get(project);
                found.map(Guard::from_inner).ok_or(CheckError::UnknownProject)
            }
        }
    }

    /// Plans a request. Fails if no rule matches and the policy for such requests is
    /// [`Unmatched::Deny`].
    #[inline]
    fn plan(&self, snapshot: &Snapshot, request: &Request<'_>) -> Result<Plan, CheckError> {
        let mut plan = Plan::for_request(&snapshot.rules, request);
        if let Some(rule) = plan.without_slots() {
            let name = Arc::clone(snapshot.rules.rule(rule).name);
            return Err(CheckError::NeedsReservation(name));
        }
        if plan.up_to.is_some() {
            self.admit_up_to(&plan)?;
        }
        if !request.costs().is_empty() {
            self.count_ignored_costs(&snapshot.rules, &plan, request);
        }
        if request.request_id().is_some() {
            plan.once = self.record_of(request, Operation::Check)?;
        }
        self.admit_request(snapshot, &plan)?;
        Ok(plan)
    }

    /// Fails if no single step of the store can decide a request that takes what is there.
    #[cold]
    fn admit_up_to(&self, plan: &Plan) -> Result<(), CheckError> {
        match self.store {
            Store::Custom(_) => Err(CheckError::NoAtLeast),
            _ if Shards::new(&self.store, plan).are_several() => Err(CheckError::SeveralSlots),
            _ => Ok(()),
        }
    }

    /// Reports the costs of a request for rules that do not apply.
    #[cold]
    fn count_ignored_costs(&self, rules: &RuleSet, plan: &Plan, request: &Request<'_>) {
        for (name, _) in request.costs().iter() {
            if !plan.hits.iter().any(|hit| **rules.rule(hit.rule).name == *name) {
                self.shared.observer.request(RequestEvent::CostIgnored);
            }
        }
    }

    /// As [`Limiter::admit_unmatched`], and counts a request that is denied.
    #[inline]
    fn admit_request(&self, snapshot: &Snapshot, plan: &Plan) -> Result<(), CheckError> {
        let admitted = self.admit_unmatched(snapshot, plan);
        if admitted.is_err() {
            self.count_request(snapshot, plan.units, Err(DecidedRequest::NoRule));
        }
        admitted
    }

    /// Fails if no rule matches and the policy for such requests is not [`Unmatched::Allow`]. (The default rule
    /// may not match a request by descriptors.)
    #[inline]
    fn admit_unmatched(&self, snapshot: &Snapshot, plan: &Plan) -> Result<(), CheckError> {
        if !plan.is_unmatched {
            return Ok(());
        }
        if snapshot.rules.unmatched() != Unmatched::Allow {
            self.shared.observer.request(RequestEvent::UnmatchedDenied);
            return Err(CheckError::NoRule);
        }
        self.shared.observer.request(RequestEvent::UnmatchedAllowed);
        Ok(())
    }

    fn store_by_id(&self, id: StoreId) -> &Store {
        match id {
            StoreId::Primary => &self.store,
            StoreId::Fallback => &self.shared.fallback,
        }
    }

    /// Removes the cached denial of a key to which units were given.
    fn forget_denials(&self, key: &Key) {
        if let Some(cache) = &self.shared.deny_cache {
            cache.forget(key);
        }
    }
}
