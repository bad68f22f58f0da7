//! The rules in force. A request reads one snapshot from start to end; rules are replaced all at
//! once.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use super::Limiter;
use super::execution::Executed;
use super::observers::RuleObservers;
use crate::algorithm::Cost;
use crate::observer::{DecidedRequest, Observer, ProjectObserver, RequestEvent};
use crate::operation::HitReply;
use crate::plan::{Hit, Plan, RequestUnits};
use crate::rules::descriptors::DescriptorRule;
use crate::rules::{Mode, OnStoreFailure, OwnLimit, Rule, RuleInfo, RuleSet, Unmatched};
use crate::store::Undecided;
use crate::verdict::{HitResult, RuleDecision, Source, Verdict};

/// The rules in force, and the revision of the configuration that they come from.
#[derive(Debug)]
pub struct Snapshot {
    /// The rules.
    pub rules: RuleSet,
    /// Number of the configuration, counted from 1.
    pub revision: u64,
    /// Observers of the decisions of each rule.
    pub(super) observers: RuleObservers,
    /// Observer of the decisions on all requests of the project.
    pub(super) project: Arc<dyn ProjectObserver>,
    /// Whether a rule has thresholds.
    pub(super) notifies: bool,
}

impl Snapshot {
    pub(super) fn new(rules: RuleSet, revision: u64, observer: &dyn Observer) -> Self {
        let observers = RuleObservers::new(&rules, observer);
        let notifies = notifies(&rules);
        Self { rules, revision, observers, project: observer.project(""), notifies }
    }

    /// Creates the snapshot of a project.
    pub(super) fn of_project(rules: RuleSet, revision: u64, observer: &dyn Observer) -> Self {
        let project = observer.project(rules.project());
        let observers = RuleObservers::of_project(&rules, observer);
        let notifies = notifies(&rules);
        Self { rules, revision, observers, project, notifies }
    }

    /// Reports the rules that a request met, and that were not asked because another one denied it.
    #[cold]
    fn count_not_asked(&self, plan: &Plan, results: &[Option<HitResult>]) {
        let hits = plan.hits.iter().zip(results).filter(|(_, result)| result.is_none());
        hits.for_each(|(hit, _)| self.observers.get(hit.rule).not_asked());
    }
}

impl Limiter {
    /// Folds the outcomes of the hits into a verdict, and reports the decisions unless the request looks.
    #[inline]
    pub(super) fn fold(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        results: &[Option<HitResult>],
    ) -> Verdict {
        let verdict = Verdict::fold(&snapshot.rules, plan, results);
        if plan.looks() {
            return verdict;
        }
        // Each result has a decision, in the same order.
        let decided =
            plan.hits.iter().zip(results).filter_map(|(hit, result)| Some((hit, result.as_ref()?)));
        for ((hit, result), decided) in decided.zip(&verdict.decisions) {
            snapshot.observers.decided(decided, hit, result);
            self.report_ignored_limit(snapshot, hit);
        }
        if snapshot.notifies {
            self.report_all_reached(snapshot, plan, results, |reply, _| reply.taken);
        }
        if verdict.decisions.len() < plan.hits.len() {
            snapshot.count_not_asked(plan, results);
        }
        let passed = passed(verdict.is_allowed(), verdict.decisions.iter());
        self.count_request(snapshot, plan.units.taking(verdict.taken), passed);
        verdict
    }

    /// Reports a hit that its rule does not decide by the request's own limit, because it can't.
    pub(super) fn report_ignored_limit(&self, snapshot: &Snapshot, hit: &Hit) {
        if hit.own_limit == OwnLimit::Ignored {
            let rule = snapshot.observers.name(hit.rule, &snapshot.rules.rule(hit.rule));
            self.shared.observer.request(RequestEvent::LimitIgnored { rule });
        }
    }

    /// Reports the thresholds that the hits have reached in the store by units that were counted.
    #[cold]
    pub(super) fn report_all_reached(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        results: &[Option<HitResult>],
        units: impl Fn(&HitReply, &Hit) -> u64,
    ) {
        for (hit, result) in plan.hits.iter().zip(results) {
            if let Some(HitResult { reply, source: Source::Store }) = result {
                let Snapshot { rules, observers, .. } = snapshot;
                self.report_reached(rules, observers, hit, reply, units(reply, hit), None);
            }
        }
    }

    /// Reports the verdict on a request as a whole: the source by which it may pass, or else its outcome.
    #[inline]
    pub(super) fn count_request(
        &self,
        snapshot: &Snapshot,
        units: RequestUnits,
        passed: Result<Source, DecidedRequest>,
    ) {
        report_request(&*snapshot.project, units, passed);
        if passed == Ok(Source::FailOpen) && matches!(units, RequestUnits::Decide { .. }) {
            self.store.count_undecided(Undecided::Allowed);
        }
        if let Some(caller) = &self.caller {
            report_request(&**caller, units, passed);
        }
    }

    /// Counts a request on which the limiter has made no verdict: the caller knows what became of it. A request of
    /// a project that is not known counts as one without a project.
    pub fn count_undecided(&self, project: &str, outcome: DecidedRequest) {
        if outcome == DecidedRequest::Failed {
            self.store.count_undecided(Undecided::Failed);
        }
        let snapshot = self.snapshot_of(project);
        snapshot.unwrap_or_else(|_unknown| self.shared.snapshot.load()).project.decided(outcome);
    }

    /// As [`Limiter::fold`]. Replays are not reported: their decisions were, when they were made.
    pub(super) fn fold_executed(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        executed: &Executed,
    ) -> Verdict {
        if !executed.replayed {
            return self.fold(snapshot, plan, &executed.results);
        }
        let mut verdict = Verdict::fold(&snapshot.rules, plan, &executed.results);
        verdict.replayed = true;
        verdict.taken = executed.taken_before.or(verdict.taken);
        verdict
    }

    /// Replaces all rules at once, and returns the new revision. States are kept. If the rules are
    /// the same, the revision stays. Concurrent calls are serialised.
    pub fn replace_rules(&self, rules: RuleSet) -> u64 {
        let _turn = self.shared.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        let rules = self.shared.modes.load().apply(rules);
        if before.rules == rules {
            return before.revision;
        }
        let revision = before.revision + 1;
        self.put_in_force(rules, revision);
        self.forget_removed_rules(&before);
        self.declare_rules();
        self.shared.changes.send_replace(());
        revision
    }

    pub(super) fn put_in_force(&self, rules: RuleSet, revision: u64) {
        self.store.prepare(&rules);
        self.shared.snapshot.store(Arc::new(Snapshot::new(
            rules,
            revision,
            &*self.shared.observer,
        )));
    }

    /// Returns a receiver that is notified when rules were replaced.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Returns the rules in force without a project.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot.load_full()
    }

    /// Returns `true` if every rule can decide while the store fails: no enforced rule has the
    /// policy [`OnStoreFailure::Error`].
    pub fn decides_without_store(&self) -> bool {
        let snapshot = self.shared.snapshot.load();
        let applies = snapshot.rules.unmatched() == Unmatched::DefaultRule;
        let flat = snapshot.rules.iter().skip(usize::from(!applies)).map(Rule::info);
        let mut rules = flat.chain(snapshot.rules.descriptors().iter().map(DescriptorRule::info));
        rules.all(|rule| {
            let refuses_nothing = rule.mode.is_shadow() || rule.mode == Mode::Off;
            rule.on_store_failure != OnStoreFailure::Error || refuses_nothing
        })
    }

    /// Reports to the observers which rules are in force.
    pub(super) fn declare_rules(&self) {
        let snapshot = self.shared.snapshot.load();
        snapshot.observers.declare(&snapshot.rules, self.shared.deny_cache.is_some());
    }

    /// Reports to the observer which rules are no longer in force.
    fn forget_removed_rules(&self, before: &Snapshot) {
        let snapshot = self.snapshot();
        let identity = |rule: &RuleInfo<'_>| (Arc::clone(rule.name), rule.algorithm);
        let in_force: HashSet<_> =
            snapshot.observers.named(&snapshot.rules).map(|rule| identity(&rule)).collect();
        let removed = before.observers.named(&before.rules);
        for rule in removed.filter(|rule| !in_force.contains(&identity(rule))) {
            self.shared.observer.forget_rule(rule.name, rule.algorithm);
        }
    }
}

/// Returns the source by which a request with these decisions passes, or that it is denied.
#[inline]
pub(super) fn passed<'d>(
    is_allowed: bool,
    mut decisions: impl Iterator<Item = &'d RuleDecision>,
) -> Result<Source, DecidedRequest> {
    let fails_open =
        |decided: &RuleDecision| decided.source == Source::FailOpen && !decided.mode.is_shadow();
    if !is_allowed {
        return Err(DecidedRequest::Denied);
    }
    Ok(if decisions.any(fails_open) { Source::FailOpen } else { Source::Store })
}

#[inline]
fn report_request(
    observer: &dyn ProjectObserver,
    units: RequestUnits,
    passed: Result<Source, DecidedRequest>,
) {
    let reported = match units {
        RequestUnits::Decide { cost, reported } => {
            let units = cost.units();
            observer.decided(match passed {
                Err(outcome) => outcome,
                Ok(Source::FailOpen) => DecidedRequest::FailOpen { units },
                Ok(_) => DecidedRequest::Allowed { units },
            });
            reported
        }
        RequestUnits::Report(reported) => reported,
    };
    if reported != Cost::NONE {
        observer.reported(reported.units());
    }
}

fn notifies(rules: &RuleSet) -> bool {
    rules.iter().any(|rule| !rule.notify_at.is_empty())
}

/// Iterates over every rule that can be counted under its name, the default rule first.
pub(super) fn every_rule(rules: &RuleSet) -> impl Iterator<Item = RuleInfo<'_>> {
    rules.iter().map(Rule::info).chain(rules.descriptors().every().map(DescriptorRule::info))
}
