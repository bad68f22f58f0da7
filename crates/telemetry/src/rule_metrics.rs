//! Metrics of each rule: its decisions, and what a failure of the store or a ceiling does to it.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use rlaas_core::algorithm::Algorithm;
use rlaas_core::rules::OnStoreFailure;

use super::labels::{DegradedLabels, POLICIES, REDIS_ERROR_KINDS, RuleLabels, STORE_ERROR_KINDS};
use super::rule_counters::RuleTable;

/// Metrics of each rule.
#[derive(Debug)]
pub(super) struct RuleMetrics {
    /// Decisions of each rule.
    pub(super) table: RuleTable,
    /// Requests that were allowed because of a store failure, by rule.
    pub(super) fail_open: Family<RuleLabels, Counter>,
    /// Units of reports that a ceiling of the debt left uncounted, by rule.
    pub(super) uncounted: Family<RuleLabels, Counter>,
    /// Decisions for which the own limit of a request could not count, by rule.
    pub(super) limits_ignored: Family<RuleLabels, Counter>,
    /// Decisions by policy because of a store failure, by rule, policy and kind of failure.
    pub(super) degraded: Family<DegradedLabels, Counter>,
}

impl RuleMetrics {
    pub(super) fn count_degraded(
        &self,
        rule: &str,
        policy: OnStoreFailure,
        kind: &'static str,
    ) -> u64 {
        let rule = rule.to_owned();
        if policy == OnStoreFailure::Allow {
            self.fail_open.get_or_create(&RuleLabels { rule: rule.clone() }).inc();
        }
        let labels = DegradedLabels { rule, policy: policy.name(), kind };
        self.degraded.get_or_create(&labels).inc()
    }

    pub(super) fn forget(&self, name: &str, algorithm: Algorithm) {
        self.table.forget(name, algorithm);
        let rule = || name.to_owned();
        self.fail_open.remove(&RuleLabels { rule: rule() });
        self.uncounted.remove(&RuleLabels { rule: rule() });
        self.limits_ignored.remove(&RuleLabels { rule: rule() });
        for (policy, kind) in
            pairs(&POLICIES, &STORE_ERROR_KINDS).chain(pairs(&POLICIES, &REDIS_ERROR_KINDS))
        {
            self.degraded.remove(&DegradedLabels { rule: rule(), policy, kind });
        }
    }
}

fn pairs(
    ones: &[&'static str],
    others: &[&'static str],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    ones.iter().flat_map(|left| others.iter().map(move |right| (*left, *right)))
}
