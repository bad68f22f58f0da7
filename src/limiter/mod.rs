//! The one decision function: request → hits → store → verdict.
//!
//! The limiter knows neither protocols nor which store it asks. The store says that it failed;
//! the rule says what that means.

mod verdict;

pub use verdict::{RuleDecision, Source, Verdict};

use self::verdict::uncounted;

use std::sync::Arc;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use thiserror::Error;
use tokio::sync::watch;
use tracing::debug;

use crate::algorithm::{Decision, Outcome};
use crate::rules::{Grant, Match, Mode, OnStoreFailure, Request, RuleSet};
use crate::store::{Decisions, Hit, Intent, Store, StoreError};
use crate::telemetry::metrics::{DecisionLabels, KindLabels, Metrics, RuleLabels};

/// Decides requests by the rules in force, in one store.
#[derive(Debug)]
pub struct Limiter {
    snapshot: ArcSwap<Snapshot>,
    /// Tells when other rules are in force.
    changes: watch::Sender<()>,
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
        let snapshot = ArcSwap::from_pointee(Snapshot { rules, revision: 1 });
        Self { snapshot, changes: watch::Sender::new(()), store, metrics }
    }

    /// Decides one request by every rule that it meets, in one atomic step, and takes its cost if
    /// all enforced ones allow it and it is no dry run.
    ///
    /// # Errors
    ///
    /// [`CheckError::StoreUnavailable`] if the store fails and the policy of a rule is
    /// [`OnStoreFailure::Error`].
    pub async fn check(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        let snapshot = self.snapshot.load_full();
        let matches = snapshot.rules.matching(request);
        let hits: SmallVec<[Hit<'_>; 2]> =
            matches.iter().filter_map(|found| hit(found, request)).collect();
        let is_banned = matches.iter().any(is_ban);
        let intent = if request.dry_run() || is_banned { Intent::Look } else { Intent::Take };

        let decided = match hits.as_slice() {
            [] => Ok(Decisions::new()),
            hits => self.store.check(hits, intent, crate::clock::Deadline::NEVER).await,
        };
        let decisions = match decided {
            Ok(decisions) => assemble(&matches, &decisions),
            Err(error) => self.degrade(&matches, error)?,
        };
        decisions.iter().for_each(|decided| self.observe(decided));
        Ok(Verdict::fold(decisions))
    }

    /// Puts other rules in force, all at once, and returns their revision. States that are there
    /// stay, and so does the revision if the rules are the same. For one caller at a time.
    pub fn replace_rules(&self, rules: RuleSet) -> u64 {
        let before = self.snapshot();
        if before.rules == rules {
            return before.revision;
        }
        let revision = before.revision + 1;
        self.snapshot.store(Arc::new(Snapshot { rules, revision }));
        self.metrics.config_revision.set(revision.cast_signed());
        self.changes.send_replace(());
        revision
    }

    /// Tells when other rules are in force.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
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
        self.snapshot
            .load()
            .rules
            .iter()
            .all(|rule| rule.on_store_failure != OnStoreFailure::Error || rule.mode == Mode::Shadow)
    }

    /// What the rules say about a store that did not decide.
    fn degrade(&self, matches: &[Match<'_>], error: StoreError) -> Result<Decided, CheckError> {
        self.metrics.store_errors.get_or_create(&KindLabels { kind: error.kind() }).inc();
        debug!(%error, "store failed");
        let is_banned = matches.iter().any(is_ban);
        let degraded = matches.iter().map(|found| match found.grant {
            Grant::Limited(_) => RuleDecision::degraded(found.rule, found.grant),
            grant => Some(RuleDecision::new(found.rule, grant, without_store(grant))),
        });
        // A ban needs no store: what the other rules would have said changes nothing.
        let degraded = degraded.filter(|decided| decided.is_some() || !is_banned);
        let decisions: Option<Decided> = degraded.collect();
        let decisions = decisions.ok_or(CheckError::StoreUnavailable(error))?;
        for decided in decisions.iter().filter(|decided| decided.source == Source::FailOpen) {
            let labels = RuleLabels { rule: decided.rule.to_string() };
            self.metrics.fail_open.get_or_create(&labels).inc();
        }
        Ok(decisions)
    }

    fn observe(&self, decided: &RuleDecision) {
        let labels = DecisionLabels {
            rule: decided.rule.to_string(),
            algorithm: decided.algorithm.name(),
            outcome: match (decided.mode, decided.decision.is_allowed()) {
                (_, true) => "allowed",
                (Mode::Enforced, false) => "denied",
                (Mode::Shadow, false) => "shadow_denied",
            },
            source: decided.source.name(),
        };
        self.metrics.decisions.get_or_create(&labels).inc();
    }
}

type Decided = SmallVec<[RuleDecision; 1]>;

/// What the store has to decide, if anything.
fn hit<'a>(found: &'a Match<'_>, request: &Request<'_>) -> Option<Hit<'a>> {
    let Grant::Limited(limit) = &found.grant else { return None };
    let algorithm = found.rule.algorithm;
    let mode = found.rule.mode;
    Some(Hit { key: &found.key, algorithm, limit, cost: request.cost(), mode })
}

fn is_ban(found: &Match<'_>) -> bool {
    found.grant == Grant::Banned && found.rule.mode == Mode::Enforced
}

/// Brings the store's decisions, which are those of the limited matches in order, to the matches.
fn assemble(matches: &[Match<'_>], decisions: &[Decision]) -> Decided {
    let mut decisions = decisions.iter();
    let decided = matches.iter().map(|found| {
        let decision = match found.grant {
            Grant::Limited(_) => *decisions.next().expect("a decision for each hit"),
            grant => without_store(grant),
        };
        RuleDecision::new(found.rule, found.grant, decision)
    });
    decided.collect()
}

/// What a grant says for which nothing is counted.
fn without_store(grant: Grant) -> Decision {
    match grant {
        Grant::Banned => uncounted(Outcome::Impossible),
        Grant::Limited(_) | Grant::Unlimited => {
            Decision { remaining: u64::MAX, ..uncounted(Outcome::Allowed) }
        }
    }
}
