//! Callbacks for the work of a limiter: decisions of each rule, and events of requests and stores.
//!
//! The limiter depends on no metrics library. It requests a [`RuleObserver`] from the [`Observer`]
//! once for each rule of a new snapshot and calls it for every decision, so nothing is looked up
//! per decision. Callbacks run on the threads that decide and must not block.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{Algorithm, Decision};
use crate::clock::Timestamp;
use crate::rules::{Key, Mode, OnStoreFailure, RuleInfo, Share};
pub use crate::verdict::Source;

/// Most rules of a snapshot that are observed under their own names: the default rule, and the first
/// of the others by name.
pub const MAX_NAMED_RULES: usize = 1_000;

/// The name under which all other rules are observed, and failures of those of projects.
pub const OTHER_RULES: &str = "other";

/// Receives the events of a limiter and its store.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Returns the observer of one rule. Called once for each of the first [`MAX_NAMED_RULES`] of a
    /// new snapshot, and once for each detailed metric label (a label that contains values of
    /// requests), of which there are at most 1,000.
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver>;

    /// Returns the observer of a rule beyond the first [`MAX_NAMED_RULES`]. The name of the rule must
    /// not become a label: [`OTHER_RULES`] may.
    fn other_rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        self.rule(rule)
    }

    /// Returns the observer of a rule of a project; `None` if its decisions are not observed. Called
    /// for each rule of a new snapshot of the project, of which there may be 100,000.
    fn project_rule(&self, _project: &str, _rule: RuleInfo<'_>) -> Option<Arc<dyn RuleObserver>> {
        None
    }

    /// Returns the observer of a project; the empty one is that of requests without a project.
    /// Called once for each new snapshot of its rules.
    fn project(&self, _project: &str) -> Arc<dyn ProjectObserver> {
        Arc::new(NoObserver)
    }

    /// Called when a project was removed.
    fn forget_project(&self, _project: &str) {}

    /// Called when a rule, identified by name and algorithm, is no longer in force, or no longer
    /// among the first [`MAX_NAMED_RULES`].
    fn forget_rule(&self, _name: &str, _algorithm: Algorithm) {}

    /// Called for an event of a request.
    fn request(&self, _event: RequestEvent<'_>) {}

    /// Called for an event of a store.
    fn store(&self, _event: StoreEvent) {}

    /// Called for a part of its limit that a key has used, once the verdict stands. May be called again for the same
    /// part and window: where units were given back meanwhile.
    fn reached(&self, _reached: Reached) {}
}

/// A part of its limit that a key has used ([`RuleInfo::notify_at`]).
#[derive(Clone, Debug)]
pub struct Reached {
    /// Project of the rule; empty: the unnamed one.
    pub project: String,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Name under which the rule may become a label.
    pub observed_as: String,
    /// The key.
    pub key: Key,
    /// The part.
    pub threshold: Share,
    /// Units that are counted in the window.
    pub count: u64,
    /// Units of the limit in force.
    pub limit: u64,
    /// When they were counted, by the clock of the store.
    pub at: Timestamp,
    /// End of the window.
    pub window_ends_at: Timestamp,
    /// Whether the rule is in shadow mode for the key.
    pub is_shadow: bool,
}

/// Receives the decisions of one rule.
pub trait RuleObserver: fmt::Debug + Send + Sync {
    /// Called once the rule is in force, after [`Observer::forget_rule`] was called for the removed
    /// rules.
    fn declared(&self, _declared: Declared) {}

    /// Called for each decision.
    fn decided(&self, decided: Decided<'_>);

    /// Called for a request that met the rule and on which it did not decide, because the remembered denial of
    /// another rule settled it.
    fn not_asked(&self) {}

    /// Called for units of a key that the end of a reservation has charged, or a cost that was counted in
    /// its place. They are not those of a decision.
    fn charged(&self, _key: &Key, _units: u64) {}

    /// Called for units of a report that a ceiling of the debt left uncounted.
    fn uncounted(&self, _units: u64) {}
}

/// Receives the outcomes of the requests of a project.
pub trait ProjectObserver: fmt::Debug + Send + Sync {
    /// Called once for each request: not for replays, dry runs and other requests that only
    /// [look](crate::rules::Request::looks), nor for what is counted after the fact. For one without a verdict only
    /// by [`Limiter::count_undecided`](crate::Limiter::count_undecided).
    fn decided(&self, request: DecidedRequest);

    /// Called for units that were counted after the fact.
    fn reported(&self, _units: u64) {}
}

/// The outcome of a whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedRequest {
    /// It may pass.
    Allowed {
        /// Its cost.
        units: u64,
    },
    /// It may pass, and an enforced rule allowed it because the store failed.
    FailOpen {
        /// Its cost.
        units: u64,
    },
    /// A rule denies it.
    Denied,
    /// It is denied because no rule matches.
    NoRule,
    /// It has no verdict, because the service could not decide.
    Failed,
    /// It has no verdict, because it is not valid.
    Rejected,
}

/// A rule that is in force.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Position among all rules: the default rule first, the others ordered by name.
    pub position: usize,
    /// `true` if the limiter has a deny cache, which may answer denials of this rule.
    pub has_deny_cache: bool,
}

/// One decision of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// The decision.
    pub decision: &'a Decision,
    /// Enforcement mode of the rule.
    pub mode: Mode,
    /// Source of the decision.
    pub source: Source,
    /// Whether the key is near its limit ([`RuleInfo::near_limit`]).
    pub is_near_limit: bool,
    /// Name of the state. Contains values of the request, so it must not become a label.
    pub key: &'a Key,
    /// Units that were taken from the state.
    pub taken: u64,
    /// Units that the request was to take, denied or not.
    pub requested: u64,
}

/// An event of a request.
#[derive(Clone, Copy, Debug)]
pub enum RequestEvent<'a> {
    /// No enforced rule matched, and the request was allowed.
    UnmatchedAllowed,
    /// No enforced rule matched, and the request was denied.
    UnmatchedDenied,
    /// A denial was answered from the deny cache.
    DenyCacheHit,
    /// Too many requests were waiting for the store; this one was rejected.
    Shed,
    /// The deadline passed before the store was called.
    Expired,
    /// A request was answered by the remembered reply of its request id.
    Replayed,
    /// A request named the cost for a rule that does not apply to it.
    CostIgnored,
    /// A request had something in the place of its own limit that the rule can't use.
    LimitIgnored {
        /// Name of the rule, or [`OTHER_RULES`].
        rule: &'a str,
    },
    /// A denied request could not refund the units that it had taken.
    RefundFailed,
    /// The store failed, and the policy of a rule decided.
    Degraded {
        /// Name of the rule, or [`OTHER_RULES`].
        rule: &'a str,
        /// Policy that decided.
        policy: OnStoreFailure,
        /// Kind of the failure; see `StoreError::kind`.
        kind: &'static str,
    },
}

/// An event of a store.
#[derive(Clone, Copy, Debug)]
pub enum StoreEvent {
    /// A Redis call ended.
    Called {
        /// Operation of the call.
        operation: Operation,
        /// Time from the request to its reply or failure.
        took: Duration,
    },
    /// The store failed to decide.
    Failed {
        /// Kind of the failure; see `StoreError::kind`.
        kind: &'static str,
    },
    /// A call was sent but its outcome is unknown: Redis may have executed it.
    Ambiguous,
    /// The worst state of all circuit breakers.
    Breakers(BreakerState),
    /// `true` if some Redis server may evict keys when its memory is full (`maxmemory-policy`).
    MayEvict(bool),
    /// The clock of a Redis server jumped relative to the local clock.
    ClockJumped,
    /// The memory store added a key.
    KeyInserted,
    /// The memory store removed a key.
    KeyRemoved,
    /// The memory store was full and evicted a key that had not expired.
    KeyEvicted,
    /// Writes of the journal began to fail (`true`), or succeed again.
    JournalFailing(bool),
    /// The files of the journal have this length in bytes.
    JournalLen(u64),
    /// Snapshots of the memory store began to fail (`true`), or succeed again.
    SnapshotFailing(bool),
    /// A snapshot of the memory store was written that began at this time: all that was decided
    /// before is in it.
    SnapshotWritten(Timestamp),
    /// The memory store was full and forgot the reply of a request id before its time.
    RequestIdEvicted,
    /// The memory store denied a reservation because its project has its share of all holds, or all
    /// holders together have all.
    HoldDenied,
    /// The memory store was full and forgot the settlement of a reservation before its time.
    SettlementEvicted,
}

/// An operation of the Redis store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A decision.
    Check,
    /// A refund of taken units.
    Refund,
}

/// State of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreakerState {
    /// All calls pass.
    Closed,
    /// One call passes, to probe the server.
    HalfOpen,
    /// No call passes.
    Open,
}

/// An observer that ignores every event.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn rule(&self, _rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        Arc::new(Self)
    }
}

impl ProjectObserver for NoObserver {
    fn decided(&self, _request: DecidedRequest) {}
}

impl RuleObserver for NoObserver {
    fn decided(&self, _decided: Decided<'_>) {}
}
