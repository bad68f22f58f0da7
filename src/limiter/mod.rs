//! The one decision function: request → hits → store → verdict.
//!
//! The limiter knows neither protocols nor which store it asks. The store says that it failed;
//! the rule says what that means.

mod verdict;

pub use verdict::{RuleDecision, Source, Verdict};

use std::sync::Arc;

use arc_swap::ArcSwap;
use thiserror::Error;
use tracing::debug;

use crate::algorithm::Cost;
use crate::rules::{OnStoreFailure, Request, Rule, RuleSet};
use crate::store::{Hit, Intent, Store, StoreError};
use crate::telemetry::metrics::{DecisionLabels, KindLabels, Metrics, RuleLabels};

/// Decides requests by the rules in force, in one store.
#[derive(Debug)]
pub struct Limiter {
    snapshot: ArcSwap<Snapshot>,
    store: Store,
    metrics: Arc<Metrics>,
}

/// The rules in force and which configuration they come from.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The rules.
    pub rules: RuleSet,
    /// Counts the configurations that were taken, from 1.
    pub revision: u64,
}

/// Why there is no verdict.
#[derive(Clone, Debug, Error)]
pub enum CheckError {
    /// The store did not decide, and the rule is fail-closed.
    #[error("store unavailable")]
    StoreUnavailable(#[source] StoreError),
}

impl Limiter {
    /// Decides by `rules` in `store`.
    pub fn new(rules: RuleSet, store: Store, metrics: Arc<Metrics>) -> Self {
        metrics.config_revision.set(1);
        Self { snapshot: ArcSwap::from_pointee(Snapshot { rules, revision: 1 }), store, metrics }
    }

    /// Decides one request, and takes its cost if it may pass and is not a dry run.
    ///
    /// # Errors
    ///
    /// [`CheckError::StoreUnavailable`] if the store fails and the rule's policy is
    /// [`OnStoreFailure::Error`].
    pub async fn check(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        let snapshot = self.snapshot.load_full();
        let (rule, key) = snapshot.rules.matching(request);
        let hit =
            Hit { key: &key, algorithm: rule.algorithm, limit: &rule.limit, cost: request.cost() };
        let intent = if request.dry_run() { Intent::Look } else { Intent::Take };

        let decided = match self.store.check(&[hit], intent).await {
            Ok(decisions) => RuleDecision::decided(rule, decisions[0]),
            Err(error) => self.degrade(rule, request.cost(), error)?,
        };
        self.observe(&decided);
        Ok(Verdict::fold(decided))
    }

    /// Puts other rules in force, all at once; states that are there stay.
    pub fn replace_rules(&self, rules: RuleSet) {
        let revision = self.snapshot().revision + 1;
        self.metrics.config_revision.set(revision.cast_signed());
        self.snapshot.store(Arc::new(Snapshot { rules, revision }));
    }

    /// The rules in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The store, for its name, its health and its background work.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Does every rule have an answer when the store has none?
    pub fn decides_without_store(&self) -> bool {
        self.snapshot.load().rules.default.on_store_failure != OnStoreFailure::Error
    }

    /// What the rule says about a store that did not decide.
    fn degrade(
        &self,
        rule: &Rule,
        cost: Cost,
        error: StoreError,
    ) -> Result<RuleDecision, CheckError> {
        self.metrics.store_errors.get_or_create(&KindLabels { kind: error.kind() }).inc();
        debug!(rule = %rule.name, %error, "store failed");
        match rule.on_store_failure {
            OnStoreFailure::Error => Err(CheckError::StoreUnavailable(error)),
            OnStoreFailure::Allow => {
                self.metrics.fail_open.get_or_create(&RuleLabels { rule: rule.name.clone() }).inc();
                Ok(RuleDecision::fail_open(rule, cost))
            }
        }
    }

    fn observe(&self, decided: &RuleDecision) {
        let labels = DecisionLabels {
            rule: decided.rule.clone(),
            algorithm: decided.algorithm.name(),
            outcome: if decided.decision.is_allowed() { "allowed" } else { "denied" },
            source: decided.source.name(),
        };
        self.metrics.decisions.get_or_create(&labels).inc();
    }
}
