//! The one decision function: request → hits → store → verdict.
//!
//! The limiter knows neither protocols nor which store it asks. The store says that it failed;
//! the rule says what that means (`taking.rs`).

mod degradation;
mod deny_cache;
mod descriptors;
mod observers;
mod taking;
mod verdict;

pub use crate::observer::Source;
pub use deny_cache::{DenyCache, DenyCacheSettings};
pub use descriptors::{DescriptorAnswer, DescriptorVerdict};
pub use verdict::{RuleDecision, Verdict};

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use thiserror::Error;
use tokio::sync::watch;

use self::degradation::Degradation;
use self::observers::{DetailedObservers, RuleObservers};
use self::taking::{RuleHit, Settled, Taking};
use self::verdict::uncounted;
use crate::algorithm::{Cost, Decision, Outcome};
use crate::clock::{Clock, Deadline};
use crate::observer::{Observer, RequestEvent};
use crate::rules::descriptors::{DescriptorRule, InvalidDescriptor};
use crate::rules::{
    Grant, Match, Mode, OnStoreFailure, OwnedRequest, Request, Rule, RuleInfo, RuleSet, Unmatched,
};
use crate::store::{Action, Coupling, Hit, MemorySettings, MemoryStore, Store, StoreError};

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
        Self::of(rules, store, None, observer)
    }

    /// The same, and answers denials that still hold from `cache`, without the store.
    pub fn with_deny_cache(
        rules: RuleSet,
        store: Store,
        cache: DenyCache,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self::of(rules, store, Some(cache), observer)
    }

    fn of(
        rules: RuleSet,
        store: Store,
        deny_cache: Option<DenyCache>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let settings = MemorySettings::default();
        let fallback = MemoryStore::new(settings, Clock::default(), Arc::clone(&observer));
        let shared = Shared {
            snapshot: ArcSwap::from_pointee(Snapshot::new(rules, 1, &*observer)),
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
        let matches = snapshot.rules.matching(request);
        if snapshot.rules.is_unmatched(&matches) {
            return Box::pin(self.pass_unmatched(&snapshot, &matches, request, deadline)).await;
        }
        if let Some(decided) = self.decide_at_once(&snapshot, &matches, request, deadline) {
            return Ok(Verdict::of(decided));
        }
        let decisions = match self.remembered(&matches, request, snapshot.revision) {
            Some(decisions) => decisions,
            None if self.is_scattered(&matches) => {
                self.ask_apart(&snapshot, request, deadline).await?
            }
            // In a box: it is large, and would be moved with whatever holds this.
            None => Box::pin(self.ask(&matches, request, snapshot.revision, deadline)).await?,
        };
        for decided in &decisions {
            snapshot.observers.decided(decided);
        }
        Ok(Verdict::fold(decisions))
    }

    /// Applies the policy for requests that no enforced rule matches. Where they pass, shadows are
    /// decided beside that; if they can't be, that stops nobody.
    async fn pass_unmatched(
        &self,
        snapshot: &Arc<Snapshot>,
        shadows: &[Match<'_>],
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Verdict, CheckError> {
        let is_denied = snapshot.rules.unmatched() == Unmatched::Deny;
        if is_denied {
            self.shared.observer.request(RequestEvent::UnmatchedDenied);
            return Err(CheckError::NoRule);
        }
        self.shared.observer.request(RequestEvent::UnmatchedAllowed);
        let decided = if self.is_scattered(shadows) {
            self.ask_apart(snapshot, request, deadline).await
        } else {
            self.ask(shadows, request, snapshot.revision, deadline).await
        };
        let decisions = decided.unwrap_or_default();
        for decided in &decisions {
            snapshot.observers.decided(decided);
        }
        Ok(Verdict::unmatched(decisions))
    }

    /// The same where nothing is to be waited for and the request meets one rule: `tell` is given
    /// the verdict where it stands. What is not decided by this is for [`Limiter::check`].
    pub fn check_at_once<T>(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
        tell: impl FnOnce(&Verdict) -> T,
    ) -> Option<T> {
        let snapshot = self.shared.snapshot.load();
        let matches = snapshot.rules.matching(request);
        if snapshot.rules.is_unmatched(&matches) {
            return None;
        }
        let decided = self.decide_at_once(&snapshot, &matches, request, deadline)?;
        Some(tell(&Verdict::of(decided)))
    }

    /// Puts other rules in force, all at once, and returns their revision. States that are there
    /// stay, and so does the revision if the rules are the same. For one caller at a time.
    pub fn replace_rules(&self, rules: RuleSet) -> u64 {
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
        self.forget_rules_of(&before.rules);
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

    /// Returns a handle with a home connection of its own to each Redis server, and the future that
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
    fn forget_rules_of(&self, before: &RuleSet) {
        let snapshot = self.snapshot();
        let identity = |rule: &RuleInfo<'_>| (Arc::clone(rule.name), rule.algorithm);
        let in_force: HashSet<_> =
            every_rule(&snapshot.rules).map(|rule| identity(&rule)).collect();
        for rule in every_rule(before).filter(|rule| !in_force.contains(&identity(rule))) {
            self.shared.observer.forget_rule(rule.name, rule.algorithm);
        }
    }

    /// What the deny cache knows: the denials that still hold, and bans beside them, and no others'
    /// decisions.
    fn remembered(
        &self,
        matches: &[Match<'_>],
        request: &Request<'_>,
        revision: u64,
    ) -> Option<Decided> {
        let cache = self.shared.deny_cache.as_ref().filter(|_| request.cost() != Cost::NONE)?;
        let known = |found: &Match<'_>| {
            let (decision, source) = match found.grant {
                Grant::Limited(_) if found.rule.mode == Mode::Enforced => {
                    let RuleHit { hit, .. } = hit(found, request)?;
                    (cache.denial(&hit, revision)?, Source::DenyCache)
                }
                grant if is_ban(found) => (without_store(grant), Source::Store),
                _ => return None,
            };
            Some(RuleDecision::new(found, decision, source))
        };
        let denials: Decided = matches.iter().filter_map(known).collect();
        if !denials.iter().any(|denial| denial.source == Source::DenyCache) {
            return None;
        }
        self.shared.observer.request(RequestEvent::DenyCacheHit);
        Some(denials)
    }

    /// What a store says that need not be waited for, to a request that meets one rule: the common
    /// case, without what others may need.
    fn decide_at_once(
        &self,
        snapshot: &Snapshot,
        matches: &[Match<'_>],
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Option<RuleDecision> {
        let [found] = matches else { return None };
        let RuleHit { hit, .. } = hit(found, request)?;
        let decision = self.store.check_at_once(&hit, deadline)?;
        let decided = RuleDecision::new(found, decision, Source::Store);
        snapshot.observers.decided(&decided);
        Some(decided)
    }

    /// Are the hits in several places?
    fn is_scattered(&self, matches: &[Match<'_>]) -> bool {
        let [first, others @ ..] = matches else { return false };
        others.iter().any(|other| self.store.place(&other.key) != self.store.place(&first.key))
    }

    /// Asks in a task of its own: a caller who leaves between two places would take what is to be
    /// given back along.
    async fn ask_apart(
        &self,
        snapshot: &Arc<Snapshot>,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Decided, CheckError> {
        let (limiter, snapshot) = (self.clone(), Arc::clone(snapshot));
        let request = OwnedRequest::from(request);
        // However many places there are, together they take no longer than one.
        let deadline = deadline.or_within(self.store.patience());
        let asking = tokio::spawn(async move {
            let request = request.borrow();
            let matches = snapshot.rules.matching(&request);
            limiter.ask(&matches, &request, snapshot.revision, deadline).await
        });
        let lost = |_ended| Err(CheckError::StoreUnavailable(StoreError::Lost));
        asking.await.unwrap_or_else(lost)
    }

    /// What the store says, or the policies of the rules.
    async fn ask(
        &self,
        matches: &[Match<'_>],
        request: &Request<'_>,
        revision: u64,
        deadline: Deadline,
    ) -> Result<Decided, CheckError> {
        let hits: SmallVec<[RuleHit<'_>; 2]> =
            matches.iter().filter_map(|found| hit(found, request)).collect();
        let is_banned = matches.iter().any(is_ban);
        let coupling = Coupling::AllOrNothing;
        let taking = Taking { limiter: self, hits: &hits, coupling, is_banned, revision, deadline };
        Ok(assemble(matches, &taking.run().await?))
    }
}

/// Every rule that may be counted under its name, the default one first.
fn every_rule(rules: &RuleSet) -> impl Iterator<Item = RuleInfo<'_>> {
    rules.iter().map(Rule::info).chain(rules.descriptors().every().map(DescriptorRule::info))
}

type Decided = SmallVec<[RuleDecision; 1]>;

fn action(request: &Request<'_>) -> Action {
    if request.dry_run() { Action::Peek(request.cost()) } else { Action::Take(request.cost()) }
}

/// What the store has to decide, if anything.
fn hit<'a>(found: &'a Match<'_>, request: &Request<'_>) -> Option<RuleHit<'a>> {
    let Grant::Limited(limit) = &found.grant else { return None };
    let Match { rule, key, .. } = found;
    let (algorithm, mode, action) = (rule.algorithm, rule.mode, action(request));
    Some(RuleHit { rule: rule.info(), hit: Hit { key, algorithm, limit, action, mode } })
}

fn is_ban(found: &Match<'_>) -> bool {
    found.grant == Grant::Banned && found.rule.mode == Mode::Enforced
}

/// Brings what became of the hits, which are those of the limited matches in order, to the
/// matches. A ban needs no store: hits of which nothing is known are left out then.
fn assemble(matches: &[Match<'_>], settled: &[Settled]) -> Decided {
    let mut settled = settled.iter();
    let decided = matches.iter().filter_map(|found| {
        let (decision, source) = match found.grant {
            Grant::Limited(_) => (*settled.next().expect("each hit was settled"))?,
            grant => (without_store(grant), Source::Store),
        };
        Some(RuleDecision::new(found, decision, source))
    });
    decided.collect()
}

/// What a grant says for which nothing is counted.
fn without_store(grant: Grant) -> Decision {
    match grant {
        Grant::Banned => uncounted(Outcome::Impossible),
        Grant::Limited(_) | Grant::Unlimited => uncounted(Outcome::Allowed),
    }
}
