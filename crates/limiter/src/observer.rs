//! What the engine reports about its work: decisions of each rule, and events of requests and stores.
//!
//! The engine knows no metrics library. It asks the [`Observer`] once for each rule of a new
//! snapshot, and each decision calls the [`RuleObserver`] that it was given, so that nothing is
//! looked up per decision. Calls come from the threads that decide: an observer must not block.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::{Algorithm, Decision};
use crate::rules::{Mode, OnStoreFailure, RuleInfo};
pub use crate::verdict::Source;

/// Receives what happens in a limiter and its store.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Returns the observer of one rule. Called once for each rule of a new snapshot, and once for
    /// each label that tells values of requests, of which there are at most 1,000.
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver>;

    /// Called for a rule, by name and algorithm, that is no longer in force.
    fn forget_rule(&self, _name: &str, _algorithm: Algorithm) {}

    /// Called for an event of a request.
    fn request(&self, _event: RequestEvent<'_>) {}

    /// Called for an event of a store.
    fn store(&self, _event: StoreEvent) {}
}

/// Receives the decisions of one rule.
pub trait RuleObserver: fmt::Debug + Send + Sync {
    /// Called once the rule is in force, after the rules that left were forgotten.
    fn declared(&self, _declared: Declared) {}

    /// Called for each decision.
    fn decided(&self, decided: Decided<'_>);
}

/// A rule that is in force.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Position among all rules: the default rule first, then the others by name.
    pub position: usize,
    /// `true` if denials of the rule may come from a deny cache.
    pub has_deny_cache: bool,
}

/// One decision of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// The decision.
    pub decision: &'a Decision,
    /// How the rule is enforced.
    pub mode: Mode,
    /// Where the decision comes from.
    pub source: Source,
}

/// An event of a request.
#[derive(Clone, Copy, Debug)]
pub enum RequestEvent<'a> {
    /// No enforced rule matched, and the request passed.
    UnmatchedAllowed,
    /// No enforced rule matched, and the request was refused.
    UnmatchedDenied,
    /// A denial was answered from the deny cache.
    DenyCacheHit,
    /// Too many requests waited for the store.
    Shed,
    /// The deadline was over before anything was sent to the store.
    Expired,
    /// A refused request could not give back what it had taken.
    RefundFailed,
    /// A rule decided by its policy because the store failed.
    Degraded {
        /// Name of the rule.
        rule: &'a str,
        /// The policy that decided.
        policy: OnStoreFailure,
        /// Kind of the failure, as `StoreError::kind` has it.
        kind: &'static str,
    },
}

/// An event of a store.
#[derive(Clone, Copy, Debug)]
pub enum StoreEvent {
    /// A call to Redis has ended.
    Called {
        /// What was called.
        operation: Operation,
        /// Time from the request to its reply, or to its failure.
        took: Duration,
    },
    /// The store did not decide.
    Failed {
        /// Kind of the failure, as `StoreError::kind` has it.
        kind: &'static str,
    },
    /// A call was sent and never answered: its fate is unknown.
    Ambiguous,
    /// The breakers of all servers, by the worst.
    Breakers(BreakerState),
    /// The clock of a Redis server jumped against the local one.
    ClockJumped,
    /// The memory store holds one more key.
    KeyInserted,
    /// The memory store holds one key less.
    KeyRemoved,
    /// The memory store was full and dropped a key that was still needed.
    KeyEvicted,
}

/// An operation of the Redis store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Decides.
    Check,
    /// Gives back what was taken.
    Refund,
}

/// State of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// One call passes and tries the server.
    HalfOpen,
    /// No call passes.
    Open,
}

/// Observes nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn rule(&self, _rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        Arc::new(Self)
    }
}

impl RuleObserver for NoObserver {
    fn decided(&self, _decided: Decided<'_>) {}
}
