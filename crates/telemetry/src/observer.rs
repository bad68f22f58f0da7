//! The observer that counts events of the limiter in metrics.
//!
//! Each rule keeps its counters: to look one up by its labels would take longer than a decision.

use std::sync::Arc;

use rlaas_core::algorithm::Algorithm;
use rlaas_core::rules::{Key, Mode, OnStoreFailure, RuleInfo};
use rlaas_limiter::observer::{
    BreakerState, Decided, Declared, MAX_NAMED_RULES, OTHER_RULES, Observer, Operation,
    ProjectObserver, Reached, RequestEvent, RuleObserver, Source, StoreEvent,
};

use super::labels::{
    DegradedLabels, KindLabels, OperationLabels, OutcomeLabels, REDIS_ERROR_KINDS, RuleLabels,
    STORE_ERROR_KINDS,
};
use super::metrics::Metrics;
use super::rule_counters::{CountedOutcome, CountedRule, Label};
use super::rule_metrics::RuleMetrics;
use super::sharded::ShardedHistogram;
use super::stats::StatsKey;
use super::top_keys::RuleTopKeys;

impl Observer for Metrics {
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        Arc::new(self.counters(rule, rule.name, Label::Named))
    }

    fn other_rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        Arc::new(self.counters(rule, OTHER_RULES, Label::Other))
    }

    fn project_rule(&self, project: &str, rule: RuleInfo<'_>) -> Option<Arc<dyn RuleObserver>> {
        let key = StatsKey::of_rule(project, rule.name);
        let top_keys = self.top_keys.as_ref().map(|top_keys| top_keys.rule(&key));
        let counted = self.by_rule.table.rule(key, rule.algorithm, Label::Hidden);
        Some(Arc::new(ProjectRuleCounters { counted, top_keys }))
    }

    fn project(&self, project: &str) -> Arc<dyn ProjectObserver> {
        self.by_project.observer(project)
    }

    fn forget_project(&self, project: &str) {
        self.by_project.forget(project);
        self.thresholds.forget(project);
    }

    /// Removes the series of a rule that a reload has removed, or that now counts as `other`.
    fn forget_rule(&self, name: &str, algorithm: Algorithm) {
        self.by_rule.forget(name, algorithm);
    }

    fn request(&self, event: RequestEvent<'_>) {
        let unmatched = |outcome| {
            let labels = OutcomeLabels { outcome, reason: "rule" };
            self.unmatched.get_or_create(&labels).inc()
        };
        match event {
            RequestEvent::UnmatchedAllowed => unmatched("allowed"),
            RequestEvent::UnmatchedDenied => unmatched("denied"),
            RequestEvent::DenyCacheHit => self.deny_cache_hits.inc(),
            RequestEvent::Shed => self.shed.inc(),
            RequestEvent::Expired => self.expired.inc(),
            RequestEvent::Replayed => self.replays.inc(),
            RequestEvent::CostIgnored => self.costs_ignored.inc(),
            RequestEvent::RefundFailed => self.refund_errors.inc(),
            RequestEvent::LimitIgnored { rule } => {
                let labels = RuleLabels { rule: rule.to_owned() };
                self.by_rule.limits_ignored.get_or_create(&labels).inc()
            }
            RequestEvent::Degraded { rule, policy, kind } => {
                self.by_rule.count_degraded(rule, policy, kind)
            }
        };
    }

    fn reached(&self, reached: Reached) {
        self.thresholds.reached(reached);
    }

    fn store(&self, event: StoreEvent) {
        match event {
            StoreEvent::Called { operation, took } => {
                let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                self.store_histogram(operation).observe(nanos);
            }
            StoreEvent::Failed { kind } => {
                self.store_errors.get_or_create(&KindLabels { kind }).inc();
            }
            StoreEvent::Ambiguous => _ = self.ambiguous.inc(),
            StoreEvent::Breakers(state) => {
                self.breaker_state.set(match state {
                    BreakerState::Closed => 0,
                    BreakerState::HalfOpen => 1,
                    BreakerState::Open => 2,
                });
            }
            StoreEvent::MayEvict(may_evict) => _ = self.redis_may_evict.set(may_evict.into()),
            StoreEvent::ClockJumped => _ = self.redis_clock_jumps.inc(),
            StoreEvent::KeyInserted => _ = self.memory_keys.inc(),
            StoreEvent::KeyRemoved => _ = self.memory_keys.dec(),
            StoreEvent::RequestIdEvicted => _ = self.request_id_evictions.inc(),
            StoreEvent::HoldDenied => _ = self.hold_denials.inc(),
            StoreEvent::SettlementEvicted => _ = self.settlement_evictions.inc(),
            StoreEvent::KeyEvicted => _ = self.memory_evictions.inc(),
            StoreEvent::JournalFailing(is_failing) => {
                self.journal_failing.set(is_failing.into());
            }
            StoreEvent::JournalLen(len) => {
                self.journal_size.set(i64::try_from(len).unwrap_or(i64::MAX));
            }
            StoreEvent::SnapshotFailing(is_failing) => {
                self.snapshot_failing.set(is_failing.into());
            }
            StoreEvent::SnapshotWritten(began) => {
                let seconds = began.as_micros() / 1_000_000;
                self.snapshot_time.set(i64::try_from(seconds).unwrap_or(i64::MAX));
            }
        }
    }
}

impl Metrics {
    fn counters(&self, rule: RuleInfo<'_>, name: &str, label: Label) -> RuleCounters {
        let key = StatsKey::of_rule("", rule.name);
        let top_keys = self.top_keys.as_ref().map(|top_keys| top_keys.rule(&key));
        RuleCounters {
            name: name.into(),
            counted: self.by_rule.table.rule(key, rule.algorithm, label),
            mode: rule.mode,
            policies: [false, true].map(|is_breaker_open| rule.policy(is_breaker_open)),
            has_near_limit: rule.near_limit.is_some(),
            top_keys,
            metrics: Arc::clone(&self.by_rule),
        }
    }

    /// Returns the histogram of a store operation, and creates it on first use.
    pub(super) fn store_histogram(&self, operation: Operation) -> &ShardedHistogram {
        let (position, operation) = match operation {
            Operation::Check => (0, "check"),
            Operation::Refund => (1, "give_back"),
        };
        let labels = OperationLabels { operation };
        self.store_histograms[position]
            .get_or_init(|| self.store_duration.get_or_create_owned(&labels))
    }
}

/// The counters of one rule.
#[derive(Debug)]
struct RuleCounters {
    name: Box<str>,
    counted: Arc<CountedRule>,
    mode: Mode,
    policies: [OnStoreFailure; 2],
    has_near_limit: bool,
    top_keys: Option<RuleTopKeys>,
    metrics: Arc<RuleMetrics>,
}

impl RuleObserver for RuleCounters {
    /// Creates the series that the mode and the policies of the rule make possible, at 0.
    fn declared(&self, declared: Declared) {
        if declared.position >= MAX_NAMED_RULES {
            return;
        }
        let (allowed, denied) = (CountedOutcome::Allowed, CountedOutcome::denied(self.mode));
        let counted = &self.counted;
        counted.declare(allowed, Source::Store);
        counted.declare(denied, Source::Store);
        if self.has_near_limit {
            counted.declare(CountedOutcome::NearLimit, Source::Store);
        }
        if declared.has_deny_cache && self.mode == Mode::Enforced {
            counted.declare(denied, Source::DenyCache);
        }
        for policy in self.policies {
            match policy {
                OnStoreFailure::Error => continue,
                OnStoreFailure::Allow => {
                    let labels = RuleLabels { rule: self.name.to_string() };
                    drop(self.metrics.fail_open.get_or_create(&labels));
                    counted.declare(allowed, Source::FailOpen);
                }
                OnStoreFailure::Deny => counted.declare(denied, Source::FailClosed),
                OnStoreFailure::Local(_) => {
                    counted.declare(allowed, Source::LocalFallback);
                    if self.has_near_limit {
                        counted.declare(CountedOutcome::NearLimit, Source::LocalFallback);
                    }
                    counted.declare(denied, Source::LocalFallback);
                }
            }
            for kind in STORE_ERROR_KINDS.iter().chain(&REDIS_ERROR_KINDS) {
                let (rule, policy) = (self.name.to_string(), policy.name());
                let labels = DegradedLabels { rule, policy, kind };
                drop(self.metrics.degraded.get_or_create(&labels));
            }
        }
    }

    fn decided(&self, decided: Decided<'_>) {
        count(&self.counted, self.top_keys.as_ref(), &decided);
    }

    fn not_asked(&self) {
        self.counted.count_not_asked();
    }

    fn charged(&self, key: &Key, units: u64) {
        count_charge(&self.counted, self.top_keys.as_ref(), key, units);
    }

    fn uncounted(&self, units: u64) {
        let labels = RuleLabels { rule: self.name.to_string() };
        self.metrics.uncounted.get_or_create(&labels).inc_by(units);
    }
}

/// The counters of a rule of a project, which has no metrics.
#[derive(Debug)]
struct ProjectRuleCounters {
    counted: Arc<CountedRule>,
    top_keys: Option<RuleTopKeys>,
}

impl RuleObserver for ProjectRuleCounters {
    fn decided(&self, decided: Decided<'_>) {
        count(&self.counted, self.top_keys.as_ref(), &decided);
    }

    fn not_asked(&self) {
        self.counted.count_not_asked();
    }

    fn charged(&self, key: &Key, units: u64) {
        count_charge(&self.counted, self.top_keys.as_ref(), key, units);
    }
}

#[inline]
fn count(counted: &CountedRule, top_keys: Option<&RuleTopKeys>, decided: &Decided<'_>) {
    let Decided { decision, mode, source, is_near_limit, taken, requested, .. } = *decided;
    let outcome = if decision.is_allowed() {
        CountedOutcome::allowed(is_near_limit)
    } else {
        CountedOutcome::denied(mode)
    };
    counted.count(outcome, source, taken);
    counted.count_requested(requested);
    if let Some(top_keys) = top_keys {
        top_keys.record(decided);
    }
}

fn count_charge(counted: &CountedRule, top_keys: Option<&RuleTopKeys>, key: &Key, units: u64) {
    counted.count_units(units);
    if let Some(top_keys) = top_keys {
        top_keys.record_charge(key, units);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rlaas_core::rules::Share;
    use rlaas_limiter::store::StoreError;

    use super::super::labels::{POLICIES, SOURCES};
    use super::*;

    #[test]
    fn labels_list_every_source_and_policy() {
        let sources = [
            Source::Store,
            Source::DenyCache,
            Source::FailOpen,
            Source::FailClosed,
            Source::LocalFallback,
        ];
        assert_eq!(sources.map(Source::name), SOURCES);
        let share = Share::new(Share::WHOLE).expect("a share");
        let policies = [
            OnStoreFailure::Error,
            OnStoreFailure::Allow,
            OnStoreFailure::Deny,
            OnStoreFailure::Local(share),
        ];
        assert_eq!(policies.map(OnStoreFailure::name), POLICIES);
    }

    #[test]
    fn labels_list_every_kind_of_failure() {
        let failures = [
            StoreError::Unreachable,
            StoreError::BreakerOpen,
            StoreError::Overloaded,
            StoreError::Expired,
            StoreError::Timeout(Duration::ZERO),
            StoreError::Lost,
            StoreError::Garbled,
            StoreError::WindowMissed,
        ];
        assert_eq!(failures.map(|failure| failure.kind()), STORE_ERROR_KINDS);
        for code in ["LOADING", "MOVED", "WRONGPASS", "NOPERM", "CLUSTERDOWN", "ERR", "x"] {
            let refused = StoreError::Refused { code: code.to_owned(), text: String::new() };
            assert!(REDIS_ERROR_KINDS.contains(&refused.kind()), "{code}");
        }
    }
}
